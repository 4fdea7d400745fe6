"""Tests the rule that decides when a follower was last caught up, for quorum voters and for partition replicas."""

from __future__ import annotations

import pytest

from penstock.raft.progress import Replicas, caught_up_at
from penstock.raft.voters import ReplicaKey, Voter, VoterSet


@pytest.mark.parametrize(
    ("offset", "leader_end", "earlier_end", "expected"),
    [
        pytest.param(10, 10, 8, 500, id="at the leader's end"),
        pytest.param(12, 10, 8, 500, id="past the leader's end"),
        pytest.param(8, 10, 8, 400, id="at the end of the fetch before"),
        pytest.param(9, 10, 8, 400, id="past the end of the fetch before"),
        pytest.param(7, 10, 8, 300, id="behind the end of the fetch before"),
        pytest.param(7, 10, -1, 300, id="first fetch, behind"),
        pytest.param(10, 10, -1, 500, id="first fetch, at the end"),
        pytest.param(0, 10, 0, 400, id="an empty log at the fetch before"),
    ],
)
def test_caught_up_time_of_a_follower_is_computed_from_its_last_two_fetches(
    offset: int, leader_end: int, earlier_end: int, expected: int
) -> None:
    found = caught_up_at(offset, leader_end, 500, earlier_end=earlier_end, earlier_ms=400, caught_up_ms=300)
    assert found == expected


def test_a_late_fetch_does_not_lower_the_caught_up_time() -> None:
    assert caught_up_at(8, 10, 500, earlier_end=8, earlier_ms=400, caught_up_ms=450) == 450


@pytest.mark.parametrize("key", [ReplicaKey(1), ReplicaKey(1, b"another directory"[:16]), ReplicaKey(-1)])
def test_leader_tracks_no_fetch_progress_for_itself_or_for_fetches_without_a_replica_id(key: ReplicaKey) -> None:
    replicas = Replicas(ReplicaKey(1), 0)
    replicas.heard(key, 5)
    replicas.fetched(key, 10, 10, 5)
    assert replicas.observers(VoterSet()) == []


def test_leader_tracks_the_fetch_progress_of_node_zero() -> None:
    replicas = Replicas(ReplicaKey(1), 0)
    replicas.fetched(ReplicaKey(0), 10, 10, 5)
    assert [each.key.node_id for each in replicas.observers(VoterSet())] == [0]


def replicas_of_two_directories(*times: tuple[bytes, int]) -> Replicas:
    replicas = Replicas(ReplicaKey(1), 0)
    for directory_id, now_ms in times:
        replicas.fetched(ReplicaKey(2, directory_id * 16), 10, 10, now_ms)
    return replicas


def test_voter_whose_later_directory_was_forgotten_can_be_removed() -> None:
    """The replica with the later directory stopped fetching; the voter, with the first directory, is left."""
    replicas = replicas_of_two_directories((b"a", 5), (b"b", 10))
    voters = VoterSet.of([Voter(1), Voter(2, b"a" * 16), Voter(3, b"c" * 16)])
    replicas.fetched(ReplicaKey(3, b"c" * 16), 10, 10, 500)
    replicas.drop_observers(voters, 100, 10)
    assert list(replicas.table) == [ReplicaKey(2, b"a" * 16), ReplicaKey(3, b"c" * 16)]
    fewer = voters.removed(ReplicaKey(2, b"a" * 16))
    assert [each.key.directory_id for each in replicas.observers(fewer)] == [b"a" * 16]
    replicas.drop_observers(fewer, 100, 10)
    assert list(replicas.table) == [ReplicaKey(3, b"c" * 16)]
    assert replicas.observers(fewer) == []


@pytest.mark.parametrize("first", [b"a", b"b"])
def test_two_directories_of_a_node_that_fetched_at_the_same_moment_are_forgotten_together(first: bytes) -> None:
    second = b"b" if first == b"a" else b"a"
    for limit, left in ((0, []), (1, [b"b"])):
        replicas = replicas_of_two_directories((first, 5), (second, 5))
        replicas.drop_observers(VoterSet.of([Voter(1)]), 0, limit)
        assert [key.directory_id for key in replicas.table] == [each * 16 for each in left]
        assert [each.key.directory_id for each in replicas.observers(VoterSet.of([Voter(1)]))] == [
            each * 16 for each in left
        ]
    replicas = replicas_of_two_directories((first, 5), (second, 5))
    replicas.drop_observers(VoterSet.of([Voter(1)]), 6, 10)
    assert replicas.table == {}


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_single_observer_beside_all_voters_is_forgotten_exactly_after_its_session(size: int) -> None:
    voters = VoterSet.of(Voter(each, bytes([each]) * 16) for each in range(1, size + 1))
    for before_ms, left in ((50, 1), (51, 0)):
        replicas = Replicas(voters.voters[0].key, 0)
        for each in voters.voters[1:]:
            replicas.fetched(each.key, 10, 10, 5)
        replicas.fetched(ReplicaKey(9, b"o" * 16), 10, 10, 50)
        replicas.drop_observers(voters, before_ms, 10)
        assert len(replicas.observers(voters)) == left
        assert [each.end_offset for each in replicas.of_voters(voters)] == [10] * (size - 1), "voters stay"


def test_observers_beyond_the_limit_are_forgotten_from_the_longest_silent_on() -> None:
    for limit in range(6):
        replicas = Replicas(ReplicaKey(1), 0)
        for node_id, now_ms in ((4, 30), (5, 10), (6, 40), (7, 20)):
            replicas.fetched(ReplicaKey(node_id), 10, 10, now_ms)
        replicas.drop_observers(VoterSet.of([Voter(1)]), 0, limit)
        kept = {each.key.node_id for each in replicas.observers(VoterSet.of([Voter(1)]))}
        assert kept == set([5, 7, 4, 6][-limit:] if limit else [])


def test_voter_that_is_one_fetch_behind_a_growing_log_stays_caught_up() -> None:
    replicas = Replicas(ReplicaKey(1), 0)
    key = ReplicaKey(2, b"d" * 16)
    for step in range(1, 6):  # each fetch asks for the end that the log had at the fetch before
        replicas.fetched(key, 10 * step, 10 * step + 10, 100 * step)
        replica = replicas.table[key]
        assert replica.last_caught_up_ms == (100 * (step - 1) if step > 1 else -1)
        assert (replica.end_offset, replica.last_fetch_ms) == (10 * step, 100 * step)
    replicas.heard(key, 600)
    assert (replica.end_offset, replica.last_fetch_ms, replica.last_caught_up_ms) == (50, 600, 400)
