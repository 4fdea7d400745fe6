"""Defines the workload `configs`: while records are written, the configs on which guarantees depend are changed (fsync,
min.insync.replicas, cleanup.policy, retention and the size of segments).

The configurer changes only certain configs of each topic, so the rules know which records each topic may lose.
"""

from __future__ import annotations

from random import Random
from typing import Any

from penstock.sim.plan.draw_actors import some, writing
from penstock.sim.plan.plan import Plan, TopicPlan
from penstock.sim.plan.workloads.cast import Cast

Choices = tuple[tuple[str, tuple[str | None, ...]], ...]

#: Smallest retention.ms that the configurer sets.
RETENTION_MS = 2_000
SEGMENTS: Choices = (
    ("segment.ms", ("700", "3000", None)),
    ("internal.segment.bytes", ("2000", "20000", None)),
    ("index.interval.bytes", ("64", "4096")),
)
FSYNC: Choices = (("penstock.acks.fsync", ("true", "true", None)), ("flush.messages", ("1", None)))


def configs(plan: Plan) -> Plan:
    cast = Cast(plan, "configs")
    random = cast.random
    layout = plan.layout
    sizes = tuple(str(count) for count in range(layout.min_insync, layout.replication_factor + 1))
    insync: Choices = (("min.insync.replicas", (*sizes, None)),)
    fsync = plan.fsync_everywhere
    topics = [
        TopicPlan("safe", random.randint(1, 2), {}, fsync),
        TopicPlan("table", 1, {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}, fsync),
        TopicPlan("short", 1, {"retention.ms": str(RETENTION_MS), "segment.ms": "700"}, fsync),
    ]
    changes: dict[str, Choices] = {
        "safe": (*SEGMENTS, *FSYNC, *insync),
        "table": (*SEGMENTS, *insync, ("cleanup.policy", ("compact", "delete", "compact"))),
        "short": (*SEGMENTS, *insync, ("retention.ms", (str(RETENTION_MS), "8000", "-1"))),
    }
    partitions = [(topic.name, index) for topic in topics for index in range(topic.partitions)]
    settings = {"log.cleaner.backoff.ms": "500", "log.retention.check.interval.ms": "1000"}

    def writer(random: Random, index: int) -> dict[str, Any]:
        return {**writing(random, partitions, keys=20, pause_s=random.choice((0.1, 0.4)))}

    def transactional(random: Random, index: int) -> dict[str, Any]:
        more = {"keys": 20, "abort": 0.3, "pause_s": random.choice((0.3, 1.0))}
        return writing(random, partitions, transactional_id=f"changing{index}", **more)

    def reader(random: Random, index: int) -> dict[str, Any]:
        reading = {"partitions": some(random, partitions), "committed_only": random.random() < 0.5, "seek": 0.2}
        return {**reading, "pause_s": random.choice((0.3, 1.0)), "max_bytes": random.choice((500, 1 << 20))}

    def configurer(random: Random, index: int) -> dict[str, Any]:
        return {"changes": changes, "pause_s": random.choice((0.3, 1.0))}

    cast.add("configurer", configurer)
    cast.add("idempotent", writer, random.randint(1, 2))
    cast.add("transactional", transactional, random.randint(0, 2))
    cast.add("reader", reader, random.randint(1, 2))
    clocks = tuple((0, drift) for _, drift in plan.clocks)
    return cast.plan(topics=tuple(topics), settings={**plan.settings, **settings}, skew_ms=0, clocks=clocks)
