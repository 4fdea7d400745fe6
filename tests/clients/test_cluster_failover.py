"""Tests stock clients whose leader is killed: they pause, but get no error, no loss and no duplicates."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tools.acknowledged_load import QUIET, WRITERS, Book, Load, forget_leftovers, judge
from tools.process_cluster import ProcessCluster

pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
PARTITIONS = 3


@pytest.fixture(autouse=True)
def leftovers() -> Iterator[None]:
    yield
    forget_leftovers()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessCluster]:
    with ProcessCluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


def leader_of(cluster: ProcessCluster, topic: str) -> int:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, **QUIET})
    return int(admin.list_topics(topic, timeout=120).topics[topic].partitions[0].leader)


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    "client", ["confluent", *(pytest.param(each, marks=pytest.mark.slow) for each in ("kafka-python", "aiokafka"))]
)
def test_stock_clients_continue_after_a_short_pause_when_a_leader_is_killed(
    cluster: ProcessCluster, client: str
) -> None:
    book = Book(f"failover-{client}", PARTITIONS)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, **QUIET})
    admin.create_topics([NewTopic(book.topic, PARTITIONS, 3)])[book.topic].result(timeout=120)
    load = Load(cluster.bootstrap, book, WRITERS[client])
    try:
        book.wait_for(200)
        victim = leader_of(cluster, book.topic)
        cluster.kill(victim)
        book.wait_for(500)
        cluster.start(victim)
        book.wait_for(200)
    finally:
        load.stop()
    judge(cluster.bootstrap, book)
    print(f"{client}: {len(book.acknowledged)} acknowledged, longest pause {book.longest_gap_s:.2f} s")
