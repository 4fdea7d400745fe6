"""Stock clients use a simulated cluster over real sockets. The faults come from a seed, the timing of the clients does
not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.testing import SimBridge
from tools.acknowledged_load import QUIET, WRITERS, Book, Load, forget_leftovers, judge

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
    with SimBridge(seed, profile, nodes=3, seconds=FAULTS_S) as cluster:
        book = Book("simulated", PARTITIONS)
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, **QUIET})
        admin.create_topics([NewTopic(book.topic, PARTITIONS)], request_timeout=LIMIT_S)[book.topic].result(LIMIT_S)
        load = Load(cluster.bootstrap_servers, book, WRITERS[client])
        try:
            assert cluster.wait_until_healed(LIMIT_S)
            book.wait_for(100)
        finally:
            load.stop()
        judge(cluster.bootstrap_servers, book)
        assert cluster.violations == []
        assert any(each in line for line in cluster.story for each in ("fault", "is killed", "is paused"))
