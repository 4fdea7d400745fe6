"""Writes dead letters of share groups to the leader of the dead-letter topic's partition, with acks=all.

A dead letter is written before its record is archived. If the write fails, the record is not archived, and the caller
writes the dead letter again. So a record may have two dead letters. As in Kafka, all dead letters of a partition go to
one partition of the dead-letter topic. Its number is the number of the source partition, modulo the partition count of
the dead-letter topic.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from penstock.log.unpacking import MAX_UNPACKED_BYTES
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_00_produce import PartitionProduceData, ProduceRequest, TopicProduceData
from penstock.records.batches import iter_batches
from penstock.records.record import Record, read_records
from penstock.records.scan import unpacked_if_small
from penstock.records.validate import UnpackFirstError
from penstock.share.dead_letters import CREATED_WITH, DeadLetter, Origin, batches, check_topic
from penstock.share.transitions import Reason

if TYPE_CHECKING:
    from penstock.broker.controlplane.metadata_log import MetadataLog
    from penstock.broker.replicas.partition import Partition
    from penstock.broker.replicas.partitions import Partitions
    from penstock.clock import Clock
    from penstock.log.log import Log
    from penstock.metadata.configs.settings import Settings
    from penstock.metadata.image import TopicImage
    from penstock.protocol.schema import Message
    from penstock.records.header import BatchHeader
    from penstock.share.group_settings import ShareSettings
    from penstock.share.window import Run

LANE = "dead letters"
ACKS_ALL = -1
TIMEOUT_MS = 5_000  # for the replicas of a dead letter
READ_BYTES = 1 << 20  # of the records that are given up, at once


class PeerCalls(Protocol):
    async def ask(self, node_id: int, request: Message, *, lane: str = "", timeout_ms: int | None = None) -> Any: ...


class TopicEnsurer(Protocol):
    async def ensure(self, name: str, configs: Mapping[str, str] | None = None) -> TopicImage: ...


class DeadLetterWriter:
    def __init__(
        self,
        node_id: int,
        *,
        settings: Settings,
        clock: Clock,
        partitions: Partitions,
        metadata: MetadataLog,
        peers: PeerCalls,
        topics: TopicEnsurer,
    ) -> None:
        self._node_id = node_id
        self._settings = settings
        self._clock = clock
        self._partitions = partitions
        self._metadata = metadata
        self._peers = peers
        self._topics = topics
        #: One partition at a time reads records, to bound the memory of unpacked batches.
        self._reading = asyncio.Lock()

    async def write(
        self, group: str, settings: ShareSettings, source: Partition, log: Log, runs: Sequence[Run]
    ) -> None:
        """Writes the dead letters of these records. Returns once they are on all in-sync replicas.

        Raises KafkaError.
        """
        name = settings.dead_letter_topic
        check_topic(self._metadata.image, self._settings, name)
        topic = await self._topics.ensure(name, CREATED_WITH)
        async with self._reading:
            letters = await _letters(log, runs, settings.limits.max_deliveries)
        index = source.index % len(topic.partitions)
        made = batches(
            Origin(group, source.topic, source.index),
            letters,
            copy=settings.copy_dead_letters,
            now_ms=self._clock.wall_ms(),
            max_bytes=self._settings.log_config(self._metadata.image, name).max_message_bytes,
        )
        for batch in made:
            await self._append(topic, index, batch)

    async def _append(self, topic: TopicImage, index: int, batch: bytes) -> None:
        partition = self._metadata.image.partition(topic.name, index)
        if partition is None or partition.leader < 0:
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, f"{topic.name}-{index} has no leader: retry later.")
        if partition.leader == self._node_id:
            await self._append_here(self._partitions.get_by_id(topic.topic_id, index), batch)
            return
        data = TopicProduceData(
            name=topic.name,
            topic_id=topic.topic_id,
            partition_data=[PartitionProduceData(index=index, records=batch)],
        )
        request = ProduceRequest(acks=ACKS_ALL, timeout_ms=TIMEOUT_MS, topic_data=[data])
        answer = await self._peers.ask(partition.leader, request, lane=LANE, timeout_ms=2 * TIMEOUT_MS)
        result = answer.responses[0].partition_responses[0]
        if result.error_code:
            raise KafkaError(ErrorCode(result.error_code), result.error_message)

    async def _append_here(self, partition: Partition, batch: bytes) -> None:
        now_ms = self._clock.wall_ms()
        try:
            info = partition.append(batch, now_ms=now_ms, required_acks=ACKS_ALL)
        except UnpackFirstError as first:
            prepared = await partition.log.environment.unpacking.prepare(first)
            info = partition.append(batch, now_ms=now_ms, required_acks=ACKS_ALL, prepared=prepared)
        try:
            async with asyncio.timeout(TIMEOUT_MS / 1000):
                await partition.committed(info.last_offset + 1)
        except TimeoutError:
            raise KafkaError(
                ErrorCode.REQUEST_TIMED_OUT, "The in-sync replicas did not replicate the dead letters in time: retry."
            ) from None


async def _letters(log: Log, runs: Sequence[Run], max_deliveries: int) -> list[DeadLetter]:
    records = await _records(log, [offset for run in runs for offset in range(run.first, run.stop)])
    found: list[DeadLetter] = []
    for run in runs:
        reason = Reason(run.owner)
        if reason is Reason.UNKNOWN:
            reason = Reason.EXCEEDED if run.deliveries >= max_deliveries else Reason.REJECTED
        found += [
            DeadLetter(offset, run.deliveries, reason, records.get(offset)) for offset in range(run.first, run.stop)
        ]
    return found


async def _records(log: Log, offsets: Sequence[int]) -> dict[int, Record]:
    """Returns the records by offset. Leaves out records that were deleted from the log.

    `offsets` must be in ascending order.
    """
    found: dict[int, Record] = {}
    place = 0
    while place < len(offsets):
        first = max(offsets[place], log.log_start_offset)
        piece = log.read(first, READ_BYTES, upper_bound=log.high_watermark)
        data = piece.read_cached()
        if data is None:
            data = await piece.read()
        after = offsets[place] + 1
        for header, batch in iter_batches(data, allow_partial=True):
            after = max(after, header.last_offset + 1)
            wanted = offsets[bisect_left(offsets, header.base_offset) : bisect_left(offsets, after)]
            if wanted and not header.is_control:
                records = await _unpacked(log, header, batch)
                found |= {record.offset: record for record in records if record.offset in wanted}
        place = bisect_left(offsets, after)
    return found


async def _unpacked(log: Log, header: BatchHeader, batch: memoryview) -> list[Record]:
    if unpacked_if_small(header, batch) is not None:
        return read_records(batch)
    found: list[Record] = await log.environment.disk.run(read_records, bytes(batch), MAX_UNPACKED_BYTES)
    return found
