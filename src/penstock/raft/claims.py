"""Which claims of other nodes a replica believes: the epoch, the candidate and the leader that a message names.

Anybody who reaches the controller listener can send a message. No message may end the quorum for good:

    epoch       requests raise it by MAX_EPOCH_JUMP in all since this process started, and one more each EPOCH_PACE_MS.
                The answer of a node that this replica asked raises it to any epoch up to MAX_EPOCH, if the properties
                or the log name the address that was asked: a replica that was down learns how far the others got. The
                answer from an address that only a message named (LeaderEndpoints) counts as a request.
    candidate,  a voter of a set that may count. Where the log says who votes, the log of this replica may lack the
    leader      latest set (KIP-853), so another node is believed too, unless this replica hears from a leader.

What answers raise is not taken from what requests may still raise, and adds nothing to it. Otherwise forged requests to
two voters in turn, each learning the epoch of the other, would use all epochs up within the hour. As it is, forged
requests without a pause to every voter raise the quorum's epoch by a million for each start of a voter, and by one a
second for each voter: three voters have epochs for more than twenty years, or for two thousand starts.

Not defended until replicas authenticate each other: forged requests end leaderships for as long as they are sent. A
follower fetches from the address that a forged BeginQuorumEpoch names as the leader's. A node that answers at a voter's
address can name the last epoch besides; it gets that address in the network or, where the log says who votes, by
AddRaftVoter or UpdateRaftVoter.
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
EPOCH_PACE_MS = 1000


def highest_epoch(core: Core) -> int:
    """The highest epoch that this replica takes over from a request."""
    earned = (core.now - core.started_ms) // EPOCH_PACE_MS
    return min(MAX_EPOCH, core.epoch + MAX_EPOCH_JUMP + earned - core.epochs_by_request)


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
