"""Tests a leader of the quorum step by step: snapshot requests, live voters, sets of voters, and membership."""

from __future__ import annotations

import random
from itertools import product

import pytest
from raft_cluster import voter

from penstock.protocol.errors import ErrorCode
from penstock.raft.config import RaftConfig
from penstock.raft.events import Append, Effect, LogFlushed, Received, Reply, StateSaved, Tick
from penstock.raft.log_view import LogView, OffsetAndEpoch
from penstock.raft.machine import Raft
from penstock.raft.messages import AddVoter, Answer, Fetch, FetchSnapshot, RemoveVoter, Request, UpdateVoter
from penstock.raft.progress import Replicas, majority_offset, may_commit
from penstock.raft.voters import ReplicaKey, VoterHistory, VoterSet


def leader() -> Raft:
    """Returns node 1, the only voter, which leads epoch 1 and has committed its first records."""
    voters = VoterHistory(VoterSet.of([voter(1)]))
    raft = Raft(RaftConfig(), voter(1), random=random.Random(1), log=LogView(), voters=voters)
    raft.step(Tick(), 0)
    raft.step(StateSaved(), 0)
    raft.step(LogFlushed(raft.core.log.end_offset), 0)
    return raft


def asked(raft: Raft, request: Request) -> Answer:
    (answer,) = [each.answer for each in raft.step(Received(1, request), 0) if isinstance(each, Reply)]
    return answer


def committed(raft: Raft) -> list[Effect]:
    return raft.step(LogFlushed(raft.core.log.end_offset), 0)


def caught_up(raft: Raft, node_id: int, now_ms: int = 0) -> None:
    end = raft.core.log.end_offset
    raft.step(Received(9, Fetch(voter(node_id).key, 1, end, raft.core.log.last_epoch, end, 0)), now_ms)


@pytest.mark.parametrize(
    ("epoch", "code"),
    [(0, ErrorCode.FENCED_LEADER_EPOCH), (1, ErrorCode.NONE), (2, ErrorCode.UNKNOWN_LEADER_EPOCH)],
)
def test_snapshot_is_sent_only_in_the_leaders_epoch(epoch: int, code: ErrorCode) -> None:
    raft = leader()
    assert asked(raft, FetchSnapshot(voter(2).key, epoch, OffsetAndEpoch(1, 1), 0, 100)).error is code
    assert (voter(2).key in raft.core.state.replicas.table) == (not code)  # type: ignore[union-attr]


def test_replica_without_leadership_sends_no_snapshot() -> None:
    voters = VoterHistory(VoterSet.of([voter(1), voter(2)]))
    raft = Raft(RaftConfig(), voter(1), random=random.Random(1), log=LogView(), voters=voters)
    request = FetchSnapshot(voter(2).key, 0, OffsetAndEpoch(1, 1), 0, 100)
    assert asked(raft, request).error is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_fetch_of_a_diverging_voter_does_not_advance_the_high_watermark() -> None:
    voters = VoterSet.of([voter(1), voter(2), voter(3)])
    replicas = Replicas(voter(1).key, 100)
    replicas.fetched(voter(2).key, 5, 9, 200)
    replicas.heard(voter(2).key, 300)
    replicas.heard(voter(3).key, 250)
    found = {each.key.node_id: (each.last_fetch_ms, each.end_offset) for each in replicas.of_voters(voters)}
    assert found == {2: (300, 5), 3: (250, -1)}
    assert replicas.heard_until_ms(voters) == 300
    assert replicas.heard_until_ms(VoterSet.of([voter(2), voter(3)])) == 250
    assert replicas.heard_until_ms(VoterSet.of([voter(1)])) is None
    assert replicas.replicated_to(voters, 9) == 5
    assert replicas.replicated_to(VoterSet.of([voter(2), voter(3)]), 9) == -1


def test_leader_commits_the_largest_offset_that_a_majority_has_reached_in_its_epoch() -> None:
    for ends in product(range(4), repeat=3):
        expected = max(offset for offset in range(4) if sum(end >= offset for end in ends) >= 2)
        assert majority_offset(ends, 2) == expected
    assert [may_commit(offset, 2, 4) for offset in (4, 5)] == [False, True]
    assert not may_commit(5, 5, 4)


def test_truncating_the_log_restores_the_voter_set_of_the_last_remaining_record() -> None:
    sets = [VoterSet.of(map(voter, range(1, size + 1))) for size in (1, 2, 3, 4)]
    offsets = (-1, 5, 8, 9)

    def history() -> VoterHistory:
        found = VoterHistory(sets[0])
        for offset, voters in zip(offsets[1:], sets[1:]):
            found.record(offset, voters)
        return found

    for end in range(12):
        left = [(offset, voters) for offset, voters in zip(offsets, sets) if offset < end]
        cut = history()
        cut.truncate_to(end)
        assert (cut.latest_offset, cut.latest) == left[-1], end
        assert cut.since(0) == [voters for _, voters in left]
        assert history().before(end) == left[-1][1]
        assert history().since(end) == [left[-1][1], *sets[len(left) :]]
        forgetful = history()
        forgetful.forget_before(end)
        assert forgetful.since(0)[-1] == sets[-1]
        assert forgetful.before(0) == left[-1][1], "the first set that is kept"


def test_update_of_a_voter_with_the_same_endpoints_is_answered_without_a_record() -> None:
    raft = leader()
    end = raft.core.log.end_offset
    effects = raft.step(Received(1, UpdateVoter(1, voter(1))), 0)
    assert [each.answer.error for each in effects if isinstance(each, Reply)] == [ErrorCode.NONE]
    assert not [each for each in effects if isinstance(each, Append)]
    assert raft.core.log.end_offset == end


def test_add_voter_is_refused_before_the_node_has_caught_up_and_the_last_voter_cannot_be_removed() -> None:
    raft = leader()
    assert asked(raft, RemoveVoter(voter(1).key)).error is ErrorCode.INVALID_REQUEST
    assert asked(raft, AddVoter(voter(1))).error is ErrorCode.DUPLICATE_VOTER
    assert asked(raft, AddVoter(voter(2))).error is ErrorCode.REQUEST_TIMED_OUT, "it has not fetched"
    caught_up(raft, 2)
    raft.step(Received(2, AddVoter(voter(2))), 0)
    assert set(raft.core.voters.latest.ids) == {1, 2}
    caught_up(raft, 3)
    assert asked(raft, AddVoter(voter(3))).error is ErrorCode.REQUEST_TIMED_OUT, "the change before is not committed"
    committed(raft)
    caught_up(raft, 2)
    assert raft.core.high_watermark == raft.core.log.end_offset
    other_directory = ReplicaKey(2, bytes([99]) * 16)
    assert asked(raft, RemoveVoter(other_directory)).error is ErrorCode.VOTER_NOT_FOUND
    assert asked(raft, RemoveVoter(voter(9).key)).error is ErrorCode.VOTER_NOT_FOUND
    raft.step(Received(3, RemoveVoter(voter(2).key)), 0)
    assert set(raft.core.voters.latest.ids) == {1}


def test_add_voter_is_refused_if_the_node_has_not_been_caught_up_recently() -> None:
    timeout = RaftConfig().fetch_timeout_ms
    for late, code in ((0, ErrorCode.NONE), (1, ErrorCode.REQUEST_TIMED_OUT)):
        raft = leader()
        caught_up(raft, 2, 10)
        effects = raft.step(Received(1, AddVoter(voter(2))), 10 + timeout + late)
        errors = [each.answer.error for each in effects if isinstance(each, Reply)]
        assert errors == ([] if code is ErrorCode.NONE else [code])
