"""Kafka Streams with exactly-once: an application with state, killed in the middle, counts every record once."""

from __future__ import annotations

import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from penstock.testing import Broker
from tools import kafka
from tools.java_tests import require_jars

PARTITIONS, KEYS, RECORDS = 4, 17, 3000
LIMIT_S = 120.0
#: Streams groups that notice a killed member, and their new internal topics, within seconds.
QUICK = {
    "group.streams.min.heartbeat.interval.ms": "300",
    "group.streams.heartbeat.interval.ms": "300",
    "group.streams.min.session.timeout.ms": "3000",
    "group.streams.session.timeout.ms": "3000",
    "group.streams.initial.rebalance.delay.ms": "500",
}


@pytest.fixture(scope="session")
def streams_jars() -> None:
    require_jars(kafka.install_streams)


@contextmanager
def application(bootstrap: str, home: Path, protocol: str) -> Iterator[subprocess.Popen[bytes]]:
    told = (bootstrap, "source", "sink", "counter", str(home / "state"), protocol)
    command = kafka.streams_command(str(Path(__file__).parent / "StreamsCount.java"), *told)
    with (home / "streams.log").open("ab") as log:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


class Output:
    """The records that a read_committed consumer has read."""

    def __init__(self, bootstrap: str) -> None:
        self.values: list[str] = []
        settings = {"bootstrap.servers": bootstrap, "group.id": "check", "isolation.level": "read_committed"}
        self._consumer = Consumer(settings)
        self._consumer.assign([TopicPartition("sink", index, 0) for index in range(PARTITIONS)])

    def read_until(self, count: int, application: subprocess.Popen[bytes], log: Path) -> None:
        deadline = time.monotonic() + LIMIT_S
        while len(self.values) < count:
            assert application.poll() is None, log.read_text()[-3000:]
            assert time.monotonic() < deadline, f"{len(self.values)} of {count} came: {log.read_text()[-3000:]}"
            self.read_for(0.2)

    def read_for(self, seconds: float) -> None:
        for message in self._consumer.consume(500, timeout=seconds):
            assert message.error() is None, message.error()
            self.values.append((message.value() or b"").decode())

    def close(self) -> None:
        self._consumer.close()


@pytest.mark.slow
@pytest.mark.java
@pytest.mark.timeout(240)
@pytest.mark.parametrize("protocol", ["classic", "streams"])
def test_streams_application_counts_every_record_once_although_it_is_killed(
    tmp_path: Path, streams_jars: None, protocol: str
) -> None:
    topics = {"source": PARTITIONS, "sink": PARTITIONS}
    with Broker(data=tmp_path / "data", topics=topics, config=QUICK) as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": True, "linger.ms": 5})
        for number in range(RECORDS):
            producer.produce("source", key=f"k{number % KEYS}", value=str(number))
        assert producer.flush(LIMIT_S) == 0
        output, log = Output(broker.bootstrap), tmp_path / "streams.log"
        try:
            with application(broker.bootstrap, tmp_path, protocol) as first:
                output.read_until(RECORDS // 10, first, log)
            assert len(output.values) < RECORDS, "it was done before it was killed"
            with application(broker.bootstrap, tmp_path, protocol) as second:
                output.read_until(RECORDS, second, log)
                output.read_for(1.0)  # a duplicate would arrive now
        finally:
            output.close()
    keys = Counter(f"k{number % KEYS}" for number in range(RECORDS))
    assert sorted(output.values) == sorted(
        f"{key} {count + 1}" for key, total in keys.items() for count in range(total)
    )
