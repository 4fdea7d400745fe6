"""Assigns partitions to members on the broker: the `uniform` and the `range` assignor.

`uniform` gives all members the same number of partitions, plus or minus one, and moves as few partitions as possible.
In a tie it prefers a member in the rack of a replica. `range` gives each member consecutive partitions of every topic.
So if all members subscribe to two topics with equal partition counts, a member gets the same partitions of both topics.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from penstock.groups.consumer.group import Partitions


class MemberSpec(NamedTuple):
    topics: frozenset[bytes]
    rack: str | None = None
    instance_id: str | None = None


class TopicSpec(NamedTuple):
    partitions: int
    racks: tuple[frozenset[str], ...] = ()  # racks of each partition's replicas; empty if brokers have no rack


Members = Mapping[str, MemberSpec]
Topics = Mapping[bytes, TopicSpec]
Assignment = dict[str, Partitions]
Assignor = Callable[[Members, Topics, Mapping[str, Partitions]], Assignment]
Slot = tuple[bytes, int]


def assign_range(members: Members, topics: Topics, previous: Mapping[str, Partitions]) -> Assignment:
    result: dict[str, dict[bytes, frozenset[int]]] = {member_id: {} for member_id in members}
    # static members keep their place in the order when they return with another member id
    order = sorted(members, key=lambda member_id: members[member_id].instance_id or member_id)
    for topic_id, topic in topics.items():
        readers = [member_id for member_id in order if topic_id in members[member_id].topics]
        if not readers:
            continue
        share, extra = divmod(topic.partitions, len(readers))
        start = 0
        for place, member_id in enumerate(readers):
            end = start + share + (place < extra)
            if end > start:
                result[member_id][topic_id] = frozenset(range(start, end))
            start = end
    return dict(result)


def assign_uniform(members: Members, topics: Topics, previous: Mapping[str, Partitions]) -> Assignment:
    subscriptions = {spec.topics for spec in members.values()}
    held, free = _keep(members, topics, previous)
    if len(subscriptions) == 1:
        _share_equally(members, topics, held, free)
    else:
        _share_fairly(members, topics, held, free)
    return {member_id: _grouped(slots) for member_id, slots in held.items()}


def _grouped(slots: set[Slot]) -> Partitions:
    partitions: dict[bytes, set[int]] = {}
    for topic_id, partition in slots:
        partitions.setdefault(topic_id, set()).add(partition)
    return {topic_id: frozenset(indexes) for topic_id, indexes in partitions.items()}


def _keep(
    members: Members, topics: Topics, previous: Mapping[str, Partitions]
) -> tuple[dict[str, set[Slot]], list[Slot]]:
    """Returns the partitions that each member keeps, and the partitions without an owner."""
    read = frozenset().union(*(spec.topics for spec in members.values())) if members else frozenset()
    free = {
        (topic_id, index) for topic_id, topic in topics.items() if topic_id in read for index in range(topic.partitions)
    }
    held: dict[str, set[Slot]] = {}
    for member_id, spec in members.items():
        kept = {
            (topic_id, index)
            for topic_id, indexes in previous.get(member_id, {}).items()
            if topic_id in spec.topics
            for index in indexes
        } & free
        held[member_id] = kept
        free -= kept
    return held, sorted(free)


def _near(topics: Topics, slot: Slot, rack: str | None) -> bool:
    racks = topics[slot[0]].racks
    return rack is not None and slot[1] < len(racks) and rack in racks[slot[1]]


def _share_equally(members: Members, topics: Topics, held: dict[str, set[Slot]], free: list[Slot]) -> None:
    share, extra = divmod(sum(map(len, held.values())) + len(free), len(members))
    quota: dict[str, int] = {}
    # Members with the most partitions get the remainder, because that moves the fewest.
    for member_id in sorted(held, key=lambda member_id: (-len(held[member_id]), member_id)):
        more = extra > 0 and len(held[member_id]) > share
        quota[member_id] = share + more
        extra -= more
        rack = members[member_id].rack
        surplus = sorted(held[member_id], key=lambda slot: (not _near(topics, slot, rack), slot))[quota[member_id] :]
        held[member_id].difference_update(surplus)
        free += surplus
    for member_id in sorted(quota, key=lambda member_id: (len(held[member_id]), member_id)):
        if extra > 0 and quota[member_id] == share:
            quota[member_id] += 1
            extra -= 1
    _fill(members, topics, held, quota, sorted(free))


def _fill(
    members: Members, topics: Topics, held: dict[str, set[Slot]], quota: dict[str, int], free: list[Slot]
) -> None:
    hungry = [member_id for member_id in sorted(quota) if len(held[member_id]) < quota[member_id]]
    if any(topic.racks for topic in topics.values()):
        for member_id in hungry:
            rack = members[member_id].rack
            near = [slot for slot in free if _near(topics, slot, rack)][: quota[member_id] - len(held[member_id])]
            held[member_id].update(near)
            taken = set(near)
            free = [slot for slot in free if slot not in taken]
    start = 0
    for member_id in hungry:
        end = start + quota[member_id] - len(held[member_id])
        held[member_id].update(free[start:end])
        start = end


def _share_fairly(members: Members, topics: Topics, held: dict[str, set[Slot]], free: list[Slot]) -> None:
    """Assigns partitions when members subscribe to different topics.

    A free partition goes to the member with the fewest partitions. Then partitions are moved until the numbers of
    partitions per member differ by less than two, as far as the subscriptions allow.
    """
    readers = {
        topic_id: [member_id for member_id in sorted(members) if topic_id in members[member_id].topics]
        for topic_id in topics
    }
    for slot in sorted(free, key=lambda slot: (len(readers[slot[0]]), slot)):
        candidates = readers[slot[0]]
        if candidates:
            best = min(candidates, key=lambda m: (len(held[m]), not _near(topics, slot, members[m].rack), m))
            held[best].add(slot)
    moved = True
    while moved:
        moved = False
        for giver in sorted(held, key=lambda member_id: -len(held[member_id])):
            for slot in sorted(held[giver]):
                taker = min(readers[slot[0]], key=lambda m: (len(held[m]), m))
                if len(held[taker]) + 1 < len(held[giver]):
                    held[giver].discard(slot)
                    held[taker].add(slot)
                    moved = True


ASSIGNORS: dict[str, Assignor] = {"uniform": assign_uniform, "range": assign_range}
