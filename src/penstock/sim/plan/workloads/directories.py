"""Defines the workload `directories`: every machine has two or three log directories, and producers and readers use
partitions in all of them. Meanwhile one directory breaks, fills up, becomes slow, is replaced, or is not mounted at a
restart.

Some runs have a limit of free space (penstock.log.dirs.min.free.bytes) and replicas that move between directories.
"""

from __future__ import annotations

from random import Random
from typing import Any

from penstock.sim.plan.draw_actors import some, writing
from penstock.sim.plan.plan import Plan, TopicPlan
from penstock.sim.plan.workloads.cast import Cast
from penstock.sim.plan.workloads.moves import DIRECTORIES


def directories(plan: Plan) -> Plan:
    cast = Cast(plan, "directories")
    random = cast.random
    paths = DIRECTORIES[: random.randint(2, 3)]
    settings = {
        "log.dirs": ",".join(paths),
        "penstock.log.dirs.min.free.bytes": str(random.choice((0, 20_000, 60_000))),
    }
    first = plan.topics[0]
    topics = tuple(
        TopicPlan(f"t{number}", random.randint(3, 4), {**first.configs, "segment.ms": "1500"}, first.fsync)
        for number in range(random.randint(1, 2))
    )
    partitions = [(topic.name, index) for topic in topics for index in range(topic.partitions)]

    def writer(random: Random, index: int) -> dict[str, Any]:
        return writing(random, partitions, pause_s=random.choice((0.05, 0.2)))

    def transactional(random: Random, index: int) -> dict[str, Any]:
        more = {"abort": 0.3, "pause_s": random.choice((0.2, 1.0))}
        return writing(random, partitions, transactional_id=f"disks{index}", **more)

    def reader(random: Random, index: int) -> dict[str, Any]:
        reading = {"partitions": some(random, partitions), "committed_only": random.random() < 0.5, "seek": 0.2}
        return {**reading, "pause_s": random.choice((0.2, 1.0)), "max_bytes": random.choice((500, 1 << 20))}

    def mover(random: Random, index: int) -> dict[str, Any]:
        return {"partitions": tuple(partitions), "directories": paths, "pause_s": random.choice((0.5, 2.0))}

    cast.add("idempotent", writer, random.randint(1, 3))
    cast.add("transactional", transactional, random.randint(0, 1))
    cast.add("reader", reader, random.randint(1, 2))
    cast.add("directory mover", mover, random.randint(0, 1))
    return cast.plan(topics=topics, settings={**plan.settings, **settings})
