"""What clients asked for and were told, and what happened to machines meanwhile. Checkers judge from this alone."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from penstock.protocol.vocabulary import TopicPartition

_COPY = b"copy:"


def copy_of(partition: TopicPartition, value: bytes) -> bytes:
    """Returns the value that a copier writes for a record of `partition`."""
    return _COPY + f"{partition[0]}-{partition[1]}:".encode() + value


def is_copy(value: bytes) -> bool:
    """True if a copier wrote the value."""
    return value.startswith(_COPY)


class Outcome(Enum):
    UNKNOWN = "unknown"
    """No answer, or one that doesn't say whether it was done."""
    DONE = "done"
    REFUSED = "refused"


@dataclass(slots=True, eq=False)
class Write:
    """One record that somebody wanted written."""

    writer: str
    """One life of one producer: within it, values are sent in order."""
    number: int
    partition: TopicPartition
    value: bytes
    began: float
    acks: int
    idempotent: bool
    transaction: Transaction | None = None
    key: bytes | None = None
    ended: float = float("inf")
    outcome: Outcome = Outcome.UNKNOWN
    offset: int = -1


@dataclass(slots=True, eq=False)
class Transaction:
    name: str
    began: float
    ended: float = float("inf")
    outcome: Outcome = Outcome.UNKNOWN
    committed: bool = False
    """What it was told to be, if DONE."""
    writes: list[Write] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Read:
    reader: str
    partition: TopicPartition
    offset: int
    value: bytes
    committed_only: bool
    began: float
    """When the reader's life or its last seek began: what it was given may be as old as that."""
    ended: float


@dataclass(slots=True, eq=False)
class Commit:
    """A group's offset, wanted."""

    group: str
    partition: TopicPartition
    offset: int
    began: float
    ended: float = float("inf")
    outcome: Outcome = Outcome.UNKNOWN
    transaction: Transaction | None = None


@dataclass(frozen=True, slots=True)
class Committed:
    """A group's offset, told; -1: none."""

    group: str
    partition: TopicPartition
    offset: int
    began: float
    ended: float


@dataclass(frozen=True, slots=True)
class Deletion:
    """Records before `offset` were asked to be deleted."""

    partition: TopicPartition
    offset: int


@dataclass(slots=True, eq=False)
class TopicChange:
    """A topic that was to be made (with so many partitions), grown to so many, or removed (0)."""

    topic: str
    partitions: int
    began: float
    outcome: Outcome = Outcome.UNKNOWN


@dataclass(slots=True)
class History:
    topics: list[TopicChange] = field(default_factory=list)
    writes: list[Write] = field(default_factory=list)
    transactions: list[Transaction] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)
    commits: list[Commit] = field(default_factory=list)
    committed: list[Committed] = field(default_factory=list)
    deletions: list[Deletion] = field(default_factory=list)
    outlived: dict[tuple[str, TopicPartition], set[int]] = field(default_factory=dict)
    """Group and partition → offsets that were committed for topics of this name that were deleted since."""
    power_losses: list[float] = field(default_factory=list)
    """Those that may have taken what was acknowledged and not synced."""
    covered_losses: int = 0
    """Power losses of so few machines that nothing acknowledged may be lost."""
    damaged: set[TopicPartition] = field(default_factory=set)
    """Partitions whose files were damaged behind the node's back."""

    def deleted_below(self, partition: TopicPartition) -> int:
        """Up to where anybody asked to delete, answered or not."""
        return max((each.offset for each in self.deletions if each.partition == partition), default=0)

    def power_lost_within(self, begin: float, end: float) -> bool:
        return any(begin <= time <= end for time in self.power_losses)


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """A record as the last, quiet reading of everything found it."""

    value: bytes
    timestamp: int
    key: bytes | None = None


@dataclass(slots=True)
class FinalView:
    """Everything that can be read once all faults are over."""

    records: dict[TopicPartition, dict[int, StoredRecord]] = field(default_factory=dict)
    committed: dict[TopicPartition, dict[int, StoredRecord]] = field(default_factory=dict)
    log_start: dict[TopicPartition, int] = field(default_factory=dict)
    log_end: dict[TopicPartition, int] = field(default_factory=dict)
    topics: dict[str, int] = field(default_factory=dict)
    """Name → partitions."""
    group_offsets: dict[tuple[str, TopicPartition], int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    """What could not be read, or was answered wrong."""
