"""Collects records by partition into batches before they are sent. No I/O."""

import asyncio
from collections import deque
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from penstock.protocol.vocabulary import TopicPartition
from penstock.records.build import NewRecord
from penstock.records.record import Headers

BulkRecord = tuple[bytes | None, bytes | None, Headers, int | None]
"""One record as a tuple: key, value, headers and timestamp. A timestamp of None means now."""

# Upper bound of a record's bytes beyond key, value and headers: varints and the attributes byte.
RECORD_OVERHEAD = 21
BATCH_OVERHEAD = 61


class RecordMetadata(NamedTuple):
    topic: str
    partition: int
    offset: int
    """The record's offset; -1 if unknown (acks=0, or a duplicate that the broker no longer remembers)."""
    timestamp: int


class Appended(NamedTuple):
    base_offset: int
    log_append_time_ms: int


@dataclass(frozen=True, slots=True)
class Built:
    """Holds an encoded record batch without producer id, epoch and sequence number: the producer adds them later."""

    count: int
    size: int
    seal: Callable[[int, int, int, bool], bytes]
    """A function that returns the whole batch.

    Its arguments: producer id, epoch, first sequence number, whether transactional.
    """


@dataclass(slots=True, eq=False)
class PendingBatch:
    partition: TopicPartition
    due_at: float
    """The event loop's time at which the batch is sent even if it isn't full."""
    gives_up_at: float
    done: "asyncio.Future[Appended]"
    records: list[NewRecord] = field(default_factory=list)
    size: int = BATCH_OVERHEAD
    encoded: bytes | None = None
    """The bytes of the batch, set once it is sent.

    A retry must send the same bytes: the broker then recognises the duplicate.
    """
    failures: int = 0
    retry_at: float = 0.0
    built: Built | None = None

    @property
    def count(self) -> int:
        return len(self.records) if self.built is None else self.built.count

    def add(self, record: NewRecord, size: int) -> int:
        self.records.append(record)
        self.size += size
        return len(self.records) - 1


@dataclass(frozen=True, slots=True)
class Sent:
    """Holds the future result of sending one record.

    Await this object to get the record's offset, or call `flush` to wait for all records.
    """

    batch: PendingBatch
    index: int

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        appended = yield from asyncio.shield(self.batch.done).__await__()
        timestamp = appended.log_append_time_ms
        if timestamp < 0:
            timestamp = self.batch.records[self.index][0]
        offset = appended.base_offset + self.index if appended.base_offset >= 0 else -1
        return RecordMetadata(*self.batch.partition, offset, timestamp)


def record_size(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    size = RECORD_OVERHEAD + len(key or b"") + len(value or b"")
    for name, content in headers:
        size += 10 + len(name) * 3 + len(content or b"")
    return size


class Accumulator:
    """Queues batches by partition, oldest first.

    The last batch of a partition takes records until it is full or sent.
    """

    def __init__(self, batch_bytes: int) -> None:
        self._batch_bytes = batch_bytes
        self._queues: dict[TopicPartition, deque[PendingBatch]] = {}
        self.bytes = 0

    def open_batch(self, partition: TopicPartition, size: int) -> PendingBatch | None:
        """Returns the partition's last batch if a record of this size fits into it; otherwise None."""
        queue = self._queues.get(partition)
        if queue:
            last = queue[-1]
            if last.encoded is None and last.built is None and last.size + size <= self._batch_bytes:
                return last
        return None

    def append(self, batch: PendingBatch) -> None:
        self._queues.setdefault(batch.partition, deque()).append(batch)

    def heads(self) -> Iterator[tuple[PendingBatch, bool]]:
        """Yields (batch, ready) for the oldest batch of each partition. `ready` is True if the batch is closed."""
        for queue in self._queues.values():
            head = queue[0]
            yield head, len(queue) > 1 or bool(head.encoded or head.built) or head.size >= self._batch_bytes

    def remove(self, batch: PendingBatch) -> None:
        """Removes a delivered or failed batch. It must be the oldest batch of its partition."""
        queue = self._queues[batch.partition]
        queue.popleft()
        self.bytes -= batch.size
        if not queue:
            del self._queues[batch.partition]

    def all(self) -> list[PendingBatch]:
        return [batch for queue in self._queues.values() for batch in queue]
