"""Reads assigned partitions. Always keeps one fetch per leader in flight, so that `poll` finds data ready.

There is no group: the caller assigns partitions and stores offsets. Each partition has a position. If the position has
changed since a fetch (by a seek), the fetched data is dropped. A fetch contains the leader epoch of the last record
read. If the leader's log doesn't have this record, the leader returns the offset at which the logs diverge.
"""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from penstock.client.client import AsyncClient
from penstock.client.errors import code_of, may_pass
from penstock.client.fetched import Fetched, read_batches
from penstock.client.offsets import list_offsets
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_01_fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from penstock.protocol.vocabulary import (
    EARLIEST,
    LATEST,
    NO_LEADER,
    NO_LEADER_EPOCH,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    TopicPartition,
)


@dataclass(frozen=True, slots=True)
class ConsumerSettings:
    isolation_level: int = READ_UNCOMMITTED
    max_wait_ms: int = 500
    min_bytes: int = 1
    max_bytes: int = 50 * 1024 * 1024
    partition_max_bytes: int = 1024 * 1024
    check_crc: bool = True
    rack: str = ""
    """The reader's rack: a leader may name a replica in this rack, from which the reader then fetches (KIP-392)."""
    reset: int | None = None
    """The new position if the current one is out of range: EARLIEST, LATEST, or None to raise OFFSET_OUT_OF_RANGE."""
    channel: str = "fetch"
    """The channel of the fetches. Consumers that share a client need different ones, or they wait for each other."""


class Since(NamedTuple):
    """Selects a start position by time: the first record at or after `timestamp_ms`; the end offset if all records are
    older."""

    timestamp_ms: int


Position = int | Since
"""Where to read a partition from: an offset, EARLIEST, LATEST or a time."""


class Consumer:
    def __init__(self, client: AsyncClient, settings: ConsumerSettings | None = None) -> None:
        self._client = client
        self._settings = settings or ConsumerSettings()
        self._positions: dict[TopicPartition, int] = {}
        self._epochs: dict[TopicPartition, int] = {}
        self._ready: list[Fetched] = []
        self._failures: dict[TopicPartition, int] = {}
        #: Replicas that leaders have named, until a fetch from them fails.
        self._preferred: dict[TopicPartition, int] = {}
        self._fetches: dict[int, asyncio.Task[list[Fetched]]] = {}

    async def assign(self, positions: Mapping[TopicPartition, Position]) -> None:
        """Assigns exactly these partitions, each with its start position. Replaces the earlier assignment."""
        self._positions = {}
        await self.seek(positions)

    async def seek(self, positions: Mapping[TopicPartition, Position]) -> None:
        for topic in dict.fromkeys(topic for topic, _ in positions):
            await self._client.topic(topic)
        self._move(await self._resolve(positions))

    def unassign(self, partition: TopicPartition) -> None:
        self._positions.pop(partition, None)

    @property
    def assignment(self) -> set[TopicPartition]:
        return set(self._positions)

    def position(self, partition: TopicPartition) -> int:
        """Returns the offset of the next record that `poll` will return."""
        return self._positions[partition]

    async def poll(self, timeout_s: float = 1.0) -> list[Fetched]:
        """Returns fetched data as soon as there is any, and moves the positions past this data.

        Returns an empty list after `timeout_s` seconds without data.
        """
        deadline = asyncio.get_running_loop().time() + timeout_s
        while True:
            self._take_finished()
            got = self._deliver()
            await self._start_fetches()
            if got or not self._positions:
                return got
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0:
                return []
            await asyncio.wait(self._fetches.values(), timeout=left, return_when=asyncio.FIRST_COMPLETED)

    async def close(self) -> None:
        fetches = list(self._fetches.values())
        self._fetches.clear()
        for fetch in fetches:
            fetch.cancel()
        await asyncio.gather(*fetches, return_exceptions=True)

    async def __aenter__(self) -> "Consumer":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # Positions

    def _move(self, positions: Mapping[TopicPartition, int]) -> None:
        """Sets new positions, and forgets the leader epochs of earlier records."""
        self._positions.update(positions)
        for partition in positions:
            self._epochs.pop(partition, None)

    async def _resolve(self, positions: Mapping[TopicPartition, Position]) -> dict[TopicPartition, int]:
        wanted: dict[TopicPartition, int] = {}
        resolved: dict[TopicPartition, int] = {}
        for partition, position in positions.items():
            if isinstance(position, Since):
                wanted[partition] = position.timestamp_ms
            elif position < 0:
                wanted[partition] = position
            else:
                resolved[partition] = position
        if wanted:
            resolved |= await self._look_up(wanted)
        return resolved

    async def _look_up(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        level = self._settings.isolation_level
        found = await list_offsets(self._client, wanted, isolation_level=level)
        resolved = {partition: each.offset for partition, each in found.items()}
        late = dict.fromkeys((partition for partition, offset in resolved.items() if offset < 0), LATEST)
        if late:
            ends = await list_offsets(self._client, late, isolation_level=level)
            resolved |= {partition: each.offset for partition, each in ends.items()}
        return resolved

    # Fetching

    def _take_finished(self) -> None:
        for node, fetch in list(self._fetches.items()):
            if fetch.done():
                del self._fetches[node]
                self._ready += fetch.result()

    def _deliver(self) -> list[Fetched]:
        got = []
        for fetched in self._ready:
            partition = (fetched.topic, fetched.partition)
            if self._positions.get(partition) == fetched.fetch_offset:
                self._positions[partition] = fetched.next_offset
                if fetched.next_offset > fetched.fetch_offset:
                    self._epochs[partition] = fetched.leader_epoch
                    got.append(fetched)
        self._ready.clear()
        return got

    async def _start_fetches(self) -> None:
        for topic in dict.fromkeys(topic for topic, _ in self._positions):
            if topic not in self._client.cluster.topics:
                await self._client.topic(topic)
        grouped: dict[int, list[TopicPartition]] = {}
        for partition in self._positions:
            node = self._preferred.get(partition)
            if node is None or node not in self._client.cluster.nodes:
                node = self._client.cluster.leader(*partition)
            grouped.setdefault(NO_LEADER if node is None else node, []).append(partition)
        for node, partitions in grouped.items():
            if node in self._fetches:
                continue
            if node == NO_LEADER:
                self._fetches[node] = asyncio.ensure_future(self._look_for_leaders(partitions))
                continue
            positions = {partition: self._positions[partition] for partition in partitions}
            self._fetches[node] = asyncio.ensure_future(self._fetch(node, positions))

    async def _look_for_leaders(self, partitions: list[TopicPartition]) -> list[Fetched]:
        """Looks up the leaders of partitions whose leader is unknown, while `poll` reads other partitions.

        Returns an empty list, like a fetch without records.
        """
        topic, index = partitions[0]
        info = self._client.cluster.topics.get(topic)
        if info is not None and index not in info.partitions:
            await self._client.leader(topic, index)  # raises if the partition doesn't exist, unless it is new
        await self._failed(partitions, KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, f"{topic}-{index} has no leader."))
        return []

    async def _fetch(self, node: int, positions: dict[TopicPartition, int]) -> list[Fetched]:
        settings = self._settings
        timeout_s = self._client.settings.request_timeout_s + settings.max_wait_ms / 1000
        try:
            answer: FetchResponse = await self._client.request(
                self._request(positions), node=node, channel=settings.channel, timeout_s=timeout_s
            )
            if answer.error_code:
                raise KafkaError(code_of(answer.error_code), f"Node {node} refused the fetch.")
        except KafkaError as error:
            if not may_pass(error.code):
                raise
            self._forget_preferred(positions)
            await self._failed(list(positions), error)
            return []
        fetched: list[Fetched] = []
        failed: dict[TopicPartition, ErrorCode] = {}
        for topic in answer.responses:
            name = topic.topic or self._client.cluster.names_by_id.get(topic.topic_id, "")
            for data in topic.partitions:
                partition = (name, data.partition_index)
                if partition not in positions:
                    continue
                if data.error_code and self._forget_preferred([partition]):
                    continue  # the leader knows better: a follower may lag, or be one no longer
                if data.error_code:
                    moved = self._client.cluster.take_hint(partition, data.current_leader, answer.node_endpoints)
                    if not moved:
                        failed[partition] = code_of(data.error_code)
                elif data.diverging_epoch.end_offset >= 0:
                    await self._truncated(partition, positions[partition], data.diverging_epoch.end_offset)
                elif data.preferred_read_replica >= 0:
                    self._preferred[partition] = data.preferred_read_replica
                else:
                    self._failures.pop(partition, None)
                    fetched.append(self._fetched(partition, positions[partition], data))
        if failed:
            await self._recover(failed)
        return fetched

    def _forget_preferred(self, partitions: Iterable[TopicPartition]) -> bool:
        """Forgets the preferred read replicas of these partitions, so that the next fetches go to the leaders.

        Returns True if one of the partitions had a preferred read replica.
        """
        forgotten = [self._preferred.pop(partition, None) for partition in partitions]
        return any(node is not None for node in forgotten)

    def _request(self, positions: dict[TopicPartition, int]) -> FetchRequest:
        settings = self._settings
        cluster = self._client.cluster
        topics: dict[str, FetchTopic] = {}
        for (name, partition), offset in positions.items():
            known = cluster.topics.get(name)
            info = known.partitions.get(partition) if known else None
            topic = topics.get(name)
            if topic is None:
                topic = topics[name] = FetchTopic(topic=name, topic_id=cluster.topic_id(name), partitions=[])
            topic.partitions.append(
                FetchPartition(
                    partition=partition,
                    fetch_offset=offset,
                    last_fetched_epoch=self._epochs.get((name, partition), NO_LEADER_EPOCH),
                    current_leader_epoch=info.leader_epoch if info else -1,
                    partition_max_bytes=settings.partition_max_bytes,
                )
            )
        return FetchRequest(
            max_wait_ms=settings.max_wait_ms,
            min_bytes=settings.min_bytes,
            max_bytes=settings.max_bytes,
            isolation_level=settings.isolation_level,
            rack_id=settings.rack,
            topics=list(topics.values()),
        )

    def _fetched(self, partition: TopicPartition, offset: int, data: PartitionData) -> Fetched:
        committed_only = self._settings.isolation_level == READ_COMMITTED
        batches, next_offset, leader_epoch = read_batches(
            memoryview(data.records or b""),
            offset,
            aborted=(data.aborted_transactions or ()) if committed_only else None,
            check_crc=self._settings.check_crc,
        )
        if data.records and next_offset == offset:  # a broker sends at least one whole batch
            name = f"{partition[0]}-{partition[1]}"
            sentence = f"The batch at offset {offset} of {name} came damaged: its length field is wrong."
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, sentence)
        return Fetched(
            partition[0],
            partition[1],
            offset,
            next_offset,
            data.high_watermark,
            data.last_stable_offset,
            data.log_start_offset,
            batches,
            leader_epoch,
        )

    # When a fetch is refused

    async def _recover(self, failed: dict[TopicPartition, ErrorCode]) -> None:
        retried = []
        for partition, code in failed.items():
            if code is ErrorCode.OFFSET_OUT_OF_RANGE:
                await self._reset(partition)
            elif code.retriable:
                retried.append(partition)
            else:
                raise KafkaError(code, f"{partition[0]}-{partition[1]} can't be read.")
        if retried:
            first = failed[retried[0]]
            await self._failed(retried, KafkaError(first, f"{retried[0][0]}-{retried[0][1]} can't be read now."))

    async def _reset(self, partition: TopicPartition) -> None:
        offset = self._positions.get(partition)
        if offset is None:
            return
        if self._settings.reset is None:
            bounds = [(await self._look_up({partition: position}))[partition] for position in (EARLIEST, LATEST)]
            sentence = f"{partition[0]}-{partition[1]} holds offsets {bounds[0]} to {bounds[1]}, not offset {offset}."
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, sentence)
        self._move(await self._look_up({partition: self._settings.reset}))

    async def _truncated(self, partition: TopicPartition, offset: int, end_offset: int) -> None:
        """Handles a partition whose leader has lost records that were read, because of an unclean election.

        Moves the position back to the end of the leader's log. Raises KafkaError if no reset is configured.
        """
        if self._positions.get(partition) != offset:
            return
        if self._settings.reset is None:
            sentence = (
                f"{partition[0]}-{partition[1]} has lost records that were read, from offset {end_offset} to {offset}: "
                "seek to another offset."
            )
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, sentence)
        self._move({partition: min(offset, end_offset)})

    async def _failed(self, partitions: list[TopicPartition], error: KafkaError) -> None:
        failures = 0
        for partition in partitions:
            self._failures[partition] = self._failures.get(partition, 0) + 1
            failures = max(failures, self._failures[partition])
        if failures >= self._client.retry.attempts:
            raise error
        await self._client.pause(failures)
        await self._client.refresh_quietly(sorted({topic for topic, _ in partitions}))
