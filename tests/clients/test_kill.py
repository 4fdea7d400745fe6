"""Kills a broker under load many times (kill -9). No acknowledged record may be lost or duplicated, and offsets have no
gaps."""

from __future__ import annotations

import random
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

PARTITIONS = 3
QUIET = {"log_level": 2}


class BrokerProcess:
    def __init__(self, data: Path) -> None:
        self.data = data
        self.port = 0
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> str:
        command = [sys.executable, "-m", "penstock.cli.main", "up", "--port", str(self.port), "--data", str(self.data)]
        with (self.data.parent / "broker.log").open(
            "a"
        ) as log:  # not a pipe, because no process reads it while the broker runs
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        assert self.process.stdout is not None
        line = ""
        for line in self.process.stdout:
            if found := re.match(r"ready \S+:(\d+)", line):
                self.port = int(found[1])
                return f"127.0.0.1:{self.port}"
        raise AssertionError(f"the broker did not start: {line}")

    def kill(self, number: int = signal.SIGKILL) -> None:
        assert self.process is not None
        self.process.send_signal(number)
        self.process.communicate(timeout=120)


class Load:
    """Runs an idempotent producer that never stops, and keeps its acknowledgements."""

    def __init__(self, bootstrap: str) -> None:
        self.producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 1,
                "message.timeout.ms": 60_000,
                "reconnect.backoff.max.ms": 200,
                **QUIET,
            }
        )
        self.acknowledged: dict[int, tuple[int, int]] = {}
        self.failed: list[str] = []
        self.sent = 0
        self.enough = threading.Event()
        self.progress = threading.Condition()
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        while not self.enough.is_set():
            number = self.sent
            try:
                self.producer.produce(
                    "load", value=b"%d" % number, partition=number % PARTITIONS, on_delivery=self._delivered(number)
                )
            except BufferError:
                self.producer.poll(0.05)
                continue
            self.sent += 1
            self.producer.poll(0.002 if number % 50 == 0 else 0)
        self.producer.flush(60)

    def _delivered(self, number: int):  # type: ignore[no-untyped-def]
        def told(error: object, message: Message) -> None:
            if error is not None:
                self.failed.append(str(error))
                return
            partition, offset = message.partition(), message.offset()
            assert partition is not None
            assert offset is not None
            with self.progress:
                self.acknowledged[number] = (partition, offset)
                self.progress.notify_all()

        return told

    def wait_for(self, more: int) -> None:
        goal = len(self.acknowledged) + more
        with self.progress:
            assert self.progress.wait_for(lambda: len(self.acknowledged) >= goal or self.failed, timeout=120)

    def stop(self) -> None:
        self.enough.set()
        self.thread.join()


def read_all(bootstrap: str) -> dict[int, list[tuple[int, int]]]:
    """Returns (offset, number) of every record, grouped by partition."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reader", "enable.partition.eof": True, **QUIET})
    consumer.assign([TopicPartition("load", index, 0) for index in range(PARTITIONS)])
    found: dict[int, list[tuple[int, int]]] = {index: [] for index in range(PARTITIONS)}
    ended = 0
    while ended < PARTITIONS:
        for message in consumer.consume(1_000, timeout=0.5):
            if message.error() is not None:
                ended += 1
                continue
            partition, offset, value = message.partition(), message.offset(), message.value()
            assert partition is not None
            assert offset is not None
            assert value is not None
            found[partition].append((offset, int(value)))
    consumer.close()
    return found


@pytest.mark.parametrize("rounds", [3, pytest.param(40, marks=[pytest.mark.slow, pytest.mark.timeout(600)])])
def test_acknowledged_records_survive_when_a_broker_is_killed_repeatedly_under_load(
    tmp_path: Path, rounds: int
) -> None:
    broker = BrokerProcess(tmp_path / "data")
    bootstrap = broker.start()
    admin = AdminClient({"bootstrap.servers": bootstrap, **QUIET})
    topic = NewTopic("load", PARTITIONS, 1, config={"segment.bytes": "1048576"})
    admin.create_topics([topic])["load"].result(timeout=120)
    load = Load(bootstrap)
    choose = random.Random(rounds)
    try:
        for _ in range(rounds):
            load.wait_for(choose.randrange(200, 4_000))
            broker.kill(choose.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGTERM)))
            broker.start()
        load.wait_for(100)
    except KafkaException as error:
        pytest.fail(str(error))
    finally:
        load.stop()
    assert load.failed == []
    found = read_all(bootstrap)
    broker.kill(signal.SIGTERM)
    for partition, records in found.items():
        assert [offset for offset, _ in records] == list(range(len(records))), f"a gap in partition {partition}"
        numbers = [number for _, number in records]
        assert numbers == sorted(set(numbers)), f"a duplicate or a swap in partition {partition}"
    stored = {number: (index, offset) for index, records in found.items() for offset, number in records}
    lost = {number for number, where in load.acknowledged.items() if stored.get(number) != where}
    assert lost == set()
    assert len(load.acknowledged) == load.sent
