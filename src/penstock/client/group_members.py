"""Reads the partitions of a group's members from the group's description.

The leader of a classic group can write any bytes as the assignment of a member: one megabyte can name 250,000
partitions that don't exist. So assignments are read in small steps and up to a limit, and only partitions that exist
are kept.
"""

from __future__ import annotations

import asyncio
import struct
import sys
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from penstock.client.client import AsyncClient
from penstock.metadata.names import MAX_NAME_LENGTH
from penstock.net.yielding import yield_between_slices
from penstock.protocol.vocabulary import TopicPartition

#: Topics and partitions that are read from the assignment of one member, and from those of all members of a group.
MEMBER_ITEMS_MAX, GROUP_ITEMS_MAX = 50_000, 200_000
#: Topics of all members of a group that are looked up.
TOPICS_MAX = 10_000
#: Partitions that are compared with the existing ones in one step.
PARTITIONS_A_STEP = 2_000
#: Topics of one Metadata request.
TOPICS_AT_ONCE = 100
CONSUMER = "consumer"

Claim = tuple[str, Sequence[int]]
"""A topic, and the partitions of this topic that an assignment names. They may not exist."""
Indexes = Mapping[str, set[int]]
"""The partitions that exist, by topic."""


class Owner(NamedTuple):
    member: str
    client: str
    host: str
    instance: str | None


class Described(NamedTuple):
    state: str
    owners: dict[TopicPartition, Owner]
    members: dict[Owner, list[TopicPartition]]
    """The members in the order of their ids, each with its partitions that exist, sorted."""
    truncated: bool
    """True if assignments were longer than the limits, so that the rest was not read."""


async def describe_members(
    client: AsyncClient, state: str, members: Iterable[tuple[Owner, Iterable[Claim]]]
) -> Described:
    """Returns the description of a group. `members` are pairs of a member and its assignment."""
    reading = _Reading()
    read = {owner: await reading.read(claims) for owner, claims in sorted(members, key=lambda each: each[0].member)}
    known = await existing_partitions(client, reading.topics)
    described = Described(state, {}, {}, reading.truncated)
    for owner, claims in read.items():
        described.members[owner] = partitions = await _existing(claims, known)
        for number, partition in enumerate(partitions):
            await yield_between_slices(number)
            described.owners[partition] = owner
    return described


class _Reading:
    """Reads the assignments of a group's members, up to a limited number of topics and partitions."""

    def __init__(self) -> None:
        self.topics: dict[str, None] = {}
        """The topics of all claims, in the order of their first claim."""
        self.truncated = False
        self._room = GROUP_ITEMS_MAX

    async def read(self, claims: Iterable[Claim]) -> list[Claim]:
        """Returns the assignment of one member, cut off at the limits."""
        found: list[Claim] = []
        left = allowed = min(MEMBER_ITEMS_MAX, self._room)
        for number, (topic, partitions) in enumerate(claims):
            await yield_between_slices(number)
            if left == 0 or (topic not in self.topics and len(self.topics) == TOPICS_MAX):
                self.truncated = True
                break
            self.topics[topic] = None
            taken = partitions[: left - 1]
            self.truncated |= len(taken) < len(partitions)
            found.append((topic, taken))
            left -= 1 + len(taken)
        self._room -= allowed - left
        await asyncio.sleep(0)
        return found


async def existing_partitions(client: AsyncClient, topics: Iterable[str]) -> Indexes:
    """Returns the partitions of these topics. Leaves out topics that don't exist or that the user may not describe."""
    names = [name for name in topics if len(name) <= MAX_NAME_LENGTH]
    known: dict[str, set[int]] = {}
    for start in range(0, len(names), TOPICS_AT_ONCE):
        for topic in (await client.metadata(names[start : start + TOPICS_AT_ONCE])).topics:
            if topic.partitions:
                known[topic.name or ""] = {each.partition_index for each in topic.partitions}
                await asyncio.sleep(0)
    return known


async def _existing(claims: Iterable[Claim], known: Indexes) -> list[TopicPartition]:
    """Returns the assigned partitions that exist, sorted and without duplicates."""
    found: dict[str, set[int]] = {}
    for number, (topic, partitions) in enumerate(claims):
        await yield_between_slices(number)
        for start in range(0, len(partitions) if topic in known else 0, PARTITIONS_A_STEP):
            some = known[topic].intersection(partitions[start : start + PARTITIONS_A_STEP])
            found.setdefault(topic, set()).update(some)
            await asyncio.sleep(0)
    return await in_order(found)


async def in_order(partitions: Mapping[str, Iterable[int]]) -> list[TopicPartition]:
    """Returns partitions, given by topic, as a sorted list."""
    ordered: list[TopicPartition] = []
    for topic in sorted(partitions):
        for index in sorted(partitions[topic]):
            await yield_between_slices(len(ordered))
            ordered.append((topic, index))
    return ordered


def partition_names(partitions: Iterable[TopicPartition]) -> list[str]:
    return [f"{topic}-{index}" for topic, index in partitions]


def claims_in(protocol_type: str, assignment: bytes) -> Iterator[Claim]:
    """Yields (topic, partitions) from the assignment of a member of a classic group.

    Stops at the first byte that can't be parsed. Yields nothing if the group's protocol type is not "consumer": the
    format of such an assignment is unknown.
    """
    if protocol_type != CONSUMER or len(assignment) < 2:
        return
    count, at = int.from_bytes(assignment[2:6], "big", signed=True), 6
    try:
        for _ in range(count):
            (length,) = struct.unpack_from(">H", assignment, at)
            topic, size = struct.unpack_from(f">{length}si", assignment, at + 2)
            start = at + 2 + length + 4
            at = start + 4 * max(size, 0)
            partitions = array("i", assignment[start:at])
            if sys.byteorder == "little":
                partitions.byteswap()
            yield topic.decode(), partitions
    except (struct.error, ValueError):  # ValueError: not UTF-8, or the last partition is cut off
        return
