"""Checks that the nodes of a healed cluster act on the metadata that they have.

    replicas as assigned    a node holds the replicas that its metadata assigns to it, and no other, in the right role
    configs as set          each open log has the configs of its topic

A node applies what an image changes. A change that it misses, or that comes at the wrong moment, stays until a restart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING

from penstock.metadata.configs.topic import LogConfig
from penstock.sim.engine.machine import Machine, State

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.replicas.partition import Partition

REPLICAS = "replicas as assigned"
CONFIGS = "configs as set"


def metadata_is_applied(machines: Sequence[Machine], violated: Callable[[str, str], None]) -> None:
    """Compares all partitions of all nodes with the nodes' own metadata, and reports the first difference of a node."""
    for machine in machines:
        broker = machine.broker
        if broker is None or machine.state is not State.SERVING or not machine.holds_partitions:
            continue
        for rule, problems in ((REPLICAS, _replicas(broker)), (CONFIGS, _configs(broker))):
            if problem := next(problems, ""):
                violated(rule, f"{machine.name} {problem}")


def _replicas(broker: Broker) -> Iterator[str]:
    assigned = {
        (topic.topic_id, index): image
        for topic in broker.metadata.image.topics.values()
        for index, image in topic.partitions.items()
        if broker.node_id in image.replicas
    }
    held = {(partition.topic_id, partition.index): partition for partition in broker.partitions}
    for key in assigned.keys() - held.keys():
        yield f"holds no replica of partition {key[1]} of topic id {key[0].hex()}, and is one of its replicas"
    for key, partition in held.items():
        image = assigned.get(key)
        if image is None:
            yield f"holds a replica of {partition}, and is none of its replicas"
        elif partition.image != image:
            yield f"takes {partition.image} for the state of {partition}; its metadata has {image}"
        elif partition.is_open and not partition.log.offline and _leads(partition) != (image.leader == broker.node_id):
            does = "leads" if _leads(partition) else "does not lead"
            yield f"{does} {partition}; its metadata has leader {image.leader}"


def _leads(partition: Partition) -> bool:
    return partition.leading is not None if len(partition.image.replicas) > 1 else partition.is_leader


def _configs(broker: Broker) -> Iterator[str]:
    for partition in broker.partitions:
        if not partition.is_open:
            continue
        wanted = broker.settings.log_config(broker.metadata.image, partition.topic)
        if partition.log.config != wanted:
            for field in fields(LogConfig):
                has, should = getattr(partition.log.config, field.name), getattr(wanted, field.name)
                if has != should:
                    yield f"uses {field.name} = {has} for {partition}, which is set to {should}"
