"""Tracks the replicas that fetch from a leader.

From their progress, the leader computes the high watermark, and whether a majority is alive.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from penstock.protocol.uuid import ZERO_UUID
from penstock.raft.voters import ReplicaKey, VoterSet


def caught_up_at(
    offset: int, leader_end: int, now_ms: int, *, earlier_end: int, earlier_ms: int, caught_up_ms: int
) -> int:
    """Returns the time at which a follower last had all records of the leader. The follower now fetches from `offset`.

    At the previous fetch, at the time `earlier_ms`, the leader's log ended at `earlier_end` (-1 without a previous
    fetch). A follower that now has the records below `earlier_end` was caught up at `earlier_ms`. So a follower that
    fetches steadily counts as caught up, even while the leader's log grows fast.
    """
    if offset >= leader_end:
        return now_ms
    if 0 <= earlier_end <= offset:
        return max(caught_up_ms, earlier_ms)
    return caught_up_ms


@dataclass(slots=True)
class Replica:
    key: ReplicaKey
    #: All records below this offset are on the replica's disk; -1 before its first fetch of the epoch.
    end_offset: int = -1
    last_fetch_ms: int = -1
    last_caught_up_ms: int = -1
    #: The end of the leader's log at the last fetch.
    leader_end_at_fetch: int = -1

    def fetched(self, offset: int, leader_end: int, now_ms: int) -> None:
        self.last_caught_up_ms = caught_up_at(
            offset,
            leader_end,
            now_ms,
            earlier_end=self.leader_end_at_fetch,
            earlier_ms=self.last_fetch_ms,
            caught_up_ms=self.last_caught_up_ms,
        )
        self.end_offset = offset
        self.leader_end_at_fetch = leader_end
        self.last_fetch_ms = now_ms


class Replicas:
    """Holds the replicas by node id and directory.

    A replica with a voter's id but another directory does not count as that voter.

    A voter that has not fetched yet counts as if it had fetched at the start of the epoch.
    """

    __slots__ = ("_latest", "me", "since_ms", "table")

    def __init__(self, me: ReplicaKey, since_ms: int) -> None:
        self.me = me
        self.since_ms = since_ms
        self.table: dict[ReplicaKey, Replica] = {}
        #: For each node id, the replica that fetched last.
        self._latest: dict[int, Replica] = {}

    def fetched(self, key: ReplicaKey, offset: int, leader_end: int, now_ms: int) -> None:
        replica = self._find(key)
        if replica is not None:
            replica.fetched(offset, leader_end, now_ms)

    def heard(self, key: ReplicaKey, now_ms: int) -> None:
        replica = self._find(key)
        if replica is not None:
            replica.last_fetch_ms = now_ms

    def _find(self, key: ReplicaKey) -> Replica | None:
        """Returns the progress of a replica; a new entry if the replica is unknown.

        Returns None for the leader itself, and for clients, which have no node id.
        """
        if key.node_id < 0 or key.node_id == self.me.node_id:
            return None
        replica = self.table.get(key)
        if replica is None:
            replica = self.table[key] = Replica(key)
        self._latest[key.node_id] = replica
        return replica

    def of_voters(self, voters: VoterSet) -> list[Replica]:
        """Returns the replicas of all voters but the leader. A replica with a voter's id and another directory is not
        that voter.
        """
        return [self._of_voter(voter.key) for voter in voters.voters if voter.node_id != self.me.node_id]

    def _of_voter(self, key: ReplicaKey) -> Replica:
        """Returns the progress of a voter.

        A voter from the properties has no directory id. Its node id may have fetched with several directories; the
        latest of them counts.
        """
        known = self._latest.get(key.node_id) if key.directory_id == ZERO_UUID else self.table.get(key)
        return known or Replica(key)

    def observers(self, voters: VoterSet) -> list[Replica]:
        """Returns the replicas that are not voters.

        If no voter has a node's id, returns only the replica of this node that fetched last.
        """
        others = self._others(voters)
        return [one for one in others if one is self._latest[one.key.node_id] or voters.find(one.key.node_id)]

    def _others(self, voters: VoterSet) -> list[Replica]:
        counted = {replica.key for replica in self.of_voters(voters)}
        return [replica for key, replica in sorted(self.table.items()) if key not in counted]

    def drop_observers(self, voters: VoterSet, before_ms: int, limit: int) -> None:
        if len(self.table) < len(voters):
            return
        observers = sorted(self._others(voters), key=lambda replica: replica.last_fetch_ms)
        excess = len(observers) - limit
        for place, replica in enumerate(observers):
            if place < excess or replica.last_fetch_ms < before_ms:
                self._forget(replica)

    def _forget(self, replica: Replica) -> None:
        """Removes a replica. Another replica of the same node id, such as a voter, becomes the latest of this id."""
        del self.table[replica.key]
        node_id = replica.key.node_id
        if self._latest[node_id] is replica:
            del self._latest[node_id]
            left = [one for one in self.table.values() if one.key.node_id == node_id]
            if left:
                self._latest[node_id] = max(left, key=lambda one: one.last_fetch_ms)

    def heard_until_ms(self, voters: VoterSet) -> int | None:
        """Returns the latest time T for which a majority of the voters has fetched at T or later.

        A leader that is a voter counts as a voter that fetches all the time. Returns None if the leader alone is a
        majority.
        """
        others = sorted((max(r.last_fetch_ms, self.since_ms) for r in self.of_voters(voters)), reverse=True)
        needed = voters.majority - (1 if voters.has(self.me) else 0)
        return others[needed - 1] if needed > 0 else None

    def replicated_to(self, voters: VoterSet, my_flushed: int) -> int:
        """Returns the largest offset below which a majority has all records on disk."""
        ends = [replica.end_offset for replica in self.of_voters(voters)]
        if voters.has(self.me):
            ends.append(my_flushed)
        return majority_offset(ends, voters.majority)


def majority_offset(end_offsets: Iterable[int], majority: int) -> int:
    return sorted(end_offsets, reverse=True)[majority - 1]


def may_commit(offset: int, high_watermark: int, epoch_start: int) -> bool:
    """Returns True if the high watermark may advance to `offset`: the first record of the leader's own epoch is below
    it.

    Without this rule, committed records could be lost. Even if a majority has certain records of an earlier epoch, a
    replica without these records can win an election if the last record of its log has a later epoch.
    """
    return offset > high_watermark and offset > epoch_start
