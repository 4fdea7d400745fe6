"""Real disks that fill up: a real process writes to a small tmpfs, and no acknowledged record is lost.

Mounting needs root: the tests are skipped if it is not allowed.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.cli.exit import Exit
from penstock.client.cluster_admin import ClusterAdmin
from penstock.client.connection import ConnectionSettings
from penstock.client.producer import ProducerSettings
from penstock.client.sync import Client
from penstock.protocol.errors import KafkaError

pytestmark = [pytest.mark.programs, pytest.mark.slow]

MIB = 1 << 20
SMALL_MIB, LARGE_MIB = 32, 64
VALUE = bytes(100_000)
#: More records than fit on the small disk.
TOO_MANY = SMALL_MIB * MIB // len(VALUE) + 10
#: A producer that tells soon that it can't write; it repeats nothing, so that each record is written at most once.
IMPATIENT = ProducerSettings(idempotent=False, delivery_timeout_s=3.0, linger_s=0.0)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mounts a tmpfs, and unmounts it at the end."""
    where = tmp_path / "small"
    where.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={SMALL_MIB}m", "tmpfs", str(where)], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"a tmpfs can't be mounted here: {mounted.stderr.strip()}")
    yield where
    subprocess.run(["umount", "--lazy", str(where)], check=True)


def enlarge(disk: Path) -> None:
    subprocess.run(["mount", "-o", f"remount,size={LARGE_MIB}m", str(disk)], check=True)


class Process:
    """`penstock up` with log directories of the test."""

    def __init__(self, tmp_path: Path, log_dirs: str, min_free: int) -> None:
        overrides = {
            "log.dirs": log_dirs,
            "metadata.log.dir": str(tmp_path / "meta"),
            "penstock.log.dirs.min.free.bytes": str(min_free),
            "log.segment.bytes": str(MIB),
            "log.segment.delete.delay.ms": "0",
            "log.initial.task.delay.ms": "100",
            "log.retention.check.interval.ms": "100",
        }
        words = ["up", "--port", "0", "--no-http", "--data", str(tmp_path / "data")]
        for name, value in overrides.items():
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
def running(tmp_path: Path, log_dirs: str, min_free: int = 0) -> Iterator[Process]:
    process = Process(tmp_path, log_dirs, min_free)
    try:
        yield process
    finally:
        if process.process.poll() is None:
            process.process.send_signal(signal.SIGKILL)
            process.process.communicate()


def fill(client: Client, topic: str, first: int = 0, most: int = TOO_MANY) -> tuple[list[int], KafkaError | None]:
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


def test_full_disk_refuses_new_records_and_loses_no_acknowledged_record(tmp_path: Path, small_disk: Path) -> None:
    limit = 8 * MIB
    with running(tmp_path, str(small_disk / "logs"), limit) as node:
        with node.client() as client:
            client.create_topic("t", 1)
            acknowledged, refusal = fill(client, "t")
            assert refusal is not None
            assert len(acknowledged) * len(VALUE) > (SMALL_MIB * MIB - limit) * 0.8
            assert read(client, "t") == acknowledged
            assert node.process.poll() is None

            # Deleting frees space: the node takes records again, without a restart.
            kept = len(acknowledged) // 2
            client.delete_records({("t", 0): kept})
            again: list[int] = []
            for _ in range(20):
                again, refusal = fill(client, "t", first=len(acknowledged), most=5)
                if refusal is None:
                    break
            assert again == list(range(len(acknowledged), len(acknowledged) + 5))
        node.process.send_signal(signal.SIGKILL)
        _, said = node.end()
        assert f"Log directory {small_disk}/logs is nearly full" in said
        assert "is offline" not in said
    with running(tmp_path, str(small_disk / "logs"), limit) as node, node.client() as client:
        assert [each for each in read(client, "t") if each >= kept] == [*acknowledged[kept:], *again]


def test_a_node_whose_only_disk_is_full_stops_and_has_all_records_after_the_repair(
    tmp_path: Path, small_disk: Path
) -> None:
    with running(tmp_path, str(small_disk / "logs")) as node:
        with node.client() as client:
            client.create_topic("t", 1)
            acknowledged, refusal = fill(client, "t")
            assert refusal is not None
        code, said = node.end()
        assert code == Exit.STORAGE
        assert "This node can't go on without all its log directories" in said
        assert "No space left on device" in said
    enlarge(small_disk)
    with running(tmp_path, str(small_disk / "logs")) as node, node.client() as client:
        assert read(client, "t")[: len(acknowledged)] == acknowledged
        more, refusal = fill(client, "t", first=len(acknowledged) + 1, most=5)
        assert refusal is None
        assert read(client, "t")[-5:] == more


def test_a_disk_that_fails_takes_only_its_own_replicas_offline(tmp_path: Path, small_disk: Path) -> None:
    small, large = str(small_disk / "logs"), str(tmp_path / "large")
    with running(tmp_path, f"{large},{small}") as node:
        with node.client() as client:
            client.create_topic("a", 1)
            client.create_topic("b", 1)
            held = client.run(ClusterAdmin(client.asynchronous).holdings(1)).replicas
            on_small = next(name for name in "ab" if held[name, 0].directory == small)
            on_large = next(name for name in "ab" if held[name, 0].directory == large)
            acknowledged, refusal = fill(client, on_small)
            assert refusal is not None
            others, refusal = fill(client, on_large, most=20)
            assert refusal is None
            assert node.process.poll() is None
        node.process.send_signal(signal.SIGTERM)
        node.end()
    enlarge(small_disk)
    with running(tmp_path, f"{large},{small}") as node, node.client() as client:
        assert read(client, on_small)[: len(acknowledged)] == acknowledged
        assert read(client, on_large) == others
