"""Tracks machines that have lost unsynced data or their disk and are not back in sync.

Acknowledged records survive if fewer than min.insync.replicas machines are lost at a time. Before each fault, the
nemesis asks this module whether the fault would exceed that limit. A machine has recovered when it has registered again
and is in sync with all its partitions, unless its disk still fails.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.metadata.image import MetadataImage
from penstock.protocol.vocabulary import TopicPartition
from penstock.sim.engine.environment import newest_image
from penstock.sim.engine.machine import Machine
from penstock.sim.plan.plan import Plan

POWER = "power"
WIPE = "wipe"
#: A failing disk counts as a lost disk, whatever is still on it.
DISK = "disk"


def out_of_sync(image: MetadataImage, node_id: int, damaged: set[TopicPartition]) -> list[str]:
    """Returns the partitions in which the node's replica is not in the ISR. Damaged partitions are left out."""
    return [
        f"{topic.name}-{index}"
        for topic in image.topics.values()
        for index, partition in topic.partitions.items()
        if node_id in partition.replicas and node_id not in partition.isr and (topic.name, index) not in damaged
    ]


class LostMachines:
    def __init__(self, plan: Plan, machines: Sequence[Machine], damaged: set[TopicPartition]) -> None:
        self._plan = plan
        self._machines = machines
        self._damaged = damaged
        self._lost: dict[Machine, tuple[str, int]] = {}

    def _recovered(self, machine: Machine, epoch: int) -> bool:
        image = newest_image(self._machines)
        if image is None or not machine.serving or machine.disk_faults:
            return False
        if not machine.holds_partitions:
            return True
        broker = image.brokers.get(machine.node_id)
        if broker is None or broker.fenced or broker.epoch <= epoch:
            return False
        return not out_of_sync(image, machine.node_id, self._damaged)

    def open(self) -> dict[Machine, str]:
        """Returns the machines that have not recovered, each with the kind of its loss."""
        for machine, (_, epoch) in list(self._lost.items()):
            if self._recovered(machine, epoch):
                del self._lost[machine]
        return {machine: kind for machine, (kind, _) in self._lost.items()}

    def covered(self, machine: Machine, kind: str) -> bool:
        """Returns True if acknowledged records survive when this machine is lost in addition to the machines that have
        not recovered yet."""
        if not machine.holds_partitions and kind == POWER:
            return True  # metadata is always synced
        if kind == POWER and self._plan.fsync_everywhere:
            return True
        counted = [each for each, what in self.open().items() if what != POWER or not self._plan.fsync_everywhere]
        return len({*counted, machine}) <= self._plan.losses_covered

    def spared(self, machine: Machine) -> None:
        """Removes the machine's disk fault from the losses. Called if the fault ended before the node noticed it."""
        if self._lost.get(machine, ("", 0))[0] == DISK:
            del self._lost[machine]

    def note(self, machine: Machine, kind: str) -> None:
        """Notes that the machine has just lost data."""
        image = newest_image(self._machines)
        broker = image.brokers.get(machine.node_id) if image is not None else None
        before = self._lost.get(machine)
        worst = before[0] if before is not None and before[0] != POWER else kind
        self._lost[machine] = (worst, broker.epoch if broker is not None else -1)
