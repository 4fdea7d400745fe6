"""Records on their way to a broker, gathered by partition into batches. No I/O."""

import asyncio
from collections import deque
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from penstock.protocol.vocabulary import TopicPartition
from penstock.records.build import NewRecord
from penstock.records.record import Headers

BulkRecord = tuple[bytes | None, bytes | None, Headers, int | None]
"""Key, value, headers and timestamp; without a timestamp the present is taken."""

# What a record takes beyond its key, value and headers, at most: varints and its attributes byte.
RECORD_OVERHEAD = 21
BATCH_OVERHEAD = 61


class RecordMetadata(NamedTuple):
    topic: str
    partition: int
    offset: int
    """-1: not told (acks=0, or a duplicate that the broker no longer remembers)."""
    timestamp: int


class Appended(NamedTuple):
    base_offset: int
    log_append_time_ms: int


@dataclass(frozen=True, slots=True)
class Built:
    """A batch that was built elsewhere, but for what only its producer knows."""

    count: int
    size: int
    seal: Callable[[int, int, int, bool], bytes]
    """Producer id, epoch, first sequence number, whether transactional: the whole batch."""


@dataclass(slots=True, eq=False)
class PendingBatch:
    partition: TopicPartition
    due_at: float
    """When it is sent though it isn't full; loop time."""
    gives_up_at: float
    done: "asyncio.Future[Appended]"
    records: list[NewRecord] = field(default_factory=list)
    size: int = BATCH_OVERHEAD
    encoded: bytes | None = None
    """Once sent: a repetition must be the same bytes, so that the broker recognises it."""
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
    """The promise of one record; await it for its offset, or leave it: `flush` waits for all."""

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
    """Batches by partition, oldest first. The last one of a partition is open until it is full or on its way."""

    def __init__(self, batch_bytes: int) -> None:
        self._batch_bytes = batch_bytes
        self._queues: dict[TopicPartition, deque[PendingBatch]] = {}
        self.bytes = 0

    def open_batch(self, partition: TopicPartition, size: int) -> PendingBatch | None:
        """The batch that still has room for a record of this size."""
        queue = self._queues.get(partition)
        if queue:
            last = queue[-1]
            if last.encoded is None and last.built is None and last.size + size <= self._batch_bytes:
                return last
        return None

    def append(self, batch: PendingBatch) -> None:
        self._queues.setdefault(batch.partition, deque()).append(batch)

    def heads(self) -> Iterator[tuple[PendingBatch, bool]]:
        """The batch of each partition that goes next, and whether it needs no more waiting for records."""
        for queue in self._queues.values():
            head = queue[0]
            yield head, len(queue) > 1 or bool(head.encoded or head.built) or head.size >= self._batch_bytes

    def remove(self, batch: PendingBatch) -> None:
        """It was the head, and is settled."""
        queue = self._queues[batch.partition]
        queue.popleft()
        self.bytes -= batch.size
        if not queue:
            del self._queues[batch.partition]

    def all(self) -> list[PendingBatch]:
        return [batch for queue in self._queues.values() for batch in queue]
