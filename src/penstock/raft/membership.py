"""Changes the voters, one at a time (KIP-853).

If two sets differ by one voter, every majority of one set shares a member with every majority of the other. So a new
set may take effect as soon as it is appended. Two conditions must hold: the previous set is committed, and the leader
has committed a record of its own epoch.
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


#: Limits for a voter's registration, which goes into one record of the log and stays in the memory of every voter.
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
            raise _RefusedError(
                ErrorCode.DUPLICATE_VOTER,
                f"Node {node_id} is a voter already. Remove it before you add it with another directory.",
            )
        if not _is_caught_up(core, state, request.voter.key):
            raise _RefusedError(
                ErrorCode.REQUEST_TIMED_OUT,
                f"Node {node_id} has not caught up with the leader. Start it, and retry when its lag is 0.",
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
            node_id = request.voter.node_id
            raise _RefusedError(
                ErrorCode.VOTER_NOT_FOUND,
                f'No voter has node id {node_id} and this directory id. Check both with "penstock quorum describe".',
            )
        if len(voters) == 1:
            message = f"Node {listed.node_id} is the last voter and cannot be removed. Add another voter first."
            raise _RefusedError(ErrorCode.INVALID_REQUEST, message)
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
            message = f"Node {request.voter.node_id} is not a voter with this directory. Add it as a voter first."
            raise _RefusedError(ErrorCode.VOTER_NOT_FOUND, message)
    except _RefusedError as refused:
        _refuse(core, ticket, refused)
        return
    if listed == request.voter:
        core.reply(ticket, VoterAnswer(ErrorCode.NONE, core.epoch, core.state.leader_id))
        return
    _append(core, ticket, voters.updated(request.voter), core.config.request_timeout_ms, True)


def _ready(core: Core) -> Leader:
    """Returns the leader's state. Raises _RefusedError if this replica cannot change the voters now."""
    state = core.state
    if not isinstance(state, Leader):
        raise _RefusedError(
            ErrorCode.NOT_LEADER_OR_FOLLOWER, "This node does not lead the quorum. Send the request to the leader."
        )
    if not core.config.dynamic_voters:
        raise _RefusedError(
            ErrorCode.UNSUPPORTED_VERSION,
            "controller.quorum.voters defines the voters. Change it on every node, and restart the nodes.",
        )
    if core.high_watermark <= state.start_offset:
        raise _RefusedError(
            ErrorCode.REQUEST_TIMED_OUT, "The leader has not committed a record of its epoch yet. Retry later."
        )
    if core.voters.latest_offset >= core.high_watermark or state.change is not None:
        raise _RefusedError(ErrorCode.REQUEST_TIMED_OUT, "Another change of voters is not committed yet. Retry later.")
    return state


def _check_usable(voter: Voter) -> None:
    """Raises _RefusedError if the voter's id or endpoints are invalid or too large. A set of voters that does not fit
    into one batch would stop the leader."""
    texts = [text for name, host, _ in voter.endpoints for text in (name, host)]
    if voter.node_id < 0 or len(voter.endpoints) > MAX_VOTER_LISTENERS:
        raise _RefusedError(
            ErrorCode.INVALID_REQUEST,
            f"The voter has a negative id or more than {MAX_VOTER_LISTENERS} listeners. "
            "Correct its node.id or its listeners.",
        )
    if max(map(len, texts), default=0) > MAX_LISTENER_CHARACTERS:
        raise _RefusedError(
            ErrorCode.INVALID_REQUEST,
            f"A listener's name or host is longer than {MAX_LISTENER_CHARACTERS} characters. Shorten it.",
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
