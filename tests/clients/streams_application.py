"""Runs `StreamsCount.java`, a Kafka Streams application, and reads its output."""

from __future__ import annotations

import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition

from tools import kafka

PARTITIONS, KEYS = 4, 17
TOPICS = {"source": PARTITIONS, "sink": PARTITIONS}
GROUP = "counter"
LIMIT_S = 120.0
#: Streams groups that notice a killed member, and their new internal topics, within seconds.
QUICK = {
    "group.streams.min.heartbeat.interval.ms": "300",
    "group.streams.heartbeat.interval.ms": "300",
    "group.streams.min.session.timeout.ms": "3000",
    "group.streams.session.timeout.ms": "3000",
    "group.streams.initial.rebalance.delay.ms": "500",
}


class Application:
    """Represents a running instance of the application, with its process and its log file."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self.log = log

    def said(self) -> str:
        return self.log.read_text()[-3000:]

    def stop(self) -> None:
        """Ends the input of the instance, which then leaves its group and exits."""
        self.process.communicate(timeout=LIMIT_S)

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


@contextmanager
def application(bootstrap: str, home: Path, protocol: str) -> Iterator[Application]:
    home.mkdir(exist_ok=True)
    told = (bootstrap, "source", "sink", GROUP, str(home / "state"), protocol)
    command = kafka.streams_command(str(Path(__file__).parent / "StreamsCount.java"), *told)
    with (home / "streams.log").open("ab") as log:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log)
    running = Application(process, home / "streams.log")
    try:
        yield running
    finally:
        running.kill()


class Output:
    """Reads the application's output topic with read_committed, and keeps the values."""

    def __init__(self, bootstrap: str) -> None:
        self.values: list[str] = []
        settings = {"bootstrap.servers": bootstrap, "group.id": "check", "isolation.level": "read_committed"}
        self._consumer = Consumer(settings)
        self._consumer.assign([TopicPartition("sink", index, 0) for index in range(PARTITIONS)])

    def read_until(self, count: int, *running: Application) -> None:
        deadline = time.monotonic() + LIMIT_S
        while len(self.values) < count:
            for each in running:
                assert each.process.poll() is None, each.said()
            assert time.monotonic() < deadline, f"{len(self.values)} of {count} came: {running[0].said()}"
            self.read_for(0.2)

    def read_for(self, seconds: float) -> None:
        for message in self._consumer.consume(500, timeout=seconds):
            assert message.error() is None, message.error()
            self.values.append((message.value() or b"").decode())

    def close(self) -> None:
        self._consumer.close()


def produce(bootstrap: str, count: int, first: int = 0) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5})
    for number in range(first, first + count):
        producer.produce("source", key=f"k{number % KEYS}", value=str(number))
    assert producer.flush(LIMIT_S) == 0


def counts(records: int) -> list[str]:
    """Returns the values that the application writes if it counts every record exactly once."""
    keys = Counter(f"k{number % KEYS}" for number in range(records))
    return sorted(f"{key} {count + 1}" for key, total in keys.items() for count in range(total))
