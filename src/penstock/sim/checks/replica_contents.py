"""Compares the contents of all replicas below the high watermark while nodes run, batch by batch.

    same contents            below its high watermark, every replica has the committed batches: same bytes, same epoch
    in sync by content       when a leader's high watermark moves, every replica in the ISR has these batches
    leader completeness      a new leader has every batch that was committed in an earlier epoch
    leaders commit first     no follower's high watermark is above the last offset that a leader has committed

A batch counts as committed when the high watermark of a leader first passes the batch. Each batch is read once per
replica, when the high watermark moves. In a compacted topic, batches may lack records or be missing, but only below the
offset up to which some replica has compacted its log.

A power loss may erase batches that no acknowledgement promised to keep. From then on, replicas of the partition are
allowed to lack the first lost batch and all later batches. This exemption ends when the machine that lost power has all
committed batches again, or when a new leader lacks one of the lost batches: then the log of this leader decides which
batches are committed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from zlib import crc32

from penstock.broker.replicas.partition import Partition
from penstock.disk.volume import Inode, Volume
from penstock.log.checkpoints import PARTITION_METADATA_FILE, parse_partition_metadata
from penstock.log.cleaner import Cleaner
from penstock.log.directory import FUTURE_SUFFIX
from penstock.log.log import Log
from penstock.protocol.errors import KafkaError
from penstock.protocol.vocabulary import TopicPartition
from penstock.records.record import read_records
from penstock.sim.checks.history import Loss
from penstock.sim.checks.stored_batches import Cursor, StoredBatch, batches_of_directory
from penstock.sim.checks.taps import Tap
from penstock.sim.engine.machine import Machine, State

if TYPE_CHECKING:
    from penstock.log.compaction import CompactionResult

#: Leader recovery state after an unclean election, until the leader has noted its new ISR.
RECOVERING = 1
METADATA_TOPIC = "__cluster_metadata"

Key = tuple[bytes, int]


@dataclass(slots=True)
class Known:
    """Describes a committed batch.

    `digests` has one checksum for each form of the batch, because compaction may have changed the batch. `data` has the
    bytes of the batch; None if compaction can't change it.
    """

    next_offset: int
    digests: set[int]
    data: bytes | None


@dataclass(slots=True)
class Committed:
    """Holds all batches that leaders have committed in one partition."""

    name: TopicPartition
    batches: dict[int, Known] = field(default_factory=dict)
    end: int = 0
    ends: dict[int, int] = field(default_factory=dict)
    """Leader epoch → the end of what leaders of that epoch have committed."""
    start: int = 0
    """Leaders have deleted the records below this offset. A replica that was away may have other batches there, which
    it hides as soon as it follows: the leader no longer knows the epochs of these offsets."""
    cleaned: int = 0
    """The offset below which some replica has compacted its log."""
    times: list[tuple[int, float]] = field(default_factory=list)
    """(end offset, time) of each advance of the committed end."""
    lost: dict[Machine, int] = field(default_factory=dict)
    """Machine → the first offset that it lost with its power, without a promise that covers the loss."""
    records_excused: int = 0
    unclean_epochs: set[int] = field(default_factory=set)
    unclean_from: float = float("inf")
    """The lowest offset from which an unclean election has discarded records: a replica that comes back may have other
    records from there on."""

    def end_before(self, epoch: int) -> int:
        return max((end for each, end in self.ends.items() if each < epoch), default=0)

    def add(self, batch: StoredBatch, epoch: int, time: float, *, keep: bool) -> None:
        self.batches[batch.base_offset] = Known(batch.next_offset, {crc32(batch.data)}, batch.data if keep else None)
        self.end = self.ends[epoch] = batch.next_offset
        if not self.times or self.end > self.times[-1][0]:
            self.times.append((self.end, time))

    def cut(self, offset: int) -> None:
        """Forgets the committed batches from `offset` on, after an allowed loss in a power loss or an unclean
        election."""
        for base in [each for each, known in self.batches.items() if known.next_offset > offset]:
            self.records_excused += self.batches.pop(base).next_offset - base
        self.end = min(self.end, offset)
        self.ends = {epoch: min(end, offset) for epoch, end in self.ends.items()}
        self.lost.clear()

    def time_of(self, offset: int) -> float:
        """Returns the time at which the record at `offset` was first committed; infinity if it was never committed."""
        slot = bisect_right(self.times, (offset, float("inf")))
        return self.times[slot][1] if slot < len(self.times) else float("inf")


class ReplicaContents:
    def __init__(
        self,
        machines: Sequence[Machine],
        now: Callable[[], float],
        violated: Callable[[str, str], None],
        *,
        damaged: AbstractSet[TopicPartition],
        lost: Callable[[], AbstractSet[Machine]],
        promised: Callable[[str], bool],
        compacted: AbstractSet[str] = frozenset(),
    ) -> None:
        """Creates the check.

        `lost` returns the machines that lost data and are not yet in sync again. `promised` returns True if the
        acknowledgements of a topic promise fsync. `compacted` has the topics that compaction may change at some time of
        the run.
        """
        self._compacted = compacted
        self._machines = machines
        self._now = now
        self._violated = violated
        self._damaged = damaged
        self._lost = lost
        self._promised = promised
        self.partitions: dict[Key, Committed] = {}
        #: Called with each partition, and the first committed offset, that an unclean election has taken.
        self.on_unclean: Callable[[Key, TopicPartition, int], None] = lambda key, name, first: None
        self._cursors: dict[tuple[Machine, Key], Cursor] = {}
        self._reported: set[tuple[str, Key]] = set()

    def taps(self) -> list[Tap]:
        return [
            Tap(Log, "update_high_watermark", self.high_watermark_moved),
            Tap(Log, "advance_log_start_offset", self.start_moved),
            Tap(Partition, "_take_role", self.role_taken),
            Tap(Cleaner, "_swap_in", self.compacted, before=True),
        ]

    def _broken(self, rule: str, key: Key, what: str) -> None:
        """Reports the first violation of `rule` in each partition; ignores later violations."""
        if (rule, key) not in self._reported:
            self._reported.add((rule, key))
            self._violated(rule, what)

    # Events of nodes.

    def high_watermark_moved(self, log: Log, *_: object) -> None:
        if log.topic == METADATA_TOPIC or not log.high_watermark or log.path.endswith(FUTURE_SUFFIX):
            return
        key = (log.topic_id, log.partition)
        machine = self._machine_of(log)
        partition = hosted(machine, key) if machine is not None else None
        if machine is None or partition is None:
            return  # the node starts and has not assigned the log to its partition yet
        cursor = self._cursor(machine, key, log)
        known = self.partitions.get(key)
        if known is None:
            known = self.partitions[key] = Committed((log.topic, log.partition))
        if log.high_watermark <= min(cursor.offset, known.end) or known.name in self._damaged:
            return
        if partition.is_leader:
            self._elected_unclean(machine, key, partition)
        # The only replica commits what it finds at its start, before its broker is unfenced and it is the leader.
        leads = partition.is_leader or partition.image.replicas == (machine.node_id,)
        self._compare(machine, key, cursor, log.high_watermark, partition if leads else None)
        if partition.is_leader:
            self._in_sync(machine, key, partition)

    def start_moved(self, log: Log, *_: object) -> None:
        key = (log.topic_id, log.partition)
        machine = self._machine_of(log) if key in self.partitions else None
        partition = hosted(machine, key) if machine is not None else None
        if partition is not None and partition.is_leader:
            self._start_at(key, partition, log)

    def _start_at(self, key: Key, leader: Partition, log: Log) -> None:
        """Notes the offset at which a leader's log starts. Records below this offset are not compared:
        clients can't read them, and followers delete them."""
        known = self.partitions[key]
        if leader.image.leader_epoch >= max(known.ends, default=0):  # not a leader that was replaced
            known.start = max(known.start, log.log_start_offset)

    def role_taken(self, partition: Partition, *_: object) -> None:
        """Checks a new leader's log against everything that leaders of earlier epochs have committed."""
        if not partition.is_leader or (partition.topic, partition.index) in self._damaged:
            return
        key = (partition.topic_id, partition.index)
        known = self.partitions.get(key)
        machine = self._machine_of(partition.log) if known is not None and partition.is_open else None
        if known is None or machine is None:
            return
        if machine in self._lost() and machine.state is State.STARTING:
            return  # with an empty disk it reads old metadata in which it leads; it serves after its new registration
        log, epoch = partition.log, partition.image.leader_epoch
        self._start_at(key, partition, log)
        self._elected_unclean(machine, key, partition)
        end = known.end_before(epoch)
        cursor = self._cursor(machine, key, log)
        self._compare(machine, key, cursor, end, partition, adopt=False)
        if cursor.offset < end <= known.end and log.log_end_offset < end:
            self._missing(machine, key, log.log_end_offset, f"leads it in epoch {epoch}", "leader completeness", True)

    def _elected_unclean(self, machine: Machine, key: Key, partition: Partition) -> None:
        """Accepts that a leader of an unclean election lacks committed batches. Forgets these batches."""
        known, image = self.partitions[key], partition.image
        if image.leader_recovery_state != RECOVERING or image.leader_epoch in known.unclean_epochs:
            return
        known.unclean_epochs.add(image.leader_epoch)
        first = _first_lost(known, machine.volume, partition.log.path)
        if first < known.end:
            known.unclean_from = min(first, known.unclean_from)
            known.cut(first)
            self.on_unclean(key, known.name, first)

    def compacted(self, cleaner: Cleaner, log: Log, job: object, result: CompactionResult) -> None:
        """Notes the offset up to which a replica compacts its log. After a crash, the replica may have the old segments
        or the compacted segments."""
        known = self.partitions.get((log.topic_id, log.partition))
        if known is not None:
            known.cleaned = max(known.cleaned, result.end_offset)

    def power_lost(self, machine: Machine) -> Iterator[Loss]:
        """Yields the records that a machine has just lost in a power loss.

        Leaves out topics whose acknowledgements promise fsync: there, every loss is a violation.
        """
        for (owner, key), cursor in self._cursors.items():
            known = self.partitions.get(key)
            if owner is not machine or known is None or self._promised(known.name[0]):
                continue
            first = _first_lost(known, machine.volume, cursor.log.path)
            yield Loss(self._now(), known.name, first)
            if first < known.end:
                known.lost[machine] = min(first, known.lost.get(machine, first))

    def commit_time(self, partition: TopicPartition, offset: int) -> float:
        """Returns the time at which the record at `offset` was first committed in a topic of this name; infinity if it
        was never committed."""
        found = (known.time_of(offset) for known in self.partitions.values() if known.name == partition)
        return min(found, default=float("inf"))

    @property
    def records_excused(self) -> int:
        """Returns the number of committed records that were lost in a power loss or an unclean election, as allowed."""
        return sum(known.records_excused for known in self.partitions.values())

    # Comparing.

    def _cursor(self, machine: Machine, key: Key, log: Log) -> Cursor:
        cursor = self._cursors.get((machine, key))
        if cursor is None or cursor.log is not log:
            cursor = self._cursors[machine, key] = Cursor(log)
        return cursor

    def _machine_of(self, log: Log) -> Machine | None:
        for machine in self._machines:
            if machine.disk is log.environment.disk:
                return machine
        return None

    def _compare(
        self,
        machine: Machine,
        key: Key,
        cursor: Cursor,
        end: int,
        leader: Partition | None,
        *,
        adopt: bool = True,
    ) -> None:
        """Compares a replica's batches below `end` with the committed batches.

        If the replica leads (`leader` is set), its batches above the committed end are added to the committed batches.
        """
        known, log = self.partitions[key], cursor.log
        first = cursor.offset < 0
        for batch in cursor.read(machine.volume, end):
            base = batch.base_offset
            if base > cursor.offset and not first and base > known.cleaned:
                self._missing(
                    machine, key, cursor.offset, f"has a hole up to {base}", "same contents", leader is not None
                )
            first = False
            if base >= known.end:
                if leader is None:
                    if not known.lost and base < known.unclean_from:
                        what = f"{machine.name} has a high watermark of {log.high_watermark} for {_name(known)}"
                        self._broken("leaders commit first", key, f"{what}; leaders have committed up to {known.end}")
                    return
                if not adopt:
                    return
                known.add(batch, leader.image.leader_epoch, self._now(), keep=self._may_change(log))
            elif batch.next_offset > known.start and not _same(known, batch):
                self._missing(machine, key, base, "has another batch there", "same contents", leader is not None)
                if base < known.end:
                    return
                if leader is not None and adopt:
                    known.add(batch, leader.image.leader_epoch, self._now(), keep=self._may_change(log))
        if cursor.offset >= known.end:
            known.lost.pop(machine, None)

    def _may_change(self, log: Log) -> bool:
        return log.config.compact or log.topic in self._compacted

    def _missing(self, machine: Machine, key: Key, offset: int, how: str, rule: str, leads: bool) -> None:
        """Reports that a replica lacks the committed batch at `offset`, unless an allowed loss explains this.

        If the replica leads and a power loss explains the missing batch, all later committed batches are forgotten:
        from now on, the leader's log decides.
        """
        known = self.partitions[key]
        if offset >= known.unclean_from and not leads:
            return
        if known.lost and offset >= min(known.lost.values()):
            if leads:
                known.cut(offset)
            return
        what = f"{machine.name} lacks what was committed at offset {offset} of {_name(known)} (up to {known.end})"
        self._broken(rule, key, f"{what}: it {how}")

    def _in_sync(self, machine: Machine, key: Key, partition: Partition) -> None:
        """Checks that every running replica in the ISR has all batches below the leader's high watermark.

        Called when the leader has advanced its high watermark.
        """
        known, high = self.partitions[key], partition.log.high_watermark
        isr = partition.isr
        if len(isr) < 2:
            return
        lost = self._lost()
        for other in self._machines:
            if other is machine or other.node_id not in isr or other in lost or other.state is not State.SERVING:
                continue
            replica = hosted(other, key)
            if replica is None or not replica.is_open or replica.log.offline:
                continue
            if replica.image.partition_epoch > partition.image.partition_epoch:
                continue  # the replica knows a newer partition epoch, in which this leader may be replaced
            cursor = self._cursor(other, key, replica.log)
            self._compare(other, key, cursor, min(high, known.end), None)
            if replica.log.log_end_offset < min(high, known.end):
                self._missing(other, key, replica.log.log_end_offset, "is in the ISR", "in sync by content", False)


def _name(known: Committed) -> str:
    return f"{known.name[0]}-{known.name[1]}"


def hosted(machine: Machine, key: Key) -> Partition | None:
    """Returns the machine's replica of a partition; None if the node is not running or has no replica of it."""
    broker = machine.broker
    if broker is None or not machine.holds_partitions:
        return None
    try:
        return broker.partitions.get_by_id(*key)
    except KafkaError:
        return None  # the machine holds no such replica


def _same(known: Committed, batch: StoredBatch) -> bool:
    """Returns True if `batch` equals the committed batch at its offset. A batch that compaction has rewritten may lack
    some of the committed records."""
    expected = known.batches.get(batch.base_offset)
    if expected is None or expected.next_offset != batch.next_offset:
        return False
    digest = crc32(batch.data)
    if digest in expected.digests:
        return True
    if batch.base_offset >= known.cleaned or expected.data is None:
        return False
    before = {record.offset: (record.key, record.value) for record in read_records(memoryview(expected.data))}
    after = {record.offset: (record.key, record.value) for record in read_records(memoryview(batch.data))}
    if not after.items() <= before.items():
        return False
    expected.digests.add(digest)
    return True


def _first_lost(known: Committed, volume: Volume, path: str) -> int:
    """Returns the first committed offset that the files in `path` lack; the end of the committed records if they lack
    none.

    If the topic id is not on disk, the log was never synced, and all its records count as lost: see `LogManager`.
    """
    metadata = volume.find(f"{path}/{PARTITION_METADATA_FILE}")
    if not isinstance(metadata, Inode) or parse_partition_metadata(bytes(metadata.data)) is None:
        return 0
    last = -1
    for batch in batches_of_directory(volume, path):
        if batch.base_offset >= known.end:
            return known.end
        gap = last >= 0 and batch.base_offset > last and batch.base_offset > known.cleaned
        if gap or not _same(known, batch):
            return last if gap else batch.base_offset
        last = batch.next_offset
    return max(last, 0)
