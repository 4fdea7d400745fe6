"""Runs elections: sends and answers requests for votes, and counts votes.

A replica votes for at most one candidate per epoch, and only if the candidate's log is at least as up to date as the
replica's own log. Before a candidate starts an epoch, it asks in a pre-vote whether it would win. So a replica that has
only lost its connection to the leader does not disturb the other replicas. Followers that hear from their leader refuse
pre-votes and votes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.protocol.errors import ErrorCode
from penstock.raft.claims import candidate_refusal, is_me, leader_refusal
from penstock.raft.events import QuorumState
from penstock.raft.messages import EpochAnswer, Vote, VoteAnswer
from penstock.raft.states import Candidate, Election, Follower, Leader, Prospective, Resigned, Unattached

if TYPE_CHECKING:
    from penstock.raft.core import Core
    from penstock.raft.messages import BeginEpoch, EndEpoch
    from penstock.raft.states import State
    from penstock.raft.voters import ReplicaKey

FIRST_SUCCESSOR_BACKOFF_MS = 100


def initial_state(saved: QuorumState, last_epoch: int, me: ReplicaKey, deadline_ms: int, fetch_ms: int) -> State:
    """Returns the state after a restart. A replica that led the saved epoch never leads this epoch again, because its
    log may have lost records."""
    if last_epoch > saved.epoch:
        return Unattached(last_epoch, deadline_ms)
    if saved.leader_id == me.node_id:
        return Resigned(saved.epoch, deadline_ms, saved.voted, led_by=saved.leader_id)
    if saved.leader_id >= 0:
        return Follower(saved.epoch, saved.leader_id, fetch_ms, saved.voted)
    return Unattached(saved.epoch, deadline_ms, saved.voted)


# --- standing for election --------------------------------------------------------------------------------


def _own_election(core: Core) -> Election:
    """Returns a new count of votes.

    The count includes this replica's own vote if the latest set of voters contains this replica.
    """
    return Election(core.voters.latest, granted={core.me.node_id} if core.is_voter else set())


def start_pre_vote(core: Core) -> None:
    state = core.state
    election = _own_election(core)
    core.become(Prospective(core.epoch, core.election_deadline(), election, state.leader_id, state.voted))
    if election.won:
        start_vote(core)


def start_vote(core: Core) -> None:
    election = _own_election(core)
    core.become(Candidate(core.epoch + 1, core.election_deadline(), election, core.me))


def ask_for_votes(core: Core, state: Prospective | Candidate) -> None:
    for node_id in state.election.unheard:
        voter = state.election.voters.find(node_id)
        if voter is not None and core.may_send(node_id, Vote):
            pre_vote = isinstance(state, Prospective)
            core.send(node_id, Vote(voter.key, core.me, core.epoch, core.log.last_epoch, core.log.end_offset, pre_vote))


def on_vote_answer(core: Core, node_id: int, request: Vote, answer: VoteAnswer) -> None:
    state = core.state
    if not isinstance(state, Prospective | Candidate) or request.epoch != state.epoch:
        return
    if request.pre_vote != isinstance(state, Prospective) or answer.error:
        return
    (state.election.granted if answer.granted else state.election.refused).add(node_id)
    if isinstance(state, Prospective):
        if state.election.won:
            start_vote(core)
        elif state.election.lost:
            give_up_pre_vote(core, state)
    elif state.election.lost and not state.lost:
        state.lost = True
        state.deadline_ms = core.now + core.random.randrange(core.config.election_backoff_max_ms)


def give_up_pre_vote(core: Core, state: Prospective) -> None:
    """Ends a lost pre-vote. The replica follows the former leader again, which may still lead the other voters. Without
    a former leader, it becomes unattached."""
    if state.leader_id >= 0:
        core.become_follower(core.epoch, state.leader_id)
    else:
        core.become_unattached(core.epoch)


# --- voting -----------------------------------------------------------------------------------------------


def on_vote(core: Core, ticket: int, request: Vote) -> None:
    error = candidate_refusal(core, request.epoch, request.candidate)
    if not is_me(core, request.voter):
        error = ErrorCode.INVALID_VOTER_KEY
    elif request.epoch < core.epoch:
        error = ErrorCode.FENCED_LEADER_EPOCH
    if error:
        core.reply(ticket, VoteAnswer(error, core.epoch, core.state.leader_id))
        return
    if request.epoch > core.epoch:
        core.become_unattached(request.epoch)
    granted = may_grant(core, request)
    if granted and not request.pre_vote and core.state.voted != request.candidate:
        core.become_unattached(request.epoch, request.candidate)
    if granted and request.pre_vote and isinstance(core.state, Follower | Unattached):
        # Wait before standing too, so that the first to ask has time to win.
        core.state.deadline_ms = max(core.state.deadline_ms, core.now + core.config.suspect_ms)
    core.reply(ticket, VoteAnswer(ErrorCode.NONE, core.epoch, core.state.leader_id, granted))


def may_grant(core: Core, request: Vote) -> bool:
    state = core.state
    has_all = core.log.is_at_most(request.last_epoch, request.end_offset)
    match state:
        case Leader():
            return False
        case Follower():
            return request.pre_vote and has_all and (state.leader_suspected or not state.has_fetched)
        case Candidate() | Resigned():
            return request.pre_vote and has_all
        case Unattached() | Prospective():
            if request.pre_vote:
                return has_all
            if state.voted is not None:
                return state.voted == request.candidate
            return state.leader_id < 0 and has_all


# --- beginning and end of an epoch, as the leader announces them -----------------------------------------


def on_begin_epoch(core: Core, ticket: int, request: BeginEpoch) -> None:
    error = leader_refusal(core, request.epoch, request.leader_id)
    if not is_me(core, request.voter):
        error = ErrorCode.INVALID_VOTER_KEY
    elif request.epoch < core.epoch:
        error = ErrorCode.FENCED_LEADER_EPOCH
    elif not error:
        core.learn(request.epoch, request.leader_id)
        state = core.state
        if isinstance(state, Prospective) and state.leader_id == request.leader_id:
            core.become_follower(request.epoch, request.leader_id)  # the suspected leader is alive
    core.reply(ticket, EpochAnswer(error, core.epoch, core.state.leader_id))


def on_end_epoch(core: Core, ticket: int, request: EndEpoch) -> None:
    """Handles EndQuorumEpoch: the leader resigns, and names its preferred successors in order.

    The first successor starts an election immediately. Each later successor waits longer.
    """
    error = leader_refusal(core, request.epoch, request.leader_id)
    if request.epoch < core.epoch:
        error = ErrorCode.FENCED_LEADER_EPOCH
    if error:
        core.reply(ticket, EpochAnswer(error, core.epoch, core.state.leader_id))
        return
    core.learn(request.epoch, request.leader_id)
    state = core.state
    if isinstance(state, Follower) and state.leader_id == request.leader_id:
        state.leader_suspected = True
        places = [key.node_id for key in request.successors]
        place = places.index(core.me.node_id) if core.me.node_id in places else len(places)
        state.deadline_ms = min(state.deadline_ms, core.now + _successor_backoff(core, place))
    core.reply(ticket, EpochAnswer(ErrorCode.NONE, core.epoch, core.state.leader_id))


def _successor_backoff(core: Core, place: int) -> int:
    if place == 0:
        return 0
    return min(core.config.election_backoff_max_ms, FIRST_SUCCESSOR_BACKOFF_MS << min(place - 1, 16))
