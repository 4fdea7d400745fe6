"""Defines the workload `groups`: members with the classic protocol and the consumer protocol (KIP-848), dynamic and
static, share a group.

The group changes its protocol when the first member of the new protocol joins, and changes back when the last member of
the new protocol leaves. In half of the runs, members of a streams group (KIP-1071) read the same topics.
"""

from __future__ import annotations

from random import Random
from typing import Any

from penstock.sim.plan.draw_actors import writing
from penstock.sim.plan.plan import Plan, TopicPlan
from penstock.sim.plan.workloads.cast import Cast

KINDS = ("classic member", "member")


def groups(plan: Plan) -> Plan:
    cast = Cast(plan, "groups")
    random = cast.random
    first = plan.topics[0]
    topics = (TopicPlan("t0", random.randint(2, 4), first.configs, first.fsync), TopicPlan("t1", 1, {}, first.fsync))
    partitions = [(topic.name, index) for topic in topics for index in range(topic.partitions)]
    settings = {
        "group.consumer.min.session.timeout.ms": "4000",
        "group.consumer.session.timeout.ms": "6000",
        "group.consumer.min.heartbeat.interval.ms": "500",
        "group.consumer.heartbeat.interval.ms": "1000",
        "group.initial.rebalance.delay.ms": random.choice(("0", "1000")),
    }

    def writer(random: Random, index: int) -> dict[str, Any]:
        return writing(random, partitions, pause_s=random.choice((0.2, 0.4)))

    def transactional(random: Random, index: int) -> dict[str, Any]:
        more = {"abort": 0.3, "pause_s": random.choice((0.3, 1.0))}
        return writing(random, partitions, transactional_id=f"groups{index}", **more)

    def member(random: Random, index: int) -> dict[str, Any]:
        return {
            "partitions": tuple(partitions),
            "group": "mixed",
            "instance": random.choice(("", f"static{index}")),
            "lives_s": random.choice((3.0, 10.0, 1_000.0)),
            "slow": random.choice((0.0, 0.2)),
            "committed_only": True,
            "pause_s": random.choice((0.2, 0.5)),
            "max_bytes": random.choice((500, 4_096)),
        }

    cast.add("idempotent", writer, random.randint(1, 2))
    cast.add("transactional", transactional)
    kinds = random.choice((KINDS, KINDS, KINDS[:1]))
    for _ in range(random.randint(3, 5)):
        cast.add(random.choice(kinds), member)
    if random.random() < 0.5:
        settings |= _streams_settings(random)
        processes = random.randint(2, 3)

        def streams_member(random: Random, index: int) -> dict[str, Any]:
            more = {"group": "tasks", "instance": "", "process": f"process{index % processes}"}
            return {**member(random, index), **more}

        cast.add("streams member", streams_member, random.randint(2, 4))
    return cast.plan(topics=topics, settings={**plan.settings, **settings})


def _streams_settings(random: Random) -> dict[str, str]:
    return {
        "group.streams.min.session.timeout.ms": "4000",
        "group.streams.session.timeout.ms": "6000",
        "group.streams.min.heartbeat.interval.ms": "500",
        "group.streams.heartbeat.interval.ms": "1000",
        "group.streams.assignment.interval.ms": random.choice(("0", "1000")),
        "group.streams.initial.rebalance.delay.ms": random.choice(("0", "1000")),
        "group.streams.num.standby.replicas": random.choice(("0", "1")),
    }
