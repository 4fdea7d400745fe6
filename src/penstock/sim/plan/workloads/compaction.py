"""Defines the workload `compaction`: writers with and without transactions, tombstones and readers of whole tables.
Segments roll fast.

Internal topics, which copiers and group members write to, roll and are compacted as fast as the tables. All clocks are
right in this workload, because each replica uses its own clock to decide how long it keeps a tombstone.
"""

from __future__ import annotations

from random import Random
from typing import Any

from penstock.sim.plan.draw_actors import writing
from penstock.sim.plan.plan import FaultPlan, Plan, TopicPlan
from penstock.sim.plan.workloads.cast import Cast

TABLES = ("table", "ledger")
#: Share of writes that are tombstones.
TOMBSTONES = 0.25


def compaction(plan: Plan) -> Plan:
    cast = Cast(plan, "compaction")
    random = cast.random
    retention_ms = random.choice((2_000, 5_000))
    fast = {
        "log.roll.ms": str(random.choice((700, 1_500))),
        "log.cleaner.backoff.ms": "500",
        "log.cleaner.min.cleanable.ratio": "0.01",
        "log.cleaner.delete.retention.ms": str(retention_ms),
    }
    topics = _topics(plan, random, retention_ms)
    tables = [(topic.name, index) for topic in topics if topic.compacted for index in range(topic.partitions)]
    keys = random.choice((3, 20, 100))
    seconds = 0.8 * retention_ms / 1000

    def writer(random: Random, index: int) -> dict[str, Any]:
        return writing(random, tables, keys=keys, tombstones=TOMBSTONES, pause_s=random.choice((0.1, 0.4)))

    def transactional(random: Random, index: int) -> dict[str, Any]:
        pause_s = random.choice((0.3, 0.3, 1.0, 4.0))
        name = f"tables{index}"
        more = {"keys": keys, "tombstones": TOMBSTONES, "abort": 0.4, "pause_s": pause_s}
        return writing(random, tables, transactional_id=name, **more)

    def reader(random: Random, index: int) -> dict[str, Any]:
        step_s = random.choice((0.0, 0.2, 0.5))
        partitions = tuple(tables)
        max_bytes = random.choice((300, 2_000, 1 << 20))
        return {
            "partitions": partitions,
            "committed_only": random.random() < 0.7,
            "pause_s": random.choice((0.2, 1.0)),
            "step_s": step_s,
            "max_bytes": max_bytes,
            "seconds": seconds,
        }

    def source(random: Random, index: int) -> dict[str, Any]:
        return writing(random, [("t0", 0)], pause_s=random.choice((0.4, 1.5)))

    def copier(random: Random, index: int) -> dict[str, Any]:
        name = f"copier{index}"
        route = {"partitions": (("t0", 0),), "group": name, "target": ("copies", 0), "transactional_id": name}
        return {**route, "pause_s": random.choice((0.2, 1.0)), "max_bytes": random.choice((500, 4_096))}

    def member(random: Random, index: int) -> dict[str, Any]:
        reading = {"partitions": (("t0", 0), *tables), "group": "g1", "committed_only": True, "max_bytes": 4_096}
        return {**reading, "pause_s": random.choice((0.3, 1.0))}

    cast.add("table", writer, random.randint(1, 2))
    cast.add("table transactional", transactional, random.randint(1, 3))
    cast.add("table reader", reader, random.randint(1, 2))
    cast.add("idempotent", source)
    if random.random() < 0.6:
        cast.add("copier", copier)
    if random.random() < 0.6:
        cast.add("member", member, random.randint(1, 2))
    clocks = tuple((0, drift) for _, drift in plan.clocks)
    return cast.plan(topics=topics, settings={**plan.settings, **fast}, faults=_faults(plan), skew_ms=0, clocks=clocks)


def _faults(plan: Plan) -> tuple[FaultPlan, ...]:
    """Returns the plan's faults. Leaves out power losses if a cluster acknowledges records before their fsync.

    A power loss may erase unsynced tombstones of a replica. The replica can fetch them again only as long as the leader
    keeps them: for delete.retention.ms.
    """
    lossless = plan.fsync_everywhere or plan.layout.single_node
    return tuple(fault for fault in plan.faults if lossless or not fault.kind.startswith("power"))


def _topics(plan: Plan, random: Random, retention_ms: int) -> tuple[TopicPlan, ...]:
    first, copies = plan.topics[0], next(topic for topic in plan.topics if topic.name == "copies")
    found = [TopicPlan("t0", 1, first.configs, first.fsync), copies]
    for name in TABLES[: random.randint(1, 2)]:
        configs = {
            **{key: value for key, value in first.configs.items() if key != "segment.ms"},
            "cleanup.policy": "compact",
            "segment.ms": random.choice(("700", "1500", "4000")),
            "internal.segment.bytes": random.choice(("2000", "20000")),
            "min.cleanable.dirty.ratio": random.choice(("0.01", "0.3")),
            "delete.retention.ms": str(retention_ms),
        }
        found.append(TopicPlan(name, random.randint(1, 2), configs, first.fsync, mixed=False))
    return tuple(found)
