"""Defines the workload `guard`: the guard compares replicas all the time, while faults damage replicas, forge records,
and make nodes claim leaderships falsely.

Every partition has three replicas, so that a majority can decide.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

from penstock.sim.plan.draw_actors import some, writing
from penstock.sim.plan.plan import Plan, TopicPlan
from penstock.sim.plan.workloads.cast import Cast


def guard(plan: Plan) -> Plan:
    cast = Cast(plan, "guard")
    random = cast.random
    settings = {
        "penstock.guard.enable": "true",
        "penstock.guard.scrub.interval.ms": str(random.choice((1_000, 3_000))),
        "penstock.guard.check.interval.ms": "1000",
        "penstock.guard.scrub.bytes.per.second": str(random.choice((100_000, 10_000_000))),
    }
    first = plan.topics[0]
    configs = {**first.configs, "segment.ms": random.choice(("3000", "600000"))}
    topics = tuple(
        TopicPlan(f"t{number}", random.randint(2, 3), configs, first.fsync) for number in range(random.randint(1, 2))
    )
    partitions = [(topic.name, index) for topic in topics for index in range(topic.partitions)]

    def writer(random: Random, index: int) -> dict[str, Any]:
        return writing(random, partitions, pause_s=random.choice((0.2, 0.5)))

    def transactional(random: Random, index: int) -> dict[str, Any]:
        more = {"abort": 0.3, "pause_s": random.choice((0.3, 1.0))}
        return writing(random, partitions, transactional_id=f"guarded{index}", **more)

    def reader(random: Random, index: int) -> dict[str, Any]:
        reading = {"partitions": some(random, partitions), "committed_only": random.random() < 0.5, "seek": 0.2}
        return {**reading, "pause_s": random.choice((0.3, 1.0)), "max_bytes": random.choice((500, 1 << 20))}

    cast.add("idempotent", writer, random.randint(1, 2))
    cast.add("transactional", transactional, random.randint(0, 1))
    cast.add("reader", reader)
    brokers = len(plan.layout.brokers)
    layout = replace(plan.layout, replication_factor=min(3, brokers), min_insync=min(2, brokers))
    return cast.plan(topics=topics, settings={**plan.settings, **settings}, layout=layout)
