"""Changing the voters, one at a time (KIP-853).

Two sets that differ by one voter have no two majorities without a common member, so a new set may count from its
append on, as long as the one before is committed and the leader has committed something in its own epoch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.protocol.errors import ErrorCode
from penstock.raft.leader import change_voters, refusal, update_high_watermark
from penstock.raft.messages import VoterAnswer
from penstock.raft.states import Leader, VoterChangeAnswer

if TYPE_CHECKING:
    from penstock.raft.core import Core
    from penstock.raft.messages import AddVoter, RemoveVoter, UpdateVoter
    from penstock.raft.voters import ReplicaKey, Voter, VoterSet


#: What is known of a voter goes into one record of the log, and every voter keeps it.
MAX_VOTER_LISTENERS = 16
MAX_LISTENER_CHARACTERS = 255


class _RefusedError(Exception):
    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def on_add_voter(core: Core, ticket: int, request: AddVoter) -> None:
    try:
        state = _ready(core)
        _check_usable(request.voter)
        voters = core.voters.latest
        node_id = request.voter.node_id
        if voters.find(node_id) is not None:
            raise _RefusedError(ErrorCode.DUPLICATE_VOTER, f"Node {node_id} is a voter already: remove it first.")
        if not _is_caught_up(core, state, request.voter.key):
            raise _RefusedError(
                ErrorCode.REQUEST_TIMED_OUT,
                f"Node {node_id} has not caught up with the leader: start it, and ask again when its lag is gone.",
            )
    except _RefusedError as refused:
        _refuse(core, ticket, refused)
        return
    _append(core, ticket, voters.added(request.voter), request.timeout_ms, request.ack_when_committed)


def on_remove_voter(core: Core, ticket: int, request: RemoveVoter) -> None:
    try:
        _ready(core)
        voters = core.voters.latest
        listed = voters.find(request.voter.node_id)
        if listed is None or listed.key != request.voter:
            raise _RefusedError(
                ErrorCode.VOTER_NOT_FOUND, f"No voter {request.voter.node_id} has this directory: list the voters."
            )
        if len(voters) == 1:
            raise _RefusedError(ErrorCode.INVALID_REQUEST, "The last voter can't be removed: add another first.")
    except _RefusedError as refused:
        _refuse(core, ticket, refused)
        return
    _append(core, ticket, voters.removed(request.voter), request.timeout_ms, True)


def on_update_voter(core: Core, ticket: int, request: UpdateVoter) -> None:
    error = refusal(core, request.epoch)
    if error:
        core.reply(ticket, VoterAnswer(error, core.epoch, core.state.leader_id))
        return
    try:
        _ready(core)
        _check_usable(request.voter)
        voters = core.voters.latest
        listed = voters.find(request.voter.node_id)
        if listed is None or listed.key != request.voter.key:
            raise _RefusedError(ErrorCode.VOTER_NOT_FOUND, f"Node {request.voter.node_id} is no voter.")
    except _RefusedError as refused:
        _refuse(core, ticket, refused)
        return
    if listed == request.voter:
        core.reply(ticket, VoterAnswer(ErrorCode.NONE, core.epoch, core.state.leader_id))
        return
    _append(core, ticket, voters.updated(request.voter), core.config.request_timeout_ms, True)


def _ready(core: Core) -> Leader:
    """The leader, able to change the voters now."""
    state = core.state
    if not isinstance(state, Leader):
        raise _RefusedError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "Only the leader of the quorum changes its voters.")
    if not core.config.dynamic_voters:
        raise _RefusedError(
            ErrorCode.UNSUPPORTED_VERSION, "The voters are those of controller.quorum.voters: change it on every node."
        )
    if core.high_watermark <= state.start_offset:
        raise _RefusedError(ErrorCode.REQUEST_TIMED_OUT, "The leader has committed nothing yet: ask again.")
    if core.voters.latest_offset >= core.high_watermark or state.change is not None:
        raise _RefusedError(ErrorCode.REQUEST_TIMED_OUT, "Another change of voters is under way: ask again.")
    return state


def _check_usable(voter: Voter) -> None:
    """A record of any size would be appended, and one that is too large for a batch ends the leader."""
    texts = [text for name, host, _ in voter.endpoints for text in (name, host)]
    if voter.node_id < 0 or len(voter.endpoints) > MAX_VOTER_LISTENERS:
        raise _RefusedError(
            ErrorCode.INVALID_REQUEST, f"A voter has an id from 0 on and at most {MAX_VOTER_LISTENERS} listeners."
        )
    if max(map(len, texts), default=0) > MAX_LISTENER_CHARACTERS:
        raise _RefusedError(
            ErrorCode.INVALID_REQUEST,
            f"A listener's name and host have at most {MAX_LISTENER_CHARACTERS} characters each: shorten them.",
        )


def _is_caught_up(core: Core, state: Leader, key: ReplicaKey) -> bool:
    replica = state.replicas.table.get(key)
    if replica is None:
        return False
    return replica.last_caught_up_ms >= core.now - core.config.fetch_timeout_ms


def _append(core: Core, ticket: int, voters: VoterSet, timeout_ms: int, ack_when_committed: bool) -> None:
    state = core.state
    assert isinstance(state, Leader)
    offset = change_voters(core, voters)
    if ack_when_committed:
        state.change = VoterChangeAnswer(ticket, offset, core.now + timeout_ms)
    else:
        core.reply(ticket, VoterAnswer(ErrorCode.NONE, core.epoch, core.me.node_id))
    update_high_watermark(core, state)


def _refuse(core: Core, ticket: int, refused: _RefusedError) -> None:
    core.reply(ticket, VoterAnswer(refused.code, core.epoch, core.state.leader_id, refused.message))
