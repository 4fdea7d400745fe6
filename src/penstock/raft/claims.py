"""Decides which claims of other nodes a replica accepts: the epoch, the candidate and the leader that a message names.

Any process that reaches the controller listener can send a forged message. No such message may stop the quorum
permanently:

    epoch       Requests can raise this replica's epoch by at most MAX_EPOCH_JUMP in total since this process started,
                plus one per EPOCH_PACE_MS. Answers to this replica's own requests are not limited, if the properties
                or the log contain the address that answers: so a replica that was down learns the current epoch.
                Answers from other addresses are limited like requests.
    candidate,  Both must be in the latest committed set of voters or in a later set. With dynamic voters (KIP-853)
    leader      this replica's log may lack the latest set. Then other nodes are accepted too, unless this replica
                hears from a leader.

Epochs that a replica learns from answers do not renew the limit for requests. Otherwise an attacker could send forged
requests to two voters in turn: each voter would learn the other's epoch, and all epochs would be used up within an
hour. With the limit, this takes more than twenty years, or two thousand restarts of voters, in a quorum of three
voters.

Some attacks still succeed unless replicas authenticate each other:

- As long as an attacker sends forged requests, leaders lose their leadership.
- A forged BeginQuorumEpoch makes a follower fetch from an address that the attacker chooses.
- A node that answers at a voter's address can announce the last possible epoch. An attacker gets such an address by an
  attack on the network or, with dynamic voters, by AddRaftVoter or UpdateRaftVoter.
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
    """Returns the highest epoch that this replica accepts from a request."""
    earned = (core.now - core.started_ms) // EPOCH_PACE_MS
    return min(MAX_EPOCH, core.epoch + MAX_EPOCH_JUMP + earned - core.epochs_by_request)


def hears_leader(core: Core) -> bool:
    """Returns True if this replica leads, or if its leader answered its recent fetches."""
    state = core.state
    if isinstance(state, Follower):
        return state.has_fetched and not state.leader_suspected and state.deadline_ms > core.now
    return isinstance(state, Leader)


def candidate_refusal(core: Core, epoch: int, candidate: ReplicaKey) -> ErrorCode:
    """Returns the error for a vote request of `candidate` in `epoch`; NONE if the voter may consider the request."""
    if epoch > highest_epoch(core) or candidate.node_id < 0:
        return ErrorCode.INVALID_REQUEST
    is_voter = any(voters.has(candidate) for voters in core.voters.since(core.high_watermark))
    return ErrorCode.NONE if is_voter or _may_be_new(core) else ErrorCode.INCONSISTENT_VOTER_SET


def leader_refusal(core: Core, epoch: int, leader_id: int) -> ErrorCode:
    """Returns the error for a node that claims to lead `epoch`, the current epoch or a later epoch; NONE if the claim
    is accepted."""
    state = core.state
    if epoch > highest_epoch(core) or leader_id < 0 or leader_id == core.me.node_id:
        return ErrorCode.INVALID_REQUEST
    if epoch == core.epoch and state.leader_id != leader_id and hears_leader(core):
        return ErrorCode.INVALID_REQUEST  # this epoch already has another leader
    is_voter = any(voters.find(leader_id) is not None for voters in core.voters.since(core.high_watermark))
    is_known = (epoch, leader_id) == (core.epoch, state.leader_id)
    return ErrorCode.NONE if is_voter or is_known or _may_be_new(core) else ErrorCode.INCONSISTENT_VOTER_SET


def _may_be_new(core: Core) -> bool:
    return core.config.dynamic_voters and not hears_leader(core)


def is_me(core: Core, key: ReplicaKey) -> bool:
    return key.node_id == core.me.node_id and key.directory_id in (core.me.directory_id, ZERO_UUID)


def refused(request: Request, error: ErrorCode, epoch: int, leader_id: int) -> Answer:
    """Returns an answer to `request` that contains only an error, the epoch and the leader."""
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
