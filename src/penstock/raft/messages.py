"""What replicas of the quorum ask of each other, and the answers. Kafka's requests without what is only framing.

Every answer names the epoch and the leader that its sender knows, so that whoever is behind learns of it.
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
    voter: ReplicaKey  # who is asked
    candidate: ReplicaKey
    epoch: int
    last_epoch: int
    end_offset: int
    #: Only asks whether the vote would be given; binds nobody (KIP-996). `epoch` is then the one that is ending.
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
    successors: tuple[ReplicaKey, ...]  # the one with the longest log first


@dataclass(frozen=True, slots=True)
class EpochAnswer:
    """To BeginEpoch and EndEpoch."""

    error: ErrorCode
    epoch: int
    leader_id: int


@dataclass(frozen=True, slots=True)
class Fetch:
    """From `offset` on. Says as well: all below it is on my disk, and its last record is of `last_epoch`."""

    replica: ReplicaKey
    epoch: int
    offset: int
    last_epoch: int
    high_watermark: int
    max_wait_ms: int
    max_bytes: int = 1024 * 1024


@dataclass(frozen=True, slots=True)
class FetchAnswer:
    """On the leader's side `read_from` asks the caller for records from there on; elsewhere they are `batches`.

    They are no more than `max_bytes`, but for a single batch that is larger.
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
    """On the leader's side the caller puts `size` and `data` in, or its error: SNAPSHOT_NOT_FOUND and the like."""

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
    """A voter's own word on where it can be reached."""

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
