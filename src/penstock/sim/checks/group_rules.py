"""Checks groups: only the owner of a partition commits, and a group commits only records that it has read."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from penstock.protocol.vocabulary import TopicPartition
from penstock.sim.checks.history import FinalView, History, Outcome, Ownership
from penstock.sim.plan.plan import Plan

#: Kinds of actors that are members of a group.
MEMBERS = ("member", "classic member", "streams member")


def only_owners_commit(plan: Plan, history: History, view: FinalView) -> Iterator[str]:
    """Yields each accepted commit of a member for a partition that another member owned at that time."""
    owners: dict[tuple[str, TopicPartition], list[Ownership]] = defaultdict(list)
    for owned in history.ownerships:
        for partition in owned.partitions:
            owners[owned.group, partition].append(owned)
    for commit in history.commits:
        if not commit.member or commit.outcome is not Outcome.DONE:
            continue
        for owned in owners[commit.group, commit.partition]:
            other = owned.member != commit.member
            if other and owned.began < commit.began and commit.ended < owned.ended:
                where = f"{commit.partition[0]}-{commit.partition[1]}"
                what = f"{commit.member} committed {commit.offset} of {where} at {commit.began:.3f} s"
                yield f"{what}, but {owned.member} owned it from {owned.began:.3f} to {owned.ended:.3f} s"


def groups_read_what_they_commit(plan: Plan, history: History, view: FinalView) -> Iterator[str]:
    """Yields each record below a group's committed offset that no member of the group has read."""
    if history.power_losses or history.deletions or plan.profile != "groups":
        return
    names: dict[str, str] = {}
    for actor in plan.actors:
        if actor.kind in MEMBERS:
            names[f"{actor.kind[:5]}{actor.index}"] = actor.params["group"]
    seen: dict[tuple[str, TopicPartition], set[int]] = defaultdict(set)
    for read in history.reads:
        group = names.get(read.reader.partition("#")[0])
        if group is not None:
            seen[group, read.partition].add(read.offset)
    for (group, partition), committed in view.group_offsets.items():
        missed = [
            offset
            for offset in view.committed.get(partition, {})
            if offset < committed and offset not in seen[group, partition]
        ]
        if missed and group in names.values():
            where = f"{partition[0]}-{partition[1]}"
            yield f"{group} has committed {committed} of {where}, but none of its members has read {missed[0]}"


GROUP_RULES = (
    ("only owners commit", only_owners_commit),
    ("groups read what they commit", groups_read_what_they_commit),
)
