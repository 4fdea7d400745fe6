"""Tests stock clients with a simulated cluster over real sockets. A seed determines the faults, but not the timing of
the clients."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.testing import SimBridge
from tools import kafka
from tools.acknowledged_load import QUIET, WRITERS, Book, Load, Writing, forget_leftovers, judge

pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
PARTITIONS = 3
FAULTS_S = 8.0
#: Limits that only end a hanging test.
LIMIT_S = 120.0


@pytest.fixture(autouse=True)
def leftovers() -> Iterator[None]:
    yield
    forget_leftovers()


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("client", "seed", "profile"),
    [
        ("confluent", 3, "crash"),
        *(
            pytest.param(*each, marks=pytest.mark.slow)
            for each in (("confluent", 4, "network"), ("kafka-python", 3, "crash"), ("aiokafka", 5, "crash"))
        ),
    ],
)
def test_stock_client_loses_no_record_that_a_simulated_cluster_acknowledged(
    client: str, seed: int, profile: str
) -> None:
    write_through_faults(WRITERS[client], seed, profile)


def write_through_faults(writing: Writing, seed: int, profile: str) -> Book:
    """Writes during the faults of the seed and for a while afterwards. Then checks the topic against the
    acknowledgements."""
    with SimBridge(seed, profile, nodes=3, seconds=FAULTS_S) as cluster:
        book = Book("simulated", PARTITIONS)
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, **QUIET})
        admin.create_topics([NewTopic(book.topic, PARTITIONS)], request_timeout=LIMIT_S)[book.topic].result(LIMIT_S)
        load = Load(cluster.bootstrap_servers, book, writing)
        try:
            assert cluster.wait_until_healed(LIMIT_S)
            book.wait_for(100)
        finally:
            load.stop()
        judge(cluster.bootstrap_servers, book)
        assert cluster.violations == []
        assert any(each in line for line in cluster.story for each in ("fault", "is killed", "is paused"))
        return book


class JavaClient:
    """Runs SimulatedClusterClient.java, and keeps the acknowledgements of its producer and the records that its
    consumer read."""

    def __init__(self) -> None:
        #: (partition, offset) → numbers of the records that the consumer got there.
        self.read: dict[tuple[int, int], set[int]] = {}

    def write(self, bootstrap: str, book: Book, enough: threading.Event) -> None:
        source = Path(__file__).parent / "SimulatedClusterClient.java"
        command = kafka.tool_command(str(source), bootstrap, book.topic, str(book.partitions))
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            stdin = process.stdin
            stopper = threading.Thread(target=lambda: (enough.wait(), stdin.close()), daemon=True)
            stopper.start()
            for line in process.stdout:
                self._note(book, *line.split(maxsplit=2))

    def _note(self, book: Book, kind: str, first: str, rest: str) -> None:
        if kind == "read":
            offset, number = map(int, rest.split())
            self.read.setdefault((int(first), offset), set()).add(number)
        elif kind == "acknowledged":
            book.sent = max(book.sent, int(first) + 1)
            book.told(int(first), int(rest), None)
        else:
            book.told(int(first), None, rest)


@pytest.mark.java
@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize(("seed", "profile"), [(3, "crash"), (6, "network")])
def test_java_client_reads_every_record_that_a_simulated_cluster_acknowledged(
    seed: int, profile: str, kafka_jars: None
) -> None:
    client = JavaClient()
    book = write_through_faults(client.write, seed, profile)
    expected = {(number % PARTITIONS, offset): {number} for number, offset in book.acknowledged.items()}
    assert {place: client.read.get(place) for place in expected} == expected
