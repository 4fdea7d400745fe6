"""Defines the events that go into `Raft.step`, and the effects that it returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from penstock.protocol.errors import ErrorCode
from penstock.protocol.vocabulary import NO_NODE
from penstock.raft.log_view import Batch, OffsetAndEpoch
from penstock.raft.messages import Answer, Request
from penstock.raft.voters import ReplicaKey, VoterSet

# --- events -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Tick:
    """Reports that time has passed. `Raft.deadline()` returns the time at which the next Tick is due. The first Tick
    starts the machine."""


@dataclass(frozen=True, slots=True)
class Received:
    """Reports that a request of a peer or a client arrived. The `Reply` to this request has the same `ticket`."""

    ticket: int
    request: Request


@dataclass(frozen=True, slots=True)
class Answered:
    """Reports the answer to the request `send_id`. `from_known_address` is True if the properties or the log contain
    the peer's address."""

    send_id: int
    answer: Answer
    from_known_address: bool = True


@dataclass(frozen=True, slots=True)
class SendFailed:
    """Reports that request `send_id` got no answer. `closed` is True if the peer closed the connection, False if it was
    silent."""

    send_id: int
    closed: bool = False


@dataclass(frozen=True, slots=True)
class StateSaved:
    """Reports that the state of the last `SaveState` is on disk."""


@dataclass(frozen=True, slots=True)
class LogFlushed:
    """Reports that the log's records below `offset` are on disk."""

    offset: int


@dataclass(frozen=True, slots=True)
class Propose:
    """Asks the leader of `epoch` to append all of these batches or none. A batch is a pair (number of records,
    content)."""

    proposal: int
    epoch: int
    batches: tuple[tuple[int, Any], ...]


@dataclass(frozen=True, slots=True)
class SnapshotTaken:
    """Reports that this node wrote a snapshot of its own committed records, and that its log now starts at
    `start_offset`."""

    snapshot: OffsetAndEpoch
    start_offset: int


@dataclass(frozen=True, slots=True)
class SnapshotInstalled:
    """Reports that the fetched snapshot is on disk, and that the log is empty and starts at the snapshot's end.
    `voters` is the snapshot's set of voters."""

    snapshot: OffsetAndEpoch
    voters: VoterSet | None


@dataclass(frozen=True, slots=True)
class SnapshotRejected:
    """Reports that the fetched snapshot is damaged. Files and log are unchanged."""

    snapshot: OffsetAndEpoch


@dataclass(frozen=True, slots=True)
class Resign:
    """Reports that the node is stopping: Raft hands the leadership over and takes part in no more elections."""


@dataclass(frozen=True, slots=True)
class StepDown:
    """Reports an operator's request to step down: a leader resigns, stays a voter, and may be elected again."""


Event = (
    Tick
    | Received
    | Answered
    | SendFailed
    | StateSaved
    | LogFlushed
    | Propose
    | SnapshotTaken
    | SnapshotInstalled
    | SnapshotRejected
    | Resign
    | StepDown
)

# --- effects ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class QuorumState:
    """Holds the part of a replica's state that must survive restarts."""

    epoch: int = 0
    leader_id: int = NO_NODE
    voted: ReplicaKey | None = None


@dataclass(frozen=True, slots=True)
class SaveState:
    """Tells the caller to write this state to disk and to report `StateSaved` before it carries out any other
    effect."""

    state: QuorumState


@dataclass(frozen=True, slots=True)
class Append:
    """Tells the caller to write these batches, and to report `LogFlushed` when they are on disk. Several appends may be
    in progress at a time."""

    batches: tuple[Batch, ...]


@dataclass(frozen=True, slots=True)
class Truncate:
    """Tells the caller to remove every record at or above `offset` from the log."""

    offset: int


@dataclass(frozen=True, slots=True)
class Send:
    send_id: int
    to: int
    request: Request


@dataclass(frozen=True, slots=True)
class Reply:
    """Tells the caller to send the answer to the request `ticket` before the next step.

    The caller first fills in the records or the snapshot bytes.
    """

    ticket: int
    answer: Answer


@dataclass(frozen=True, slots=True)
class Refuse:
    """Tells the caller that Raft refused the proposal. No batch of the proposal is in the log."""

    proposal: int
    error: ErrorCode
    leader_id: int


@dataclass(frozen=True, slots=True)
class Committed:
    """Tells the caller that all records below `offset` are committed and can be applied."""

    high_watermark: int


@dataclass(frozen=True, slots=True)
class RoleChanged:
    """Tells the caller that this replica's role, epoch or leader changed. `leader_id` is -1 while no leader is
    known."""

    role: str
    epoch: int
    leader_id: int


@dataclass(frozen=True, slots=True)
class WriteSnapshot:
    """Tells the caller to write bytes of the leader's snapshot at `position` of the file. Bytes at position 0 begin a
    new file."""

    snapshot: OffsetAndEpoch
    position: int
    data: bytes


@dataclass(frozen=True, slots=True)
class InstallSnapshot:
    """Tells the caller that the last bytes of the snapshot arrived. The caller makes the snapshot durable, resets the
    log to the snapshot's end, then reports `SnapshotInstalled` or `SnapshotRejected`."""

    snapshot: OffsetAndEpoch


@dataclass(frozen=True, slots=True)
class HandedOver:
    """Tells the caller that the handover after `Resign` is complete and the node can stop."""


Effect = (
    SaveState
    | Append
    | Truncate
    | Send
    | Reply
    | Refuse
    | Committed
    | RoleChanged
    | WriteSnapshot
    | InstallSnapshot
    | HandedOver
)

# --- records that a leader writes itself ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LeaderChange:
    """Holds the content of the first batch of an epoch.

    With `bootstrap` the batch also contains the first set of voters of the log.
    """

    leader_id: int
    voters: tuple[int, ...]
    granted_by: tuple[int, ...]
    bootstrap: VoterSet | None = None

    @property
    def records(self) -> int:
        """Returns the number of records in the batch: 1, or 3 with `bootstrap`.

        The bootstrap batch also has a record with the set of voters and a record with the quorum's protocol version.
        """
        return 1 if self.bootstrap is None else 3


@dataclass(frozen=True, slots=True)
class VotersChange:
    """Holds the content of a batch that changes the voters."""

    voters: VoterSet
