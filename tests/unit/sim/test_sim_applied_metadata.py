"""Tests the check that nodes hold the replicas, roles and configs that their metadata has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from penstock.broker.broker import Broker
from penstock.broker.replicas.partition import Partition
from penstock.client.admin import Admin, NewTopic
from penstock.sim.checks.applied_metadata import metadata_is_applied
from penstock.sim.run.cluster import SimCluster

pytestmark = pytest.mark.programs


def problems_after(change: Callable[[Broker, Partition], None]) -> list[str]:
    """Creates a topic on two of three nodes, changes the memory of its leader, and returns the violations."""

    async def app(cluster: SimCluster) -> list[str]:
        found: list[str] = []
        async with cluster.client() as client:
            await Admin(client).create_topics([NewTopic("t", 1, 2, configs={"segment.ms": "5000"})])
            metadata_is_applied(cluster.machines, lambda rule, what: found.append(what))
            assert found == []
            machine = cluster.leader("t")
            assert machine is not None
            assert machine.broker is not None
            change(machine.broker, machine.broker.partitions.get("t", 0))
            metadata_is_applied(cluster.machines, lambda rule, what: found.append(f"{rule}: {what}"))
        return found

    return SimCluster(nodes=3, seed=2).run(app)


def forget_replica(broker: Broker, partition: Partition) -> None:
    del broker.partitions._by_name["t", 0]


def know_other_partition(broker: Broker, partition: Partition) -> None:
    partition.image = replace(partition.image, partition_epoch=99)


def resign(broker: Broker, partition: Partition) -> None:
    partition.leading = None


def use_other_config(broker: Broker, partition: Partition) -> None:
    partition.log.update_config(replace(partition.log.config, segment_ms=6000))


def keep_deleted_topic(broker: Broker, partition: Partition) -> None:
    image = broker.metadata.image
    broker.metadata.image = replace(image, topics={})


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (forget_replica, "holds no replica of partition 0"),
        (know_other_partition, "takes PartitionImage"),
        (resign, "does not lead Partition(t-0)"),
        (use_other_config, "uses segment_ms = 6000 for Partition(t-0), which is set to 5000"),
        (keep_deleted_topic, "holds a replica of Partition(t-0), and is none of its replicas"),
    ],
    ids=lambda case: getattr(case, "__name__", ""),
)
def test_rule_finds_a_node_that_does_not_act_on_its_metadata(
    change: Callable[[Broker, Partition], None], problem: str
) -> None:
    [found] = problems_after(change)
    assert problem in found
