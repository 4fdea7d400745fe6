"""Tests changes of voters: what a change appends, when it is answered, and what a refused change leaves alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
from raft_cluster import voter
from raft_node import CONFIG, STAND_MS, Replica, committing, leader

from penstock.protocol.errors import ErrorCode
from penstock.raft.events import Append, Committed, LogFlushed, Propose, Reply, StepDown, Tick, VotersChange
from penstock.raft.messages import AddVoter, Fetch, RemoveVoter, Request, UpdateVoter, VoterAnswer
from penstock.raft.voters import ReplicaKey, Voter, VoterSet

MOVED = Voter(2, voter(2).directory_id, (("C", "elsewhere", 1),))
GOOD: dict[str, tuple[Request, tuple[Voter, ...], int]] = {
    "add": (AddVoter(voter(4), 300), tuple(map(voter, (1, 2, 3, 4))), 300),
    "remove": (RemoveVoter(voter(3).key, 400), tuple(map(voter, (1, 2))), 400),
    "update": (UpdateVoter(1, MOVED), (voter(1), MOVED, voter(3)), CONFIG.request_timeout_ms),
}


def ready(**options: object) -> Replica:
    """Returns a leader that has committed its first record, with node 4 as an observer that has caught up."""
    replica = committing(**options)
    replica.fetch(4)
    return replica


def appended(replica: Replica) -> list[object]:
    return [one.content for each in replica.effects if isinstance(each, Append) for one in each.batches]


@pytest.mark.parametrize("kind", GOOD)
def test_change_of_voters_appends_the_new_set_which_counts_at_once(kind: str) -> None:
    request, voters, timeout_ms = GOOD[kind]
    replica = ready()
    replica.now_ms += 25
    end = replica.raft.core.log.end_offset
    assert replica.ask(request, ticket=5) is None
    expected = VoterSet(voters)
    assert appended(replica) == [VotersChange(expected)]
    core = replica.raft.core
    assert (core.voters.latest, core.voters.latest_offset, core.log.end_offset) == (expected, end, end + 1)
    change = replica.leading.change
    assert change is not None
    assert (change.ticket, change.offset, change.deadline_ms) == (5, end, STAND_MS + 25 + timeout_ms)
    replica.at(STAND_MS + 25 + timeout_ms - 1)
    assert replica.replies() == {}
    assert replica.leading.change is change


@pytest.mark.parametrize("kind", GOOD)
def test_change_of_voters_is_answered_once_when_it_is_committed_and_the_next_change_may_follow(kind: str) -> None:
    request, voters, _ = GOOD[kind]
    replica = ready()
    replica.ask(request, ticket=5)
    found = []
    for node_id in (2, 3, 4, 2, 3, 4):
        replica.fetch(node_id)
        found += [each.answer for each in replica.effects if isinstance(each, Reply) and each.ticket == 5]
    assert found == [VoterAnswer(ErrorCode.NONE, 1, 1)]
    assert replica.leading.change is None
    assert replica.raft.core.voters.latest == VoterSet(voters)
    answer = replica.ask(RemoveVoter(voter(2).key), ticket=6)
    assert answer is None or not answer.error
    assert replica.raft.core.voters.latest == VoterSet(voters).removed(voter(2).key)


def pending(replica: Replica) -> None:
    replica.ask(AddVoter(voter(4), ack_when_committed=True), ticket=77)


def uncommitted(replica: Replica) -> None:
    replica.ask(AddVoter(voter(4), ack_when_committed=False), ticket=77)


def resigned(replica: Replica) -> None:
    replica.do(StepDown())


@pytest.mark.parametrize(
    ("before", "code", "leader_id"),
    [
        (resigned, ErrorCode.NOT_LEADER_OR_FOLLOWER, -1),
        (pending, ErrorCode.REQUEST_TIMED_OUT, 1),
        (uncommitted, ErrorCode.REQUEST_TIMED_OUT, 1),
    ],
)
@pytest.mark.parametrize("kind", GOOD)
def test_change_of_voters_is_refused_by_a_leader_that_is_not_ready(
    kind: str, before: object, code: ErrorCode, leader_id: int
) -> None:
    replica = ready()
    before(replica)  # type: ignore[operator]
    check_refused(replica, GOOD[kind][0], code, leader_id)


def check_refused(replica: Replica, request: Request, code: ErrorCode, leader_id: int = 1) -> None:
    core = replica.raft.core
    voters, end, change = core.voters.latest, core.log.end_offset, getattr(core.state, "change", None)
    answer = replica.ask(request)
    assert isinstance(answer, VoterAnswer)
    assert (answer.error, answer.epoch, answer.leader_id) == (code, 1, leader_id)
    assert (core.voters.latest, core.log.end_offset) == (voters, end)
    assert getattr(core.state, "change", None) is change


@pytest.mark.parametrize("kind", GOOD)
def test_change_of_voters_is_refused_if_the_properties_define_the_voters(kind: str) -> None:
    replica = ready(config=replace(CONFIG, dynamic_voters=False))
    check_refused(replica, GOOD[kind][0], ErrorCode.UNSUPPORTED_VERSION)


@pytest.mark.parametrize("kind", GOOD)
def test_change_of_voters_is_refused_until_the_leader_has_committed_a_record_of_its_epoch(kind: str) -> None:
    replica = leader()
    replica.ask(Fetch(voter(4).key, 1, replica.raft.core.log.end_offset, 1, 0, 0))
    check_refused(replica, GOOD[kind][0], ErrorCode.REQUEST_TIMED_OUT)
    replica.fetch(2)
    assert replica.ask(GOOD[kind][0], ticket=5) is None


def test_change_of_voters_names_the_voter_by_its_id_and_its_directory() -> None:
    other = b"another directo."
    for request, code in (
        (AddVoter(Voter(2, other)), ErrorCode.DUPLICATE_VOTER),
        (AddVoter(voter(2)), ErrorCode.DUPLICATE_VOTER),
        (AddVoter(Voter(4, other)), ErrorCode.REQUEST_TIMED_OUT),  # only the other directory has caught up
        (RemoveVoter(ReplicaKey(3, other)), ErrorCode.VOTER_NOT_FOUND),
        (RemoveVoter(ReplicaKey(3)), ErrorCode.VOTER_NOT_FOUND),
        (RemoveVoter(voter(4).key), ErrorCode.VOTER_NOT_FOUND),
        (UpdateVoter(1, Voter(2, other, MOVED.endpoints)), ErrorCode.VOTER_NOT_FOUND),
        (UpdateVoter(1, voter(4)), ErrorCode.VOTER_NOT_FOUND),
    ):
        check_refused(ready(), request, code)


def test_new_voter_has_caught_up_if_it_had_all_records_within_the_fetch_timeout() -> None:
    for behind, waited_ms, accepted in (
        (0, 0, True),
        (0, CONFIG.fetch_timeout_ms, True),
        (0, CONFIG.fetch_timeout_ms + 1, False),
        (1, 0, False),
    ):
        replica = committing()
        replica.fetch(4, replica.raft.core.log.end_offset - behind)
        replica.now_ms += waited_ms
        for node_id in (2, 3):
            replica.fetch(node_id)
        if accepted:
            assert replica.ask(AddVoter(voter(4)), ticket=5) is None
        else:
            check_refused(replica, AddVoter(voter(4)), ErrorCode.REQUEST_TIMED_OUT)


def test_removal_of_a_dead_voter_commits_what_the_others_already_have() -> None:
    """With voters 1 and 2, nothing commits while 2 is dead; without 2, the leader's own disk is enough."""
    replica = leader(voters=(1, 2))
    replica.fetch(2)
    core = replica.raft.core
    end = core.log.end_offset
    replica.do(Propose(1, 1, ((2, b""),)))
    assert core.high_watermark == end
    replica.syncs = False
    assert replica.ask(RemoveVoter(voter(2).key), ticket=5) is None
    assert core.high_watermark == end + 2, "at once, without another event"
    assert [each.high_watermark for each in replica.effects if isinstance(each, Committed)] == [end + 2]
    replica.do(LogFlushed(end + 3))
    assert core.high_watermark == end + 3
    assert replica.replies() == {5: ErrorCode.NONE}


def test_last_voter_stays_and_the_one_before_it_can_go() -> None:
    replica = leader(voters=(1, 2))
    replica.fetch(2)
    replica.ask(RemoveVoter(voter(2).key), ticket=5)
    replica.do(Tick())
    assert replica.raft.core.voters.latest.ids == (1,)
    check_refused(replica, RemoveVoter(voter(1).key), ErrorCode.INVALID_REQUEST)


def test_client_whose_change_timed_out_is_answered_once_and_the_change_still_counts() -> None:
    replica = ready()
    replica.ask(AddVoter(voter(4), timeout_ms=100), ticket=5)
    replica.at(STAND_MS + 100)
    assert replica.replies() == {5: ErrorCode.REQUEST_TIMED_OUT}
    assert replica.raft.core.voters.latest.ids == (1, 2, 3, 4)
    for node_id in (2, 3, 4):
        replica.fetch(node_id)
        assert 5 not in replica.replies()
    assert replica.raft.core.high_watermark == replica.raft.core.log.end_offset
