"""Implements the assignor `simple`: several members may share a partition.

Each partition has at least one member, and each member has at least one partition of its topics. If members subscribe
to the same topics, they get the same number of partitions, plus or minus one, and each partition gets the same number
of members, plus or minus one. As far as this balance allows, members keep their partitions.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.groups.consumer.group import Partitions

Slot = tuple[bytes, int]
Assignment = dict[str, Partitions]


def assign(
    subscriptions: Mapping[str, frozenset[bytes]],
    partitions: Mapping[bytes, frozenset[int]],
    previous: Mapping[str, Partitions],
) -> Assignment:
    """Returns an assignment of the given partitions to members. `subscriptions` contains the topic ids of each
    member."""
    slots = {
        member: [(topic, index) for topic in sorted(topics & partitions.keys()) for index in sorted(partitions[topic])]
        for member, topics in subscriptions.items()
    }
    held: dict[str, set[Slot]] = {member: set() for member in subscriptions}
    shared: dict[Slot, int] = {slot: 0 for wanted in slots.values() for slot in wanted}
    quotas, sharing = _quotas(slots, shared)
    for member in sorted(slots):
        _keep(held[member], shared, slots[member], previous.get(member, {}), quotas[member], sharing)
    readers: dict[bytes, list[str]] = {}
    for member in sorted(slots):
        for topic in subscriptions[member]:
            readers.setdefault(topic, []).append(member)
    for slot in sorted(shared):
        if not shared[slot]:
            member = min(readers[slot[0]], key=lambda each: (len(held[each]), each))
            held[member].add(slot)
            shared[slot] += 1
    for member in sorted(slots, key=lambda each: (len(held[each]), each)):
        while len(held[member]) < quotas[member]:
            left = [slot for slot in slots[member] if slot not in held[member]]
            if not left:
                break
            slot = min(left, key=lambda each: (shared[each], each))
            held[member].add(slot)
            shared[slot] += 1
    return {member: _grouped(taken) for member, taken in held.items()}


def _quotas(slots: Mapping[str, list[Slot]], shared: Mapping[Slot, int]) -> tuple[dict[str, int], int]:
    """Returns how many partitions each member should get, and how many members may share a partition."""
    members = [member for member in sorted(slots) if slots[member]]
    if not members:
        return dict.fromkeys(slots, 0), 0
    sharing = -(-len(members) // len(shared))
    share, extra = divmod(len(shared) * sharing, len(members))
    quotas = dict.fromkeys(slots, 0)
    for place, member in enumerate(members):
        quotas[member] = min(len(slots[member]), max(1, share + (place < extra)))
    return quotas, sharing


def _keep(
    held: set[Slot],
    shared: dict[Slot, int],
    wanted: list[Slot],
    before: Partitions,
    quota: int,
    sharing: int,
) -> None:
    for slot in wanted:
        if len(held) >= quota:
            return
        if slot[1] in before.get(slot[0], ()) and shared[slot] < sharing:
            held.add(slot)
            shared[slot] += 1


def _grouped(slots: set[Slot]) -> Partitions:
    partitions: dict[bytes, set[int]] = {}
    for topic_id, partition in slots:
        partitions.setdefault(topic_id, set()).add(partition)
    return {topic_id: frozenset(indexes) for topic_id, indexes in partitions.items()}
