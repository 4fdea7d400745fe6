"""Defines the workload `wrap`: idempotent producers have sequence numbers near 2^31, transactional producers have
epochs near 2^15.

A sequence number wraps to 0, sometimes within a batch. A producer whose epochs are used up gets another producer id.
"""

from __future__ import annotations

from random import Random
from typing import Any

from penstock.sim.plan.draw_actors import some, writing
from penstock.sim.plan.plan import Plan
from penstock.sim.plan.workloads.cast import Cast

LAST_SEQUENCE = 2**31 - 1
LAST_EPOCH = 2**15 - 1


def wrap(plan: Plan) -> Plan:
    cast = Cast(plan, "wrap")
    random = cast.random
    topics = tuple(topic for topic in plan.topics if topic.mixed)
    partitions = [(topic.name, index) for topic in topics for index in range(topic.partitions)]

    def writer(random: Random, index: int) -> dict[str, Any]:
        near = LAST_SEQUENCE - random.choice((0, 3, 50, 400))
        return writing(random, partitions, pause_s=random.choice((0.1, 0.4)), first_sequence=near)

    def transactional(random: Random, index: int) -> dict[str, Any]:
        more = {"abort": 0.4, "pause_s": random.choice((0.1, 0.3))}
        return writing(random, partitions, transactional_id=f"wrapping{index}", **more)

    def reader(random: Random, index: int) -> dict[str, Any]:
        reading = {"partitions": some(random, partitions), "committed_only": True, "seek": 0.2}
        return {**reading, "pause_s": random.choice((0.3, 1.0)), "max_bytes": random.choice((500, 1 << 20))}

    cast.add("idempotent", writer, random.randint(1, 3))
    cast.add("transactional", transactional, random.randint(2, 3))
    cast.add("reader", reader)
    return cast.plan(topics=topics, first_producer_epoch=LAST_EPOCH - random.choice((1, 3, 10)))
