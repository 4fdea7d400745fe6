"""Compares the replicas of each partition at the end of a run, batch by batch, and each replica with its indexes.

Log matching: two replicas have the same bytes at the same offset. Each replica compacts its log independently, so in a
compacted topic only the records that both replicas still have are compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.log.producers import CompletedTxn, ProducerStateManager
from penstock.log.scan import scan_headers
from penstock.protocol.errors import KafkaError
from penstock.protocol.vocabulary import TopicPartition
from penstock.records.batches import split_batches
from penstock.records.control import read_end_txn
from penstock.records.record import read_records
from penstock.sim.engine.machine import Machine

if TYPE_CHECKING:
    from penstock.broker.replicas.partition import Partition
    from penstock.log.log import Log
    from penstock.log.segment import Segment
    from penstock.log.txn_index import AbortedTransaction

CHUNK_BYTES = 1 << 20

#: Partition → start offsets of its replicas.
Starts = dict[TopicPartition, set[int]]


@dataclass(slots=True)
class ReplicaCopy:
    """Holds all batches that one machine has of one partition."""

    name: str
    start: int
    end: int
    batches: dict[int, bytes]


def read_copy(name: str, log: Log) -> ReplicaCopy:
    """Reads all batches of a replica from its files."""
    batches: dict[int, bytes] = {}
    position = log.log_start_offset
    while position < log.log_end_offset:
        data = log.read(position, CHUNK_BYTES, upper_bound=log.log_end_offset).read_now()
        found = split_batches(data, allow_partial=True)
        if not found:
            break
        for header, view in found:
            if header.next_offset > log.log_start_offset:
                batches[header.base_offset] = bytes(view)
            position = max(position, header.next_offset)
    return ReplicaCopy(name, log.log_start_offset, log.log_end_offset, batches)


def compare(where: str, copies: Sequence[ReplicaCopy], *, compacted: bool) -> Iterator[str]:
    if not copies:
        return
    model = max(copies, key=lambda copy: copy.end)
    for copy in copies:
        if copy is model:
            continue
        if copy.end != model.end:
            yield f"{where} ends at {copy.end} on {copy.name} and at {model.end} on {model.name}"
        if compacted:
            yield from _compare_records(where, model, copy)
        else:
            yield from _compare_batches(where, model, copy)


def _compare_batches(where: str, one: ReplicaCopy, other: ReplicaCopy) -> Iterator[str]:
    start, end = max(one.start, other.start), min(one.end, other.end)
    for base in sorted({*one.batches, *other.batches}):
        if start <= base < end and one.batches.get(base) != other.batches.get(base):
            yield f"{where} offset {base} differs between {one.name} and {other.name}"
            return


def _compare_records(where: str, one: ReplicaCopy, other: ReplicaCopy) -> Iterator[str]:
    mine, theirs = _records(one), _records(other)
    for offset in sorted(mine.keys() & theirs.keys()):
        if mine[offset] != theirs[offset]:
            yield f"{where} offset {offset} differs between {one.name} and {other.name}"
            return


def _records(copy: ReplicaCopy) -> dict[int, tuple[bytes | None, bytes | None]]:
    found: dict[int, tuple[bytes | None, bytes | None]] = {}
    for batch in copy.batches.values():
        for record in read_records(memoryview(batch)):
            found[record.offset] = (record.key, record.value)
    return found


def not_committed(machine: Machine, damaged: set[TopicPartition]) -> str:
    """Describes a partition that this machine leads and that has uncommitted records.

    Returns an empty text if there is no such partition.
    """
    for partition in machine.broker.partitions if machine.broker is not None else ():
        if not partition.is_leader or not partition.is_open or (partition.topic, partition.index) in damaged:
            continue
        log = partition.log
        if log.high_watermark < log.log_end_offset and not log.offline:
            return f"{partition.topic}-{partition.index} is committed to {log.high_watermark} of {log.log_end_offset}"
    return ""


def replica_starts(machines: Sequence[Machine]) -> Starts:
    starts: Starts = {}
    for machine in machines:
        broker = machine.broker
        if broker is None or not machine.holds_partitions:
            continue
        for partition in broker.partitions:
            try:
                start = partition.log.log_start_offset
            except KafkaError:  # its disk failed: it will not be elected
                continue
            starts.setdefault((partition.topic, partition.index), set()).add(start)
    return starts


def _sound(machines: Sequence[Machine], damaged: set[TopicPartition]) -> Iterator[tuple[Machine, Partition]]:
    """Yields every replica whose files no fault has damaged."""
    for machine in machines:
        broker = machine.broker
        if broker is None or not machine.holds_partitions:
            continue
        for partition in broker.partitions:
            if (partition.topic, partition.index) not in damaged:
                yield machine, partition


def replicas_agree(machines: Sequence[Machine], compacted: set[str], damaged: set[TopicPartition]) -> Iterator[str]:
    copies: dict[TopicPartition, list[ReplicaCopy]] = {}
    for machine, partition in _sound(machines, damaged):
        name = (partition.topic, partition.index)
        try:
            copies.setdefault(name, []).append(read_copy(machine.name, partition.log))
        except KafkaError as error:
            yield f"{name[0]}-{name[1]} can't be read on {machine.name}: {error}"
    for (topic, index), found in sorted(copies.items(), key=lambda item: item[0]):
        yield from compare(f"{topic}-{index}", found, compacted=topic in compacted or topic.startswith("__"))


# Rules for a single replica.


def indexes_fit(machines: Sequence[Machine], damaged: set[TopicPartition]) -> Iterator[str]:
    """Yields each segment whose offset index or time index has an entry that matches no batch."""
    for machine, partition in _sound(machines, damaged):
        where = f"{partition.topic}-{partition.index} on {machine.name}"
        try:
            for segment in partition.log.segments:
                yield from misleading(where, segment)
        except KafkaError:
            continue  # its disk failed: no client reads it


def misleading(where: str, segment: Segment) -> Iterator[str]:
    """Yields the first wrong entry of a segment's indexes: an offset that matches no batch, or a timestamp that is not
    the largest so far. Yields nothing if all entries are right."""
    batches = dict(scan_headers(segment.file, 0, segment.size))
    for offset, position in segment.index.entries():
        header = batches.get(position)
        if header is None or header.last_offset != offset:
            yield f"{where}: the index of segment {segment.base_offset} has offset {offset} at byte {position}"
            return
    newest: dict[int, int] = {}
    largest = -1
    for header in batches.values():
        largest = newest[header.last_offset] = max(largest, header.max_timestamp)
    for timestamp, offset in segment.time_index.entries():
        if newest.get(offset) != timestamp:
            yield f"{where}: the time index of segment {segment.base_offset} has {timestamp} at offset {offset}"
            return


def epochs_fit(machines: Sequence[Machine], damaged: set[TopicPartition]) -> Iterator[str]:
    """Yields each replica whose leader epoch cache has a wrong epoch for a batch."""
    for machine, partition in _sound(machines, damaged):
        try:
            log = partition.log
            copy = read_copy(machine.name, log)
        except KafkaError:
            continue
        for base, batch in sorted(copy.batches.items()):
            wanted = split_batches(batch)[0][0].partition_leader_epoch
            if base >= copy.start and log.epochs.epoch_for_offset(base) != wanted:
                known = log.epochs.epoch_for_offset(base)
                where = f"{partition.topic}-{partition.index} on {machine.name}"
                yield f"{where}: offset {base} has the leader epoch {wanted}, and the replica's epochs say {known}"
                break


def aborted_transactions_are_indexed(machines: Sequence[Machine], damaged: set[TopicPartition]) -> Iterator[str]:
    """Yields each aborted transaction that the transaction index lacks, and each index entry without a marker."""
    for machine, partition in _sound(machines, damaged):
        where = f"{partition.topic}-{partition.index} on {machine.name}"
        try:
            log = partition.log
            yield from misindexed(where, read_copy(machine.name, log), log.aborted_transactions(0, log.log_end_offset))
        except KafkaError:
            continue


def misindexed(where: str, copy: ReplicaCopy, entries: Iterable[AbortedTransaction]) -> Iterator[str]:
    """Yields each difference between the index entries and the aborted transactions found in the batches.

    An entry may begin before the transaction found in the batches: compaction may have removed the first batches.
    """
    producers = ProducerStateManager()
    rebuilt: dict[int, CompletedTxn] = {}
    markers: dict[int, int] = {}
    for base, batch in sorted(copy.batches.items()):
        header = split_batches(batch)[0][0]
        if header.producer_id < 0:
            continue
        marker = read_end_txn(batch) if header.is_control else None
        if marker is not None and not marker.committed:
            markers[base] = header.producer_id
        ended = producers.update(header, marker)
        if ended is not None and ended.aborted:
            rebuilt[base] = ended
    indexed = {entry.last_offset: entry for entry in entries if entry.last_offset >= copy.start}
    for offset, ended in rebuilt.items():
        entry = indexed.get(offset)
        if entry is None or entry.producer_id != ended.producer_id or entry.first_offset > ended.first_offset:
            yield f"{where}: the index says {entry} of the transaction that was aborted at {offset}: {ended}"
    for offset, entry in indexed.items():
        if markers.get(offset) != entry.producer_id:
            yield f"{where}: the index has {entry}, and offset {offset} is no marker of it"


def transactions_end_once(machines: Sequence[Machine], damaged: set[TopicPartition]) -> Iterator[str]:
    """Yields each marker for a transaction that an earlier marker has already ended.

    A second marker is allowed if it is equal to the first and no records of the transaction lie between the two.
    """
    for machine, partition in _sound(machines, damaged):
        try:
            copy = read_copy(machine.name, partition.log)
        except KafkaError:
            continue
        yield from ended_twice(f"{partition.topic}-{partition.index} on {machine.name}", copy)


def ended_twice(where: str, copy: ReplicaCopy) -> Iterator[str]:
    #: Producer → epoch of its last marker, and whether that committed.
    ends: dict[int, tuple[int, bool]] = {}
    #: Producers with records since their last marker.
    begun: set[int] = set()
    for base, batch in sorted(copy.batches.items()):
        header = split_batches(batch)[0][0]
        if not header.is_transactional:
            continue
        if not header.is_control:
            begun.add(header.producer_id)
            continue
        marker = read_end_txn(batch)
        if marker is None:
            continue
        end = (header.producer_epoch, marker.committed)
        before = ends.get(header.producer_id)
        if before is not None and before[0] == end[0] and (header.producer_id in begun or before != end):
            yield f"{where}: producer {header.producer_id}'s marker of epoch {end[0]} ends two transactions, at {base}"
        ends[header.producer_id] = end
        begun.discard(header.producer_id)
