"""The same log on every machine: replicas compared batch by batch once everything is over.

Log matching: where two replicas have the same offset, they have the same bytes. In a compacted topic each replica
compacts for itself, so there it is the records that are compared, where both still have them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.protocol.errors import KafkaError
from penstock.records.batches import split_batches
from penstock.records.record import read_records
from penstock.sim.history import TopicPartition
from penstock.sim.machine import Machine

if TYPE_CHECKING:
    from penstock.log.log import Log

CHUNK_BYTES = 1 << 20

#: Where the replicas of each partition start.
Starts = dict[TopicPartition, set[int]]


@dataclass(slots=True)
class Copy:
    """What one machine has of one partition."""

    name: str
    start: int
    end: int
    batches: dict[int, bytes]


def read_copy(name: str, log: Log) -> Copy:
    """Every stored batch, straight from the files."""
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
    return Copy(name, log.log_start_offset, log.log_end_offset, batches)


def compare(where: str, copies: Sequence[Copy], *, compacted: bool) -> Iterator[str]:
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


def _compare_batches(where: str, one: Copy, other: Copy) -> Iterator[str]:
    start, end = max(one.start, other.start), min(one.end, other.end)
    for base in sorted({*one.batches, *other.batches}):
        if start <= base < end and one.batches.get(base) != other.batches.get(base):
            yield f"{where} offset {base} differs between {one.name} and {other.name}"
            return


def _compare_records(where: str, one: Copy, other: Copy) -> Iterator[str]:
    mine, theirs = _records(one), _records(other)
    for offset in sorted(mine.keys() & theirs.keys()):
        if mine[offset] != theirs[offset]:
            yield f"{where} offset {offset} differs between {one.name} and {other.name}"
            return


def _records(copy: Copy) -> dict[int, tuple[bytes | None, bytes | None]]:
    found: dict[int, tuple[bytes | None, bytes | None]] = {}
    for batch in copy.batches.values():
        for record in read_records(memoryview(batch)):
            found[record.offset] = (record.key, record.value)
    return found


def replica_starts(machines: Sequence[Machine]) -> Starts:
    starts: Starts = {}
    for machine in machines:
        broker = machine.broker
        if broker is None or not machine.holds_partitions:
            continue
        for partition in broker.partitions:
            try:
                start = partition.log.log_start_offset
            except KafkaError:  # its disk failed: it is not among those that lead next
                continue
            starts.setdefault((partition.topic, partition.index), set()).add(start)
    return starts


def replicas_agree(machines: Sequence[Machine], compacted: set[str], damaged: set[TopicPartition]) -> Iterator[str]:
    copies: dict[TopicPartition, list[Copy]] = {}
    for machine in machines:
        broker = machine.broker
        if broker is None or not machine.holds_partitions:
            continue
        for partition in broker.partitions:
            name = (partition.topic, partition.index)
            if name in damaged:
                continue
            try:
                copies.setdefault(name, []).append(read_copy(machine.name, partition.log))
            except KafkaError as error:
                yield f"{name[0]}-{name[1]} can't be read on {machine.name}: {error}"
    for (topic, index), found in sorted(copies.items(), key=lambda item: item[0]):
        yield from compare(f"{topic}-{index}", found, compacted=topic in compacted or topic.startswith("__"))
