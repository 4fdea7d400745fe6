"""Tests one step of a replica in each role: stops, saves, elections, and claims in answers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from raft_cluster import voter
from raft_node import CONFIG, STAND_MS, Replica, candidate, committing, follower, prospective

from penstock.protocol.errors import ErrorCode
from penstock.raft import machine
from penstock.raft.claims import MAX_EPOCH_JUMP
from penstock.raft.election import FIRST_SUCCESSOR_BACKOFF_MS
from penstock.raft.events import (
    HandedOver,
    Propose,
    QuorumState,
    Received,
    Refuse,
    Resign,
    RoleChanged,
    SaveState,
    SendFailed,
    StateSaved,
    StepDown,
    Tick,
)
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
    Request,
    SnapshotChunk,
    UpdateVoter,
    Vote,
    VoteAnswer,
    VoterAnswer,
)
from penstock.raft.states import MAX_EPOCH, Follower, Resigned
from penstock.raft.voters import ReplicaKey, VoterSet


def handed_over(replica: Replica) -> bool:
    return any(isinstance(each, HandedOver) for each in replica.effects)


# --- stopping


def test_stopping_leader_has_handed_over_once_each_voter_answered_or_cannot_be_reached() -> None:
    for first, second in ((True, True), (True, False), (False, True), (False, False)):
        replica = committing()
        replica.do(Resign())
        assert not handed_over(replica)
        sends = replica.sent(EndEpoch)
        assert sorted(send.to for send in sends) == [2, 3]
        for number, (send, answers) in enumerate(zip(sends, (first, second))):
            if answers:
                replica.answer(send, EpochAnswer(ErrorCode.NONE, 1, -1))
            else:
                replica.do(SendFailed(send.send_id, closed=True))
            assert handed_over(replica) == (number == 1)


@pytest.mark.parametrize("how", ["timeout", "error"])
def test_stopping_leader_repeats_its_resignation_to_a_voter_that_did_not_confirm_it(how: str) -> None:
    replica = committing()
    replica.do(Resign())
    first, second = replica.sent(EndEpoch)
    replica.answer(first, EpochAnswer(ErrorCode.NONE, 1, -1))
    if how == "timeout":
        replica.do(SendFailed(second.send_id, closed=False))
    else:
        replica.answer(second, EpochAnswer(ErrorCode.BROKER_NOT_AVAILABLE, 1, -1))
    assert not handed_over(replica)
    replica.at(STAND_MS + CONFIG.retry_backoff_ms)
    (again,) = replica.sent(EndEpoch)
    assert (again.to, again.request) == (second.to, second.request)
    replica.answer(again, EpochAnswer(ErrorCode.NONE, 1, -1))
    assert handed_over(replica)


@pytest.mark.parametrize("closed", [True, False])
def test_leader_that_steps_down_repeats_its_resignation_even_if_the_connection_was_closed(closed: bool) -> None:
    replica = committing()
    replica.do(StepDown())
    sends = replica.sent(EndEpoch)
    for send in sends:
        replica.do(SendFailed(send.send_id, closed=closed))
        assert not handed_over(replica)
    replica.at(STAND_MS + CONFIG.retry_backoff_ms)
    assert [send.to for send in replica.sent(EndEpoch)] == [send.to for send in sends]


def test_resigned_leader_names_the_voter_with_the_longest_log_first() -> None:
    for behind, expected in ((2, [3, 2]), (3, [2, 3])):
        replica = committing()
        replica.do(Propose(1, 1, ((1, b""),)))
        replica.fetch(5 - behind)
        replica.do(StepDown())
        for send in replica.sent(EndEpoch):
            request = send.request
            assert isinstance(request, EndEpoch)
            assert (request.leader_id, request.epoch) == (1, 1)
            assert [key.node_id for key in request.successors] == expected


@pytest.mark.parametrize("stopping", [True, False])
def test_resigned_leader_stands_again_after_its_election_timeout_unless_it_stops(stopping: bool) -> None:
    replica = committing()
    replica.do(Resign() if stopping else StepDown())
    state = replica.raft.core.state
    assert isinstance(state, Resigned)
    assert CONFIG.election_timeout_ms <= state.deadline_ms - STAND_MS < 2 * CONFIG.election_timeout_ms
    replica.at(state.deadline_ms - 1)
    assert replica.role == "resigned"
    replica.at(state.deadline_ms)
    assert replica.role == ("unattached" if stopping else "prospective")
    assert handed_over(replica) == stopping


@pytest.mark.parametrize("event", [Resign(), StepDown()])
@pytest.mark.parametrize("make", [Replica, prospective, candidate, follower])
def test_replica_that_does_not_lead_hands_over_at_once_and_stands_no_more_if_it_stops(
    event: object, make: object
) -> None:
    replica: Replica = make()  # type: ignore[operator]
    replica.do(event)  # type: ignore[arg-type]
    stopping = isinstance(event, Resign)
    assert handed_over(replica) == stopping
    if stopping:
        for now_ms in range(replica.now_ms, replica.now_ms + 3 * STAND_MS, 100):
            replica.at(now_ms)
            assert replica.role in ("unattached", "follower")
            assert replica.sent(Vote) == []
        assert replica.raft.core.stopping


def test_replica_that_stops_stays_stopped_after_a_request_to_step_down() -> None:
    replica = committing()
    replica.do(Resign())
    replica.do(StepDown())
    for send in replica.sent(EndEpoch):
        replica.answer(send, EpochAnswer(ErrorCode.NONE, 1, -1))
    assert replica.raft.core.stopping


def test_leader_that_resigns_answers_all_parked_fetches_and_the_pending_change_of_voters() -> None:
    replica = committing()
    replica.fetch(2, wait_ms=500, ticket=21)
    replica.fetch(3, wait_ms=500, ticket=22)
    replica.fetch(4, wait_ms=0)
    assert replica.replies() == {9: ErrorCode.NONE}
    replica.syncs = False
    replica.do(Received(5, AddVoter(voter(4))))
    answered = replica.replies()  # the new record wakes the parked fetches
    replica.fetch(2, wait_ms=500, ticket=31)
    replica.fetch(3, wait_ms=500, ticket=32)
    replica.do(StepDown())
    gone = ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert answered == {21: ErrorCode.NONE, 22: ErrorCode.NONE}
    assert {ticket: code for ticket, code in replica.replies().items() if code} == {31: gone, 32: gone, 5: gone}


# --- saves


def test_requests_beyond_the_limit_are_refused_during_a_save_and_all_other_events_are_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(machine, "MAX_WAITING_EVENTS", 3)
    raft = follower().raft
    voting = Vote(voter(1).key, voter(3).key, 5, 9, 9, False)
    effects = raft.step(Received(1, voting), 200)
    assert isinstance(effects[-1], SaveState)
    fetch = Fetch(voter(3).key, 5, 3, 1, 3, 0)
    assert raft.step(Received(2, voting), 200) == []
    assert raft.step(Tick(), 200) == []
    assert raft.step(Received(3, fetch), 200) == []
    assert raft.step(Propose(7, 5, ((1, b""),)), 200) == []
    kinds: list[tuple[Request, type[object]]] = [
        (voting, VoteAnswer),
        (BeginEpoch(voter(1).key, 3, 5), EpochAnswer),
        (EndEpoch(3, 5, ()), EpochAnswer),
        (fetch, FetchAnswer),
        (FetchSnapshot(voter(3).key, 5, OffsetAndEpoch(1, 1), 0, 1), SnapshotChunk),
        (AddVoter(voter(4)), VoterAnswer),
        (RemoveVoter(voter(4).key), VoterAnswer),
        (UpdateVoter(5, voter(2)), VoterAnswer),
    ]
    for ticket, (request, kind) in enumerate(kinds, 10):
        (reply,) = raft.step(Received(ticket, request), 200)
        assert (reply.ticket, type(reply.answer)) == (ticket, kind)  # type: ignore[union-attr]
        assert reply.answer.error is ErrorCode.BROKER_NOT_AVAILABLE  # type: ignore[union-attr]
    assert raft.step(Propose(8, 5, ((1, b""),)), 200) == [], "an event of this node itself is kept beyond the limit"
    effects = raft.step(StateSaved(), 200)
    while effects and isinstance(effects[-1], SaveState):
        effects += raft.step(StateSaved(), 200)
    assert [each.ticket for each in effects if hasattr(each, "ticket")] == [1, 2, 3]
    assert [each.proposal for each in effects if isinstance(each, Refuse)] == [7, 8]


# --- epochs in answers


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize(
    ("ahead", "believed_from_unknown"),
    [(-1, True), (0, True), (1, True), (7, True), (MAX_EPOCH_JUMP, True), (MAX_EPOCH_JUMP + 1, False)],
)
def test_answer_of_an_unknown_address_uses_up_the_limit_of_epochs_and_an_answer_of_a_voter_does_not(
    known: bool, ahead: int, believed_from_unknown: bool
) -> None:
    replica = Replica(saved=QuorumState(2, 2), log_end=3)
    replica.at(0)
    (fetch,) = replica.sent(Fetch)
    replica.answer(fetch, FetchAnswer(ErrorCode.FENCED_LEADER_EPOCH, 2 + ahead, -1), known=known)
    believed = known or believed_from_unknown
    core = replica.raft.core
    assert core.epoch == (2 + max(0, ahead) if believed else 2)
    assert core.epochs_by_request == (max(0, ahead) if believed and not known else 0)
    if not believed:
        assert replica.sent(Fetch) == [], "it waits before it asks again"
        replica.at(CONFIG.retry_backoff_ms)
        assert len(replica.sent(Fetch)) == 1


@pytest.mark.parametrize(("epoch", "believed"), [(MAX_EPOCH, True), (MAX_EPOCH + 1, False)])
def test_answer_of_a_voter_may_name_the_last_epoch_but_no_later_epoch(epoch: int, believed: bool) -> None:
    replica = Replica(saved=QuorumState(2, 2), log_end=3)
    replica.at(0)
    replica.answer(replica.sent(Fetch)[0], FetchAnswer(ErrorCode.FENCED_LEADER_EPOCH, epoch, 3))
    assert replica.raft.core.epoch == (epoch if believed else 2)


def test_epochs_that_requests_raise_are_counted_together() -> None:
    replica = follower()
    core = replica.raft.core
    for epoch, counted in ((5, 3), (6, 4), (6, 4), (5, 4)):
        replica.ask(Vote(voter(1).key, voter(3).key, epoch, 9, 9, False))
        assert core.epochs_by_request == counted


# --- announcements of leaders


@pytest.mark.parametrize("place", [0, 1, 2, 3, 4, 5, 6, 40, None])
def test_successors_stand_one_after_the_other_after_the_leader_resigned(place: int | None) -> None:
    replica = follower()
    keys = [ReplicaKey(100 + number, bytes(16)) for number in range(41)]
    if place is not None:
        keys[place] = voter(1).key
    waits = [0, *(FIRST_SUCCESSOR_BACKOFF_MS * 2**number for number in range(50))]
    position = 41 if place is None else place
    wait_ms = min(waits[position], CONFIG.election_backoff_max_ms)
    answer = replica.ask(EndEpoch(2, 2, tuple(keys)))
    assert answer == EpochAnswer(ErrorCode.NONE, 2, 2)
    replica.at(replica.now_ms + wait_ms - 1) if wait_ms else None
    if wait_ms:
        assert replica.role == "follower"
        replica.at(100 + wait_ms)
    assert replica.role == "prospective"


def test_resignation_does_not_delay_an_election_that_is_already_due_sooner() -> None:
    replica = follower()
    state = replica.raft.core.state
    assert isinstance(state, Follower)
    state.deadline_ms = replica.now_ms + 50
    replica.ask(EndEpoch(2, 2, (voter(3).key, voter(1).key)))
    assert state.deadline_ms == replica.now_ms + 50
    assert state.leader_suspected


@pytest.mark.parametrize("epoch", [1, 2, 3])
@pytest.mark.parametrize("leader_id", [2, 3])
@pytest.mark.parametrize("kind", ["begin", "end"])
def test_announcement_is_accepted_from_the_known_leader_or_in_a_later_epoch(
    epoch: int, leader_id: int, kind: str
) -> None:
    replica = follower()
    before = replica.raft.core.state
    if kind == "begin":
        answer = replica.ask(BeginEpoch(voter(1).key, leader_id, epoch))
    else:
        answer = replica.ask(EndEpoch(leader_id, epoch, (voter(3).key, voter(1).key)))
    state = replica.raft.core.state
    assert isinstance(state, Follower)
    assert answer is not None
    if epoch == 1:
        assert answer == EpochAnswer(ErrorCode.FENCED_LEADER_EPOCH, 2, 2)
    elif epoch == 2 and leader_id == 3:
        assert answer == EpochAnswer(ErrorCode.INVALID_REQUEST, 2, 2)
    else:
        assert answer == EpochAnswer(ErrorCode.NONE, epoch, leader_id)
    accepted = not answer.error
    assert (state is before) == (epoch <= 2)
    assert (state.epoch, state.leader_id) == ((epoch, leader_id) if accepted else (2, 2))
    assert state.leader_suspected == (accepted and kind == "end")
    if state is before:
        assert not any(isinstance(each, RoleChanged) for each in replica.effects)
        assert state.has_fetched


def test_prospective_replica_follows_its_suspected_leader_again_when_the_leader_speaks() -> None:
    for leader_id in (2, 3):
        replica = follower()
        replica.at(100 + CONFIG.fetch_timeout_ms)
        assert replica.role == "prospective"
        replica.ask(BeginEpoch(voter(1).key, leader_id, 2))
        state = replica.raft.core.state
        assert isinstance(state, Follower)
        assert (state.epoch, state.leader_id) == (2, leader_id)
        assert state.deadline_ms == replica.now_ms + CONFIG.fetch_timeout_ms


def test_prospective_replica_goes_on_with_its_election_when_its_former_leader_resigns() -> None:
    replica = follower()
    replica.at(100 + CONFIG.fetch_timeout_ms)
    state = replica.raft.core.state
    deadline_ms = state.deadline_ms  # type: ignore[union-attr]
    assert replica.ask(EndEpoch(2, 2, (voter(1).key,))) == EpochAnswer(ErrorCode.NONE, 2, 2)
    assert replica.raft.core.state is state
    assert state.deadline_ms == deadline_ms  # type: ignore[union-attr]


# --- votes


def test_vote_is_saved_before_it_is_sent_and_repeated_for_the_same_candidate_only() -> None:
    replica = follower()
    request = Vote(voter(1).key, voter(3).key, 5, 9, 9, False)
    replica.do(Received(1, request))
    kinds = [type(each).__name__ for each in replica.effects]
    assert kinds.index("SaveState") < kinds.index("Reply")
    state = replica.raft.core.state
    assert state.voted == voter(3).key
    for candidate_id, granted in ((3, True), (2, False)):
        answer = replica.ask(replace(request, candidate=voter(candidate_id).key))
        assert answer == VoteAnswer(ErrorCode.NONE, 5, -1, granted)
        assert replica.raft.core.state is state, "a repeated or refused vote changes nothing"
    assert replica.ask(replace(request, epoch=4)) == VoteAnswer(ErrorCode.FENCED_LEADER_EPOCH, 5, -1)


def test_granted_pre_vote_changes_no_epoch_and_no_vote() -> None:
    replica = Replica(saved=QuorumState(2), log_end=3)
    state = replica.raft.core.state
    answer = replica.ask(Vote(voter(1).key, voter(3).key, 2, 9, 9, True))
    assert answer == VoteAnswer(ErrorCode.NONE, 2, -1, True)
    assert replica.raft.core.state is state
    assert state.voted is None


@pytest.mark.parametrize("left_ms", [CONFIG.suspect_ms - 1, CONFIG.suspect_ms, CONFIG.suspect_ms + 1])
def test_granted_pre_vote_delays_an_election_that_is_due_soon_and_no_other(left_ms: int) -> None:
    replica = Replica(saved=QuorumState(2), log_end=3)
    state = replica.raft.core.state
    state.deadline_ms = left_ms  # type: ignore[union-attr]
    replica.ask(Vote(voter(1).key, voter(3).key, 2, 9, 9, True))
    assert state.deadline_ms == max(left_ms, CONFIG.suspect_ms)  # type: ignore[union-attr]


@pytest.mark.parametrize("former_leader", [-1, 2])
def test_replica_that_is_no_longer_a_voter_ends_its_pre_vote_and_its_election(former_leader: int) -> None:
    others = VoterSet.of(map(voter, (2, 3)))
    asking, standing = prospective(saved=QuorumState(2, former_leader), log_end=3), candidate()
    for replica in (asking, standing):
        replica.raft.core.voters.reset(others, -1)
        replica.at(STAND_MS)
        assert not replica.sent(Vote)
    assert asking.role == ("unattached" if former_leader < 0 else "follower")
    assert standing.role == "unattached"


def test_candidate_starts_a_new_pre_vote_exactly_at_its_deadline() -> None:
    replica = candidate()
    deadline_ms = replica.raft.core.state.deadline_ms  # type: ignore[union-attr]
    replica.at(deadline_ms - 1)
    assert replica.role == "candidate"
    replica.at(deadline_ms)
    assert replica.role == "prospective"
