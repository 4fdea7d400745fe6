"""Reads and writes the state of share partitions at their share coordinators, on this broker or on other brokers.

While a coordinator is moving or loading, the request is repeated, with longer and longer pauses, until a time limit. If
a change could not be written, the caller keeps it and writes it again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from penstock.broker.coordinators.runtime import committed
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages import api_83_initialize_share_group_state as initializing
from penstock.protocol.messages import api_84_read_share_group_state as reading
from penstock.protocol.messages import api_85_write_share_group_state as writing
from penstock.protocol.messages import api_86_delete_share_group_state as deleting
from penstock.protocol.messages import api_87_read_share_group_state_summary as summing
from penstock.protocol.vocabulary import SHARE_GROUP_STATE
from penstock.share import state_requests
from penstock.share.state_journal import ShareKey, fields_of, read_batches
from penstock.share.state_requests import Read, Summary, Write

if TYPE_CHECKING:
    from penstock.broker.controlplane.metadata_log import MetadataLog
    from penstock.broker.coordinators.share_states import ShareStates
    from penstock.protocol.schema import Message
    from penstock.share.state_shard import ShareStateShard, Turn

LANE = "share"
RETRY_SECONDS, MAX_RETRY_SECONDS = 0.05, 1.0
GIVE_UP_SECONDS = 10.0
#: Maximum wait of a request for a coordinator: shorter than the timeout of a member's own request.
REQUEST_TIMEOUT_MS = 5_000
RETRIABLE = frozenset(
    {
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.BROKER_NOT_AVAILABLE,
        ErrorCode.REQUEST_TIMED_OUT,
        # The coordinator's image may be older than this node's: it does not know the topic yet.
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)
R = TypeVar("R")


class PeerCalls(Protocol):
    async def ask(self, node_id: int, request: Message, *, lane: str = "", timeout_ms: int | None = None) -> Any: ...


class TopicEnsurer(Protocol):
    async def ensure(self, name: str) -> Any: ...


class SharePersister:
    def __init__(
        self,
        node_id: int,
        *,
        states: ShareStates,
        metadata: MetadataLog,
        peers: PeerCalls,
        topics: TopicEnsurer,
    ) -> None:
        self._node_id = node_id
        self._states = states
        self._metadata = metadata
        self._peers = peers
        self._topics = topics

    async def initialize(self, key: ShareKey, state_epoch: int, start_offset: int) -> None:
        def decide(shard: ShareStateShard, turn: Turn) -> None:
            state_requests.initialize(shard, turn, key, state_epoch, start_offset)

        partition = initializing.PartitionData(
            partition=key.partition, state_epoch=state_epoch, start_offset=start_offset
        )
        topic = initializing.InitializeStateData(topic_id=key.topic_id, partitions=[partition])
        request = initializing.InitializeShareGroupStateRequest(group_id=key.group, topics=[topic])
        await self._call(key, decide, request, lambda result: None)

    async def read(self, key: ShareKey, leader_epoch: int) -> Read:
        def decide(shard: ShareStateShard, turn: Turn) -> Read:
            return state_requests.read(shard, turn, key, leader_epoch)

        partition = reading.PartitionData(partition=key.partition, leader_epoch=leader_epoch)
        topic = reading.ReadStateData(topic_id=key.topic_id, partitions=[partition])
        request = reading.ReadShareGroupStateRequest(group_id=key.group, topics=[topic])

        def found(result: reading.PartitionResult) -> Read:
            return Read(result.state_epoch, result.start_offset, read_batches(result.state_batches))

        return await self._call(key, decide, request, found)

    async def write(self, key: ShareKey, wanted: Write, still: Callable[[], bool] = lambda: True) -> None:
        """Writes changes of a share partition's state. Repeats a failed request only while `still` returns True.

        `still` returns False after the caller has dropped its state. So the dropped state can't overwrite a newer state
        of the share partition.
        """

        def decide(shard: ShareStateShard, turn: Turn) -> None:
            state_requests.write(shard, turn, key, wanted)

        def request() -> writing.WriteShareGroupStateRequest:
            partition = writing.PartitionData(
                partition=key.partition,
                state_epoch=wanted.state_epoch,
                leader_epoch=wanted.leader_epoch,
                start_offset=wanted.start_offset,
                delivery_complete_count=wanted.complete_count,
                state_batches=[writing.StateBatch(**fields_of(batch)) for batch in wanted.batches],
            )
            topic = writing.WriteStateData(topic_id=key.topic_id, partitions=[partition])
            return writing.WriteShareGroupStateRequest(group_id=key.group, topics=[topic])

        await self._call(key, decide, request, lambda result: None, still)

    async def summary(self, key: ShareKey, leader_epoch: int) -> Summary:
        def decide(shard: ShareStateShard, turn: Turn) -> Summary:
            return state_requests.summary(shard, key)

        partition = summing.PartitionData(partition=key.partition, leader_epoch=leader_epoch)
        topic = summing.ReadStateSummaryData(topic_id=key.topic_id, partitions=[partition])
        request = summing.ReadShareGroupStateSummaryRequest(group_id=key.group, topics=[topic])

        def found(result: summing.PartitionResult) -> Summary:
            return Summary(result.state_epoch, result.leader_epoch, result.start_offset, result.delivery_complete_count)

        return await self._call(key, decide, request, found)

    async def delete(self, key: ShareKey) -> None:
        def decide(shard: ShareStateShard, turn: Turn) -> None:
            state_requests.delete(shard, turn, key)

        partition = deleting.PartitionData(partition=key.partition)
        topic = deleting.DeleteStateData(topic_id=key.topic_id, partitions=[partition])
        request = deleting.DeleteShareGroupStateRequest(group_id=key.group, topics=[topic])
        await self._call(key, decide, request, lambda result: None)

    # --- routing

    async def _call(
        self,
        key: ShareKey,
        decide: Callable[[ShareStateShard, Turn], R],
        request: Message | Callable[[], Message],
        found: Callable[[Any], R],
        still: Callable[[], bool] = lambda: True,
    ) -> R:
        async def once() -> R:
            leader = await self._leader(key)
            if leader == self._node_id:
                return await committed(self._states.run(key, decide))
            message = request() if callable(request) else request
            answer = await self._peers.ask(leader, message, lane=LANE, timeout_ms=REQUEST_TIMEOUT_MS)
            result = answer.results[0].partitions[0]
            if result.error_code:
                raise KafkaError(ErrorCode(result.error_code), result.error_message)
            return found(result)

        return await _until_answered(once, still)

    async def _leader(self, key: ShareKey) -> int:
        try:
            await self._topics.ensure(SHARE_GROUP_STATE)
        except KafkaError as error:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, error.message) from error
        index = self._states.coordinators.partition_of(key.coordinator_key)
        partition = self._metadata.image.partition(SHARE_GROUP_STATE, index)
        if partition is None or partition.leader < 0:
            raise KafkaError(
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
                f"{SHARE_GROUP_STATE}-{index} has no leader: retry when one of its replicas is running.",
            )
        return partition.leader


async def _until_answered(once: Callable[[], Awaitable[R]], still: Callable[[], bool]) -> R:
    loop = asyncio.get_running_loop()
    give_up, pause = loop.time() + GIVE_UP_SECONDS, RETRY_SECONDS
    while True:
        try:
            return await once()
        except KafkaError as error:
            if error.code not in RETRIABLE:
                raise
            if loop.time() + pause > give_up:
                if error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    raise
                raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, error.message) from error
        await asyncio.sleep(pause)
        if not still():
            raise KafkaError(ErrorCode.FENCED_STATE_EPOCH, "The state was dropped while it was written: load it again.")
        pause = min(pause * 2, MAX_RETRY_SECONDS)
