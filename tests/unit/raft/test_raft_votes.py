"""Tests the answers of a replica in each role to every kind of vote request, against the plain rule."""

from __future__ import annotations

from itertools import product

import pytest
from raft_cluster import voter
from raft_node import CONFIG, Replica
from raft_roles import EPOCH, ROLES

from penstock.protocol.errors import ErrorCode
from penstock.protocol.uuid import ZERO_UUID
from penstock.raft.events import Reply, SaveState
from penstock.raft.messages import Vote, VoteAnswer
from penstock.raft.states import Follower, Prospective, Unattached
from penstock.raft.voters import ReplicaKey

CANDIDATES = [
    voter(2).key,
    voter(3).key,
    ReplicaKey(3, ZERO_UUID),  # a voter without its directory
    ReplicaKey(3, b"another directo."),
    voter(9).key,
    ReplicaKey(0, b"another directo."),
    ReplicaKey(-1, ZERO_UUID),
]
#: The last epoch and the end offset of the candidate's log, relative to those of the voter.
LOGS = [(-1, 5), (0, -1), (0, 0), (0, 1), (1, -1)]


def hears_leader(replica: Replica) -> bool:
    state = replica.raft.core.state
    if isinstance(state, Follower):
        return state.has_fetched and not state.leader_suspected and replica.now_ms < state.deadline_ms
    return state.name == "leader"


def refusal(replica: Replica, request: Vote) -> ErrorCode:
    me = replica.raft.core.me
    if request.voter not in (me, ReplicaKey(me.node_id)):
        return ErrorCode.INVALID_VOTER_KEY
    if request.epoch < EPOCH:
        return ErrorCode.FENCED_LEADER_EPOCH
    if request.candidate.node_id < 0:
        return ErrorCode.INVALID_REQUEST
    if request.candidate not in [voter(each).key for each in (1, 2, 3)] and hears_leader(replica):
        return ErrorCode.INCONSISTENT_VOTER_SET
    return ErrorCode.NONE


def grants(replica: Replica, request: Vote, *, has_all: bool) -> bool:
    state = replica.raft.core.state
    if request.epoch > EPOCH:  # a replica without a leader and without a vote
        return has_all
    if state.name == "leader":
        return False
    if request.pre_vote:
        followed = isinstance(state, Follower) and state.has_fetched and not state.leader_suspected
        return has_all and not followed
    if state.name in ("candidate", "resigned", "follower"):
        return False
    if state.voted is not None:
        return state.voted == request.candidate
    return has_all and state.leader_id < 0


@pytest.mark.parametrize("role", ROLES)
def test_vote_is_granted_exactly_by_the_rule_of_each_role(role: str) -> None:
    start = ROLES[role]()
    for epoch, candidate, log, pre_vote in product((EPOCH - 1, EPOCH, EPOCH + 1), CANDIDATES, LOGS, (False, True)):
        check_vote(start, epoch, candidate, log, pre_vote=pre_vote)


def check_vote(
    start: Replica,
    epoch: int,
    candidate: ReplicaKey,
    log: tuple[int, int],
    *,
    pre_vote: bool,
    addressee: ReplicaKey | None = None,
) -> None:
    replica = start.copy()
    core = replica.raft.core
    before, deadline_ms, now_ms = core.state, getattr(core.state, "deadline_ms", 0), replica.now_ms
    last_epoch, end_offset = core.log.last_epoch + log[0], core.log.end_offset + log[1]
    request = Vote(addressee or core.me, candidate, epoch, last_epoch, end_offset, pre_vote)
    error, granted = refusal(start, request), False
    if not error:
        granted = grants(start, request, has_all=log in ((0, 0), (0, 1), (1, -1)))
    raised = epoch > EPOCH and not error
    votes = granted and not pre_vote and (raised or before.voted != candidate)
    answer = replica.ask(request)
    state, told = core.state, request
    changed = raised or votes
    leader_id = -1 if changed else before.leader_id
    assert answer == VoteAnswer(error, epoch if raised else EPOCH, leader_id, granted), told
    assert (state is not before) is changed, told
    saves = [each for each in replica.effects if isinstance(each, SaveState)]
    if changed:
        assert isinstance(state, Unattached)
        assert (state.epoch, state.voted) == (epoch, candidate if votes else None), told
        replies = [each for each in replica.effects if isinstance(each, Reply) and each.ticket == 1]
        assert replica.effects.index(saves[-1]) < replica.effects.index(replies[0]), "saved before it is sent"
        assert (saves[-1].state.epoch, saves[-1].state.voted) == (epoch, state.voted)
    else:
        assert not saves
    if core.me.node_id == 8 or not isinstance(state, Follower | Unattached | Prospective):
        return
    timeout_ms = CONFIG.election_timeout_ms
    fresh = changed and (votes or not isinstance(before, Unattached))
    if fresh:
        assert now_ms + timeout_ms <= state.deadline_ms < now_ms + 2 * timeout_ms, told
    elif granted and pre_vote and not isinstance(state, Prospective):
        assert state.deadline_ms == max(deadline_ms, now_ms + CONFIG.suspect_ms), told
    else:
        assert state.deadline_ms == deadline_ms, told


@pytest.mark.parametrize("role", ROLES)
def test_vote_request_counts_only_if_it_is_addressed_to_this_replica(role: str) -> None:
    start = ROLES[role]()
    me = start.raft.core.me
    addressees = [me, ReplicaKey(me.node_id), ReplicaKey(me.node_id, b"another directo."), voter(7).key, ReplicaKey(7)]
    addressees.append(ReplicaKey(7, me.directory_id))
    for addressee, epoch in product(addressees, (EPOCH, EPOCH + 1)):
        check_vote(start, epoch, voter(3).key, (0, 0), pre_vote=False, addressee=addressee)


def test_former_candidate_of_an_earlier_epoch_gets_the_vote_of_a_later_epoch_once() -> None:
    """A vote of an earlier epoch does not bind the voter in a later epoch."""
    replica = ROLES["unattached that voted"]()
    for epoch, candidate_id, granted in ((2, 2, False), (3, 2, True), (3, 3, False), (4, 3, True), (4, 2, False)):
        answer = replica.ask(Vote(voter(1).key, voter(candidate_id).key, epoch, 9, 9, False))
        assert answer == VoteAnswer(ErrorCode.NONE, epoch, -1, granted)
