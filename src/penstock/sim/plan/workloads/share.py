"""Defines the workload `share`: share consumers accept, release and reject records; some die before they acknowledge.

In some seeds a group has a dead-letter topic or a back-off.
"""

from __future__ import annotations

from random import Random
from typing import Any

from penstock.sim.plan.draw_actors import writing
from penstock.sim.plan.plan import Plan, TopicPlan
from penstock.sim.plan.workloads.cast import Cast

LOCK_MS = 2_000
MAX_DELIVERIES = 6
#: Prefix of dead-letter topics: the group's name follows.
DEAD_LETTERS = "dlq."
RETRY_MS, MAX_RETRY_MS = 800, 2_000


def share(plan: Plan) -> Plan:
    cast = Cast(plan, "share")
    random = cast.random
    first = plan.topics[0]
    topics = (TopicPlan("t0", random.randint(1, 2), first.configs, first.fsync),)
    partitions = [("t0", index) for index in range(topics[0].partitions)]
    settings = {
        **plan.settings,
        "share.coordinator.state.topic.num.partitions": str(random.choice((1, 3))),
        "share.coordinator.snapshot.update.records.per.snapshot": str(random.choice((3, 50, 500))),
        "share.coordinator.state.topic.prune.interval.ms": str(random.choice((3_000, 300_000))),
        "group.share.min.record.lock.duration.ms": "1000",
        "group.share.record.lock.duration.ms": str(LOCK_MS),
        "group.share.delivery.count.limit": str(MAX_DELIVERIES),
        "group.share.min.session.timeout.ms": "6000",
        "group.share.session.timeout.ms": "6000",
        "group.share.min.heartbeat.interval.ms": "1000",
        "group.share.heartbeat.interval.ms": "1500",
        "group.share.assignment.interval.ms": "0",
        "group.share.initialize.retry.interval.ms": "3000",
        "errors.deadletterqueue.auto.create.topics.enable": "true",
    }
    # One group writes dead letters and one waits before it delivers a record again, in half of the seeds each.
    extras = cast.stream("extras")
    configs: dict[str, dict[str, str]] = {"s1": {}, "s2": {}}
    if extras.random() < 0.5:
        configs["s1"]["errors.deadletterqueue.topic.name"] = f"{DEAD_LETTERS}s1"
    if extras.random() < 0.5:
        configs[extras.choice(("s1", "s2"))] |= {
            "penstock.share.retry.backoff.ms": str(RETRY_MS),
            "penstock.share.retry.backoff.max.ms": str(MAX_RETRY_MS),
        }

    def writer(random: Random, index: int) -> dict[str, Any]:
        return writing(random, partitions, pause_s=random.choice((0.2, 0.6)))

    def member(random: Random, index: int) -> dict[str, Any]:
        group = random.choice(("s1", "s1", "s2"))
        return {
            "group": group,
            "configs": configs[group],
            "topics": ("t0",),
            "pause_s": random.choice((0.05, 0.3, 1.5)),
            "max_records": random.choice((1, 5, 500)),
            "strict": random.random() < 0.5,
            "piggyback": random.random() < 0.5,
            "keeps": random.choice((0.0, 0.1)),
            "releases": random.choice((0.05, 0.3)),
            "rejects": random.choice((0.0, 0.1)),
        }

    cast.add("idempotent", writer, random.randint(1, 2))
    cast.add("share member", member, random.randint(2, 4))
    return cast.plan(topics=topics, settings=settings)
