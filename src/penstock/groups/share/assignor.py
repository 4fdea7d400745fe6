"""Implements the assignor `simple`: several members may share a partition.

Each partition has at least one member, and each member has at least one partition of its topics. If all members
subscribe to the same topics, the assignment is even: all members have the same number of partitions, plus or minus one,
and all partitions have the same number of members, plus or minus one. Members keep their partitions if the assignment
stays even.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from heapq import heapify, heappop, heappush, heapreplace
from itertools import groupby

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
    wanted = {
        topics: [(topic, index) for topic in sorted(topics & partitions.keys()) for index in sorted(partitions[topic])]
        for topics in dict.fromkeys(subscriptions.values())
    }
    slots = {member: wanted[topics] for member, topics in subscriptions.items()}
    held: dict[str, set[Slot]] = {member: set() for member in subscriptions}
    shared: dict[Slot, int] = {slot: 0 for some in wanted.values() for slot in some}
    quotas, sharing = _quotas(slots, shared)
    for member in sorted(slots):
        before = _slots(previous.get(member, {}), subscriptions[member])
        _keep(held[member], shared, before, quotas[member], sharing)
    _give_out(held, shared, subscriptions)
    heaps: dict[frozenset[bytes], list[tuple[int, Slot]]] = {}
    for member in sorted(slots, key=lambda each: (len(held[each]), each)):
        if len(held[member]) < quotas[member]:
            topics = subscriptions[member]
            if topics not in heaps:
                heaps[topics] = [(shared[slot], slot) for slot in wanted[topics]]
                heapify(heaps[topics])
            _fill(held[member], shared, heaps[topics], quotas[member])
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


def _slots(partitions: Partitions, topics: frozenset[bytes]) -> Iterable[Slot]:
    return ((topic, index) for topic in sorted(topics & partitions.keys()) for index in sorted(partitions[topic]))


def _keep(held: set[Slot], shared: dict[Slot, int], before: Iterable[Slot], quota: int, sharing: int) -> None:
    for slot in before:
        if len(held) >= quota:
            return
        if slot in shared and shared[slot] < sharing:
            held.add(slot)
            shared[slot] += 1


def _give_out(
    held: dict[str, set[Slot]], shared: dict[Slot, int], subscriptions: Mapping[str, frozenset[bytes]]
) -> None:
    """Gives each partition without a member to the subscriber that has the fewest partitions."""
    readers: dict[bytes, list[str]] = {}
    for member, topics in subscriptions.items():
        for topic in topics:
            readers.setdefault(topic, []).append(member)
    free = sorted(slot for slot, members in shared.items() if not members)
    for topic, some in groupby(free, key=lambda slot: slot[0]):
        fewest = [(len(held[member]), member) for member in readers[topic]]
        heapify(fewest)
        for slot in some:
            count, member = fewest[0]
            held[member].add(slot)
            shared[slot] += 1
            heapreplace(fewest, (count + 1, member))


def _fill(held: set[Slot], shared: dict[Slot, int], fewest: list[tuple[int, Slot]], quota: int) -> None:
    """Gives a member more partitions, up to its quota. Begins with the partitions that have the fewest members.

    `fewest` is a heap of (number of members, partition). A number in the heap may be too low, because more members have
    got the partition since. It is corrected when it comes to the top of the heap.
    """
    passed = []
    while len(held) < quota and fewest:
        count, slot = fewest[0]
        if count != shared[slot]:
            heapreplace(fewest, (shared[slot], slot))
        elif slot in held:
            passed.append(heappop(fewest))
        else:
            held.add(slot)
            shared[slot] += 1
            heapreplace(fewest, (count + 1, slot))
    for each in passed:
        heappush(fewest, each)


def _grouped(slots: set[Slot]) -> Partitions:
    partitions: dict[bytes, set[int]] = {}
    for topic_id, partition in slots:
        partitions.setdefault(topic_id, set()).add(partition)
    return {topic_id: frozenset(indexes) for topic_id, indexes in partitions.items()}
