"""Tests the decisions of a leader of the quorum: proposals, fetches, commits, and the limits of voters."""

from __future__ import annotations

from dataclasses import replace

import pytest
from raft_cluster import voter
from raft_node import CONFIG, Replica, committing, follower, leader

from penstock.protocol.errors import ErrorCode
from penstock.raft.events import (
    Append,
    Committed,
    HandedOver,
    LogFlushed,
    Propose,
    QuorumState,
    Refuse,
)
from penstock.raft.leader import MAX_FETCH_BYTES
from penstock.raft.log_view import OffsetAndEpoch
from penstock.raft.membership import MAX_LISTENER_CHARACTERS, MAX_VOTER_LISTENERS
from penstock.raft.messages import (
    AddVoter,
    Fetch,
    FetchAnswer,
    FetchSnapshot,
    RemoveVoter,
    SnapshotChunk,
    UpdateVoter,
)
from penstock.raft.voters import Voter


def handed_over(replica: Replica) -> bool:
    return any(isinstance(each, HandedOver) for each in replica.effects)


# --- leaders


@pytest.mark.parametrize("epoch", [0, 1, 2])
def test_proposal_is_appended_only_in_the_epoch_that_it_names(epoch: int) -> None:
    replica = committing()
    end = replica.raft.core.log.end_offset
    replica.do(Propose(7, epoch, ((2, b"a"), (3, b"b"))))
    if epoch == 1:
        (append,) = [each for each in replica.effects if isinstance(each, Append)]
        assert [(one.base_offset, one.last_offset, one.epoch, one.content) for one in append.batches] == [
            (end, end + 1, 1, b"a"),
            (end + 2, end + 4, 1, b"b"),
        ]
        assert replica.raft.core.log.end_offset == end + 5
    else:
        assert replica.effects == [Refuse(7, ErrorCode.NOT_LEADER_OR_FOLLOWER, 1)]


def test_proposal_to_a_follower_is_refused_with_the_leader() -> None:
    replica = follower()
    replica.do(Propose(7, 2, ((1, b""),)))
    assert replica.effects == [Refuse(7, ErrorCode.NOT_LEADER_OR_FOLLOWER, 2)]


def test_fetch_is_parked_only_with_a_wait_without_news_and_below_the_limit() -> None:
    replica = leader(config=replace(CONFIG, max_parked_fetches=2))
    replica.fetch(2)
    replica.fetch(3)
    end = replica.raft.core.log.end_offset
    assert replica.fetch(2, wait_ms=0) is not None
    assert replica.fetch(2, offset=end - 1, wait_ms=500) is not None
    assert replica.fetch(2, wait_ms=1, ticket=11) is None
    assert replica.fetch(3, wait_ms=500, ticket=12) is None
    assert replica.fetch(3, wait_ms=500, ticket=13) is not None, "the limit is reached"
    replica.do(Propose(1, 1, ((1, b""),)))
    assert replica.replies() == {11: ErrorCode.NONE, 12: ErrorCode.NONE}
    assert replica.leading.parked == {}


@pytest.mark.parametrize("asked", [1, MAX_FETCH_BYTES, MAX_FETCH_BYTES + 1])
def test_fetch_answer_names_the_records_to_read_and_at_most_the_limit_of_bytes(asked: int) -> None:
    replica = committing()
    answer = replica.ask(Fetch(voter(2).key, 1, 0, 0, 0, 0, asked))
    end = replica.raft.core.high_watermark
    assert answer == FetchAnswer(ErrorCode.NONE, 1, 1, end, read_from=0, max_bytes=min(asked, MAX_FETCH_BYTES))


@pytest.mark.parametrize(("asked", "chunk"), [(0, 1), (1, 1), (100, 100), (101, 100)])
def test_snapshot_chunk_has_at_least_one_byte_and_at_most_the_limit(asked: int, chunk: int) -> None:
    replica = leader(config=replace(CONFIG, max_snapshot_chunk_bytes=100))
    snapshot = OffsetAndEpoch(1, 1)
    answer = replica.ask(FetchSnapshot(voter(2).key, 1, snapshot, 30, asked))
    assert answer == SnapshotChunk(ErrorCode.NONE, 1, 1, snapshot, 30, chunk)


def test_leader_that_removed_itself_resigns_when_the_removal_is_committed_by_a_fetch() -> None:
    replica = committing()
    assert replica.ask(RemoveVoter(voter(1).key), ticket=5) is None
    replica.do(Propose(1, 1, ((1, b""),)))
    end = replica.raft.core.log.end_offset
    replica.fetch(2, end - 2)
    replica.fetch(3, end - 2)
    assert replica.role == "leader", "the removal is not committed yet"
    replica.fetch(2, end - 1, ticket=21)
    assert replica.role == "leader"
    answer = replica.fetch(3, end - 1, ticket=22)
    assert replica.role == "resigned"
    assert answer is not None
    assert answer.error is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert replica.replies() == {5: ErrorCode.NONE, 22: ErrorCode.NOT_LEADER_OR_FOLLOWER}
    assert [each.high_watermark for each in replica.effects if isinstance(each, Committed)] == [end - 1]


def test_leader_commits_what_it_has_synced_and_one_other_voter_has_fetched() -> None:
    replica = committing()
    replica.syncs = False
    end = replica.raft.core.log.end_offset
    replica.do(Propose(1, 1, ((3, b""),)))
    replica.fetch(2)
    assert replica.raft.core.high_watermark == end, "two voters need more than one disk"
    replica.do(LogFlushed(end + 1))
    assert replica.raft.core.high_watermark == end + 1
    replica.fetch(3, end + 2)
    assert replica.raft.core.high_watermark == end + 2


# --- voters


def with_endpoints(count: int, length: int, node_id: int = 4) -> Voter:
    return Voter(node_id, voter(node_id).key.directory_id, tuple((f"L{i}", "h" * length, 1) for i in range(count)))


@pytest.mark.parametrize(
    ("wanted", "code"),
    [
        (with_endpoints(MAX_VOTER_LISTENERS, MAX_LISTENER_CHARACTERS), ErrorCode.NONE),
        (with_endpoints(MAX_VOTER_LISTENERS + 1, 1), ErrorCode.INVALID_REQUEST),
        (with_endpoints(1, MAX_LISTENER_CHARACTERS + 1), ErrorCode.INVALID_REQUEST),
        (
            Voter(4, voter(4).key.directory_id, (("L" * (MAX_LISTENER_CHARACTERS + 1), "h", 1),)),
            ErrorCode.INVALID_REQUEST,
        ),
        (with_endpoints(0, 0, node_id=0), ErrorCode.NONE),
        (Voter(-1, bytes(16)), ErrorCode.INVALID_REQUEST),
    ],
)
def test_new_voter_needs_a_valid_id_and_endpoints_within_their_limits(wanted: Voter, code: ErrorCode) -> None:
    replica = committing()
    core = replica.raft.core
    replica.ask(Fetch(wanted.key, 1, core.log.end_offset, 1, core.high_watermark, 0))
    answer = replica.ask(AddVoter(wanted, ack_when_committed=False))
    assert answer is not None
    assert answer.error is code
    assert (core.voters.latest.find(wanted.node_id) == wanted) == (code is ErrorCode.NONE)


@pytest.mark.parametrize("acknowledged", [True, False])
def test_new_voter_is_acknowledged_at_once_or_when_it_is_committed(acknowledged: bool) -> None:
    replica = committing()
    replica.fetch(4)
    answer = replica.ask(AddVoter(voter(4), ack_when_committed=acknowledged), ticket=5)
    assert (answer is None) == acknowledged
    end = replica.raft.core.log.end_offset
    replica.fetch(2, end)
    assert 5 not in replica.replies(), "four voters need three"
    replica.fetch(4, end)
    assert replica.replies().get(5) == (ErrorCode.NONE if acknowledged else None)
    assert replica.raft.core.high_watermark == end


def test_change_of_voters_waits_for_the_first_commit_of_the_leader_and_for_the_change_before() -> None:
    replica = leader()
    changes = (AddVoter(voter(4)), RemoveVoter(voter(3).key), UpdateVoter(1, with_endpoints(1, 1, node_id=2)))
    for request in changes:
        answer = replica.ask(request)
        assert answer is not None
        assert answer.error is ErrorCode.REQUEST_TIMED_OUT
    replica.fetch(2)
    assert replica.ask(RemoveVoter(voter(3).key), ticket=5) is None
    for request in changes:
        answer = replica.ask(request)
        assert answer is not None
        assert answer.error is ErrorCode.REQUEST_TIMED_OUT
    replica.fetch(2)
    assert replica.replies()[5] is ErrorCode.NONE
    assert replica.ask(UpdateVoter(1, with_endpoints(1, 1, node_id=2)), ticket=6) is None
    replica.fetch(2)
    assert replica.replies()[6] is ErrorCode.NONE
    for epoch, code in ((0, ErrorCode.FENCED_LEADER_EPOCH), (2, ErrorCode.UNKNOWN_LEADER_EPOCH)):
        answer = replica.ask(UpdateVoter(epoch, voter(2)))
        assert answer is not None
        assert answer.error is code
    for unknown in (voter(9), Voter(2, bytes([7]) * 16)):
        answer = replica.ask(UpdateVoter(1, unknown))
        assert answer is not None
        assert answer.error is ErrorCode.VOTER_NOT_FOUND


@pytest.mark.parametrize("knows_commits", [False, True])
def test_leader_of_a_later_epoch_changes_no_voters_before_it_has_committed_its_own_record(knows_commits: bool) -> None:
    replica = leader(saved=QuorumState(2), log_end=3)
    core = replica.raft.core
    if knows_commits:  # as a follower, it learned that all records before its epoch are committed
        core.high_watermark = replica.leading.start_offset
    assert core.voters.latest_offset < core.high_watermark <= replica.leading.start_offset
    for committed in (False, True):
        for request in (RemoveVoter(voter(3).key), UpdateVoter(3, with_endpoints(1, 1, node_id=2))):
            answer = replica.copy().ask(request)
            assert (answer is None) is committed
            assert answer is None or answer.error is ErrorCode.REQUEST_TIMED_OUT
        replica.fetch(2)


def test_change_of_voters_that_was_acknowledged_at_once_still_delays_the_next_change() -> None:
    replica = committing()
    for node_id in (4, 5):
        replica.fetch(node_id)
    answer = replica.ask(AddVoter(voter(4), ack_when_committed=False))
    assert answer is not None
    assert answer.error is ErrorCode.NONE
    for committed in (False, True):
        answer = replica.copy().ask(AddVoter(voter(5), ack_when_committed=False))
        assert answer is not None
        assert answer.error is (ErrorCode.NONE if committed else ErrorCode.REQUEST_TIMED_OUT)
        for node_id in (2, 3, 4, 5):
            replica.fetch(node_id)
