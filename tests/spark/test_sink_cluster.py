"""Exactly-once writes to three nodes, one of which is killed: prepared transactions move to another coordinator."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sink_driver import Killed, Query, Rows, committed_rows, killed_at

from penstock.spark.sink_steps import DRIVER_STEPS
from penstock.testing.cluster import Cluster

pytestmark = pytest.mark.slow

BATCHES: list[Rows] = [[(f"k{row % 7}", f"{batch}-{row}") for row in range(20)] for batch in range(3)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=3, topics={"warm": 1}) as running:
        yield running


@pytest.mark.parametrize("step", ["task-prepared", *DRIVER_STEPS[2:6]])
def test_each_row_is_written_once_although_query_and_leader_are_killed_at_any_step(cluster: Cluster, step: str) -> None:
    topic = f"at-{step}"
    cluster.create_topic(topic, 3)
    query = Query(cluster, topic)
    with killed_at(step, 2), pytest.raises(Killed):
        query.run(BATCHES)
    gone = cluster.leader(topic, 0)
    cluster.kill(gone)
    query.run(BATCHES)
    cluster.restart(gone)
    cluster.wait_in_sync(topic)
    assert sorted(committed_rows(cluster, topic)) == sorted(row for batch in BATCHES for row in batch)
