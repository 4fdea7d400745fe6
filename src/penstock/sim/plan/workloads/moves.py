"""Defines the workload `moves`: replicas move between log directories, while transactions, readers and a deleter use
them.

Every machine has two or three directories, and segments roll fast. Some of the topics are compacted.
"""

from __future__ import annotations

from random import Random
from typing import Any

from penstock.sim.plan.draw_actors import some, writing
from penstock.sim.plan.plan import FaultPlan, Plan, TopicPlan
from penstock.sim.plan.workloads.cast import Cast

DIRECTORIES = ("/data", "/more", "/third")


def moves(plan: Plan) -> Plan:
    cast = Cast(plan, "moves")
    random = cast.random
    directories = DIRECTORIES[: random.randint(2, 3)]
    settings = {
        "log.dirs": ",".join(directories),
        "log.cleaner.backoff.ms": "500",
        "num.replica.alter.log.dirs.threads": str(random.choice((1, 2, 4))),
        "alter.log.dirs.replication.quota.window.num": "2",
    }
    topics = tuple(_topic(plan.topics[0], f"t{number}", random) for number in range(random.randint(1, 2)))
    partitions = [(topic.name, index) for topic in topics for index in range(topic.partitions)]

    def writer(random: Random, index: int) -> dict[str, Any]:
        return writing(random, partitions, keys=50, pause_s=random.choice((0.05, 0.2, 1.0)))

    def transactional(random: Random, index: int) -> dict[str, Any]:
        more = {"abort": 0.4, "keys": 50, "pause_s": random.choice((0.2, 1.0, 3.0))}
        return writing(random, partitions, transactional_id=f"moving{index}", **more)

    def reader(random: Random, index: int) -> dict[str, Any]:
        reading = {"partitions": some(random, partitions), "committed_only": random.random() < 0.7, "seek": 0.3}
        return {**reading, "pause_s": random.choice((0.1, 0.5)), "max_bytes": random.choice((300, 4_096, 1 << 20))}

    def deleter(random: Random, index: int) -> dict[str, Any]:
        kept = tuple(each for topic in topics if not topic.compacted for each in partitions if each[0] == topic.name)
        return {"partitions": kept, "pause_s": random.choice((1.0, 4.0)), "deletes": 0.4}

    def mover(random: Random, index: int) -> dict[str, Any]:
        rates = random.choice(((), (500, 5_000), (500, 5_000, 50_000)))
        return {
            "partitions": tuple(partitions),
            "directories": directories,
            "rates": rates,
            "pause_s": random.choice((0.1, 0.4, 1.5)),
        }

    cast.add("idempotent", writer, random.randint(1, 2))
    cast.add("transactional", transactional, random.randint(1, 2))
    cast.add("reader", reader)
    cast.add("directory mover", mover, random.randint(1, 2))
    if any(not topic.compacted for topic in topics) and random.random() < 0.5:
        cast.add("deleter", deleter)
    return cast.plan(topics=topics, settings={**plan.settings, **settings}, faults=_faults(plan))


def _faults(plan: Plan) -> tuple[FaultPlan, ...]:
    """Returns the plan's faults. Leaves out power losses if there is only one machine and it acknowledges records
    before their fsync."""
    covered = plan.fsync_everywhere or not plan.layout.single_node
    return tuple(fault for fault in plan.faults if covered or not fault.kind.startswith("power"))


def _topic(like: TopicPlan, name: str, random: Random) -> TopicPlan:
    configs = {**like.configs, "internal.segment.bytes": random.choice(("2000", "20000", "200000"))}
    if random.random() < 0.25:
        configs |= {"cleanup.policy": "compact", "segment.ms": "700", "min.cleanable.dirty.ratio": "0.01"}
    return TopicPlan(name, random.randint(1, 2), configs, like.fsync)
