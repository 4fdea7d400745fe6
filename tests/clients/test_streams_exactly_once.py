"""Tests Kafka Streams with exactly-once: an application with state is killed, and still counts every record once."""

from __future__ import annotations

from pathlib import Path

import pytest
from streams_application import GROUP, QUICK, TOPICS, Output, application, counts, produce

from penstock.protocol.vocabulary import CONSUMER_OFFSETS
from penstock.testing import Broker
from penstock.testing.cluster import Cluster
from tools import kafka
from tools.java_tests import require_jars

pytestmark = [pytest.mark.slow, pytest.mark.java, pytest.mark.timeout(240)]

RECORDS = 3000


@pytest.fixture(scope="session")
def streams_jars() -> None:
    require_jars(kafka.install_streams)


@pytest.mark.parametrize("protocol", ["classic", "streams"])
def test_killed_and_restarted_streams_application_counts_every_record_exactly_once(
    tmp_path: Path, streams_jars: None, protocol: str
) -> None:
    with Broker(data=tmp_path / "data", topics=TOPICS, config=QUICK) as broker:
        produce(broker.bootstrap, RECORDS)
        output = Output(broker.bootstrap)
        try:
            with application(broker.bootstrap, tmp_path / "a", protocol) as first:
                output.read_until(RECORDS // 10, first)
            assert len(output.values) < RECORDS, "it was done before it was killed"
            with application(broker.bootstrap, tmp_path / "a", protocol) as second:
                output.read_until(RECORDS, second)
                output.read_for(1.0)  # a duplicate would arrive now
        finally:
            output.close()
    assert sorted(output.values) == counts(RECORDS)


def test_streams_group_on_three_nodes_continues_after_an_instance_and_its_coordinator_are_killed(
    tmp_path: Path, streams_jars: None
) -> None:
    records = 4 * RECORDS
    with Cluster(nodes=3, data=tmp_path / "data", topics=TOPICS, config=QUICK) as cluster:
        produce(cluster.bootstrap, records // 2)
        output = Output(cluster.bootstrap)
        try:
            with (
                application(cluster.bootstrap, tmp_path / "a", "streams") as first,
                application(cluster.bootstrap, tmp_path / "b", "streams") as second,
            ):
                output.read_until(records // 20, first, second)
                first.kill()
                produce(cluster.bootstrap, records // 2, records // 2)
                output.read_until(records // 4, second)
                partition = cluster.node(1).broker.groups.partition_of(GROUP)
                coordinator = cluster.leader(CONSUMER_OFFSETS, partition)
                assert len(output.values) < records // 2, "there is nothing left to do without the coordinator"
                cluster.kill(coordinator)
                output.read_until(records // 2, second)
                cluster.restart(coordinator)
                with application(cluster.bootstrap, tmp_path / "a", "streams") as third:
                    output.read_until(records, second, third)
                    output.read_for(1.0)  # a duplicate would arrive now
        finally:
            output.close()
    assert sorted(output.values) == counts(records)
