"""Tests the rules of the Raft machine that need no network."""

from __future__ import annotations

import random
from dataclasses import replace

from raft_cluster import Cluster, voter

from penstock.protocol.errors import ErrorCode
from penstock.raft.config import RaftConfig
from penstock.raft.describe import describe
from penstock.raft.events import (
    Answered,
    Append,
    Committed,
    Effect,
    LeaderChange,
    LogFlushed,
    Propose,
    QuorumState,
    Received,
    Refuse,
    Reply,
    RoleChanged,
    SaveState,
    Send,
    SendFailed,
    StateSaved,
    Tick,
)
from penstock.raft.log_view import LogView, OffsetAndEpoch
from penstock.raft.machine import Raft
from penstock.raft.messages import (
    AddVoter,
    BeginEpoch,
    Fetch,
    FetchAnswer,
    FetchSnapshot,
    SnapshotChunk,
    UpdateVoter,
    Vote,
    VoteAnswer,
    VoterAnswer,
)
from penstock.raft.states import TRANSITIONS, Candidate, Follower, Leader, Prospective, Unattached
from penstock.raft.voters import ReplicaKey, Voter, VoterHistory, VoterSet


def alone(config: RaftConfig | None = None) -> Raft:
    me = voter(1)
    return Raft(
        config or RaftConfig(),
        me,
        random=random.Random(1),
        log=LogView(),
        voters=VoterHistory(VoterSet.of([me])),
    )


def lead(raft: Raft) -> list[Effect]:
    effects = raft.step(Tick(), 0)
    effects += raft.step(StateSaved(), 0)
    effects += raft.step(LogFlushed(raft.core.log.end_offset), 0)
    return effects


def answers(effects: list[Effect]) -> list[object]:
    return [effect.answer for effect in effects if isinstance(effect, Reply)]


def test_leader_limits_the_size_of_a_snapshot_chunk_that_a_replica_asks_for() -> None:
    raft = alone(RaftConfig(max_snapshot_chunk_bytes=1000))
    lead(raft)
    request = FetchSnapshot(ReplicaKey(7), raft.core.epoch, OffsetAndEpoch(1, 1), 0, 1 << 30)
    [chunk] = answers(raft.step(Received(1, request), 0))
    assert isinstance(chunk, SnapshotChunk)
    assert chunk.max_bytes == 1000


def test_preferring_a_listener_does_not_change_a_voter_without_endpoints() -> None:
    assert Voter(1).preferring("CONTROLLER") == Voter(1)


def test_single_voter_becomes_leader_after_one_save_of_its_state() -> None:
    effects = lead(alone())
    saves = [effect for effect in effects if isinstance(effect, SaveState)]
    assert saves == [SaveState(QuorumState(1, 1, voter(1).key))]
    appended = next(effect for effect in effects if isinstance(effect, Append))
    first = appended.batches[0]
    assert first.content == LeaderChange(1, (1,), (1,), VoterSet.of([voter(1)]))
    assert (first.base_offset, first.last_offset, first.epoch) == (0, 2, 1)
    assert effects[-1] == Committed(3)


def test_raft_appends_and_sends_nothing_until_its_state_is_saved() -> None:
    raft = alone()
    effects = raft.step(Tick(), 0)
    assert isinstance(effects[-1], SaveState)
    assert not any(isinstance(effect, Append) for effect in effects)
    assert raft.step(Propose(5, 1, ((1, "early"),)), 0) == []
    later = raft.step(StateSaved(), 0)
    assert RoleChanged("leader", 1, 1) in later
    contents = [batch.content for effect in later if isinstance(effect, Append) for batch in effect.batches]
    assert contents[-1] == "early"


def test_a_proposal_of_an_old_epoch_is_refused() -> None:
    raft = alone()
    lead(raft)
    assert raft.step(Propose(7, 0, ((1, "late"),)), 0) == [Refuse(7, ErrorCode.NOT_LEADER_OR_FOLLOWER, 1)]


def test_proposals_beyond_the_limit_of_uncommitted_records_are_refused() -> None:
    raft = alone(RaftConfig(max_uncommitted_records=2))
    lead(raft)
    assert isinstance(raft.step(Propose(1, 1, ((2, "fits"),)), 0)[0], Append)
    assert raft.step(Propose(2, 1, ((1, "more"),)), 0) == [Refuse(2, ErrorCode.THROTTLING_QUOTA_EXCEEDED, 1)]
    raft.step(LogFlushed(5), 0)
    assert isinstance(raft.step(Propose(3, 1, ((1, "again"),)), 0)[0], Append)


def three_with_leader() -> Cluster:
    cluster = Cluster([1, 2, 3])
    state = cluster.members[1].running.core.state
    assert isinstance(state, Unattached)
    state.deadline_ms = 0
    cluster.step(1, Tick())
    settle(cluster)
    assert isinstance(cluster.members[1].running.core.state, Leader)
    return cluster


def settle(cluster: Cluster) -> None:
    while cluster.network:
        cluster.deliver(cluster.network.pop(0))


def test_vote_and_begin_epoch_requests_addressed_to_another_directory_id_are_refused() -> None:
    raft = alone()
    asked = Vote(ReplicaKey(1, bytes(15) + b"\x99"), voter(2).key, 5, 0, 0, False)
    lead(raft)
    assert answers(raft.step(Received(1, asked), 0)) == [VoteAnswer(ErrorCode.INVALID_VOTER_KEY, 1, 1)]
    begin = BeginEpoch(ReplicaKey(1, bytes(15) + b"\x99"), 2, 9)
    assert getattr(answers(raft.step(Received(2, begin), 0))[0], "error", None) is ErrorCode.INVALID_VOTER_KEY


def test_a_parked_fetch_is_answered_on_new_records_or_after_its_maximum_wait() -> None:
    raft = alone()
    lead(raft)
    fetch = Fetch(voter(2).key, 1, 3, 1, 3, 500)
    assert raft.step(Received(1, fetch), 0) == []
    assert raft.deadline() == 500
    assert raft.step(Tick(), 499) == []
    answer = answers(raft.step(Tick(), 500))[0]
    assert answer == FetchAnswer(ErrorCode.NONE, 1, 1, 3, read_from=3, max_bytes=fetch.max_bytes)
    raft.step(Received(2, fetch), 600)
    woken = answers(raft.step(Propose(1, 1, ((1, "a"),)), 610))
    assert woken == [FetchAnswer(ErrorCode.NONE, 1, 1, 3, read_from=3, max_bytes=fetch.max_bytes)]


def test_leader_refuses_a_raft_fetch_with_an_older_or_a_newer_epoch() -> None:
    raft = alone()
    lead(raft)
    fetch = Fetch(voter(2).key, 1, 3, 1, 3, 500)
    older = answers(raft.step(Received(1, replace(fetch, epoch=0)), 0))[0]
    assert older == FetchAnswer(ErrorCode.FENCED_LEADER_EPOCH, 1, 1)
    newer = answers(raft.step(Received(1, replace(fetch, epoch=2)), 0))[0]
    assert newer == FetchAnswer(ErrorCode.UNKNOWN_LEADER_EPOCH, 1, 1)


def test_a_voter_with_new_endpoints_reports_them_to_the_leader() -> None:
    cluster = three_with_leader()
    moved = Voter(2, voter(2).directory_id, (("CONTROLLER", "elsewhere", 9093),))
    cluster.members[2].running.core.voter = moved
    cluster.now += 600
    for node_id in cluster.members:
        cluster.tick(node_id)
    settle(cluster)
    for member in cluster.members.values():
        assert member.running.core.voters.latest.find(2) == moved
        assert member.high_watermark == 4


def test_a_leader_with_new_endpoints_records_them_once_the_last_change_of_voters_is_committed() -> None:
    cluster = three_with_leader()
    leader = cluster.members[1].running.core
    assert leader.voters.latest_offset == leader.high_watermark - 1
    moved = leader.voter = Voter(1, voter(1).directory_id, (("CONTROLLER", "elsewhere", 9093),))
    cluster.now += 600
    for node_id in cluster.members:
        cluster.tick(node_id)
    settle(cluster)
    for member in cluster.members.values():
        assert member.running.core.voters.latest.find(1) == moved
        assert member.high_watermark == 4


def test_update_raft_voter_for_an_unknown_voter_is_refused() -> None:
    raft = alone()
    lead(raft)
    answer = answers(raft.step(Received(1, UpdateVoter(1, voter(9))), 0))[0]
    assert getattr(answer, "error", None) is ErrorCode.VOTER_NOT_FOUND
    stale = answers(raft.step(Received(1, UpdateVoter(0, voter(1))), 0))[0]
    assert stale == VoterAnswer(ErrorCode.FENCED_LEADER_EPOCH, 1, 1)


def test_request_to_change_static_voters_is_refused() -> None:
    raft = alone(RaftConfig(dynamic_voters=False))
    effects = lead(raft)
    assert effects[-1] == Committed(1)  # no record of voters
    answer = answers(raft.step(Received(1, AddVoter(voter(2))), 0))[0]
    assert getattr(answer, "error", None) is ErrorCode.UNSUPPORTED_VERSION


def test_voter_change_is_answered_when_its_own_record_is_committed_and_not_before() -> None:
    raft = alone()
    lead(raft)
    key, end = voter(2).key, raft.core.log.end_offset
    raft.step(Received(1, Fetch(key, 1, end, 1, end, 0)), 0)
    raft.step(Propose(5, 1, ((1, "a record before the change"),)), 0)
    raft.step(Received(2, AddVoter(voter(2))), 0)
    raft.step(LogFlushed(raft.core.log.end_offset), 0)
    assert raft.core.log.end_offset == end + 2
    early = answers(raft.step(Received(3, Fetch(key, 1, end + 1, 1, end, 0)), 0))
    assert raft.core.high_watermark == end + 1
    assert not [answer for answer in early if isinstance(answer, VoterAnswer)]
    later = answers(raft.step(Received(4, Fetch(key, 1, end + 2, 1, end, 0)), 0))
    assert [answer for answer in later if isinstance(answer, VoterAnswer)] == [VoterAnswer(ErrorCode.NONE, 1, 1)]


def test_an_uncommitted_voter_change_is_answered_after_its_timeout() -> None:
    cluster = three_with_leader()
    cluster.add_member(4)
    settle(cluster)
    said: list[str] = []
    cluster.on_event = said.append
    for node_id in (2, 3, 4):
        cluster.cuts |= {(1, node_id), (node_id, 1)}
    cluster.ask(1, AddVoter(voter(4), timeout_ms=100))
    cluster.now += 100
    cluster.tick(1)
    assert any("REQUEST_TIMED_OUT" in line for line in said)


def test_a_leader_forgets_observers_that_stopped_fetching() -> None:
    raft = alone(RaftConfig(observer_session_ms=1000, max_observers=2))
    lead(raft)
    for node_id in (5, 6, 7):
        raft.step(Received(node_id, Fetch(voter(node_id).key, 1, 3, 1, 3, 0)), node_id)
    raft.step(Tick(), 10)
    assert [one.key.node_id for one in describe(raft.core).observers] == [6, 7]
    raft.step(Tick(), 2000)
    assert describe(raft.core).observers == ()


def test_restarted_follower_follows_its_leader_in_the_same_epoch() -> None:
    me = voter(2)
    raft = Raft(
        RaftConfig(),
        me,
        random=random.Random(1),
        log=LogView(end_offset=3, epochs=[(1, 0)]),
        voters=VoterHistory(VoterSet.of([voter(1), me])),
        saved=QuorumState(4, 1),
    )
    state = raft.core.state
    assert isinstance(state, Follower)
    assert (state.epoch, state.leader_id) == (4, 1)


def test_every_raft_state_can_be_entered_and_left() -> None:
    assert set().union(*TRANSITIONS.values()) == set(TRANSITIONS)


def test_errors_of_voters_do_not_count_as_refused_votes() -> None:
    me = voter(1)
    history = VoterHistory(VoterSet.of([me, *(voter(one) for one in (2, 3))]))
    raft = Raft(RaftConfig(), me, random=random.Random(1), log=LogView(), voters=history)
    sends = {effect.to: effect.send_id for effect in raft.step(Tick(), 5000) if isinstance(effect, Send)}
    assert isinstance(raft.core.state, Prospective)
    for send_id in sends.values():
        raft.step(Answered(send_id, VoteAnswer(ErrorCode.INCONSISTENT_VOTER_SET, 0, -1, False)), 5000)
    state = raft.core.state
    assert isinstance(state, Prospective)
    assert state.election.unheard


def test_snapshot_contains_the_last_voter_set_before_its_end_offset() -> None:
    one, two = VoterSet.of([voter(1)]), VoterSet.of([voter(1), voter(2)])
    history = VoterHistory(one)
    history.record(5, two)
    assert (history.before(5), history.before(6)) == (one, two)
    assert (history.since(5), history.since(6)) == ([one, two], [two])


def test_candidate_that_lost_an_election_sends_no_requests_during_its_backoff() -> None:
    """Checks that the candidate asks no voter again, and that no Tick is due before its backoff ends."""
    me = voter(1)
    raft = Raft(
        RaftConfig(),
        me,
        random=random.Random(1),
        log=LogView(),
        voters=VoterHistory(VoterSet.of([me, *(voter(one) for one in (2, 3, 4, 5))])),
    )
    sends = {effect.to: effect.send_id for effect in raft.step(Tick(), 5000) if isinstance(effect, Send)}
    effects: list[Effect] = []
    for node_id in (2, 3):
        effects += raft.step(Answered(sends[node_id], VoteAnswer(ErrorCode.NONE, 0, -1, True)), 5000)
    assert isinstance(effects[-1], SaveState)
    sends = {effect.to: effect.send_id for effect in raft.step(StateSaved(), 5000) if isinstance(effect, Send)}
    raft.step(SendFailed(sends[5]), 5000)
    for node_id in (2, 3, 4):
        raft.step(Answered(sends[node_id], VoteAnswer(ErrorCode.NONE, 1, -1, False)), 5000)
    state = raft.core.state
    assert isinstance(state, Candidate)
    assert state.lost
    assert raft.deadline() == state.deadline_ms
