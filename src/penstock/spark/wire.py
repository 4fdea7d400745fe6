"""Fetches a range of a partition from its leader. While the caller decodes one fetch, the next fetch is in flight."""

from __future__ import annotations

import asyncio

from penstock.client.client import AsyncClient
from penstock.client.consumer import ConsumerSettings
from penstock.client.errors import code_of
from penstock.client.fetched import Fetched, visible_batches
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_01_fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from penstock.protocol.vocabulary import READ_COMMITTED


class WireReader:
    """Fetches a range of offsets. Each call of `next` returns one fetch, in offset order; None after the last fetch.

    While the caller uses the data of a fetch, the next fetch is in flight. So a task holds the data of two fetches.
    """

    def __init__(
        self,
        client: AsyncClient,
        topic: str,
        partition: int,
        start: int,
        end: int,
        settings: ConsumerSettings,
        patience_s: float,
        *,
        topic_id: bytes | None = None,
    ) -> None:
        """Creates the reader. With `topic_id`, it never reads a newer topic of the same name."""
        self._client = client
        self._key = (topic, partition)
        self._next = start
        self._end = end
        self._settings = settings
        self._patience_s = patience_s
        self._topic_id = topic_id
        self._pending: asyncio.Task[Fetched] | None = None

    async def next(self) -> Fetched | None:
        if self._next >= self._end:
            return None
        if self._pending is None:
            self._pending = asyncio.ensure_future(self._fetched(self._next))
        fetched = await self._pending
        self._next = fetched.next_offset
        more = self._next < self._end
        self._pending = asyncio.ensure_future(self._fetched(self._next)) if more else None
        return fetched

    async def close(self) -> None:
        if self._pending is not None:
            self._pending.cancel()
            await asyncio.gather(self._pending, return_exceptions=True)

    async def _fetched(self, offset: int) -> Fetched:
        return (await self.answer(offset))[1]

    async def answer(self, offset: int) -> tuple[PartitionData, Fetched]:
        """Fetches data from `offset` on. Returns the leader's response for the partition, and the data that is visible.

        The offset is below the high watermark, so there is data. A fetch without data, which is possible while the
        leader changes, is repeated.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._patience_s
        topic, partition = self._key
        failures = 0
        while True:
            try:
                data = await self._ask(offset)
                fetched = self._visible(offset, data)
                if fetched.next_offset > offset:
                    return data, fetched
                problem = KafkaError(
                    ErrorCode.REQUEST_TIMED_OUT, f"{topic}-{partition} returned no data at offset {offset}."
                )
            except KafkaError as error:
                if not error.code.retriable:
                    raise
                problem = error
            if loop.time() >= deadline:
                raise problem
            failures += 1
            await self._client.pause(failures)
            await self._client.refresh_quietly([topic])

    async def _ask(self, offset: int) -> PartitionData:
        topic, partition = self._key
        leader = await self._client.leader(topic, partition)
        timeout_s = self._client.settings.request_timeout_s + self._settings.max_wait_ms / 1000
        answer: FetchResponse = await self._client.request(
            self._request(offset), node=leader, channel="fetch", timeout_s=timeout_s
        )
        if answer.error_code:
            raise KafkaError(code_of(answer.error_code), f"Node {leader} refused the fetch.")
        for found in answer.responses:
            for data in found.partitions:
                if data.error_code:
                    raise KafkaError(code_of(data.error_code), f"{topic}-{partition} can't be read at offset {offset}.")
                return data
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{topic}-{partition} is missing in the fetch response.")

    def _request(self, offset: int) -> FetchRequest:
        topic, partition = self._key
        cluster = self._client.cluster
        known = cluster.topics.get(topic)
        info = known.partitions.get(partition) if known else None
        settings = self._settings
        part = FetchPartition(
            partition=partition,
            fetch_offset=offset,
            current_leader_epoch=info.leader_epoch if info else -1,
            partition_max_bytes=settings.partition_max_bytes,
        )
        return FetchRequest(
            max_wait_ms=settings.max_wait_ms,
            min_bytes=settings.min_bytes,
            max_bytes=settings.max_bytes,
            isolation_level=settings.isolation_level,
            topics=[FetchTopic(topic=topic, topic_id=self._topic_id or cluster.topic_id(topic), partitions=[part])],
        )

    def _visible(self, offset: int, data: PartitionData) -> Fetched:
        committed = self._settings.isolation_level == READ_COMMITTED
        batches, next_offset, *_ = visible_batches(
            memoryview(data.records or b""),
            offset,
            aborted=(data.aborted_transactions or ()) if committed else None,
            check_crc=self._settings.check_crc,
        )
        topic, partition = self._key
        return Fetched(
            topic,
            partition,
            offset,
            next_offset,
            data.high_watermark,
            data.last_stable_offset,
            data.log_start_offset,
            batches,
        )
