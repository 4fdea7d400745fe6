"""Keeps the history of a run: requests of clients, their answers, and data losses of machines. Rules read only the
history."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from penstock.protocol.vocabulary import TopicPartition
from penstock.records.record import Record

_COPY = b"copy:"
#: The header that carries the unique value of a tombstone.
TOMBSTONE_HEADER = "tombstone"


def value_of(record: Record) -> bytes:
    """Returns the record's unique value, which its producer chose."""
    if record.value is not None:
        return record.value
    return next((value or b"" for name, value in record.headers if name == TOMBSTONE_HEADER), b"")


def copy_of(partition: TopicPartition, value: bytes) -> bytes:
    """Returns the value that a copier writes for a record of `partition`."""
    return _COPY + f"{partition[0]}-{partition[1]}:".encode() + value


def is_copy(value: bytes) -> bool:
    """Returns True if a `Copier` wrote the value."""
    return value.startswith(_COPY)


class Outcome(Enum):
    UNKNOWN = "unknown"
    """The outcome is unknown: no answer came, or the answer leaves open whether the request was carried out."""
    DONE = "done"
    REFUSED = "refused"


@dataclass(slots=True, eq=False)
class Write:
    """Describes one record that a producer sent."""

    writer: str
    """One incarnation of one producer, which sends its values in order."""
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
    tombstone: bool = False
    """True if the record has no value; `value` is then in a header."""


@dataclass(slots=True, eq=False)
class Transaction:
    name: str
    began: float
    ended: float = float("inf")
    outcome: Outcome = Outcome.UNKNOWN
    committed: bool = False
    """Valid if the outcome is DONE: True if the transaction was committed, False if it was aborted."""
    writes: list[Write] = field(default_factory=list)
    decided: float = float("inf")
    """When the producer first requested the commit or abort."""


@dataclass(frozen=True, slots=True)
class Read:
    reader: str
    partition: TopicPartition
    offset: int
    value: bytes
    committed_only: bool
    began: float
    """When the reader started or last sought: the record may have been fetched at any time since then."""
    ended: float


@dataclass(frozen=True, slots=True)
class TablePass:
    """Describes one complete read of a compacted partition, from its start offset to `end`."""

    reader: str
    partition: TopicPartition
    began: float
    ended: float
    end: int
    committed_only: bool
    table: Mapping[bytes, tuple[int, bytes]]
    """Key → offset and value of its last record."""


@dataclass(slots=True, eq=False)
class OffsetCommit:
    """Describes a commit of a group's offset."""

    group: str
    partition: TopicPartition
    offset: int
    began: float
    ended: float = float("inf")
    outcome: Outcome = Outcome.UNKNOWN
    transaction: Transaction | None = None
    member: str = ""
    """The id of the member that committed; empty for a commit by a client that is not a member."""


@dataclass(slots=True, eq=False)
class Ownership:
    """Describes the time in which a member certainly owned partitions.

    This time begins with the assignment, and ends with the last heartbeat that the coordinator accepted.
    """

    group: str
    member: str
    partitions: tuple[TopicPartition, ...]
    began: float
    ended: float = 0.0


@dataclass(frozen=True, slots=True)
class OffsetAnswer:
    """Describes a committed offset that a client fetched for a group; -1 if nothing was committed."""

    group: str
    partition: TopicPartition
    offset: int
    began: float
    ended: float


@dataclass(frozen=True, slots=True)
class ShareDelivery:
    """Describes the delivery of a record to a member of a share group."""

    group: str
    member: str
    partition: TopicPartition
    offset: int
    value: bytes
    deliveries: int
    began: float
    """When the member sent its request for records: the record was acquired later."""
    ended: float


@dataclass(slots=True, eq=False)
class ShareAnswer:
    """Describes a member's acknowledgement of one record. `kind` is the acknowledge type, numbered as in
    ShareAcknowledge."""

    group: str
    member: str
    partition: TopicPartition
    offset: int
    kind: int
    deliveries: int
    began: float
    ended: float = float("inf")
    outcome: Outcome = Outcome.UNKNOWN


@dataclass(frozen=True, slots=True)
class DeadLetterSeen:
    """Describes a dead letter of a share group: the original record, its number of deliveries, and the reason."""

    group: str
    partition: TopicPartition
    offset: int
    deliveries: int
    message: str


@dataclass(frozen=True, slots=True)
class Deletion:
    """Describes a request to delete the records before `offset`."""

    partition: TopicPartition
    offset: int


@dataclass(frozen=True, slots=True)
class LogStart:
    """Describes the start offset of a partition, as a broker reported it to a client at `time`."""

    partition: TopicPartition
    offset: int
    time: float


@dataclass(frozen=True, slots=True)
class ClockJump:
    """Describes a jump of a clock: forward, or back if `ms` is negative."""

    time: float
    ms: int
    everywhere: bool
    """True if the clocks of all machines and clients jumped, False if the clock of one machine did."""


@dataclass(slots=True, eq=False)
class TopicChange:
    """Describes a request to create a topic, to add partitions to it, or to delete it.

    `partitions` is the topic's number of partitions after the request: 0 if the request deletes the topic.
    """

    topic: str
    partitions: int
    began: float
    outcome: Outcome = Outcome.UNKNOWN
    ended: float = float("inf")


@dataclass(slots=True, eq=False)
class ConfigChange:
    """Describes a request to set a config of a topic; the value None removes the config."""

    topic: str
    name: str
    value: str | None
    began: float
    outcome: Outcome = Outcome.UNKNOWN
    ended: float = float("inf")


@dataclass(frozen=True, slots=True)
class UncleanElection:
    """Describes the election of a leader that lacks committed records from offset `first` on."""

    partition: TopicPartition
    time: float
    first: int


@dataclass(frozen=True, slots=True)
class Loss:
    """Describes the records that a machine lost in a power loss: all records from `offset` on.

    No acknowledgement promised that these records survive.
    """

    time: float
    partition: TopicPartition
    offset: int


@dataclass(slots=True, eq=False)
class Reassignment:
    """Describes a request to move a partition to these replicas; None cancels the reassignment under way."""

    partition: TopicPartition
    replicas: tuple[int, ...] | None
    began: float
    outcome: Outcome = Outcome.UNKNOWN
    ended: float = float("inf")


@dataclass(slots=True)
class History:
    topics: list[TopicChange] = field(default_factory=list)
    writes: list[Write] = field(default_factory=list)
    transactions: list[Transaction] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)
    passes: list[TablePass] = field(default_factory=list)
    commits: list[OffsetCommit] = field(default_factory=list)
    committed: list[OffsetAnswer] = field(default_factory=list)
    deletions: list[Deletion] = field(default_factory=list)
    share_deliveries: list[ShareDelivery] = field(default_factory=list)
    share_answers: list[ShareAnswer] = field(default_factory=list)
    share_counts: dict[tuple[str, TopicPartition, int], int] = field(default_factory=dict)
    """Share group, partition and offset → the highest number of a delivery, also of one that no member has seen."""
    outlived: dict[tuple[str, TopicPartition], set[int]] = field(default_factory=dict)
    """Group and partition → offsets that were committed for a topic of this name which was deleted afterwards."""
    power_losses: list[float] = field(default_factory=list)
    """Times of power losses that may have erased acknowledged records that were not synced."""
    losses: list[Loss] = field(default_factory=list)
    """The records that machines lost in these power losses."""
    covered_losses: int = 0
    """Number of power losses of so few machines that no acknowledged record may be lost."""
    damaged: set[TopicPartition] = field(default_factory=set)
    """Partitions whose files a fault has damaged."""
    one_leader_since: dict[TopicPartition, float] = field(default_factory=dict)
    """Partition → the time since which all nodes knew the same leader and leader epoch, until all faults had ended."""
    commit_time: Callable[[TopicPartition, int], float] = lambda partition, offset: 0.0
    """Partition, offset → the time when a leader's high watermark first passed it; infinity if none did."""
    log_starts: list[LogStart] = field(default_factory=list)
    clock_jumps: list[ClockJump] = field(default_factory=list)
    expired_below: dict[TopicPartition, int] = field(default_factory=dict)
    """Partition → the offset below which retention may have deleted records."""
    contradictions: list[str] = field(default_factory=list)
    """Answers that contradict each other."""
    configs: list[ConfigChange] = field(default_factory=list)
    reassignments: list[Reassignment] = field(default_factory=list)
    ownerships: list[Ownership] = field(default_factory=list)
    unclean: list[UncleanElection] = field(default_factory=list)
    set_aside: list[Write] = field(default_factory=list)
    """Writes to topics that were created again, which only `recreation_rules` judge."""
    ranges: int = 0
    """Number of ranges of offsets that actors have reserved."""

    def next_range(self) -> int:
        """Returns the number of a new range of offsets, in which commits for one topic are made.

        A recreated topic gets another range than the deleted topic with the same name. So a committed offset shows to
        which of the two topics it belongs.
        """
        self.ranges += 1
        return self.ranges

    def lost_with_power(self, partition: TopicPartition, offset: int, since: float) -> bool:
        """Returns True if a power loss at or after the time `since` has erased the record at `offset`.

        With offset -1, returns True if a power loss has erased any record of the partition.
        """
        return any(
            loss.time >= since and loss.partition == partition and (offset < 0 or offset >= loss.offset)
            for loss in self.losses
        )

    def deleted_below(self, partition: TopicPartition) -> int:
        """Returns the offset below which records may be missing: retention has deleted them, or a client has requested
        their deletion. A request counts even if it got no answer."""
        requested = max((each.offset for each in self.deletions if each.partition == partition), default=0)
        return max(requested, self.expired_below.get(partition, 0))

    def power_lost_within(self, begin: float, end: float) -> bool:
        return any(begin <= time <= end for time in self.power_losses)


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """Describes a record, as the final reader found it."""

    value: bytes
    timestamp: int
    key: bytes | None = None
    tombstone: bool = False


@dataclass(slots=True)
class FinalView:
    """Holds all data that the final reader has read after the last fault."""

    records: dict[TopicPartition, dict[int, StoredRecord]] = field(default_factory=dict)
    committed: dict[TopicPartition, dict[int, StoredRecord]] = field(default_factory=dict)
    log_start: dict[TopicPartition, int] = field(default_factory=dict)
    log_end: dict[TopicPartition, int] = field(default_factory=dict)
    topics: dict[str, int] = field(default_factory=dict)
    """Topic name → number of partitions."""
    group_offsets: dict[tuple[str, TopicPartition], int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    """Descriptions of reads that failed and of wrong answers."""
    deleted_keys: dict[tuple[TopicPartition, bytes], float] = field(default_factory=dict)
    """Partition and key → offset of its last tombstone; infinite if a tombstone may be at any offset."""
    read_at: dict[TopicPartition, float] = field(default_factory=dict)
    """Partition → the time at which the start of its log was read."""
    replicas: dict[TopicPartition, tuple[int, ...]] = field(default_factory=dict)
    dead_letters: list[DeadLetterSeen] = field(default_factory=list)
    ended: float = float("inf")
