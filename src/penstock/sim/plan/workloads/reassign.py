"""Defines the workload `reassign`: replicas move between machines, sometimes in many partitions at the same time.

Every topic has fewer replicas than there are brokers, so each move copies a log. With four or more machines, all
replicas of a partition may move at the same time. Consumers read from a replica in their rack; this replica may move
away.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

from penstock.sim.plan.draw_actors import some, writing
from penstock.sim.plan.plan import Plan, TopicPlan
from penstock.sim.plan.workloads.cast import Cast

RACKS = 2


def reassign(plan: Plan) -> Plan:
    cast = Cast(plan, "reassign")
    random = cast.random
    first, layout = plan.topics[0], plan.layout
    factor = max(1, min(layout.replication_factor, len(layout.brokers) - 1))
    topics = (
        TopicPlan("t0", random.randint(2, 4), first.configs, first.fsync),
        TopicPlan("many", random.choice((10, 60, 200)), {}, first.fsync, mixed=False),
    )
    few = [("t0", index) for index in range(topics[0].partitions)]
    all_of = [*few, *(("many", index) for index in range(topics[1].partitions))]
    settings = {"num.replica.fetchers": str(random.choice((1, 3)))}

    def writer(random: Random, index: int) -> dict[str, Any]:
        return writing(random, few, pause_s=random.choice((0.1, 0.4)))

    def scattered(random: Random, index: int) -> dict[str, Any]:
        return {**writing(random, all_of, pause_s=random.choice((0.1, 0.4))), "partitions": tuple(all_of)}

    def transactional(random: Random, index: int) -> dict[str, Any]:
        more = {"abort": 0.3, "pause_s": random.choice((0.3, 1.0))}
        return writing(random, few, transactional_id=f"moving{index}", **more)

    def reader(random: Random, index: int) -> dict[str, Any]:
        reading = {"partitions": some(random, few), "committed_only": random.random() < 0.5, "seek": 0.2}
        reading["rack"] = random.choice(("", "r0", "r1"))
        return {**reading, "pause_s": random.choice((0.3, 1.0)), "max_bytes": random.choice((500, 1 << 20))}

    def mover(random: Random, index: int) -> dict[str, Any]:
        partitions = random.choice((few, few, all_of))
        return {"partitions": tuple(partitions), "pause_s": random.choice((0.2, 0.7)), "elects": random.random() < 0.5}

    cast.add("idempotent", writer)
    cast.add("idempotent", scattered)
    cast.add("transactional", transactional, random.randint(0, 1))
    cast.add("reader", reader, random.randint(2, 3))
    if not layout.single_node:
        cast.add("mover", mover, random.randint(1, 2))
    return cast.plan(
        topics=topics,
        settings={**plan.settings, **settings},
        layout=replace(layout, replication_factor=factor, min_insync=min(layout.min_insync, factor), racks=RACKS),
    )
