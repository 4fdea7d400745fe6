"""Tests the order of events and effects around a save: nothing overtakes the state that goes to disk."""

from __future__ import annotations

import random
from itertools import product

import pytest
from raft_cluster import voter
from raft_node import CONFIG, STAND_MS, Replica, candidate, committing, follower
from raft_roles import EPOCH, ROLES

from penstock.protocol.errors import ErrorCode
from penstock.raft.describe import describe
from penstock.raft.events import (
    Answered,
    Append,
    Effect,
    Event,
    LogFlushed,
    Propose,
    QuorumState,
    Received,
    Refuse,
    Reply,
    Resign,
    RoleChanged,
    SaveState,
    Send,
    SendFailed,
    StateSaved,
    StepDown,
    Tick,
)
from penstock.raft.machine import _without_needless_saves
from penstock.raft.messages import BeginEpoch, EndEpoch, EpochAnswer, Fetch, FetchAnswer, Vote, VoteAnswer

LETTERS: dict[str, Effect] = {
    "r": RoleChanged("follower", 1, 1),
    "x": Reply(1, EpochAnswer(ErrorCode.NONE, 1, 1)),
}


def effects_of(text: str) -> list[Effect]:
    return [SaveState(QuorumState(n)) if each == "s" else LETTERS[each] for n, each in enumerate(text)]


def test_save_is_left_out_exactly_if_only_role_changes_are_between_it_and_the_next_save() -> None:
    for length in range(6):
        for letters in product("srx", repeat=length):
            text = "".join(letters)
            expected = [
                effect
                for place, effect in enumerate(effects_of(text))
                if text[place] != "s" or not text[place + 1 :].lstrip("r").startswith("s")
            ]
            assert _without_needless_saves(effects_of(text)) == expected, text


def slow_and_fast(start: Replica, events: list[Event], now_ms: int) -> None:
    """Compares a disk that saves at once with a disk that saves only after all events have arrived."""
    fast, slow = start.copy().raft, start.copy().raft
    done: list[Effect] = []
    for event in events:
        effects = fast.step(event, now_ms)
        done += effects
        while effects and isinstance(effects[-1], SaveState):
            effects = fast.step(StateSaved(), now_ms)
            done += effects
    late: list[Effect] = []
    for event in events:
        effects = slow.step(event, now_ms)
        late += effects
        saves = [place for place, each in enumerate(late) if isinstance(each, SaveState)]
        assert saves in ([], [len(late) - 1]), "no effect after a save that is not done"
    while late and isinstance(late[-1], SaveState):
        late += slow.step(StateSaved(), now_ms)
    assert late == done
    assert (describe(slow.core), slow.core.saved) == (describe(fast.core), fast.core.saved)
    assert slow.core.state.name == fast.core.state.name
    assert slow.deadline() == fast.deadline()


EVENTS: list[Event] = [
    Received(11, Vote(voter(1).key, voter(2).key, EPOCH + 1, 9, 9, False)),
    Received(12, Vote(voter(1).key, voter(3).key, EPOCH + 1, 9, 9, False)),
    Received(13, Vote(voter(1).key, voter(3).key, EPOCH + 3, 9, 9, False)),
    Received(14, BeginEpoch(voter(1).key, 2, EPOCH + 1)),
    Received(15, BeginEpoch(voter(1).key, 3, EPOCH + 2)),
    Received(16, EndEpoch(3, EPOCH + 2, (voter(1).key,))),
    Received(17, Fetch(voter(2).key, EPOCH, 3, 1, 0, 100)),
    Propose(5, EPOCH, ((1, b""),)),
    StepDown(),
    Resign(),
]


@pytest.mark.parametrize("role", ROLES)
def test_slow_save_delays_events_and_effects_but_changes_neither_their_order_nor_their_content(role: str) -> None:
    start = ROLES[role]()
    choose = random.Random(role)
    for _ in range(30):
        slow_and_fast(start, choose.choices(EVENTS, k=choose.randint(1, 5)), start.now_ms + 1)


def test_answers_and_failures_that_arrive_during_a_save_are_handled_after_it() -> None:
    for failure in (True, False):
        replica = follower()
        (fetch,) = replica.sent(Fetch)
        raft = replica.raft
        effects = raft.step(Received(1, Vote(voter(1).key, voter(3).key, 5, 9, 9, False)), 150)
        assert isinstance(effects[-1], SaveState)
        answer = FetchAnswer(ErrorCode.NONE, 2, 2, 3)
        event = SendFailed(fetch.send_id, closed=True) if failure else Answered(fetch.send_id, answer)
        assert raft.step(event, 150) == []
        assert raft.step(LogFlushed(3), 150) == []
        after = raft.step(StateSaved(), 150)
        assert [each.answer for each in after if isinstance(each, Reply)] == [VoteAnswer(ErrorCode.NONE, 5, -1, True)]
        assert raft.core.state.name == "unattached", "the answer is to a request of an earlier state"


def test_tick_during_a_save_is_made_up_for_when_the_save_ends() -> None:
    raft = follower().raft
    raft.step(Received(1, Vote(voter(1).key, voter(3).key, 5, 9, 9, False)), 150)
    late_ms = 150 + 2 * CONFIG.election_timeout_ms
    assert raft.step(Tick(), late_ms) == []
    raft.step(StateSaved(), late_ms)
    assert raft.deadline() <= late_ms
    raft.step(Tick(), late_ms)
    assert raft.core.state.name == "prospective"


def test_new_leader_writes_its_first_record_and_speaks_only_after_its_state_is_saved() -> None:
    replica = candidate()
    raft = replica.raft
    send = replica.sent(Vote)[0]
    effects = raft.step(Answered(send.send_id, VoteAnswer(ErrorCode.NONE, 1, -1, True)), STAND_MS)
    assert [type(each) for each in effects] == [SaveState]
    assert effects == [SaveState(QuorumState(1, 1, voter(1).key))]
    after = raft.step(StateSaved(), STAND_MS)
    kinds = [type(each) for each in after]
    assert kinds[:2] == [RoleChanged, Append]
    assert sorted(each.to for each in after if isinstance(each, Send)) == [2, 3]


def test_candidate_asks_for_no_vote_before_its_own_vote_is_saved() -> None:
    replica = Replica()
    raft = replica.raft
    sends = [each for each in raft.step(Tick(), STAND_MS) if isinstance(each, Send)]
    effects = raft.step(Answered(sends[0].send_id, VoteAnswer(ErrorCode.NONE, 0, -1, True)), STAND_MS)
    assert effects == [SaveState(QuorumState(1, -1, voter(1).key))]
    after = raft.step(StateSaved(), STAND_MS)
    assert after[0] == RoleChanged("candidate", 1, -1)
    asked = [each.request for each in after if isinstance(each, Send)]
    assert asked == [Vote(voter(each).key, voter(1).key, 1, 0, 0, False) for each in (2, 3)]


def test_leader_that_loses_its_office_answers_all_that_wait_and_refuses_what_comes_later() -> None:
    for event in (StepDown(), Received(50, Vote(voter(1).key, voter(2).key, 4, 9, 9, False))):
        replica = committing()
        for ticket, node_id in ((21, 2), (22, 3), (23, 4)):
            replica.fetch(node_id, wait_ms=500, ticket=ticket)
        replica.do(event)
        gone = ErrorCode.NOT_LEADER_OR_FOLLOWER
        answers = {each.ticket: each.answer for each in replica.effects if isinstance(each, Reply)}
        assert {ticket: answers[ticket] for ticket in (21, 22, 23)} == dict.fromkeys(
            (21, 22, 23), FetchAnswer(gone, 1, -1)
        )
        replica.do(Propose(8, 1, ((1, b""),)))
        assert [each for each in replica.effects if isinstance(each, Refuse)] == [Refuse(8, gone, -1)]


def test_answers_to_requests_of_an_earlier_state_are_ignored() -> None:
    replica = follower()
    (fetch,) = replica.sent(Fetch)
    replica.ask(BeginEpoch(voter(1).key, 3, EPOCH + 1))
    (current,) = replica.sent(Fetch)
    assert current.to == 3
    replica.answer(fetch, FetchAnswer(ErrorCode.NONE, EPOCH + 1, 3, 99))
    state = replica.raft.core.state
    assert (state.has_fetched, replica.raft.core.high_watermark) == (False, 3)  # type: ignore[union-attr]
    assert replica.effects == []


@pytest.mark.parametrize("code", [ErrorCode.NONE, ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.BROKER_NOT_AVAILABLE])
def test_peer_is_asked_again_at_once_unless_it_answered_with_an_error_that_time_may_solve(code: ErrorCode) -> None:
    replica = committing()
    replica.do(StepDown())
    send = replica.sent(EndEpoch)[0]
    replica.answer(send, EpochAnswer(code, 1, -1))
    again = [each.to for each in replica.sent(EndEpoch)]
    assert again == ([2] if code is ErrorCode.FENCED_LEADER_EPOCH else [])
    replica.at(replica.now_ms + CONFIG.retry_backoff_ms)
    assert [each.to for each in replica.sent(EndEpoch)] == ([2] if code is ErrorCode.BROKER_NOT_AVAILABLE else [])
