"""Compares the state that a replica keeps about its log with a state that the check rebuilds from the log.

    producer state           epoch, last sequence number, last offset and open transaction of each producer
    leader epochs            the epoch of each batch
    transaction index        each aborted transaction, and no other
    offset and time index    each entry points to the right batch and has the largest timestamp so far

The check compares a replica when its log is opened or truncated, when the partition's leader or leader epoch changes,
and at the end of the run. The rebuild reads each batch once, before compaction can remove the batch. After a truncation
the rebuild starts again. If the node expires a producer, the check removes the producer from the rebuilt state too. The
check reads the node's state in memory, and reads a file only if the node has read the file.

If the first records of a log were deleted, a rebuild can't know the first offset of a transaction that began with these
records. `Transaction.may_begin_at` decides which first offsets are right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from penstock.broker.replicas.partition import Partition
from penstock.log.epochs import LeaderEpochCache
from penstock.log.log import Log
from penstock.log.producers import ProducerEntry, ProducerStateManager
from penstock.log.scan import CorruptBatchError
from penstock.log.segment_list import SegmentList
from penstock.protocol.vocabulary import TopicPartition
from penstock.records.control import EndTxn, read_end_txn
from penstock.records.header import BatchHeader, parse_header
from penstock.sim.checks.replica_contents import hosted
from penstock.sim.checks.replica_rules import misleading
from penstock.sim.checks.stored_batches import Cursor, StoredBatch
from penstock.sim.checks.taps import Tap
from penstock.sim.engine.machine import Machine, State

Key = tuple[bytes, int]


@dataclass(slots=True)
class Transaction:
    """Holds the batches of one transaction of one producer, read from the log while the state is rebuilt."""

    producer_id: int
    #: The offset of the producer's previous marker; -1 if the log has none.
    after: int
    #: The base offset of each batch and the offset after it.
    batches: list[tuple[int, int]] = field(default_factory=list)

    def may_begin_at(self, first: int | None, log_begin: int, start: int) -> bool:
        """Returns True if `first` is a possible first offset of this transaction in a replica whose log starts at
        `start`.

        These values of `first` are possible:

            the base offset of the first batch that the replica serves
            the base offset of a batch that ends before the start of the replica's log
            None, if the replica serves no batch of the transaction
            an offset below `log_begin`, where the rebuild began to read, if the log has no earlier marker of this
                producer: the first batches of the transaction may have been deleted
        """
        visible = next((base for base, end in self.batches if end > start), None)
        if first is None:
            return visible is None
        if self.after < 0 and first < log_begin:
            return True  # the transaction's first batches were deleted
        return first == visible or any(first == base and end <= start for base, end in self.batches)


class Rebuilt:
    """Holds the state of one replica, rebuilt from its log."""

    def __init__(self, log: Log) -> None:
        self.cursor = Cursor(log)
        self.seen: tuple[int, int] | None = None
        """The leader and the leader epoch when the replica was last compared."""
        self.reset()

    def reset(self) -> None:
        #: True until the producers that had expired when the rebuild began are removed from it.
        self.has_expired = True
        self.start = -1
        self.producers = ProducerStateManager()
        self.epochs = LeaderEpochCache()
        self.open: dict[int, Transaction] = {}
        #: Aborted transactions by the offset of their marker.
        self.aborted: dict[int, Transaction] = {}
        self._markers: dict[int, int] = {}
        self._rewinds = self.cursor.rewinds

    def read_on(self, machine: Machine) -> None:
        """Reads the batches that were appended since the last comparison."""
        for batch in self.cursor.read(machine.volume, self.cursor.log.log_end_offset):
            if self.cursor.rewinds != self._rewinds:
                self.reset()
            self._add(batch)
        if self.cursor.rewinds != self._rewinds:
            self.reset()

    def _add(self, batch: StoredBatch) -> None:
        header = parse_header(batch.data)
        if self.start < 0:
            self.start = header.base_offset
        if header.partition_leader_epoch != self.epochs.latest_epoch:
            self.epochs.assign(header.partition_leader_epoch, header.base_offset)
        if header.producer_id >= 0:
            marker = read_end_txn(batch.data) if header.is_control else None
            self.producers.update(header, marker)
            if marker is not None:
                self._end(header, marker)
            elif header.is_transactional and not header.is_control:
                self._transaction(header.producer_id).batches.append((header.base_offset, header.next_offset))

    def _transaction(self, producer_id: int) -> Transaction:
        after = self._markers.get(producer_id, -1)
        return self.open.setdefault(producer_id, Transaction(producer_id, after))

    def _end(self, header: BatchHeader, marker: EndTxn) -> None:
        ended = self._transaction(header.producer_id)
        del self.open[header.producer_id]
        self._markers[header.producer_id] = header.base_offset
        if not marker.committed:
            self.aborted[header.base_offset] = ended


class RebuiltStates:
    def __init__(
        self,
        machines: Sequence[Machine],
        violated: Callable[[str, str], None],
        damaged: AbstractSet[TopicPartition],
    ) -> None:
        self._machines = machines
        self._violated = violated
        self._damaged = damaged
        self._replicas: dict[tuple[Machine, Key], Rebuilt] = {}
        self._reported: set[tuple[str, Key]] = set()

    def taps(self) -> list[Tap]:
        return [
            Tap(Partition, "_take_role", self.role_changed),
            Tap(Partition, "follow_image", self.role_changed),
            Tap(Log, "truncate_to", self.truncated),
            Tap(ProducerStateManager, "remove_expired", self.expired, before=True),
            Tap(SegmentList, "replace", self.compacted, before=True),
        ]

    def compacted(self, segments: SegmentList, *_: object) -> None:
        """Reads the newest batches of a log before compaction can remove them. Called just before compacted segments
        replace old segments of the log."""
        for (machine, _), rebuilt in self._replicas.items():
            if rebuilt.cursor.log.segments is segments:
                rebuilt.read_on(machine)
                return

    def expired(self, producers: ProducerStateManager, now_ms: int, expiration_ms: int) -> None:
        """Removes expired producers from the rebuilt state. Called just before the node removes them from its own
        state."""
        for (machine, _), rebuilt in self._replicas.items():
            if rebuilt.cursor.log.producers is producers:
                rebuilt.read_on(machine)
                rebuilt.producers.remove_expired(now_ms, expiration_ms)
                return

    def role_changed(self, partition: Partition, *_: object) -> None:
        if not partition.is_open:
            return
        machine = self._machine_of(partition.log)
        if machine is not None:
            role = (partition.image.leader, partition.image.leader_epoch)
            if self._rebuilt(machine, partition).seen != role:
                self._compare(machine, partition)
                self._rebuilt(machine, partition).seen = role

    def truncated(self, log: Log, *_: object) -> None:
        machine = self._machine_of(log)
        partition = hosted(machine, (log.topic_id, log.partition)) if machine is not None else None
        if machine is not None and partition is not None and partition.is_open and partition.log is log:
            self._compare(machine, partition)

    def _machine_of(self, log: Log) -> Machine | None:
        return next((each for each in self._machines if each.disk is log.environment.disk), None)

    def compare_all(self) -> None:
        """Compares the state of every open replica with the state rebuilt from its log."""
        for machine in self._machines:
            broker = machine.broker
            if broker is None or machine.state is not State.SERVING or not machine.holds_partitions:
                continue
            for partition in broker.partitions:
                if partition.is_open:
                    self._compare(machine, partition)

    def _rebuilt(self, machine: Machine, partition: Partition) -> Rebuilt:
        at = (machine, (partition.topic_id, partition.index))
        rebuilt = self._replicas.get(at)
        if rebuilt is None or rebuilt.cursor.log is not partition.log:
            rebuilt = self._replicas[at] = Rebuilt(partition.log)
        return rebuilt

    def _compare(self, machine: Machine, partition: Partition) -> None:
        log, name = partition.log, (partition.topic, partition.index)
        if log.offline or name in self._damaged or machine.disk_faults:
            return  # the node may have read nothing, or wrong bytes
        rebuilt = self._rebuilt(machine, partition)
        rebuilt.read_on(machine)
        latest_ms = machine.clock.latest_ms  # producers that had expired stay forgotten after a clock has jumped back
        if rebuilt.has_expired:
            rebuilt.has_expired = False
            _forget_expired(rebuilt, log, latest_ms)
        for rule, what in _differences(rebuilt, log, latest_ms):
            self._broken(rule, (partition.topic_id, partition.index), f"{name[0]}-{name[1]} on {machine.name}: {what}")

    def _broken(self, rule: str, key: Key, what: str) -> None:
        """Reports the first violation of `rule` in each partition; ignores later violations."""
        if (rule, key) not in self._reported:
            self._reported.add((rule, key))
            self._violated(rule, what)


def _forget_expired(rebuilt: Rebuilt, log: Log, now_ms: int) -> None:
    """Removes expired producers from the rebuilt state. The node did not load these producers, because they had
    expired."""
    limit_ms = log.environment.producer_expiration_ms
    known = {entry.producer_id for entry in log.producers}
    old = [entry for entry in rebuilt.producers if entry.producer_id not in known]
    if all(now_ms - entry.last_timestamp >= limit_ms for entry in old):
        rebuilt.producers.remove_expired(now_ms, limit_ms)


def _differences(rebuilt: Rebuilt, log: Log, now_ms: int) -> Iterator[tuple[str, str]]:
    # The node need not remember what was before its log start, and compaction may have removed batches and markers.
    floor, start = max(log.log_start_offset, log.cleaned_offset), max(rebuilt.start, log.log_start_offset)
    for entry in rebuilt.producers:
        live = log.producers.get(entry.producer_id)
        if floor and entry.last_offset < floor:
            continue
        if live is None or _essence(live) != _essence(entry) or not _opened_alike(live, rebuilt, start):
            yield "producer state", f"a rebuild from the log gives {entry}, the replica has {live}"
            break
    for entry in log.producers if not log.config.compact else ():
        if (
            entry.last_offset >= max(rebuilt.start, log.log_start_offset)
            and rebuilt.producers.get(entry.producer_id) is None
            # An older entry is there until the node looks for expired producers.
            and now_ms - entry.last_timestamp < log.environment.producer_expiration_ms
        ):
            yield "producer state", f"the replica has {entry}, and its log has no batch of this producer"
            break
    for epoch, start in rebuilt.epochs.entries:
        if start >= log.log_start_offset and log.epochs.epoch_for_offset(start) != epoch:
            yield "leader epochs", f"offset {start} has epoch {epoch}, but the replica knows {log.epochs.entries}"
            break
    if not log.config.compact and not log.cleaned_offset:
        yield from _unlike_aborted(rebuilt, log)
    yield from _indexes(log)


def _essence(entry: ProducerEntry) -> tuple[object, ...]:
    return entry.producer_epoch, entry.last_sequence, entry.last_offset


def _opened_alike(live: ProducerEntry, rebuilt: Rebuilt, start: int) -> bool:
    """Returns True if the replica's state and the rebuilt state agree on the producer's open transaction."""
    opened, first = rebuilt.open.get(live.producer_id), live.txn_first_offset
    return first is None if opened is None else opened.may_begin_at(first, rebuilt.start, start)


def _unlike_aborted(rebuilt: Rebuilt, log: Log) -> Iterator[tuple[str, str]]:
    unread = [segment.base_offset for segment in log.segments if segment._aborted is None]
    indexed = {entry.last_offset: entry for segment in log.segments for entry in segment._aborted or ()}
    start = max(rebuilt.start, log.log_start_offset, log.segments.bases[0])
    for offset in sorted({*rebuilt.aborted, *indexed}):
        if offset < start or (unread and offset >= unread[0]):
            continue
        expected, found = rebuilt.aborted.get(offset), indexed.get(offset)
        right = expected is not None and (
            expected.may_begin_at(None, rebuilt.start, start)
            if found is None
            else found.producer_id == expected.producer_id
            and expected.may_begin_at(found.first_offset, rebuilt.start, start)
        )
        if not right:
            yield (
                "transaction index",
                f"the index has {found} at offset {offset}; a rebuild from the log gives {expected}",
            )
            return


def _indexes(log: Log) -> Iterator[tuple[str, str]]:
    for segment in log.segments:
        if segment.touched:
            try:
                for what in misleading(f"segment {segment.base_offset}", segment):
                    yield "offset and time index", what
            except CorruptBatchError as error:
                yield "offset and time index", str(error)
