"""Runs the replica fetcher of one follower against a leader whose answers the test writes, in virtual time.

The follower is node 2. Its partitions belong to one topic and have their logs on a disk in memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

from replica_cluster import NOW_MS, QUICK, TOPIC, TOPIC_ID, until

from penstock.broker.events import NodeEvent
from penstock.broker.peers.peers import Call, Peers
from penstock.broker.replicas.followed_partition import Counts, FollowedPartition
from penstock.broker.replicas.partition import Partition
from penstock.broker.replicas.partition_host import PartitionHost
from penstock.broker.replicas.replica_fetcher import ReplicaFetcher
from penstock.broker.replicas.throttle import FOLLOWER_RATE, Throttle
from penstock.clock import ManualClock
from penstock.disk.memory import MemoryDisk
from penstock.log.log import Log
from penstock.log.manager import LogManager
from penstock.metadata.configs.settings import Settings
from penstock.metadata.configs.topic import LogConfig
from penstock.metadata.image import EMPTY_IMAGE, PartitionImage
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_01_fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from penstock.protocol.messages.api_02_list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from penstock.protocol.vocabulary import ResourceType
from penstock.records.build import build_batch

ME, LEADER, SESSION = 2, 1, 77
LED = PartitionImage(replicas=(1, 2), isr=(1, 2), leader=LEADER, leader_epoch=1)


def records(base_offset: int, count: int = 1, *, epoch: int = 1, size: int = 1) -> bytes:
    """Returns a batch as the leader stores it."""
    values = [(NOW_MS, b"k", b"x" * size, ()) for _ in range(count)]
    return build_batch(values, base_offset=base_offset, leader_epoch=epoch)


def data(index: int = 0, batch: bytes | None = None, **fields: Any) -> PartitionData:
    return PartitionData(partition_index=index, records=cast(Any, batch), **fields)


def response(*partitions: PartitionData, session_id: int = SESSION) -> FetchResponse:
    topics = [FetchableTopicResponse(topic_id=TOPIC_ID, partitions=list(partitions))] if partitions else []
    return FetchResponse(session_id=session_id, responses=topics)


class Leader:
    """Replaces the connections to the leader: parks every Fetch until the test answers it."""

    def __init__(self) -> None:
        self.fetches: list[tuple[FetchRequest, str, asyncio.Future[FetchResponse]]] = []
        self.listings: list[tuple[ListOffsetsRequest, str]] = []
        #: Returns the answer to a ListOffsets request for a timestamp, or raises KafkaError.
        self.offset_at: Callable[[int], Any] = lambda timestamp: 0

    def begin(self, node_id: int, request: FetchRequest, *, lane: str, timeout_ms: int) -> Call:
        assert node_id == LEADER
        answer: asyncio.Future[FetchResponse] = asyncio.get_running_loop().create_future()
        self.fetches.append((request, lane, answer))
        return Call.of_task(cast(Peers, None), node_id, asyncio.ensure_future(_wait_for(answer)))

    async def ask(self, node_id: int, request: ListOffsetsRequest, *, lane: str, timeout_ms: int) -> Any:
        assert node_id == LEADER
        self.listings.append((request, lane))
        asked = request.topics[0].partitions[0]
        found = self.offset_at(asked.timestamp)
        if asyncio.iscoroutine(found):
            found = await found
        one = ListOffsetsPartitionResponse(partition_index=asked.partition_index)
        if isinstance(found, ErrorCode):
            one.error_code = found
        else:
            one.offset = found
        return ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name=TOPIC, partitions=[one])])


async def _wait_for(answer: asyncio.Future[FetchResponse]) -> FetchResponse:
    return await answer


class Follower:
    def __init__(self, count: int, *, throttled_rate: int | None = None, **settings: str) -> None:
        """Creates partitions 0 to `count` - 1; the test adds them to the fetcher."""
        named = {name.replace("_", "."): value for name, value in settings.items()}
        self.settings = Settings({"node.id": str(ME), **QUICK, **named})
        if throttled_rate is not None:
            key = (int(ResourceType.BROKER), "")
            self.settings.apply_image(replace(EMPTY_IMAGE, configs={key: {FOLLOWER_RATE: str(throttled_rate)}}))
        self.disk = MemoryDisk()
        self.logs = LogManager(self.disk, ("/logs",), ManualClock())
        self.configs: dict[int, LogConfig] = {}
        self.leader = Leader()
        self.counts = Counts()
        self.events: list[NodeEvent] = []
        self.throttle = Throttle(FOLLOWER_RATE, ME, self.settings)
        self.host: PartitionHost[Partition] = PartitionHost(ME, self._open)
        self.partitions = [self.new_partition(index) for index in range(count)]
        self.fetcher: ReplicaFetcher

    def new_partition(self, index: int, image: PartitionImage = LED) -> Partition:
        return Partition(TOPIC, TOPIC_ID, index, image, self.host)

    def _open(self, partition: Partition) -> Log:
        known = self.logs.get(TOPIC, partition.index)
        config = self.configs.get(partition.index, LogConfig())
        return known or self.logs.create(TOPIC, TOPIC_ID, partition.index, config)

    async def start(self, *indexes: int) -> Follower:
        """Opens the logs, and follows the partitions; all of them by default."""
        await self.logs.open(node_id=ME, cluster_id="c")
        self.fetcher = ReplicaFetcher(
            ME,
            LEADER,
            3,
            peers=cast(Any, self.leader),
            settings=self.settings,
            broker_epoch=lambda: 55,
            throttle=self.throttle,
            counts=self.counts,
            observer=self.events.append,
        )
        for each in self.partitions:
            _ = each.log
        for index in indexes or range(len(self.partitions)):
            self.fetcher.add(self.partitions[index])
        return self

    async def asked(self, number: int) -> FetchRequest:
        """Waits for the Fetch request with this number, beginning with 1, and returns it."""
        await until(lambda: len(self.leader.fetches) >= number)
        assert len(self.leader.fetches) == number, "the follower sent another request"
        return self.leader.fetches[-1][0]

    def answer(self, *partitions: PartitionData, session_id: int = SESSION) -> None:
        """Answers the last Fetch request."""
        self.leader.fetches[-1][2].set_result(response(*partitions, session_id=session_id))

    def entry(self, index: int = 0) -> FollowedPartition:
        return self.fetcher._followed[TOPIC_ID, index]

    def end(self, index: int = 0) -> int:
        return self.partitions[index].log.log_end_offset

    def is_paused(self, index: int = 0) -> bool:
        return (TOPIC_ID, index) in self.fetcher._paused


def named(request: FetchRequest) -> dict[int, int]:
    """Returns the partitions that a request names, with their fetch offsets."""
    return {each.partition: each.fetch_offset for topic in request.topics for each in topic.partitions}


def forgotten(request: FetchRequest) -> list[int]:
    return [index for topic in request.forgotten_topics_data for index in topic.partitions]


def refusal(code: ErrorCode) -> Any:
    """Returns a coroutine that fails as a connection does."""

    async def fail() -> None:
        raise KafkaError(code, "The leader is gone.")

    return fail()
