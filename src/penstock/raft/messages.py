"""Defines the requests between replicas of the quorum, and their answers: Kafka's messages without the framing.

Every answer names the epoch and the leader that its sender knows, so that a replica that is behind learns both.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.protocol.errors import ErrorCode
from penstock.protocol.vocabulary import NO_NODE
from penstock.raft.log_view import Batch, OffsetAndEpoch
from penstock.raft.voters import ReplicaKey, Voter

NONE = ErrorCode.NONE


@dataclass(frozen=True, slots=True)
class Vote:
    voter: ReplicaKey  # the voter that is asked
    candidate: ReplicaKey
    epoch: int
    last_epoch: int
    end_offset: int
    #: Asks only whether the vote would be granted, and binds neither side (KIP-996). `epoch` is then the current epoch,
    #: before the new one.
    pre_vote: bool


@dataclass(frozen=True, slots=True)
class VoteAnswer:
    error: ErrorCode
    epoch: int
    leader_id: int
    granted: bool = False


@dataclass(frozen=True, slots=True)
class BeginEpoch:
    voter: ReplicaKey
    leader_id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class EndEpoch:
    leader_id: int
    epoch: int
    successors: tuple[ReplicaKey, ...]  # the voter with the longest log first


@dataclass(frozen=True, slots=True)
class EpochAnswer:
    """Holds the answer to BeginEpoch or EndEpoch."""

    error: ErrorCode
    epoch: int
    leader_id: int


@dataclass(frozen=True, slots=True)
class Fetch:
    """Requests records from `offset` on. Also tells the leader that all records below `offset` are on the sender's
    disk, and that the last of them has the epoch `last_epoch`."""

    replica: ReplicaKey
    epoch: int
    offset: int
    last_epoch: int
    high_watermark: int
    max_wait_ms: int
    max_bytes: int = 1024 * 1024


@dataclass(frozen=True, slots=True)
class FetchAnswer:
    """Holds the answer to a fetch.

    On the leader, the caller of Raft reads the records to send from offset `read_from` on: at most `max_bytes`, or one
    larger batch. On the follower, `batches` has the received records.
    """

    error: ErrorCode
    epoch: int
    leader_id: int
    high_watermark: int = -1
    diverging: OffsetAndEpoch | None = None
    snapshot: OffsetAndEpoch | None = None
    read_from: int | None = None
    max_bytes: int = 0
    batches: tuple[Batch, ...] = ()


@dataclass(frozen=True, slots=True)
class FetchSnapshot:
    replica: ReplicaKey
    epoch: int
    snapshot: OffsetAndEpoch
    position: int
    max_bytes: int


@dataclass(frozen=True, slots=True)
class SnapshotChunk:
    """Holds the answer to FetchSnapshot. On the leader, the caller of Raft fills in `size` and `data`, or an error such
    as SNAPSHOT_NOT_FOUND."""

    error: ErrorCode
    epoch: int
    leader_id: int
    snapshot: OffsetAndEpoch | None = None
    position: int = 0
    max_bytes: int = 0
    size: int = 0
    data: bytes = b""


@dataclass(frozen=True, slots=True)
class AddVoter:
    voter: Voter
    timeout_ms: int = 60_000
    ack_when_committed: bool = True


@dataclass(frozen=True, slots=True)
class RemoveVoter:
    voter: ReplicaKey
    timeout_ms: int = 60_000


@dataclass(frozen=True, slots=True)
class UpdateVoter:
    """Reports a voter's own endpoints to the leader."""

    epoch: int
    voter: Voter


@dataclass(frozen=True, slots=True)
class VoterAnswer:
    error: ErrorCode
    epoch: int
    leader_id: int = NO_NODE
    message: str | None = None


Request = Vote | BeginEpoch | EndEpoch | Fetch | FetchSnapshot | AddVoter | RemoveVoter | UpdateVoter
Answer = VoteAnswer | EpochAnswer | FetchAnswer | SnapshotChunk | VoterAnswer
