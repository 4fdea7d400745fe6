"""Tests which epochs, candidates and leaders a replica accepts: no message of an unauthenticated node stops a
quorum."""

from __future__ import annotations

import random

import pytest
from raft_cluster import voter

from penstock.protocol.errors import ErrorCode
from penstock.raft.claims import EPOCH_PACE_MS, MAX_EPOCH_JUMP
from penstock.raft.config import RaftConfig
from penstock.raft.events import (
    Answered,
    Effect,
    Event,
    LogFlushed,
    QuorumState,
    Received,
    Reply,
    SaveState,
    Send,
    SendFailed,
    StateSaved,
    Tick,
)
from penstock.raft.log_view import LogView, OffsetAndEpoch
from penstock.raft.machine import MAX_WAITING_EVENTS, Raft
from penstock.raft.membership import MAX_LISTENER_CHARACTERS, MAX_VOTER_LISTENERS
from penstock.raft.messages import (
    AddVoter,
    BeginEpoch,
    EndEpoch,
    Fetch,
    FetchAnswer,
    Request,
    UpdateVoter,
    Vote,
    VoteAnswer,
)
from penstock.raft.progress import Replicas
from penstock.raft.states import MAX_EPOCH, Follower, Leader
from penstock.raft.voters import ReplicaKey, Voter, VoterHistory, VoterSet

LAST_EPOCH = (1 << 31) - 1
STRANGER = ReplicaKey(99, b"\x01" * 16)


def replica(*voters: int, dynamic: bool = True, saved: QuorumState | None = None) -> Raft:
    """Returns node 1 of these voters, with three records of epoch 1."""
    return Raft(
        RaftConfig(dynamic_voters=dynamic),
        voter(1),
        random=random.Random(1),
        log=LogView(end_offset=3, epochs=[(1, 0)]),
        voters=VoterHistory(VoterSet.of(map(voter, voters))),
        saved=saved or QuorumState(1),
    )


def do(raft: Raft, event: Event, now_ms: int) -> list[Effect]:
    """Passes an event, with a disk that saves and syncs at once."""
    effects = raft.step(event, now_ms)
    done = list(effects)
    while any(isinstance(effect, SaveState) for effect in effects):
        effects = raft.step(StateSaved(), now_ms)
        done += effects
    if raft.core.log.flushed_offset < raft.core.log.end_offset:
        done += raft.step(LogFlushed(raft.core.log.end_offset), now_ms)
    return done


def error_of(effects: list[Effect]) -> ErrorCode:
    (answer,) = [effect.answer for effect in effects if isinstance(effect, Reply)]
    return answer.error


def asked(raft: Raft, request: Request, now_ms: int = 0) -> ErrorCode:
    return error_of(do(raft, Received(1, request), now_ms))


def leader_alone() -> Raft:
    raft = replica(1)
    do(raft, Tick(), 0)
    assert isinstance(raft.core.state, Leader)
    return raft


def follower_of_two() -> Raft:
    """Returns node 1, which follows node 2 in epoch 1 and has just fetched."""
    raft = replica(1, 2, 3, saved=QuorumState(1, 2))
    fetch = next(effect for effect in do(raft, Tick(), 0) if isinstance(effect, Send))
    do(raft, Answered(fetch.send_id, FetchAnswer(ErrorCode.NONE, 1, 2, 3)), 0)
    return raft


def vote_of(candidate: ReplicaKey, epoch: int) -> Vote:
    return Vote(voter(1).key, candidate, epoch, epoch, 1 << 40, False)


@pytest.mark.parametrize(
    "request_",
    [
        vote_of(STRANGER, LAST_EPOCH),
        vote_of(voter(2).key, LAST_EPOCH),
        vote_of(voter(2).key, MAX_EPOCH),
        BeginEpoch(voter(1).key, 2, LAST_EPOCH),
        EndEpoch(2, LAST_EPOCH, ()),
    ],
)
@pytest.mark.parametrize("dynamic", [True, False])
def test_request_with_the_largest_possible_epoch_is_refused(request_: Request, dynamic: bool) -> None:
    raft = replica(1, 2, 3, dynamic=dynamic)
    assert asked(raft, request_) is ErrorCode.INVALID_REQUEST
    assert raft.core.saved == QuorumState(1)


def test_answer_with_the_largest_possible_epoch_is_ignored() -> None:
    raft = replica(1, 2, 3, saved=QuorumState(1, 2))
    fetch = next(effect for effect in do(raft, Tick(), 0) if isinstance(effect, Send))
    do(raft, Answered(fetch.send_id, FetchAnswer(ErrorCode.FENCED_LEADER_EPOCH, LAST_EPOCH, 3)), 0)
    assert (raft.core.epoch, raft.core.state.leader_id) == (1, 2)


def test_follower_fetches_again_after_a_pause_if_a_divergence_needs_no_truncation() -> None:
    raft = replica(1, 2, 3, saved=QuorumState(1, 2))
    fetch = next(effect for effect in do(raft, Tick(), 0) if isinstance(effect, Send))
    effects = do(raft, Answered(fetch.send_id, FetchAnswer(ErrorCode.NONE, 1, 2, 0, diverging=OffsetAndEpoch(9, 1))), 0)
    assert effects == []
    assert raft.core.log.end_offset == 3
    assert [type(effect) for effect in do(raft, Tick(), 1000)] == [Send]


def test_quorum_elects_a_leader_after_forged_requests_raised_its_epoch_continuously() -> None:
    raft = leader_alone()
    hour_ms = 3_600_000
    for now_ms in range(0, hour_ms, 60_000):
        for jump in (MAX_EPOCH_JUMP * 1000, MAX_EPOCH_JUMP - 1, 10_000, 100, 1):
            asked(raft, vote_of(voter(1).key, min(LAST_EPOCH, raft.core.epoch + jump)), now_ms)
    for now_ms in range(hour_ms, hour_ms + 10_000, 100):
        do(raft, Tick(), now_ms)
    assert isinstance(raft.core.state, Leader)
    assert MAX_EPOCH_JUMP < raft.core.epoch < 1 + MAX_EPOCH_JUMP + 2 * hour_ms // EPOCH_PACE_MS


def asks(raft: Raft, now_ms: int) -> Send:
    return next(effect for effect in do(raft, Tick(), now_ms) if isinstance(effect, Send))


def test_voter_accepts_requests_of_a_far_higher_epoch_only_after_an_answer_has_that_epoch() -> None:
    raft = replica(1, 2, 3)
    epoch = 1000 * MAX_EPOCH_JUMP
    assert asked(raft, vote_of(voter(2).key, epoch)) is ErrorCode.INVALID_REQUEST
    do(raft, Answered(asks(raft, 5000).send_id, VoteAnswer(ErrorCode.FENCED_LEADER_EPOCH, epoch, 3)), 5000)
    assert (raft.core.epoch, raft.core.state.leader_id) == (epoch, 3)
    assert asked(raft, vote_of(voter(2).key, epoch + MAX_EPOCH_JUMP + 6), 5000) is ErrorCode.INVALID_REQUEST
    assert asked(raft, vote_of(voter(2).key, epoch + MAX_EPOCH_JUMP + 5), 5000) is ErrorCode.NONE


def test_answer_from_an_unknown_address_can_raise_the_epoch_only_up_to_the_limit_for_requests() -> None:
    raft = replica(1, 2, 3, saved=QuorumState(1, 2))
    for now_ms, epoch, believed in ((0, MAX_EPOCH_JUMP + 2, 1), (900, MAX_EPOCH_JUMP + 1, MAX_EPOCH_JUMP + 1)):
        answer = FetchAnswer(ErrorCode.FENCED_LEADER_EPOCH, epoch, 3)
        do(raft, Answered(asks(raft, now_ms).send_id, answer, from_known_address=False), now_ms)
        assert raft.core.epoch == believed
    assert asked(raft, vote_of(voter(2).key, MAX_EPOCH_JUMP + 2), 900) is ErrorCode.INVALID_REQUEST


def test_joining_node_adopts_the_current_epoch_of_the_quorum() -> None:
    raft = Raft(
        RaftConfig(),
        voter(4),
        random=random.Random(1),
        log=LogView(),
        voters=VoterHistory(VoterSet.of(map(voter, (1, 2, 3)))),
    )
    for now_ms, epoch, believed in ((1000, LAST_EPOCH, 0), (9000, MAX_EPOCH - 1, MAX_EPOCH - 1)):
        answer = FetchAnswer(ErrorCode.FENCED_LEADER_EPOCH, epoch, 2)
        do(raft, Answered(asks(raft, now_ms).send_id, answer), now_ms)
        assert raft.core.epoch == believed


def test_candidate_outside_the_voter_set_is_refused_while_the_leader_responds() -> None:
    for raft in (leader_alone(), follower_of_two()):
        before = raft.core.saved
        assert asked(raft, vote_of(STRANGER, 5)) is ErrorCode.INCONSISTENT_VOTER_SET
        assert asked(raft, BeginEpoch(voter(1).key, 99, 5)) is ErrorCode.INCONSISTENT_VOTER_SET
        assert asked(raft, EndEpoch(99, 5, ())) is ErrorCode.INCONSISTENT_VOTER_SET
        assert raft.core.saved == before


def test_voter_without_a_leader_votes_for_a_candidate_that_is_not_in_its_voter_set() -> None:
    raft = replica(1, 2, 3)
    assert asked(raft, vote_of(voter(4).key, 2)) is ErrorCode.NONE
    assert raft.core.saved == QuorumState(2, -1, voter(4).key)
    assert asked(raft, BeginEpoch(voter(1).key, 4, 2)) is ErrorCode.NONE
    assert raft.core.state.leader_id == 4


@pytest.mark.parametrize("goes", ["says so", "resigned", "closes the connection"])
def test_voter_whose_leader_is_gone_votes_for_a_candidate_that_is_not_in_its_voter_set(goes: str) -> None:
    raft = follower_of_two()
    fetch_id = max(raft.core.peers._flights)
    assert asked(raft, vote_of(voter(4).key, 2)) is ErrorCode.INCONSISTENT_VOTER_SET
    if goes == "says so":
        assert asked(raft, EndEpoch(2, 1, (voter(3).key, voter(1).key))) is ErrorCode.NONE
    elif goes == "resigned":
        do(raft, Answered(fetch_id, FetchAnswer(ErrorCode.NOT_LEADER_OR_FOLLOWER, 1, 2)), 0)
    else:
        do(raft, SendFailed(fetch_id, closed=True), 0)
    assert isinstance(raft.core.state, Follower)
    assert asked(raft, vote_of(voter(4).key, 2)) is ErrorCode.NONE
    assert raft.core.saved == QuorumState(2, -1, voter(4).key)


def test_fetch_timeout_on_an_open_connection_does_not_make_the_follower_suspect_its_leader() -> None:
    raft = follower_of_two()
    state = raft.core.state
    assert isinstance(state, Follower)
    deadline_ms = state.deadline_ms
    do(raft, SendFailed(max(raft.core.peers._flights)), 0)
    assert state.deadline_ms == deadline_ms
    assert asked(raft, vote_of(voter(4).key, 2)) is ErrorCode.INCONSISTENT_VOTER_SET


def test_quorum_with_static_voters_refuses_candidates_and_leaders_that_are_not_voters() -> None:
    raft = replica(1, 2, 3, dynamic=False)
    assert asked(raft, vote_of(voter(4).key, 2)) is ErrorCode.INCONSISTENT_VOTER_SET
    assert asked(raft, BeginEpoch(voter(1).key, 4, 2)) is ErrorCode.INCONSISTENT_VOTER_SET
    assert raft.core.saved == QuorumState(1)


def test_replica_refuses_a_second_leader_of_an_epoch_and_follows_the_first() -> None:
    leading = leader_alone()
    following = follower_of_two()
    for raft, epoch in ((leading, 2), (following, 1)):
        for other in (3, 1):
            assert asked(raft, BeginEpoch(voter(1).key, other, epoch)) is ErrorCode.INVALID_REQUEST
            assert asked(raft, EndEpoch(other, epoch, ())) is ErrorCode.INVALID_REQUEST
    assert isinstance(leading.core.state, Leader)
    assert following.core.state.leader_id == 2


def test_follower_of_a_forged_leader_follows_the_leader_named_in_the_next_answer() -> None:
    raft = replica(1, 2, 3)
    effects = do(raft, Received(1, BeginEpoch(voter(1).key, 3, 2)), 0)
    assert raft.core.state.leader_id == 3
    fetch = next(effect for effect in effects if isinstance(effect, Send))
    do(raft, Answered(fetch.send_id, FetchAnswer(ErrorCode.NOT_LEADER_OR_FOLLOWER, 2, 2)), 0)
    assert isinstance(raft.core.state, Follower)
    assert raft.core.state.leader_id == 2


@pytest.mark.parametrize("field", ["offset", "last_epoch", "max_wait_ms"])
def test_a_fetch_with_a_negative_number_is_refused(field: str) -> None:
    raft = leader_alone()
    numbers = {"epoch": 2, "offset": 3, "last_epoch": 1, "high_watermark": 0, "max_wait_ms": 0, field: -5}
    assert asked(raft, Fetch(STRANGER, **numbers)) is ErrorCode.INVALID_REQUEST


def test_fetch_with_the_id_of_a_voter_but_another_directory_id_does_not_count_for_the_voter() -> None:
    replicas = Replicas(voter(1).key, since_ms=0)
    voters = VoterSet.of(map(voter, (1, 2, 3)))
    for now_ms in (0, 5000):
        replicas.fetched(voter(2).key, 7, 7, now_ms)
    replicas.fetched(ReplicaKey(2, b"\x09" * 16), 0, 7, 5001)
    assert replicas.heard_until_ms(voters) == 5000
    assert replicas.replicated_to(voters, 7) == 7


def test_observer_that_returns_with_a_new_directory_id_is_listed_once() -> None:
    replicas = Replicas(voter(1).key, since_ms=0)
    replicas.fetched(ReplicaKey(4, b"\x01" * 16), 7, 7, 1)
    replicas.fetched(ReplicaKey(4, b"\x02" * 16), 0, 7, 2)
    voters = VoterSet.of(map(voter, (1, 2, 3)))
    assert [one.key.directory_id for one in replicas.observers(voters)] == [b"\x02" * 16]


def test_leader_tracks_a_bounded_number_of_replicas_despite_forged_directory_ids() -> None:
    replicas = Replicas(voter(1).key, since_ms=0)
    voters = VoterSet.of(map(Voter, (1, 2, 3)))
    for number in range(100):
        replicas.fetched(ReplicaKey(2, number.to_bytes(16, "big")), 0, 7, number)
    replicas.fetched(voter(2).key, 7, 7, 100)
    replicas.drop_observers(voters, before_ms=0, limit=5)
    assert len(replicas.table) == 6
    assert replicas.replicated_to(voters, 7) == 7


def test_adding_or_updating_a_voter_with_too_many_or_too_long_endpoints_is_refused() -> None:
    raft = leader_alone()
    end_offset = raft.core.log.end_offset
    many = (("CONTROLLER", "localhost", 1),) * (MAX_VOTER_LISTENERS + 1)
    long = (("CONTROLLER", "x" * (MAX_LISTENER_CHARACTERS + 1), 1),)
    for endpoints in (many, long):
        for node_id in (1, 2):
            unusable = Voter(node_id, voter(node_id).directory_id, endpoints)
            assert asked(raft, AddVoter(unusable)) is ErrorCode.INVALID_REQUEST
            assert asked(raft, UpdateVoter(2, unusable)) is ErrorCode.INVALID_REQUEST
    assert asked(raft, AddVoter(Voter(-1))) is ErrorCode.INVALID_REQUEST
    assert raft.core.log.end_offset == end_offset


def test_full_queue_of_requests_during_a_state_save_does_not_drop_log_flush_events() -> None:
    raft = replica(1)
    assert any(isinstance(effect, SaveState) for effect in raft.step(Tick(), 0))
    question = Fetch(STRANGER, 2, 0, 0, 0, 0)
    for ticket in range(MAX_WAITING_EVENTS):
        assert raft.step(Received(ticket, question), 0) == []
    assert error_of(raft.step(Received(MAX_WAITING_EVENTS, question), 0)) is ErrorCode.BROKER_NOT_AVAILABLE
    raft.step(LogFlushed(raft.core.log.end_offset), 0)
    raft.step(StateSaved(), 0)
    assert raft.core.log.flushed_offset == raft.core.log.end_offset
    assert raft.core.high_watermark == raft.core.log.end_offset
