"""Defines the workload `unclean`: some topics allow unclean elections. Machines die one after the other, so that an
out-of-sync replica comes back while the last in-sync replica is down.

Other topics, including internal topics, do not allow unclean elections and lose nothing. Machines are only killed, not
isolated: an isolated leader may acknowledge records that the new leader lacks, and the rules could not tell these
records from lost records.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

from penstock.sim.plan.draw_actors import some, writing
from penstock.sim.plan.plan import Plan, TopicPlan
from penstock.sim.plan.workloads.cast import Cast


def unclean(plan: Plan) -> Plan:
    cast = Cast(plan, "unclean")
    random = cast.random
    first = plan.topics[0]
    configs = {**first.configs, "unclean.leader.election.enable": "true"}
    topics = (
        TopicPlan("lossy", random.randint(1, 3), configs, first.fsync),
        TopicPlan("t0", 1, first.configs, first.fsync),
    )
    lossy = [("lossy", index) for index in range(topics[0].partitions)]

    def writer(random: Random, index: int) -> dict[str, Any]:
        return writing(random, lossy, pause_s=random.choice((0.1, 0.4)))

    def transactional(random: Random, index: int) -> dict[str, Any]:
        more = {"abort": 0.3, "pause_s": random.choice((0.3, 1.0))}
        return writing(random, [("t0", 0)], transactional_id=f"clean{index}", **more)

    def reader(random: Random, index: int) -> dict[str, Any]:
        reading = {"partitions": some(random, [*lossy, ("t0", 0)]), "committed_only": False, "seek": 0.2}
        return {**reading, "pause_s": random.choice((0.3, 1.0)), "max_bytes": random.choice((500, 1 << 20))}

    cast.add("idempotent", writer, random.randint(1, 3))
    cast.add("transactional", transactional)
    cast.add("reader", reader, random.randint(1, 2))
    # With two replicas, a majority of three voters is left when one replica is dead.
    factor = min(2, plan.layout.replication_factor)
    return cast.plan(topics=topics, layout=replace(plan.layout, replication_factor=factor, min_insync=1))
