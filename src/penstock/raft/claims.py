"""Which claims of other nodes a replica believes: the epoch, the candidate and the leader that a message names.

Anybody who reaches the controller listener can send a message. No message may end the quorum for good:

    epoch       peers raise it by MAX_EPOCH_JUMP and one more each EPOCH_PACE_MS since this process started, no further.
                Who sends forged epochs without a pause needs seven years, or two thousand restarts, to use them up.
    candidate,  a voter of a set that may count. Where the log says who votes, the log of this replica may lack the
    leader      latest set (KIP-853), so another node is believed too, unless this replica hears from a leader.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.protocol.errors import ErrorCode
from penstock.protocol.uuid import ZERO_UUID
from penstock.raft.messages import (
    BeginEpoch,
    EndEpoch,
    EpochAnswer,
    Fetch,
    FetchAnswer,
    FetchSnapshot,
    SnapshotChunk,
    Vote,
    VoteAnswer,
    VoterAnswer,
)
from penstock.raft.states import MAX_EPOCH, Follower, Leader

if TYPE_CHECKING:
    from penstock.raft.core import Core
    from penstock.raft.messages import Answer, Request
    from penstock.raft.voters import ReplicaKey

MAX_EPOCH_JUMP = 1_000_000
EPOCH_PACE_MS = 100


def highest_epoch(core: Core) -> int:
    """The highest epoch that this replica believes a peer."""
    earned = (core.now - core.started_ms) // EPOCH_PACE_MS
    return min(MAX_EPOCH, core.first_epoch + MAX_EPOCH_JUMP + earned)


def believes_answer(core: Core, epoch: int) -> bool:
    """True for the epoch of an answer that this replica takes over.

    A node that joins with an empty log may be behind by any number of epochs, and has no vote that could be spoiled.
    """
    joins = core.log.end_offset == 0 and not core.is_electable
    return epoch <= (MAX_EPOCH if joins else highest_epoch(core))


def hears_leader(core: Core) -> bool:
    """True if this replica leads, or its leader answered its fetches lately."""
    state = core.state
    if isinstance(state, Follower):
        return state.has_fetched and not state.doubtful and state.deadline_ms > core.now
    return isinstance(state, Leader)


def candidate_refusal(core: Core, epoch: int, candidate: ReplicaKey) -> ErrorCode:
    """Why a vote for `candidate` in `epoch` is out of the question; NONE if it is not."""
    if epoch > highest_epoch(core) or candidate.node_id < 0:
        return ErrorCode.INVALID_REQUEST
    is_voter = any(voters.has(candidate) for voters in core.voters.since(core.high_watermark))
    return ErrorCode.NONE if is_voter or _may_be_new(core) else ErrorCode.INCONSISTENT_VOTER_SET


def leader_refusal(core: Core, epoch: int, leader_id: int) -> ErrorCode:
    """Why a node that says it leads `epoch`, which is this replica's or a later one, is not believed; NONE if it is."""
    state = core.state
    if epoch > highest_epoch(core) or leader_id < 0 or leader_id == core.me.node_id:
        return ErrorCode.INVALID_REQUEST
    if epoch == core.epoch and state.leader_id != leader_id and hears_leader(core):
        return ErrorCode.INVALID_REQUEST  # an epoch has one leader, and it is another node
    is_voter = any(voters.find(leader_id) is not None for voters in core.voters.since(core.high_watermark))
    is_known = (epoch, leader_id) == (core.epoch, state.leader_id)
    return ErrorCode.NONE if is_voter or is_known or _may_be_new(core) else ErrorCode.INCONSISTENT_VOTER_SET


def _may_be_new(core: Core) -> bool:
    return core.config.dynamic_voters and not hears_leader(core)


def is_me(core: Core, key: ReplicaKey) -> bool:
    return key.node_id == core.me.node_id and key.directory_id in (core.me.directory_id, ZERO_UUID)


def refused(request: Request, error: ErrorCode, epoch: int, leader_id: int) -> Answer:
    """The answer to any request that only names an error."""
    match request:
        case Vote():
            return VoteAnswer(error, epoch, leader_id)
        case BeginEpoch() | EndEpoch():
            return EpochAnswer(error, epoch, leader_id)
        case Fetch():
            return FetchAnswer(error, epoch, leader_id)
        case FetchSnapshot():
            return SnapshotChunk(error, epoch, leader_id)
        case _:
            return VoterAnswer(error, epoch, leader_id)
