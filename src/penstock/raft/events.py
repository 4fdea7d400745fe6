"""What goes into `Raft.step` and what comes out of it."""

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
    """Time has passed: `Raft.deadline()` says when one is due. The first one starts the machine."""


@dataclass(frozen=True, slots=True)
class Received:
    """A peer or a client asks. The `ticket` comes back with the answer."""

    ticket: int
    request: Request


@dataclass(frozen=True, slots=True)
class Answered:
    """To the request sent as `send_id`. An address is known if the properties or the log name it."""

    send_id: int
    answer: Answer
    from_known_address: bool = True


@dataclass(frozen=True, slots=True)
class SendFailed:
    """No answer will come. `closed`: the peer's side of the connection went away, which a silent network doesn't do."""

    send_id: int
    closed: bool = False


@dataclass(frozen=True, slots=True)
class StateSaved:
    """The last `SaveState` is on disk."""


@dataclass(frozen=True, slots=True)
class LogFlushed:
    """Records below `offset` are on disk."""

    offset: int


@dataclass(frozen=True, slots=True)
class Propose:
    """Batches to append as leader of `epoch`: (number of records, content) each. All of them or none."""

    proposal: int
    epoch: int
    batches: tuple[tuple[int, Any], ...]


@dataclass(frozen=True, slots=True)
class SnapshotTaken:
    """This node wrote a snapshot of its own committed records, and its log now starts at `start_offset`."""

    snapshot: OffsetAndEpoch
    start_offset: int


@dataclass(frozen=True, slots=True)
class SnapshotInstalled:
    """The fetched snapshot is whole and on disk, and the log empty behind it. `voters` is the set it holds."""

    snapshot: OffsetAndEpoch
    voters: VoterSet | None


@dataclass(frozen=True, slots=True)
class SnapshotRejected:
    """The fetched snapshot is damaged, and nothing was changed."""

    snapshot: OffsetAndEpoch


@dataclass(frozen=True, slots=True)
class Resign:
    """A clean stop: hand the leadership over, and stand for no election any more."""


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
)

# --- effects ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class QuorumState:
    """What a replica must not forget between lives."""

    epoch: int = 0
    leader_id: int = NO_NODE
    voted: ReplicaKey | None = None


@dataclass(frozen=True, slots=True)
class SaveState:
    """Put this on disk and report `StateSaved`. Nothing else happens in between."""

    state: QuorumState


@dataclass(frozen=True, slots=True)
class Append:
    """Write these; report `LogFlushed` when they are on disk. Several may be under way."""

    batches: tuple[Batch, ...]


@dataclass(frozen=True, slots=True)
class Truncate:
    """Drop every record at or above `offset`."""

    offset: int


@dataclass(frozen=True, slots=True)
class Send:
    send_id: int
    to: int
    request: Request


@dataclass(frozen=True, slots=True)
class Reply:
    """Answer that request. Records and snapshot bytes are the caller's to put in, before the next step."""

    ticket: int
    answer: Answer


@dataclass(frozen=True, slots=True)
class Refuse:
    """This proposal is not in the log."""

    proposal: int
    error: ErrorCode
    leader_id: int


@dataclass(frozen=True, slots=True)
class Committed:
    """Everything below is committed: apply it."""

    high_watermark: int


@dataclass(frozen=True, slots=True)
class RoleChanged:
    """`leader_id` is -1 while there is none."""

    role: str
    epoch: int
    leader_id: int


@dataclass(frozen=True, slots=True)
class WriteSnapshot:
    """A piece of a snapshot from the leader; the first has position 0, and drops what was there."""

    snapshot: OffsetAndEpoch
    position: int
    data: bytes


@dataclass(frozen=True, slots=True)
class InstallSnapshot:
    """All pieces are there: make it durable, put the log at its end, then `SnapshotInstalled` or `SnapshotRejected`."""

    snapshot: OffsetAndEpoch


@dataclass(frozen=True, slots=True)
class HandedOver:
    """After `Resign`: nothing is left to wait for."""


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

# --- what a leader writes itself --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LeaderChange:
    """The content of an epoch's first batch; with `bootstrap`, the voters of a log that says nothing of them yet."""

    leader_id: int
    voters: tuple[int, ...]
    granted_by: tuple[int, ...]
    bootstrap: VoterSet | None = None

    @property
    def records(self) -> int:
        """A set of voters comes with the version of the quorum's protocol."""
        return 1 if self.bootstrap is None else 3


@dataclass(frozen=True, slots=True)
class VotersChange:
    """The content of a batch that changes the voters."""

    voters: VoterSet
