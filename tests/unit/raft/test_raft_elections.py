"""Tests the count of votes: every sequence of answers is compared with a plain count."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from raft_cluster import voter
from raft_node import CONFIG, STAND_MS, Replica, candidate, prospective

from penstock.protocol.errors import ErrorCode
from penstock.raft.events import Append, LeaderChange, QuorumState, RoleChanged, SaveState, Send, SendFailed
from penstock.raft.messages import Fetch, FetchAnswer, Vote, VoteAnswer
from penstock.raft.states import Candidate, Prospective, Unattached

ANSWERS = ("yes", "no", "error")


def answered(replica: Replica, send: Send, answer: str) -> None:
    error = ErrorCode.INVALID_VOTER_KEY if answer == "error" else ErrorCode.NONE
    replica.answer(send, VoteAnswer(error, replica.raft.core.epoch, -1, answer == "yes"))


def outcome(size: int, answers: list[str]) -> str:
    majority = size // 2 + 1
    if 1 + answers.count("yes") >= majority:
        return "won"
    return "lost" if size - answers.count("no") < majority else "open"


@pytest.mark.parametrize("leader_id", [-1, 9])
@pytest.mark.parametrize("size", [2, 3, 4, 5])
def test_pre_vote_ends_as_soon_as_its_outcome_is_certain(size: int, leader_id: int) -> None:
    start = prospective(voters=range(1, size + 1), saved=QuorumState(3, leader_id), log_end=3)
    sends = start.sent(Vote)
    assert [send.to for send in sends] == list(range(2, size + 1))
    for send in sends:
        assert send.request == Vote(voter(send.to).key, voter(1).key, 3, 1, 3, pre_vote=True)
    for answers in product(ANSWERS, repeat=size - 1):
        replica, counted = start.copy(), []
        for send, answer in zip(sends, answers):
            answered(replica, send, answer)
            counted.append(answer)
            core = replica.raft.core
            match outcome(size, counted):
                case "won":
                    assert isinstance(core.state, Candidate)
                    assert (core.epoch, core.state.voted) == (4, voter(1).key)
                    assert core.saved == QuorumState(4, -1, voter(1).key)
                    break
                case "lost":
                    assert replica.role == ("follower" if leader_id == 9 else "unattached")
                    assert (core.epoch, core.state.leader_id, core.saved) == (3, leader_id, QuorumState(3, leader_id))
                    break
                case _:
                    assert replica.role == "prospective"
                    assert core.epoch == 3


@pytest.mark.parametrize("size", [2, 3, 4, 5])
def test_candidate_leads_exactly_after_a_majority_voted_for_it(size: int) -> None:
    start = candidate(voters=range(1, size + 1))
    sends = start.sent(Vote)
    assert [send.to for send in sends] == list(range(2, size + 1))
    for send in sends:
        assert send.request == Vote(voter(send.to).key, voter(1).key, 1, 0, 0, pre_vote=False)
    for answers in product(ANSWERS, repeat=size - 1):
        replica, counted = start.copy(), []
        for send, answer in zip(sends, answers):
            answered(replica, send, answer)
            counted.append(answer)
            state = replica.raft.core.state
            if outcome(size, counted) == "won":
                assert replica.role == "leader"
                granted = tuple(sorted({1, *(one.to for one, each in zip(sends, counted) if each == "yes")}))
                (append,) = [each for each in replica.effects if isinstance(each, Append)]
                (first,) = append.batches
                voters = replica.raft.core.voters.latest
                assert first.content == LeaderChange(1, tuple(range(1, size + 1)), granted, voters)
                break
            assert isinstance(state, Candidate)
            assert state.lost is (outcome(size, counted) == "lost")
            if state.lost:
                assert STAND_MS <= state.deadline_ms < STAND_MS + CONFIG.election_backoff_max_ms
            else:
                assert state.deadline_ms >= STAND_MS + CONFIG.election_timeout_ms


def test_lost_candidate_keeps_its_backoff_when_more_voters_refuse_and_stands_again_after_it() -> None:
    replica = candidate(voters=range(1, 6))
    *_, last = sends = replica.sent(Vote)
    deadlines = []
    for send in sends[:-1]:
        answered(replica, send, "no")
        deadlines.append(replica.raft.core.state.deadline_ms)  # type: ignore[union-attr]
    answered(replica, last, "no")
    deadlines.append(replica.raft.core.state.deadline_ms)  # type: ignore[union-attr]
    assert len(set(deadlines[:2])) == 1
    assert len(set(deadlines[2:])) == 1
    replica.at(deadlines[-1])
    assert isinstance(replica.raft.core.state, Prospective)
    assert replica.raft.core.epoch == 1


def test_vote_that_arrives_after_the_pre_vote_or_the_election_has_ended_counts_for_nothing() -> None:
    """An answer to the pre-vote is no vote, and an answer in an earlier election is none in the next."""
    standing = prospective(voters=range(1, 6))
    early = standing.sent(Vote)
    for send in early[:2]:
        answered(standing, send, "yes")
    assert standing.role == "candidate"
    for send in early[2:]:
        answered(standing, send, "yes")
    assert standing.role == "candidate"
    votes = standing.sent(Vote) or []
    state = standing.raft.core.state
    assert isinstance(state, Candidate)
    assert (state.election.granted, votes) == ({1}, [])


@pytest.mark.parametrize("answer", ANSWERS)
def test_voter_that_answered_is_not_asked_again_unless_it_answered_with_an_error(answer: str) -> None:
    replica = prospective(voters=range(1, 6))
    sends = replica.sent(Vote)
    answered(replica, sends[0], answer)
    replica.do(SendFailed(sends[1].send_id))
    replica.at(STAND_MS + CONFIG.retry_backoff_ms - 1)
    assert replica.sent(Vote) == []
    replica.at(STAND_MS + CONFIG.retry_backoff_ms)
    assert [send.to for send in replica.sent(Vote)] == ([2, 3] if answer == "error" else [3])


@pytest.mark.parametrize("former_leader", [-1, 2])
def test_pre_vote_without_answers_ends_at_its_deadline_and_another_begins_later(former_leader: int) -> None:
    replica = prospective(saved=QuorumState(3, former_leader), log_end=3)
    state = replica.raft.core.state
    assert isinstance(state, Prospective)
    assert STAND_MS + CONFIG.election_timeout_ms <= state.deadline_ms < STAND_MS + 2 * CONFIG.election_timeout_ms
    assert (state.leader_id, replica.raft.core.saved) == (former_leader, QuorumState(3, former_leader))
    ends_ms = state.deadline_ms
    replica.at(ends_ms - 1)
    assert replica.raft.core.state is state
    replica.at(ends_ms)
    assert replica.role == ("follower" if former_leader == 2 else "unattached")
    assert replica.raft.core.epoch == 3
    later = replica.raft.core.state
    wait_ms = later.deadline_ms - ends_ms
    if former_leader == 2:
        assert wait_ms == CONFIG.fetch_timeout_ms
    else:
        assert CONFIG.election_timeout_ms <= wait_ms < 2 * CONFIG.election_timeout_ms


@pytest.mark.parametrize("end", [0, 3])
@pytest.mark.parametrize("dynamic", [True, False])
def test_first_leader_of_an_empty_log_writes_the_voters_if_the_log_defines_them(dynamic: bool, end: int) -> None:
    replica = candidate(config=replace(CONFIG, dynamic_voters=dynamic), log_end=end)
    answered(replica, replica.sent(Vote)[0], "yes")
    (append,) = [each for each in replica.effects if isinstance(each, Append)]
    (first,) = append.batches
    unsaid = dynamic and end == 0
    assert (first.content.bootstrap is not None) is unsaid
    assert (first.base_offset, first.last_offset, first.voters) == (
        end,
        end + 2 if unsaid else end,
        replica.raft.core.voters.latest if unsaid else None,
    )
    assert replica.raft.core.voters.latest_offset == (end + 2 if unsaid else -1)
    assert replica.leading.start_offset == end


def test_answer_of_a_later_epoch_ends_an_election_and_counts_as_no_vote() -> None:
    for make, leader_id in product((prospective, candidate), (-1, 3)):
        replica: Replica = make()
        epoch = replica.raft.core.epoch
        replica.answer(replica.sent(Vote)[0], VoteAnswer(ErrorCode.NONE, epoch + 1, leader_id, True))
        assert replica.role == ("follower" if leader_id == 3 else "unattached")
        assert (replica.raft.core.epoch, replica.raft.core.state.leader_id) == (epoch + 1, leader_id)
        saves = [each.state for each in replica.effects if isinstance(each, SaveState)]
        assert saves == [QuorumState(epoch + 1, leader_id)]
        assert RoleChanged(replica.role, epoch + 1, leader_id) in replica.effects


def test_unattached_voter_keeps_its_election_deadline_when_epochs_rise() -> None:
    """Otherwise a replica that always raises the epoch could keep all others from standing."""
    replica = Replica(saved=QuorumState(2), log_end=3)
    state = replica.raft.core.state
    assert isinstance(state, Unattached)
    deadline_ms = state.deadline_ms
    for epoch in (3, 4, 7):
        replica.now_ms += 100
        replica.ask(Vote(voter(1).key, voter(3).key, epoch, 0, 0, False))
        later = replica.raft.core.state
        assert isinstance(later, Unattached)
        assert (later.epoch, later.deadline_ms, later.voted) == (epoch, deadline_ms, None)


def test_observer_asks_at_once_for_the_leader_of_a_new_epoch() -> None:
    replica = Replica(me=8, saved=QuorumState(2), log_end=3)
    replica.at(0)
    (send,) = replica.sent(Fetch)
    assert send.request == Fetch(voter(8).key, 2, 3, 1, 0, 0)
    replica.now_ms = 7
    replica.answer(send, FetchAnswer(ErrorCode.UNKNOWN_LEADER_EPOCH, 5, -1))
    (again,) = replica.sent(Fetch)
    assert isinstance(again.request, Fetch)
    assert again.request.epoch == 5
    replica.answer(again, FetchAnswer(ErrorCode.NOT_LEADER_OR_FOLLOWER, 5, 3))
    (last,) = replica.sent(Fetch)
    assert (last.to, last.request) == (3, Fetch(voter(8).key, 5, 3, 1, 0, CONFIG.fetch_max_wait_ms))
