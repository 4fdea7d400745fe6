"""Keeps the events of all nodes in a topic, so that any node can show the history after the controller has died.

Each node appends its own events. The key of a record is the node's id and a slot number from 0 to SLOTS - 1. A node
uses its slot numbers in turn, so compaction keeps the last SLOTS events of each node. A cluster of one broker has no
such topic: the broker keeps its events in memory.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol

from penstock.broker.tasks import RepeatedRequest
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_00_produce import PartitionProduceData, ProduceRequest, TopicProduceData
from penstock.protocol.messages.api_01_fetch import FetchPartition, FetchRequest, FetchTopic, PartitionData
from penstock.protocol.messages.api_02_list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from penstock.protocol.vocabulary import CONSUMER_REPLICA, EARLIEST, EVENT_TOPIC, NO_LEADER
from penstock.records.batches import split_batches
from penstock.records.build import build_batch
from penstock.records.excerpts import Wanted, excerpt_steps

if TYPE_CHECKING:
    from penstock.broker.controlplane.metadata_log import MetadataLog
    from penstock.broker.events.history import Entry, EventHistory
    from penstock.metadata.image import TopicImage
    from penstock.protocol.schema import Message
    from penstock.records.excerpts import Excerpt
    from penstock.records.header import BatchHeader

logger = logging.getLogger(__name__)

SLOTS = 500
#: Events that wait while the topic has no leader; the oldest are dropped beyond that, and counted.
MAX_WAITING = 1000
BATCH = 100
TIMEOUT_MS = 5_000
LANE, READ_LANE = "events", "read events"
MAX_READ_BYTES = 4 * 1024 * 1024
#: Bytes of a batch after decompression: 100 events, each far below 10 KiB.
MAX_BATCH_BYTES = 1024 * 1024
MAX_RECORD_BYTES = 64 * 1024
#: Bytes that the event loop reads in one step, and what each batch and each record count for besides their contents.
PAUSE_BYTES = 256 * 1024
MIN_BYTES = 256
NO_EVENT = b""
ALL_IN_SYNC = -1


class PeerCalls(Protocol):
    async def ask(self, node_id: int, request: Message, *, lane: str = "", timeout_ms: int | None = None) -> Any: ...


class TopicEnsurer(Protocol):
    async def ensure(self, name: str) -> TopicImage: ...


class EventTopic:
    """Writes the events of this node to the topic, in order. The emitter of an event does not wait for the write."""

    def __init__(self, history: EventHistory, *, metadata: MetadataLog, peers: PeerCalls, topics: TopicEnsurer) -> None:
        self._history = history
        self._metadata = metadata
        self._peers = peers
        self._topics = topics
        self._waiting: deque[Entry] = deque()
        self.dropped = 0
        #: The slot of the newest event that an earlier process of this node wrote; None until it is read.
        self._last_slot: int | None = None
        self._requests = RepeatedRequest("events", self._may_write, self._write)

    def start(self) -> None:
        """Starts to write events: first the events that this node has emitted so far, then each later event."""
        self._history.listeners.append(self._add)
        for entry in self._history.entries:
            self._add(entry)

    async def close(self) -> None:
        await self._requests.close()

    def apply(self, *_: object) -> None:
        """Starts to write waiting events if the cluster has several brokers. Called with each new metadata image."""
        if self._waiting and self._may_write():
            self._requests.start()

    def _add(self, entry: Entry) -> None:
        if len(self._waiting) >= MAX_WAITING:
            self._waiting.popleft()
            self.dropped += 1
        self._waiting.append(entry)
        self.apply()

    def _may_write(self) -> bool:
        return bool(self._waiting) and not self._requests.closed and len(self._metadata.image.brokers) > 1

    async def _write(self) -> bool:
        """Appends the oldest waiting events as one batch. Returns False if the append failed and has to be repeated."""
        entries = [self._waiting[index] for index in range(min(BATCH, len(self._waiting)))]
        try:
            await self._append(entries)
        except KafkaError as error:
            logger.debug("%d events wait, because the topic of events can't be written: %s", len(self._waiting), error)
            return False
        for entry in entries:
            if self._waiting and self._waiting[0] is entry:  # others were dropped meanwhile
                self._waiting.popleft()
        return True

    async def read(self) -> list[bytes | None]:
        """Returns the values of all records in the topic, in offset order; an empty list if the topic does not exist.

        Clients may also write to the topic. So at most MAX_READ_BYTES are read, and a record that is too long or can't
        be decoded gets an empty value. Raises KafkaError.
        """
        topic = self._metadata.image.topics.get(EVENT_TOPIC)
        return [] if topic is None else [value for _, value in await self._read(topic, READ_LANE)]

    async def _read(self, topic: TopicImage, lane: str) -> list[tuple[bytes | None, bytes | None]]:
        """Returns the keys and values of all records in the topic, in offset order. Raises KafkaError."""
        found: list[tuple[bytes | None, bytes | None]] = []
        offset, room = 0, MAX_READ_BYTES
        while room > 0:
            part = await self._fetch(topic, offset, room, lane)
            if part.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:  # retention has deleted the first events
                first = await self._first_offset(topic, lane)
                if first > offset:
                    offset = first
                    continue
            if part.error_code:
                raise KafkaError(ErrorCode(part.error_code))
            batches = split_batches(part.records or b"", allow_partial=True)
            if not batches:
                break
            unread = PAUSE_BYTES
            for header, batch in batches:
                records, size = _records(header, batch)
                found += records
                offset = max(offset + 1, header.next_offset)
                room -= size
                unread -= size + MIN_BYTES * (1 + len(records))
                if unread <= 0:  # a client can write many batches, or batches that unpack to much
                    await asyncio.sleep(0)
                    unread = PAUSE_BYTES
                if room <= 0:
                    break
        return found

    async def _fetch(self, topic: TopicImage, offset: int, max_bytes: int, lane: str) -> PartitionData:
        wanted = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=max_bytes)
        asked = FetchTopic(topic=EVENT_TOPIC, topic_id=topic.topic_id, partitions=[wanted])
        request = FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=max_bytes, topics=[asked])
        answer = await self._peers.ask(self._leader(topic), request, lane=lane, timeout_ms=TIMEOUT_MS)
        if answer.error_code:
            raise KafkaError(ErrorCode(answer.error_code))
        part: PartitionData = answer.responses[0].partitions[0]
        return part

    async def _first_offset(self, topic: TopicImage, lane: str) -> int:
        wanted = ListOffsetsTopic(
            name=EVENT_TOPIC, partitions=[ListOffsetsPartition(partition_index=0, timestamp=EARLIEST)]
        )
        request = ListOffsetsRequest(replica_id=CONSUMER_REPLICA, topics=[wanted], timeout_ms=TIMEOUT_MS)
        answer = await self._peers.ask(self._leader(topic), request, lane=lane, timeout_ms=TIMEOUT_MS)
        part: ListOffsetsPartitionResponse = answer.topics[0].partitions[0]
        if part.error_code:
            raise KafkaError(ErrorCode(part.error_code))
        return part.offset

    @staticmethod
    def _leader(topic: TopicImage) -> int:
        leader = topic.partitions[0].leader
        if leader == NO_LEADER:
            raise KafkaError(
                ErrorCode.LEADER_NOT_AVAILABLE,
                f"{EVENT_TOPIC}-0 has no leader: retry when one of its replicas is running.",
            )
        return leader

    async def _append(self, entries: list[Entry]) -> None:
        topic = await self._topics.ensure(EVENT_TOPIC)
        leader = self._leader(topic)
        if self._last_slot is None:
            # On the lane of the writes: a lane of its own would keep one more connection to the leader open.
            written = await self._read(topic, LANE)
            self._last_slot = last_slot(entries[0].node_id, [key for key, _ in written])
        before = self._last_slot
        batch = build_batch([(entry.at_ms, _key(entry, before), entry.encoded(), ()) for entry in entries])
        data = TopicProduceData(
            name=EVENT_TOPIC,
            topic_id=topic.topic_id,
            partition_data=[PartitionProduceData(index=0, records=batch)],
        )
        request = ProduceRequest(acks=ALL_IN_SYNC, timeout_ms=TIMEOUT_MS, topic_data=[data])
        answer = await self._peers.ask(leader, request, lane=LANE, timeout_ms=2 * TIMEOUT_MS)
        part = answer.responses[0].partition_responses[0]
        if part.error_code:
            raise KafkaError(ErrorCode(part.error_code), part.error_message)


def _records(header: BatchHeader, batch: memoryview) -> tuple[list[tuple[bytes | None, bytes | None]], int]:
    """Returns the keys and values of a batch's records, and the number of bytes that were read.

    Returns NO_EVENT if the batch can't be decoded, or is larger than the batches that nodes write.
    """
    if header.records_count > BATCH:
        return [(None, NO_EVENT)], len(batch)
    found: list[Excerpt] = []
    try:
        for matches, _ in excerpt_steps(batch, Wanted(record_bytes=MAX_RECORD_BYTES, headers=0), MAX_BATCH_BYTES):
            found += matches
    except KafkaError:
        return [(None, NO_EVENT)], MAX_BATCH_BYTES
    size = max(len(batch), sum(each.size for each in found))
    return [(each.key, NO_EVENT if each.left_out else each.value) for each in found], size


def last_slot(node_id: int, keys: Iterable[bytes | None]) -> int:
    """Returns the slot number in the key of a node's newest event; 0 if the node has no events.

    `keys` must be in offset order.
    """
    slot = 0
    for key in keys:
        node, _, number = (key or b"").decode(errors="replace").partition("/")
        if node == str(node_id) and number.isascii() and number.isdecimal():
            slot = int(number) % SLOTS
    return slot


def _key(entry: Entry, last_slot_before: int) -> bytes:
    """Returns the key of an event: the node's id and a slot number.

    `last_slot_before` is the last slot number that the node used before this process started.
    """
    return f"{entry.node_id}/{(last_slot_before + entry.number) % SLOTS}".encode()
