"""Defines the workload `expiry`: days pass within seconds, while records, producers, transactional ids and committed
offsets expire.

Some topics keep records for days, others for seconds. A deleter deletes further records, including records of open
transactions.
"""

from __future__ import annotations

from random import Random
from typing import Any

from penstock.sim.plan.draw_actors import some, writing
from penstock.sim.plan.plan import Plan, TopicPlan
from penstock.sim.plan.workloads.cast import Cast

DAY_MS = 86_400_000


def expiry(plan: Plan) -> Plan:
    cast = Cast(plan, "expiry")
    random = cast.random
    settings = {
        "log.retention.check.interval.ms": "1000",
        "producer.id.expiration.ms": str(random.choice((DAY_MS, DAY_MS // 4))),
        "producer.id.expiration.check.interval.ms": "700",
        "transactional.id.expiration.ms": str(random.choice((7, 2)) * DAY_MS),
        "transaction.remove.expired.transaction.cleanup.interval.ms": "800",
        "offsets.retention.minutes": str(random.choice((7, 1)) * 1_440),
        "offsets.retention.check.interval.ms": "900",
    }
    topics = tuple(_topic(plan.topics[0], f"t{number}", random) for number in range(random.randint(2, 3)))
    partitions = [(topic.name, index) for topic in topics for index in range(topic.partitions)]

    def writer(random: Random, index: int) -> dict[str, Any]:
        return writing(random, partitions, pause_s=random.choice((0.2, 1.0, 3.0)))

    def transactional(random: Random, index: int) -> dict[str, Any]:
        timeout_ms = random.choice((10_000, 10_000, 800_000))
        more = {"abort": 0.3, "pause_s": random.choice((0.3, 1.0, 5.0)), "transaction_timeout_ms": timeout_ms}
        return writing(random, partitions, transactional_id=f"expiring{index}", **more)

    def reader(random: Random, index: int) -> dict[str, Any]:
        reading = {"partitions": some(random, partitions), "committed_only": random.random() < 0.7, "seek": 0.2}
        return {**reading, "pause_s": random.choice((0.2, 1.0)), "max_bytes": random.choice((500, 1 << 20))}

    def member(random: Random, index: int) -> dict[str, Any]:
        reading = {"partitions": tuple(partitions), "group": "g1", "committed_only": True, "max_bytes": 4_096}
        return {**reading, "pause_s": random.choice((0.3, 1.0))}

    def deleter(random: Random, index: int) -> dict[str, Any]:
        deletes = random.choice((0.0, 0.1, 0.5))
        return {"partitions": tuple(partitions), "pause_s": random.choice((0.3, 1.0)), "deletes": deletes}

    cast.add("idempotent", writer, random.randint(1, 2))
    cast.add("transactional", transactional, random.randint(1, 3))
    cast.add("reader", reader, random.randint(1, 2))
    if random.random() < 0.6:
        cast.add("member", member, random.randint(1, 2))
    cast.add("deleter", deleter)
    clocks = tuple((0, drift) for _, drift in plan.clocks)
    return cast.plan(topics=topics, settings={**plan.settings, **settings}, skew_ms=0, clocks=clocks)


def _topic(like: TopicPlan, name: str, random: Random) -> TopicPlan:
    configs = {
        **like.configs,
        "segment.ms": random.choice(("500", "1500", "6000")),
        "retention.ms": random.choice(("3000", "10000", str(DAY_MS), str(3 * DAY_MS), "-1")),
    }
    return TopicPlan(name, random.randint(1, 2), configs, like.fsync)
