"""Runs a real node with log directories of the test, writes numbered records to it and reads them back."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from penstock.client.connection import ConnectionSettings
from penstock.client.producer import ProducerSettings
from penstock.client.sync import Client
from penstock.protocol.errors import KafkaError

MIB = 1 << 20
VALUE = bytes(100_000)
#: A producer that tells soon that it can't write; it repeats nothing, so that each record is written at most once.
IMPATIENT = ProducerSettings(idempotent=False, delivery_timeout_s=3.0, linger_s=0.0)


class Process:
    """Runs `penstock up` with log directories of the test."""

    def __init__(self, tmp_path: Path, log_dirs: str, overrides: Mapping[str, str]) -> None:
        every = {
            "log.dirs": log_dirs,
            "metadata.log.dir": str(tmp_path / "meta"),
            "log.segment.bytes": str(MIB),
            "log.segment.delete.delay.ms": "0",
            "log.initial.task.delay.ms": "100",
            "log.retention.check.interval.ms": "100",
            **overrides,
        }
        words = ["up", "--port", "0", "--no-http", "--data", str(tmp_path / "data")]
        for name, value in every.items():
            words += ["--override", f"{name}={value}"]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "penstock.cli.main", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        ready = re.match(r"ready (\S+) ", self.process.stdout.readline())
        assert ready is not None, self.process.communicate()[1]
        self.bootstrap = ready[1]

    def client(self) -> Client:
        return Client(self.bootstrap, settings=ConnectionSettings(request_timeout_s=5.0))

    def end(self) -> tuple[int, str]:
        """Waits for the end of the process. Returns its exit code and its stderr output."""
        _, said = self.process.communicate(timeout=60)
        return self.process.returncode, said


@contextmanager
def running(tmp_path: Path, log_dirs: str, **overrides: str) -> Iterator[Process]:
    """Runs a node while the `with` block runs. `overrides` are server properties, with underscores instead of dots."""
    process = Process(tmp_path, log_dirs, {name.replace("_", "."): value for name, value in overrides.items()})
    try:
        yield process
    finally:
        if process.process.poll() is None:
            process.process.send_signal(signal.SIGKILL)
            process.process.communicate()


def fill(client: Client, topic: str, first: int = 0, *, most: int) -> tuple[list[int], KafkaError | None]:
    """Writes numbered records until a record is refused. Returns the acknowledged numbers, and the error."""
    acknowledged: list[int] = []
    producer = client.producer(IMPATIENT)
    try:
        for number in range(first, first + most):
            producer.send(topic, b"%08d" % number + VALUE, partition=0).result()
            acknowledged.append(number)
    except KafkaError as refusal:
        return acknowledged, refusal
    finally:
        producer.close()
    return acknowledged, None


def read(client: Client, topic: str) -> list[int]:
    """Returns the numbers of all records in the topic, from its log start on."""
    found: list[int] = []
    start = client.list_offsets({(topic, 0): -2})[topic, 0].offset
    end = client.list_offsets({(topic, 0): -1})[topic, 0].offset
    with client.consumer() as consumer:
        consumer.assign({(topic, 0): start})
        while consumer.position((topic, 0)) < end:
            for fetched in consumer.poll(5.0):
                found += [int(bytes(record.value or b"")[:8]) for record in fetched.records()]
    return found
