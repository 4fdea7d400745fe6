"""Tests the times of a replica's own steps: every deadline is neither missed nor late."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from raft_cluster import voter
from raft_node import CONFIG, STAND_MS, Replica, candidate, leader, prospective

from penstock.protocol.errors import ErrorCode
from penstock.raft.events import (
    Effect,
    QuorumState,
    Received,
    Resign,
    SaveState,
    SendFailed,
    SnapshotInstalled,
    StateSaved,
    StepDown,
)
from penstock.raft.log_view import OffsetAndEpoch
from penstock.raft.machine import NEVER
from penstock.raft.messages import (
    AddVoter,
    BeginEpoch,
    EndEpoch,
    EpochAnswer,
    Fetch,
    FetchAnswer,
    FetchSnapshot,
    SnapshotChunk,
    UpdateVoter,
    Vote,
    VoteAnswer,
    VoterAnswer,
)
from penstock.raft.voters import Voter

HORIZON_MS = 4000
SNAPSHOT = OffsetAndEpoch(9, 1)


def follower(**options: object) -> Replica:
    replica = Replica(saved=QuorumState(2, 2), log_end=3, **options)  # type: ignore[arg-type]
    replica.at(0)
    return replica


def fetching() -> Replica:
    replica = follower()
    replica.now_ms = 100
    replica.answer(replica.sent(Fetch)[0], FetchAnswer(ErrorCode.NONE, 2, 2, 3))
    return replica


def downloading() -> Replica:
    replica = follower()
    replica.answer(replica.sent(Fetch)[0], FetchAnswer(ErrorCode.NONE, 2, 2, 3, snapshot=SNAPSHOT))
    return replica


def installing() -> Replica:
    replica = downloading()
    chunk = SnapshotChunk(ErrorCode.NONE, 2, 2, SNAPSHOT, 0, 100, 1, b"x")
    replica.answer(replica.sent(FetchSnapshot)[0], chunk)
    assert replica.raft.core.installing is not None
    return replica


def suspecting() -> Replica:
    replica = fetching()
    replica.do(SendFailed(replica.sent(Fetch)[0].send_id, closed=True))
    return replica


def lost_candidate() -> Replica:
    replica = candidate()
    for send in replica.sent(Vote):
        replica.answer(send, VoteAnswer(ErrorCode.NONE, 1, -1, False))
    return replica


def leader_with_parked_fetches() -> Replica:
    replica = leader()
    for node_id, wait_ms in ((2, 500), (3, 300)):
        replica.fetch(node_id)
        replica.fetch(node_id, wait_ms=wait_ms, ticket=20 + node_id)
    assert len(replica.leading.parked) == 2
    return replica


def leader_with_pending_change() -> Replica:
    replica = leader()
    replica.fetch(2)
    replica.fetch(3)
    replica.fetch(4)
    assert replica.ask(AddVoter(voter(4), timeout_ms=700), ticket=5) is None
    assert replica.leading.change is not None
    return replica


def resigned() -> Replica:
    replica = leader()
    replica.fetch(2)
    replica.do(StepDown())
    return replica


def stopping() -> Replica:
    replica = leader()
    replica.fetch(2)
    replica.do(Resign())
    return replica


def resigned_with_one_answer() -> Replica:
    replica = resigned()
    replica.answer(replica.sent(EndEpoch)[0], EpochAnswer(ErrorCode.NONE, 1, -1))
    return replica


def observer() -> Replica:
    replica = Replica(me=8)
    replica.at(0)
    return replica


STATES: dict[str, Callable[[], Replica]] = {
    "new voter": Replica,
    "lone voter": lambda: Replica(voters=(1,)),
    "observer": observer,
    "follower": follower,
    "follower that has fetched": fetching,
    "follower that downloads": downloading,
    "follower that installs": installing,
    "follower that suspects": suspecting,
    "follower with other endpoints": lambda: follower(as_voter=Voter(1, voter(1).key.directory_id, (("C", "h", 1),))),
    "prospective": prospective,
    "candidate": candidate,
    "candidate that lost": lost_candidate,
    "leader": leader,
    "leader with parked fetches": leader_with_parked_fetches,
    "leader with a pending change": leader_with_pending_change,
    "resigned": resigned,
    "resigned with one answer": resigned_with_one_answer,
    "stopping": stopping,
    "resigned in an earlier incarnation": lambda: Replica(saved=QuorumState(3, 1)),
}

Timed = list[tuple[int, list[Effect]]]


def every_millisecond(replica: Replica, until_ms: int) -> Timed:
    steps = [(now_ms, list(replica.at(now_ms))) for now_ms in range(replica.now_ms, until_ms)]
    return [(now_ms, effects) for now_ms, effects in steps if effects]


def at_deadlines(replica: Replica, until_ms: int) -> Timed:
    steps: Timed = []
    now_ms = replica.now_ms
    while now_ms < until_ms:
        steps.append((now_ms, list(replica.at(now_ms))))
        now_ms = max(now_ms + 1, replica.raft.deadline())
    return [(now_ms, effects) for now_ms, effects in steps if effects]


@pytest.mark.parametrize("state", STATES)
def test_replica_that_is_called_only_at_its_deadlines_does_the_same_as_one_called_every_millisecond(state: str) -> None:
    """No peer answers. The replica gives up requests, repeats them, stands for election and resigns."""
    replica = STATES[state]()
    until_ms = replica.now_ms + HORIZON_MS
    assert at_deadlines(replica.copy(), until_ms) == every_millisecond(replica.copy(), until_ms)


@pytest.mark.parametrize("state", STATES)
def test_time_that_goes_back_changes_nothing(state: str) -> None:
    replica = STATES[state]()
    late = replica.copy()
    now_ms = replica.now_ms + 700
    replica.at(now_ms)
    late.at(now_ms)
    assert late.at(now_ms - 500) == replica.at(now_ms)
    assert late.raft.core.now == replica.raft.core.now == now_ms
    assert late.raft.deadline() == replica.raft.deadline()


@pytest.mark.parametrize("me", [1, 8])
@pytest.mark.parametrize("voters", [(1,), (1, 2), (2, 3)])
@pytest.mark.parametrize("saved", [None, QuorumState(3), QuorumState(3, 1), QuorumState(3, 2)])
def test_replica_waits_for_no_election_timeout_at_its_start_if_it_is_alone_or_an_observer(
    me: int, voters: tuple[int, ...], saved: QuorumState | None
) -> None:
    if saved is not None and saved.leader_id == 1 and me == 8:
        saved = QuorumState(3, 8)
    state = Replica(me, voters, saved=saved).raft.core.state
    alone = voters == (me,)
    if state.name == "follower":
        assert saved is not None
        assert saved.leader_id == 2
        assert state.deadline_ms == CONFIG.fetch_timeout_ms  # type: ignore[union-attr]
    elif alone or me not in voters:
        assert state.deadline_ms == 0  # type: ignore[union-attr]
    else:
        assert CONFIG.election_timeout_ms <= state.deadline_ms < 2 * CONFIG.election_timeout_ms  # type: ignore[union-attr]


def test_replica_has_no_deadline_while_it_saves_its_state() -> None:
    replica = prospective()
    raft = replica.raft
    effects = raft.step(Received(1, Vote(voter(1).key, voter(2).key, 5, 0, 0, False)), STAND_MS)
    assert isinstance(effects[-1], SaveState)
    assert raft.deadline() == NEVER
    raft.step(StateSaved(), STAND_MS)
    assert raft.deadline() < NEVER


def test_leader_announces_its_epoch_to_each_silent_voter_at_once_and_again_after_half_a_fetch_timeout() -> None:
    half = CONFIG.fetch_timeout_ms // 2
    replica = leader()
    first = sorted(send.to for send in replica.sent(BeginEpoch))
    assert first == [2, 3]
    for send in replica.sent(BeginEpoch):
        request = send.request
        assert isinstance(request, BeginEpoch)
        assert (request.voter, request.leader_id, request.epoch) == (voter(send.to).key, 1, 1)
        replica.answer(send, EpochAnswer(ErrorCode.NONE, 1, 1))
    replica.now_ms = STAND_MS + 300
    replica.fetch(2)
    times: dict[int, list[int]] = {2: [], 3: []}
    for now_ms in range(STAND_MS + 300, STAND_MS + 300 + CONFIG.check_quorum_ms):
        replica.at(now_ms)
        for send in replica.sent(BeginEpoch):
            times[send.to].append(now_ms - STAND_MS)
            replica.answer(send, EpochAnswer(ErrorCode.NONE, 1, 1))
    assert times == {2: [300 + half, 300 + 2 * half], 3: [half, 2 * half, 3 * half]}


def test_voter_that_keeps_fetching_is_not_told_again_who_leads() -> None:
    replica = leader()
    for send in replica.sent(BeginEpoch):
        replica.answer(send, EpochAnswer(ErrorCode.NONE, 1, 1))
    told = []
    for now_ms in range(STAND_MS, STAND_MS + HORIZON_MS, 100):
        replica.at(now_ms)
        told += [send.to for send in replica.sent(BeginEpoch)]
        for node_id in (2, 3):
            replica.fetch(node_id)
            told += [send.to for send in replica.sent(BeginEpoch)]
    assert told == []
    assert replica.role == "leader"


def test_leader_resigns_exactly_when_it_has_not_heard_from_a_majority_for_its_timeout() -> None:
    for heard_ms in (0, 400):
        replica = leader()
        replica.now_ms = STAND_MS + heard_ms
        replica.fetch(3)
        last = STAND_MS + heard_ms + CONFIG.check_quorum_ms
        replica.at(last - 1)
        assert replica.role == "leader"
        replica.at(last)
        assert replica.role == "resigned"


def test_voter_change_times_out_exactly_after_its_timeout() -> None:
    replica = leader_with_pending_change()
    replica.at(STAND_MS + 699)
    assert replica.replies() == {}
    replica.at(STAND_MS + 700)
    assert replica.replies() == {5: ErrorCode.REQUEST_TIMED_OUT}
    assert replica.leading.change is None


def test_parked_fetches_are_answered_exactly_after_their_own_maximum_wait() -> None:
    replica = leader_with_parked_fetches()
    answered = [
        (now_ms - STAND_MS, replies)
        for now_ms in range(STAND_MS, STAND_MS + 600)
        if (replica.at(now_ms), replies := replica.replies())[1]
    ]
    assert answered == [(300, {23: ErrorCode.NONE}), (500, {22: ErrorCode.NONE})]


def test_voter_reports_new_endpoints_at_once_and_again_after_a_fetch_timeout() -> None:
    replica = follower(as_voter=Voter(1, voter(1).key.directory_id, (("C", "h", 1),)))
    times = []
    (fetch,) = replica.sent(Fetch)
    for now_ms in range(0, 2 * CONFIG.fetch_timeout_ms + 1, 100):
        replica.now_ms = now_ms
        updates = replica.sent(UpdateVoter)
        replica.answer(fetch, FetchAnswer(ErrorCode.NONE, 2, 2, 3))
        (fetch,) = replica.sent(Fetch)
        for send in [*updates, *replica.sent(UpdateVoter)]:
            times.append(now_ms)
            replica.answer(send, VoterAnswer(ErrorCode.NONE, 2, 2))
    assert times == [0, CONFIG.fetch_timeout_ms, 2 * CONFIG.fetch_timeout_ms]


def test_installed_snapshot_restarts_the_fetch_timeout() -> None:
    replica = installing()
    replica.now_ms = 1500
    replica.do(SnapshotInstalled(SNAPSHOT, None))
    assert replica.raft.core.state.deadline_ms == 1500 + CONFIG.fetch_timeout_ms  # type: ignore[union-attr]
    assert [send.request.offset for send in replica.sent(Fetch)] == [9]  # type: ignore[union-attr]


def test_first_election_may_come_sooner_than_later_elections() -> None:
    config = replace(CONFIG, first_election_ms=100)
    state = Replica(config=config).raft.core.state
    assert 100 <= state.deadline_ms < 200  # type: ignore[union-attr]
