"""Checks that after all faults each partition has the replicas of its last accepted reassignment."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from penstock.protocol.vocabulary import TopicPartition
from penstock.sim.checks.history import FinalView, History, Outcome, Reassignment
from penstock.sim.plan.plan import Plan


def moves_end_as_requested(plan: Plan, history: History, view: FinalView) -> Iterator[str]:
    by_partition: dict[TopicPartition, list[Reassignment]] = defaultdict(list)
    for each in history.reassignments:
        by_partition[each.partition].append(each)
    for partition, requests in by_partition.items():
        last = max(requests, key=lambda each: each.began)
        alone = all(each.ended < last.began for each in requests if each is not last)
        if not alone or last.outcome is not Outcome.DONE or last.replicas is None:
            continue  # a request without an answer, or a cancelled one, may have had its effect or not
        found = view.replicas.get(partition)
        if found is not None and found != last.replicas:
            where = f"{partition[0]}-{partition[1]}"
            yield f"{where} was moved to {list(last.replicas)} at {last.ended:.3f} s and is on {list(found)}"


REASSIGNMENT_RULES = (("moves end as requested", moves_end_as_requested),)
