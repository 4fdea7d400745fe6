"""Tests read-process-write: each input is in the output exactly once, even if processes are killed at any moment."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from penstock.testing import Broker
from tools import kafka

PARTITIONS = 4
RECORDS = 3000
LIMIT_S = 120.0
QUIET = {"log_level": 0}
HERE = Path(__file__).parent


class Worker:
    """Runs a worker process, and restarts it whenever it has ended."""

    def __init__(self, program: list[str], bootstrap: str, instance: str) -> None:
        self._command = [*program, bootstrap, "source", "sink", "group", instance]
        self._process: subprocess.Popen[str] | None = None

    def keep_running(self) -> None:
        if self._process is None or self._process.poll() is not None:
            self._process = subprocess.Popen(
                self._command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, text=True
            )

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def fill(bootstrap: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5, **QUIET})
    for number in range(RECORDS):
        producer.produce("source", b"%d" % number, partition=number % PARTITIONS)
    assert producer.flush(LIMIT_S) == 0


class Output:
    """Reads the output topic with read_committed, and keeps the values."""

    def __init__(self, bootstrap: str) -> None:
        self.values: list[int] = []
        self._consumer = Consumer(
            {"bootstrap.servers": bootstrap, "group.id": "check", "reconnect.backoff.max.ms": 200, **QUIET}
        )
        self._consumer.assign([TopicPartition("sink", index, 0) for index in range(PARTITIONS)])

    def read_for(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            for message in self._consumer.consume(500, timeout=min(left, 0.1)):
                error = message.error()
                if error is None:
                    self.values.append(int(message.value() or b""))
                else:
                    assert error.code() in (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN)

    def close(self) -> None:
        self._consumer.close()


def python_worker() -> list[str]:
    """Returns the command of a librdkafka worker, which itself adds partitions and offsets to its transactions."""
    return [sys.executable, str(HERE / "exactly_once_worker.py")]


def java_worker() -> list[str]:
    """Returns the command of a Java worker. It uses transaction version 2: the broker adds partitions, and every
    transaction has its own epoch."""
    return kafka.tool_command(str(HERE / "ExactlyOnceWorker.java"))


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["workers", "broker", "both"])
def test_librdkafka_processes_each_record_exactly_once_while_processes_are_killed(tmp_path: Path, victim: str) -> None:
    run(tmp_path, python_worker(), victim, kills=8, longest_s=1.5)


@pytest.mark.slow
@pytest.mark.java
@pytest.mark.parametrize("victim", ["workers", "broker"])
def test_java_client_processes_each_record_exactly_once_while_processes_are_killed(
    tmp_path: Path, victim: str, kafka_jars: None
) -> None:
    run(tmp_path, java_worker(), victim, kills=4, longest_s=6.0)


def run(tmp_path: Path, program: list[str], victim: str, *, kills: int, longest_s: float) -> None:
    source = random.Random(victim)
    with Broker(data=tmp_path / "data", topics={"source": PARTITIONS, "sink": PARTITIONS}) as broker:
        fill(broker.bootstrap)
        workers = [Worker(program, broker.bootstrap, f"w{index}") for index in range(2)]
        output = Output(broker.bootstrap)

        def kill_broker() -> None:
            broker.kill()
            broker.start()

        killers: dict[str, list[Callable[[], None]]] = {
            "workers": [worker.kill for worker in workers],
            "broker": [kill_broker],
            "both": [kill_broker, *(worker.kill for worker in workers)],
        }
        try:
            for _ in range(kills):
                for worker in workers:
                    worker.keep_running()
                output.read_for(source.uniform(0.3, longest_s))
                source.choice(killers[victim])()
            deadline = time.monotonic() + LIMIT_S
            while len(set(output.values)) < RECORDS and time.monotonic() < deadline:
                for worker in workers:
                    worker.keep_running()
                output.read_for(0.5)
            output.read_for(0.5)  # a duplicate would arrive now
        finally:
            for worker in workers:
                worker.kill()
            output.close()
    assert sorted(output.values) == list(range(RECORDS))
