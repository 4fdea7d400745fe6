"""Injects faults of one partition's replicas: a replica that was down starts again while all other replicas are
down."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

from penstock.metadata.image import PartitionImage
from penstock.sim.faults.target import FaultTarget
from penstock.sim.plan.plan import FaultPlan

#: A killed replica leaves the ISR within this time, or the fault is given up.
LEAVES_WITHIN_S = 15.0
#: The replicas in sync stay down for this time, unless other faults keep them down longer.
DOWN_S = 12.0
LONG_S = 60.0


class ReplicaFaults:
    def __init__(self, target: FaultTarget) -> None:
        self._target = target
        self.by_kind: dict[str, Callable[[FaultPlan, Random], Awaitable[None]]] = {
            "swap the living": self._swap_the_living,
        }

    def _partition(self, topic: str, index: int) -> PartitionImage | None:
        image = self._target.environment.newest_image
        return None if image is None else image.partition(topic, index)

    async def _swap_the_living(self, fault: FaultPlan, random: Random) -> None:
        """Kills a follower. Once the follower is out of the ISR, kills all other replicas and starts the follower
        again."""
        target = self._target
        topic = target.plan.topics[0]
        index = random.randrange(topic.partitions)
        partition = self._partition(topic.name, index)
        followers = [] if partition is None else [each for each in partition.replicas if each != partition.leader]
        if not followers:
            return
        behind = random.choice(followers)
        machine = next(each for each in target.machines if each.node_id == behind)
        target.kill(machine, LONG_S)
        target.note(fault, f"{machine.name} stays down until the other replicas of {topic.name}-{index} are dead")
        waited = 0.0
        while (partition := self._partition(topic.name, index)) is not None and behind in partition.isr:
            if waited > LEAVES_WITHIN_S:
                break
            waited += 0.5
            await asyncio.sleep(0.5)
        await asyncio.sleep(random.choice((0.5, 2.0)))
        for other in target.machines:
            if partition is not None and other.node_id in partition.replicas and other is not machine:
                target.kill(other, DOWN_S)
        target.restart(machine, 0.1)
