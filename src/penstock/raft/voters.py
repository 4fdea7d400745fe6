"""Defines voters: replicas (node id and directory), sets of voters, and all sets that the log contains.

A set takes effect when it is appended, committed or not; truncating the log restores the previous set.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from penstock.check import check
from penstock.protocol.uuid import ZERO_UUID


class ReplicaKey(NamedTuple):
    """Holds a node id and a directory id. A node with a new directory is a new replica, which has not voted yet."""

    node_id: int
    directory_id: bytes = ZERO_UUID


@dataclass(frozen=True, slots=True)
class Voter:
    node_id: int
    directory_id: bytes = ZERO_UUID
    endpoints: tuple[tuple[str, str, int], ...] = ()  # listener name, host, port

    @property
    def key(self) -> ReplicaKey:
        return ReplicaKey(self.node_id, self.directory_id)

    def preferring(self, listener: str | None) -> Voter:
        """Returns the voter with its endpoints reordered: the endpoint of `listener` comes first, because peers use the
        first endpoint."""
        if not self.endpoints or self.endpoints[0][0] == listener:
            return self
        return replace(self, endpoints=tuple(sorted(self.endpoints, key=lambda endpoint: endpoint[0] != listener)))


@dataclass(frozen=True, slots=True)
class VoterSet:
    voters: tuple[Voter, ...] = ()

    @staticmethod
    def of(voters: Iterable[Voter]) -> VoterSet:
        listed = tuple(sorted(voters, key=lambda voter: voter.node_id))
        check(len({voter.node_id for voter in listed}) == len(listed), "a set of voters contains each node once")
        return VoterSet(listed)

    def __iter__(self) -> Iterator[Voter]:
        return iter(self.voters)

    def __len__(self) -> int:
        return len(self.voters)

    @property
    def ids(self) -> tuple[int, ...]:
        return tuple(voter.node_id for voter in self.voters)

    @property
    def majority(self) -> int:
        return len(self.voters) // 2 + 1

    def find(self, node_id: int) -> Voter | None:
        for voter in self.voters:
            if voter.node_id == node_id:
                return voter
        return None

    def has(self, key: ReplicaKey) -> bool:
        """Returns True if the set contains this replica. A voter from the properties has no directory, so only the node
        ids are compared.
        """
        voter = self.find(key.node_id)
        return voter is not None and voter.directory_id in (ZERO_UUID, key.directory_id)

    def is_only(self, key: ReplicaKey) -> bool:
        return len(self.voters) == 1 and self.has(key)

    def added(self, voter: Voter) -> VoterSet:
        return VoterSet.of([*self.voters, voter])

    def removed(self, key: ReplicaKey) -> VoterSet:
        return VoterSet(tuple(voter for voter in self.voters if voter.key != key))

    def updated(self, new: Voter) -> VoterSet:
        return VoterSet(tuple(replace(new) if old.node_id == new.node_id else old for old in self.voters))


class VoterHistory:
    """Holds the sets of voters in the log, keyed by the offset of the record that defines them.

    The first set is from the properties or the snapshot.
    """

    __slots__ = ("_changes",)

    def __init__(self, initial: VoterSet, offset: int = -1) -> None:
        self._changes = [(offset, initial)]

    @property
    def latest(self) -> VoterSet:
        return self._changes[-1][1]

    @property
    def latest_offset(self) -> int:
        """Returns the offset of the record with the latest set of voters; -1 if the set comes from the properties or a
        snapshot."""
        return self._changes[-1][0]

    def record(self, offset: int, voters: VoterSet) -> None:
        check(offset > self.latest_offset, "sets of voters are recorded in the order of the log")
        self._changes.append((offset, voters))

    def before(self, end_offset: int) -> VoterSet:
        """Returns the set of voters to write into a snapshot of the records below `end_offset`."""
        return next((voters for offset, voters in reversed(self._changes) if offset < end_offset), self._changes[0][1])

    def since(self, high_watermark: int) -> list[VoterSet]:
        """Returns the latest committed set of voters, and the uncommitted sets after it."""
        above = [voters for offset, voters in self._changes if offset >= high_watermark]
        return [self.before(high_watermark), *above]

    def truncate_to(self, end_offset: int) -> None:
        while len(self._changes) > 1 and self.latest_offset >= end_offset:
            self._changes.pop()

    def forget_before(self, end_offset: int) -> None:
        """Drops old sets of voters after a snapshot. Of the sets in records below `end_offset`, keeps only
        the latest."""
        while len(self._changes) > 1 and self._changes[1][0] < end_offset:
            del self._changes[0]

    def reset(self, voters: VoterSet, offset: int) -> None:
        self._changes = [(offset, voters)]
