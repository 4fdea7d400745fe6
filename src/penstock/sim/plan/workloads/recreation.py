"""Defines the workload `recreation`: topics are deleted and created again under the same name while transactions and
groups use them.

Transactions span a topic that is recreated and a topic that stays. Some of the recreated topics are compacted.
"""

from __future__ import annotations

from random import Random
from typing import Any

from penstock.sim.plan.draw_actors import writing
from penstock.sim.plan.plan import Plan, TopicPlan
from penstock.sim.plan.workloads.cast import Cast

STAYS = ("t0", 0)


def recreation(plan: Plan) -> Plan:
    cast = Cast(plan, "recreation")
    random = cast.random
    first = plan.topics[0]
    topics = [TopicPlan("t0", 1, first.configs, first.fsync)]
    for number in range(random.randint(1, 2)):
        configs = dict(first.configs)
        if random.random() < 0.5:
            configs |= {"cleanup.policy": "compact", "segment.ms": "700", "min.cleanable.dirty.ratio": "0.01"}
        topics.append(TopicPlan(f"shared{number}", random.randint(1, 2), configs, first.fsync, recreated=True))
    shared = [(topic.name, index) for topic in topics if topic.recreated for index in range(topic.partitions)]
    settings = {**plan.settings, "log.cleaner.backoff.ms": "500"}

    def writer(random: Random, index: int) -> dict[str, Any]:
        return writing(random, shared, keys=20, pause_s=random.choice((0.1, 0.4)))

    def transactional(random: Random, index: int) -> dict[str, Any]:
        more = {"keys": 20, "abort": 0.3, "pause_s": random.choice((0.3, 1.0, 3.0))}
        return {**writing(random, shared, transactional_id=f"across{index}", **more), "partitions": (STAYS, *shared)}

    def recreator(random: Random, index: int) -> dict[str, Any]:
        made = tuple((topic.name, topic.partitions, dict(topic.configs)) for topic in topics if topic.recreated)
        return {"topics": made, "pause_s": random.choice((0.3, 1.0))}

    def member(random: Random, index: int) -> dict[str, Any]:
        reading = {"partitions": (STAYS, *shared), "group": "g1", "committed_only": True, "max_bytes": 4_096}
        return {**reading, "pause_s": random.choice((0.3, 1.0))}

    def reader(random: Random, index: int) -> dict[str, Any]:
        reading = {"partitions": (STAYS, *shared), "committed_only": random.random() < 0.5, "max_bytes": 4_096}
        return {**reading, "pause_s": random.choice((0.3, 1.0)), "seek": 0.2}

    cast.add("shared recreator", recreator)
    cast.add("idempotent", writer, random.randint(1, 2))
    cast.add("transactional", transactional, random.randint(1, 3))
    cast.add("reader", reader)
    if random.random() < 0.6:
        cast.add("member", member, random.randint(1, 2))
    return cast.plan(topics=tuple(topics), settings=settings)
