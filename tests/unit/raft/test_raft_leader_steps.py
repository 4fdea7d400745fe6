"""Tests single steps of a leader: refusals in every role, its own removal, and its own endpoints."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from raft_cluster import voter
from raft_node import CONFIG, STAND_MS, Replica, committing, leader
from raft_roles import EPOCH, ROLES

from penstock.protocol.errors import ErrorCode
from penstock.raft.events import Append, Committed, LogFlushed, Propose, QuorumState, Resign, Tick, VotersChange
from penstock.raft.log_view import OffsetAndEpoch
from penstock.raft.messages import (
    AddVoter,
    BeginEpoch,
    EndEpoch,
    EpochAnswer,
    Fetch,
    FetchAnswer,
    FetchSnapshot,
    RemoveVoter,
    SnapshotChunk,
    UpdateVoter,
    Vote,
    VoterAnswer,
)
from penstock.raft.voters import ReplicaKey, Voter, VoterSet

MOVED = Voter(1, voter(1).directory_id, (("C", "elsewhere", 1),))


def refusal(role: str, epoch: int) -> ErrorCode:
    if epoch < EPOCH:
        return ErrorCode.FENCED_LEADER_EPOCH
    if epoch > EPOCH:
        return ErrorCode.UNKNOWN_LEADER_EPOCH
    return ErrorCode.NONE if role == "leader" else ErrorCode.NOT_LEADER_OR_FOLLOWER


@pytest.mark.parametrize("role", ROLES)
def test_requests_to_a_leader_are_refused_in_every_other_role_and_epoch(role: str) -> None:
    start = ROLES[role]()
    leader_id, high_watermark = start.raft.core.state.leader_id, start.raft.core.high_watermark
    for epoch in (EPOCH - 1, EPOCH, EPOCH + 1):
        code = refusal(role, epoch)
        replica = start.copy()
        answer = replica.ask(Fetch(voter(2).key, epoch, 3, 1, high_watermark, 0))
        if code:
            assert answer == FetchAnswer(code, EPOCH, leader_id)
        else:
            max_bytes = Fetch(voter(2).key, epoch, 3, 1, 0, 0).max_bytes
            assert answer == FetchAnswer(code, EPOCH, 1, high_watermark, read_from=3, max_bytes=max_bytes)
        snapshot = OffsetAndEpoch(1, 1)
        chunk = start.copy().ask(FetchSnapshot(voter(2).key, epoch, snapshot, 4, 10))
        given = (snapshot, 4, 10) if not code else ()
        assert chunk == SnapshotChunk(code, EPOCH, leader_id, *given)
        update = start.copy().ask(UpdateVoter(epoch, voter(2)))
        assert isinstance(update, VoterAnswer)
        late = ErrorCode.REQUEST_TIMED_OUT  # the leader has committed nothing in its epoch yet
        assert (update.error, update.epoch, update.leader_id) == (code or late, EPOCH, leader_id)
    for request in (AddVoter(voter(4)), RemoveVoter(voter(3).key)):
        replica = start.copy()
        change = replica.ask(request)
        assert isinstance(change, VoterAnswer)
        code = ErrorCode.REQUEST_TIMED_OUT if role == "leader" else ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert (change.error, change.epoch, change.leader_id) == (code, EPOCH, leader_id)
        assert replica.raft.core.log.end_offset == start.raft.core.log.end_offset


@pytest.mark.parametrize("role", ROLES)
def test_fetch_with_a_negative_number_is_invalid_in_every_role(role: str) -> None:
    start = ROLES[role]()
    good = Fetch(voter(2).key, EPOCH, 3, 1, 0, 0)
    for field in ("epoch", "offset", "last_epoch", "max_wait_ms"):
        replica = start.copy()
        answer = replica.ask(replace(good, **{field: -1}))  # type: ignore[arg-type]
        assert answer == FetchAnswer(ErrorCode.INVALID_REQUEST, EPOCH, start.raft.core.state.leader_id)
        if role == "leader":
            assert voter(2).key not in replica.leading.replicas.table
    assert start.copy().ask(replace(good, high_watermark=-1)) is not None


def test_refused_fetch_does_not_count_as_a_sign_of_life() -> None:
    replica = leader()
    for epoch in (0, 2):
        replica.ask(Fetch(voter(2).key, epoch, 0, 0, 0, 0))
        replica.ask(FetchSnapshot(voter(2).key, epoch, OffsetAndEpoch(1, 1), 0, 1))
    assert replica.leading.replicas.table == {}
    for now_ms in range(STAND_MS, STAND_MS + CONFIG.check_quorum_ms, 100):
        replica.now_ms = now_ms
        replica.ask(Fetch(voter(2).key, 0, 0, 0, 0, 0))
    replica.at(STAND_MS + CONFIG.check_quorum_ms)
    assert replica.role == "resigned"


@pytest.mark.parametrize("how", ["diverging fetch", "snapshot"])
def test_voter_that_is_far_behind_still_keeps_its_leader_in_office(how: str) -> None:
    replica = leader()
    end = replica.raft.core.log.end_offset
    for now_ms in range(STAND_MS, STAND_MS + 3 * CONFIG.check_quorum_ms, 500):
        replica.now_ms = now_ms
        if how == "snapshot":
            replica.ask(FetchSnapshot(voter(2).key, 1, OffsetAndEpoch(1, 1), 0, 1))
        else:
            answer = replica.ask(Fetch(voter(2).key, 1, end + 5, 1, 0, 100))
            assert answer == FetchAnswer(ErrorCode.NONE, 1, 1, 0, diverging=OffsetAndEpoch(end, 1))
    assert (replica.role, replica.raft.core.high_watermark) == ("leader", 0)


# --- the leader's own removal


def test_leader_that_removes_itself_leads_until_its_removal_is_committed_whatever_commits_before() -> None:
    replica = committing()
    end = replica.raft.core.log.end_offset
    replica.do(Propose(1, 1, ((1, b""),)))
    assert replica.ask(RemoveVoter(voter(1).key), ticket=5) is None
    for node_id in (2, 3):
        replica.fetch(node_id, end + 1)
    assert replica.raft.core.high_watermark == end + 1
    assert replica.role == "leader"
    assert 5 not in replica.replies()
    replica.fetch(2, end + 2)
    assert replica.role == "leader", "without its own log, two of two voters are needed"
    replica.fetch(3, end + 2)
    assert replica.replies()[5] is ErrorCode.NONE
    assert replica.role == "resigned"
    assert [send.to for send in replica.sent(EndEpoch)] == [2, 3]


def test_log_of_a_leader_that_removed_itself_does_not_count() -> None:
    replica = committing()
    end = replica.raft.core.log.end_offset
    replica.ask(RemoveVoter(voter(1).key), ticket=5)
    assert replica.raft.core.log.flushed_offset == end + 1
    replica.fetch(2, end + 1)
    assert replica.raft.core.high_watermark == end
    last = STAND_MS + CONFIG.check_quorum_ms
    replica.at(last - 1)
    assert replica.role == "leader"
    replica.at(last)
    assert replica.role == "resigned"


def test_removed_leader_that_resigned_is_an_observer_after_its_timeout_and_stands_no_more() -> None:
    replica = committing()
    replica.ask(RemoveVoter(voter(1).key), ticket=5)
    for node_id in (2, 3):
        replica.fetch(node_id)
    assert replica.role == "resigned"
    for send in replica.sent(EndEpoch):
        replica.answer(send, EpochAnswer(ErrorCode.NONE, 1, -1))
    deadline_ms = replica.raft.core.state.deadline_ms  # type: ignore[union-attr]
    replica.at(deadline_ms - 1)
    assert replica.role == "resigned"
    replica.at(deadline_ms)
    assert replica.role == "unattached"
    asked = {send.to for send in replica.sent(Fetch)}
    for _ in range(30):
        for send in replica.sent(Fetch):
            replica.answer(send, FetchAnswer(ErrorCode.NOT_LEADER_OR_FOLLOWER, 1, -1))
        replica.at(max(replica.now_ms + 1, replica.raft.deadline()))
        asked |= {send.to for send in replica.sent(Fetch)}
        assert not replica.sent(Vote)
    assert asked == {2, 3}


# --- the leader's own endpoints


def voters_appended(replica: Replica) -> list[VoterSet]:
    return [
        one.content.voters
        for each in replica.effects
        if isinstance(each, Append)
        for one in each.batches
        if isinstance(one.content, VotersChange)
    ]


def test_leader_records_its_new_endpoints_once_after_its_first_commit() -> None:
    replica = leader(as_voter=MOVED)
    replica.do(Tick())
    assert voters_appended(replica) == []
    replica.fetch(2)
    expected = VoterSet.of([MOVED, voter(2), voter(3)])
    assert voters_appended(replica) == [expected]
    assert replica.raft.core.voters.latest == expected
    for node_id in (3, 2, 3):
        replica.fetch(node_id)
        assert voters_appended(replica) == []


def test_leader_of_a_later_epoch_commits_its_own_record_before_it_records_its_endpoints() -> None:
    """Until then, an earlier change of voters may turn out to be committed."""
    replica = leader(as_voter=MOVED, saved=QuorumState(2), log_end=3)
    core = replica.raft.core
    core.high_watermark = replica.leading.start_offset  # learned as a follower
    replica.do(Tick())
    assert voters_appended(replica) == []
    replica.fetch(2)
    assert len(voters_appended(replica)) == 1


@pytest.mark.parametrize("why", ["static voters", "no voter", "another directory", "same endpoints"])
def test_leader_does_not_record_endpoints_that_are_not_its_own_in_the_log(why: str) -> None:
    config = replace(CONFIG, dynamic_voters=why != "static voters")
    replica = leader(config=config)
    core = replica.raft.core
    if why == "no voter":
        core.voters.reset(VoterSet.of(map(voter, (2, 3))), -1)
    elif why == "another directory":
        core.voters.reset(VoterSet.of([Voter(1), voter(2), voter(3)]), -1)
    core.voter = voter(1) if why == "same endpoints" else MOVED
    for node_id in (2, 3, 2):
        replica.fetch(node_id)
        assert voters_appended(replica) == []


def test_leader_records_its_endpoints_only_after_every_other_change_of_voters_is_committed() -> None:
    for acknowledged in (True, False):
        replica = committing()
        core = replica.raft.core
        replica.fetch(4)
        replica.ask(AddVoter(voter(4), ack_when_committed=acknowledged), ticket=5)
        core.voter = MOVED
        replica.do(Tick())
        assert voters_appended(replica) == []
        replica.fetch(2)
        assert voters_appended(replica) == [], "three of four voters are needed"
        replica.fetch(3)
        assert voters_appended(replica) == [VoterSet.of([MOVED, *map(voter, (2, 3, 4))])]


def test_leader_whose_change_of_voters_waits_for_its_answer_records_no_endpoints() -> None:
    replica = committing()
    replica.fetch(4)
    replica.ask(AddVoter(voter(4), timeout_ms=50), ticket=5)
    replica.raft.core.voter = MOVED
    replica.at(replica.now_ms + 50)
    assert replica.replies() == {5: ErrorCode.REQUEST_TIMED_OUT}
    assert voters_appended(replica) == [], "the change is not committed, although its client gave up"


# --- commits


def test_first_commit_of_a_leader_needs_a_record_of_its_own_epoch() -> None:
    replica = leader(saved=QuorumState(2), log_end=3)
    core = replica.raft.core
    for offset in (1, 3):
        for node_id in (2, 3):
            replica.ask(Fetch(voter(node_id).key, 3, offset, 1, 0, 0))
            assert core.high_watermark == 0
    replica.ask(Fetch(voter(2).key, 3, 4, 3, 0, 0))
    assert core.high_watermark == 4
    assert Committed(4) in replica.effects


def test_leader_alone_commits_when_its_disk_has_synced() -> None:
    replica = Replica(voters=(1,))
    replica.syncs = False
    replica.at(0)
    core = replica.raft.core
    assert (replica.role, core.high_watermark) == ("leader", 0)
    for flushed in (1, 2, 3):
        replica.do(LogFlushed(flushed))
        assert core.high_watermark == flushed
    replica.do(Propose(1, 1, ((2, b""), (1, b""))))
    assert core.high_watermark == 3
    replica.do(LogFlushed(6))
    assert core.high_watermark == 6


def test_lone_leader_never_resigns_and_announces_itself_to_nobody() -> None:
    replica = Replica(voters=(1,))
    for now_ms in range(0, 20 * CONFIG.check_quorum_ms, 500):
        replica.at(now_ms)
        assert replica.role == "leader"
        assert not replica.sent(BeginEpoch)


@pytest.mark.parametrize(("size", "limit", "fits"), [(2, 5, True), (3, 5, False), (5, 8, True), (6, 8, False)])
def test_proposal_is_refused_whole_if_one_of_its_batches_exceeds_the_limit(size: int, limit: int, fits: bool) -> None:
    replica = leader(config=replace(CONFIG, max_uncommitted_records=limit))
    end = replica.raft.core.log.end_offset
    assert (end, replica.raft.core.high_watermark) == (3, 0)
    replica.do(Propose(1, 1, ((1, b""), (size - 1, b""))))
    assert replica.raft.core.log.end_offset == (end + size if fits else end)


# --- stops


def test_stopping_leader_asks_each_voter_until_it_answered_and_then_waits_for_its_deadline() -> None:
    replica = committing()
    replica.do(Resign())
    first, second = replica.sent(EndEpoch)
    keys = (voter(2).key, voter(3).key)
    assert (first.request, second.request) == (EndEpoch(1, 1, keys), EndEpoch(1, 1, keys))
    replica.answer(first, EpochAnswer(ErrorCode.NONE, 1, -1))
    replica.answer(second, EpochAnswer(ErrorCode.NONE, 1, -1))
    for now_ms in range(replica.now_ms, replica.raft.core.state.deadline_ms, 50):  # type: ignore[union-attr]
        replica.at(now_ms)
        assert not replica.sent(EndEpoch)
    assert replica.raft.deadline() == replica.raft.core.state.deadline_ms  # type: ignore[union-attr]


def test_resignation_is_saved_so_that_the_epoch_is_never_led_again() -> None:
    replica = committing()
    replica.do(Resign())
    core = replica.raft.core
    assert core.saved == QuorumState(1, 1, voter(1).key)
    assert core.state.leader_id == -1
    again = Replica(saved=core.saved, log_end=3)
    assert (again.role, again.raft.core.epoch) == ("resigned", 1)
    for key, pre_vote in product((voter(2).key, ReplicaKey(3, voter(3).directory_id)), (True, False)):
        answer = again.ask(Vote(voter(1).key, key, 1, 9, 9, pre_vote))
        assert answer is not None
        assert answer.granted is pre_vote  # type: ignore[union-attr]
