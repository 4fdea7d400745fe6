"""Tests the answers of a replica in each role to a leader that begins or ends an epoch, against the plain rule."""

from __future__ import annotations

from itertools import product

import pytest
from raft_cluster import voter
from raft_node import CONFIG, Replica
from raft_roles import EPOCH, ROLES

from penstock.protocol.errors import ErrorCode
from penstock.raft.events import SaveState
from penstock.raft.messages import BeginEpoch, EndEpoch, EpochAnswer
from penstock.raft.states import Follower, Leader, Prospective, Resigned
from penstock.raft.voters import ReplicaKey, VoterSet

LEADERS = (-1, 0, 1, 2, 3, 9)
EPOCHS = (EPOCH - 1, EPOCH, EPOCH + 1)


def hears_leader(replica: Replica) -> bool:
    state = replica.raft.core.state
    if isinstance(state, Follower):
        return state.has_fetched and not state.leader_suspected and replica.now_ms < state.deadline_ms
    return isinstance(state, Leader)


def refusal(replica: Replica, epoch: int, leader_id: int) -> ErrorCode:
    core = replica.raft.core
    if epoch < EPOCH:
        return ErrorCode.FENCED_LEADER_EPOCH
    if leader_id < 0 or leader_id == core.me.node_id:
        return ErrorCode.INVALID_REQUEST
    if epoch == EPOCH and leader_id != core.state.leader_id and hears_leader(replica):
        return ErrorCode.INVALID_REQUEST
    known = leader_id in (1, 2, 3) or (epoch, leader_id) == (EPOCH, core.state.leader_id)
    return ErrorCode.NONE if known or not hears_leader(replica) else ErrorCode.INCONSISTENT_VOTER_SET


def follows(replica: Replica, epoch: int, leader_id: int, *, begins: bool) -> bool:
    """Returns True if the accepted claim makes the replica a follower anew."""
    state = replica.raft.core.state
    if epoch > EPOCH:
        return True
    if isinstance(state, Leader | Resigned) or (isinstance(state, Follower) and state.has_fetched):
        return False
    if state.leader_id == leader_id:
        return begins and isinstance(state, Prospective)
    return True


@pytest.mark.parametrize("begins", [True, False], ids=["begin", "end"])
@pytest.mark.parametrize("role", ROLES)
def test_claim_to_lead_is_accepted_exactly_by_the_rule_of_each_role(role: str, begins: bool) -> None:
    start = ROLES[role]()
    for epoch, leader_id in product(EPOCHS, LEADERS):
        replica = start.copy()
        core = replica.raft.core
        before, voted, now_ms = core.state, core.state.voted, replica.now_ms
        deadline_ms = getattr(before, "deadline_ms", None)
        error = refusal(start, epoch, leader_id)
        new = not error and follows(start, epoch, leader_id, begins=begins)
        if begins:
            answer = replica.ask(BeginEpoch(core.me, leader_id, epoch))
        else:
            answer = replica.ask(EndEpoch(leader_id, epoch, (voter(7).key, core.me)))
        state, told = core.state, (epoch, leader_id)
        expected = (epoch, leader_id) if new else (EPOCH, before.leader_id)
        assert answer == EpochAnswer(error, *expected), told
        assert (state is not before) is new, told
        assert (state.epoch, state.leader_id) == expected, told
        assert any(isinstance(each, SaveState) for each in replica.effects) is (
            new and core.saved != start.raft.core.saved
        )
        if new:
            assert isinstance(state, Follower)
            assert state.voted == (voted if epoch == EPOCH else None), told
            assert not state.has_fetched
            deadline_ms = now_ms + CONFIG.fetch_timeout_ms
        suspected = getattr(before, "leader_suspected", False) and not new
        if not begins and not error and isinstance(state, Follower) and state.leader_id == leader_id:
            assert deadline_ms is not None
            suspected, deadline_ms = True, min(deadline_ms, now_ms + 100)  # it is the second successor
        if isinstance(state, Follower):
            assert (state.leader_suspected, state.deadline_ms) == (suspected, deadline_ms), told
        elif hasattr(state, "deadline_ms") and core.me.node_id != 8:
            assert state.deadline_ms == deadline_ms, told


@pytest.mark.parametrize("role", ROLES)
def test_begin_of_an_epoch_counts_only_if_it_is_addressed_to_this_replica(role: str) -> None:
    start = ROLES[role]()
    me = start.raft.core.me
    for addressee in (ReplicaKey(me.node_id, b"another directo."), voter(7).key, ReplicaKey(7, me.directory_id)):
        for epoch in EPOCHS:
            replica = start.copy()
            before = replica.raft.core.state
            answer = replica.ask(BeginEpoch(addressee, 3, epoch))
            assert answer == EpochAnswer(ErrorCode.INVALID_VOTER_KEY, EPOCH, before.leader_id)
            assert replica.raft.core.state is before
    replica = start.copy()
    assert replica.ask(BeginEpoch(ReplicaKey(me.node_id), 3, EPOCH + 1)) == EpochAnswer(ErrorCode.NONE, EPOCH + 1, 3)


def test_leader_that_was_removed_from_the_voters_still_announces_its_own_epoch() -> None:
    """A follower knows its leader, even if the leader is in no set of voters that the follower has."""
    for epoch, code in ((EPOCH, ErrorCode.NONE), (EPOCH + 1, ErrorCode.INCONSISTENT_VOTER_SET)):
        replica = ROLES["follower that has fetched"]()
        replica.raft.core.voters.reset(VoterSet.of(map(voter, (1, 3))), -1)
        answer = replica.ask(BeginEpoch(voter(1).key, 2, epoch))
        assert answer == EpochAnswer(code, EPOCH, 2)


def test_voter_of_a_set_that_is_not_committed_yet_may_lead_and_stand() -> None:
    """The latest committed set and every later set count, each alone."""
    for leader_id, code in ((3, ErrorCode.NONE), (4, ErrorCode.NONE), (5, ErrorCode.INCONSISTENT_VOTER_SET)):
        replica = ROLES["follower that has fetched"]()
        core = replica.raft.core
        core.voters.reset(VoterSet.of(map(voter, (1, 2, 5))), 0)
        core.voters.record(1, VoterSet.of(map(voter, (1, 2, 3))))
        core.voters.record(3, VoterSet.of(map(voter, (1, 2, 4))))
        assert core.high_watermark == 3
        answer = replica.ask(BeginEpoch(voter(1).key, leader_id, EPOCH + 1))
        assert answer is not None
        assert answer.error is code
