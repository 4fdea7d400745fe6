"""Produce v3-13: appends records of clients.

- Served: acks 0, 1 and all; idempotent sequences (duplicates are answered with their original offset); topic ids (v13);
  leader hints (v10+, KIP-951). Errors are per partition.
- With acks=0 there is no response, so an error closes the connection: this is the only signal to the client.
- With acks=all the response waits until the high watermark has passed the batch; after the request's timeout the result
  is REQUEST_TIMED_OUT.
- If a topic requires fsync (`flush.messages=1`, `penstock.acks.fsync`), the response waits for a shared fsync.
- The first batch of a transaction on a partition waits until the coordinator has verified that the partition belongs to
  the transaction; since v12 the coordinator adds the partition (KIP-890).
- Some batches have to be unpacked (decompressed and decoded): if the topic is compacted, if it has another codec
  than the batch, or to check timestamps. Large batches are unpacked in a thread; only requests of the same connection
  wait.
- A request with more than about 1,000 partitions is appended and answered in slices of 500 (`large_requests`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING

from penstock.broker.handlers import transaction_verification as verification
from penstock.broker.handlers.leader_hints import LeaderHints
from penstock.net.later import Later, settled
from penstock.net.reply import Close
from penstock.protocol.errors import ErrorCode, KafkaError, without_frames
from penstock.protocol.messages.api_00_produce import (
    BatchIndexAndErrorMessage,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from penstock.protocol.vocabulary import EVENT_TOPIC, UNLISTED_TOPICS
from penstock.records.batches import claimed_attributes
from penstock.records.compression import Codec
from penstock.records.validate import NotOneBatchError, Prepared, UnpackFirstError

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from penstock.broker.broker import Broker
    from penstock.broker.replicas.partition import Partition
    from penstock.broker.requests.context import RequestContext
    from penstock.log.log import AppendInfo
    from penstock.log.producers import Verification

FIRST_VERSION_WITH_ZSTD = 7
FIRST_VERSION_WITH_IDS = 13
CODEC = 0x07
ACKS_ALL = -1
FIRST_VERSION_WITH_HINTS = 10
HINTED = (ErrorCode.NOT_LEADER_OR_FOLLOWER,)
FROM_THE_LOG = (  # errors of the log about a batch; their answers contain the log start offset
    ErrorCode.INVALID_RECORD,
    ErrorCode.INVALID_TIMESTAMP,
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    ErrorCode.INVALID_PRODUCER_EPOCH,
)

Answer = ProduceResponse | Close | None
Waiting = tuple[PartitionProduceResponse, "asyncio.Future[None]"]


def handle(broker: Broker, ctx: RequestContext, request: ProduceRequest) -> Answer | Later[Answer]:
    produce = _Produce(broker, ctx, request)
    if request.transactional_id is not None:
        pending = verification.start_produced(produce.transactional(request), ctx.api_version)
        if pending:
            return Later(_after_verification(produce, request, request.transactional_id, pending))
    return _answer(produce, request)


async def _after_verification(
    produce: _Produce, request: ProduceRequest, transactional_id: str, pending: list[verification.PendingVerification]
) -> Answer:
    produce.verified = await verification.ask(produce.broker, transactional_id, pending)
    return await settled(_answer(produce, request))


def _answer(produce: _Produce, request: ProduceRequest) -> Answer | Later[Answer]:
    topics = [produce.topic(topic) for topic in request.topic_data if topic.partition_data]
    if produce.to_unpack:
        return Later(_after_unpacking(produce, request, topics))
    return _finished(produce, request, topics)


async def _after_unpacking(produce: _Produce, request: ProduceRequest, topics: list[TopicProduceResponse]) -> Answer:
    try:
        await produce.unpack(request, topics)
    except asyncio.CancelledError:
        _forget(produce.waiting)
        raise
    return await settled(_finished(produce, request, topics))


def _finished(produce: _Produce, request: ProduceRequest, topics: list[TopicProduceResponse]) -> Answer | Later[Answer]:
    broker, ctx = produce.broker, produce.ctx
    response = ProduceResponse(responses=topics)
    if produce.hints is not None and produce.hints.nodes:
        response.node_endpoints = [NodeEndpoint(**node) for node in produce.hints.nodes.values()]
    response.throttle_time_ms = broker.quotas.record_produce(ctx, produce.bytes)
    if request.acks == 0:
        if produce.failed is None:
            if response.throttle_time_ms:  # no response can carry the throttle time: the connection is only muted
                ctx.connection.mute_for(response.throttle_time_ms / 1000)
            return None
        return Close(
            f"acks=0 and {produce.failed.name}: the connection is closed, because there is no response for the error"
        )
    if produce.waiting:
        return _Acknowledgement(produce.waiting, response, request.timeout_ms).later()
    return response


class _Produce:
    __slots__ = (
        "acks",
        "broker",
        "bytes",
        "ctx",
        "failed",
        "hints",
        "not_here",
        "to_unpack",
        "transactional_id",
        "verified",
        "waiting",
    )

    def __init__(self, broker: Broker, ctx: RequestContext, request: ProduceRequest) -> None:
        self.broker = broker
        self.ctx = ctx
        self.acks = request.acks
        self.bytes = 0
        self.failed: ErrorCode | None = None
        self.hints = LeaderHints(broker, ctx) if ctx.api_version >= FIRST_VERSION_WITH_HINTS else None
        self.waiting: list[Waiting] = []
        self.not_here: dict[tuple[str, bytes, int], KafkaError] = {}
        self.to_unpack: dict[int, tuple[Partition, UnpackFirstError]] = {}
        self.transactional_id = request.transactional_id
        self.verified: dict[Partition, Verification | ErrorCode | None] | None = None

    def transactional(self, request: ProduceRequest) -> Iterator[tuple[Partition, Buffer]]:
        """Yields (partition, records) for each partition of the request that this node leads.

        The caller verifies that the yielded partitions belong to the transaction. All other partitions get an error in
        the response.
        """
        for topic in request.topic_data:
            for data in topic.partition_data:
                try:
                    partition = self._find(topic, data.index)
                    partition.leader_log()
                except KafkaError as error:
                    # Refused even if this node becomes the partition's leader while other partitions are verified.
                    self.not_here[topic.name, topic.topic_id, data.index] = without_frames(error)
                    continue
                if data.records:
                    yield partition, data.records

    def topic(self, topic: TopicProduceData) -> TopicProduceResponse:
        return TopicProduceResponse(
            name=topic.name,
            topic_id=topic.topic_id,
            partition_responses=[self._partition(topic, data) for data in topic.partition_data],
        )

    async def unpack(self, request: ProduceRequest, topics: list[TopicProduceResponse]) -> None:
        """Unpacks the batches in `to_unpack`, appends them, and puts their results into the response."""
        asked = [topic for topic in request.topic_data if topic.partition_data]
        for topic, told in zip(asked, topics):
            for slot, data in enumerate(topic.partition_data):
                while (first := self.to_unpack.pop(id(data), None)) is not None:
                    told.partition_responses[slot] = await self._unpacked(topic, data, *first)

    async def _unpacked(
        self, topic: TopicProduceData, data: PartitionProduceData, partition: Partition, first: UnpackFirstError
    ) -> PartitionProduceResponse:
        try:
            prepared = await partition.log.environment.unpacking.prepare(first)
        except KafkaError as error:
            self.failed = error.code
            return self._refusal(topic, data.index, partition, error)
        return self._partition(topic, data, prepared)

    def _partition(
        self, topic: TopicProduceData, data: PartitionProduceData, prepared: Prepared | None = None
    ) -> PartitionProduceResponse:
        partition: Partition | None = None
        try:
            partition = self._find(topic, data.index)
            if self.not_here:
                self._check_here(topic, data.index)
            info = self._append(partition, data, prepared)
            safe = self._safe(partition, info.last_offset + 1)
        except KafkaError as error:
            if error.code is ErrorCode.INVALID_TXN_STATE and self.transactional_id is None:
                error = KafkaError(
                    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
                    "The batch is transactional, but the request has no transactional id: set transactional.id.",
                )
            self.failed = error.code
            return self._refusal(topic, data.index, partition, error)
        except UnpackFirstError as first:
            assert partition is not None
            self.to_unpack[id(data)] = (partition, without_frames(first))
            return PartitionProduceResponse(index=data.index)  # a placeholder until the batch is unpacked
        answer = PartitionProduceResponse(
            index=data.index,
            base_offset=info.base_offset,
            log_append_time_ms=info.log_append_time,
            log_start_offset=info.log_start_offset,
        )
        if safe is not None:
            self.waiting.append((answer, safe))
        return answer

    def _check_here(self, topic: TopicProduceData, index: int) -> None:
        found = self.not_here.get((topic.name, topic.topic_id, index))
        if found is not None:
            raise KafkaError(found.code, found.message)

    def _safe(self, partition: Partition, offset: int) -> asyncio.Future[None] | None:
        """Returns a future that is done when the batch can be acknowledged; None if no wait is needed.

        With acks=all the batch must be committed. With acks=1 it must be on disk if the topic requires fsync.
        """
        if self.acks == ACKS_ALL:
            return partition.when_committed(offset)
        if self.acks and partition.acks_need_fsync:
            return asyncio.ensure_future(partition.log.flushed(offset))
        return None

    def _find(self, topic: TopicProduceData, index: int) -> Partition:
        partitions = self.broker.partitions
        if self.ctx.api_version >= FIRST_VERSION_WITH_IDS:
            partition = partitions.get_by_id(topic.topic_id, index)
        else:
            partition = partitions.get(topic.name, index)
        # Regardless of the client id, although Kafka lets __admin_client write.
        if partition.topic in UNLISTED_TOPICS and not self._is_event_of_a_broker(partition):
            raise KafkaError(
                ErrorCode.INVALID_TOPIC_EXCEPTION,
                f"Topic {partition.topic} is internal, and clients can't write to it: use another topic.",
            )
        return partition

    def _is_event_of_a_broker(self, partition: Partition) -> bool:
        return partition.topic == EVENT_TOPIC and self.broker.fetch_policy.is_broker(self.ctx)

    def _append(self, partition: Partition, data: PartitionProduceData, prepared: Prepared | None) -> AppendInfo:
        if self.acks not in (-1, 0, 1):
            raise KafkaError(ErrorCode.INVALID_REQUIRED_ACKS, "acks must be -1, 0 or 1.")
        if not data.records:
            raise NotOneBatchError(
                "A produce request must have exactly one record batch per partition: split the batches."
            )
        free = self.broker.logs.dirs.free_space
        if free.watched:
            free.take(partition.leader_log().log_dir, len(data.records))
        if prepared is None:
            self.bytes += len(data.records)
        if self.ctx.api_version < FIRST_VERSION_WITH_ZSTD and claimed_attributes(data.records) & CODEC == Codec.ZSTD:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
                "zstd needs Produce v7 or later: upgrade the client, or use another codec.",
            )
        if self.verified is not None:
            return self._append_verified(partition, data.records, self.verified.get(partition), prepared)
        return partition.append(data.records, now_ms=self.ctx.now_ms, required_acks=self.acks, prepared=prepared)

    def _append_verified(
        self,
        partition: Partition,
        records: Buffer,
        verdict: Verification | ErrorCode | None,
        prepared: Prepared | None,
    ) -> AppendInfo:
        if isinstance(verdict, ErrorCode):
            raise verification.produce_refusal(verdict, self.ctx.api_version)
        now_ms, acks = self.ctx.now_ms, self.acks
        return partition.append(records, now_ms=now_ms, required_acks=acks, verification=verdict, prepared=prepared)

    def _refusal(
        self, topic: TopicProduceData, index: int, partition: Partition | None, error: KafkaError
    ) -> PartitionProduceResponse:
        answer = PartitionProduceResponse(
            index=index,
            error_code=error.code,
            base_offset=-1,
            log_append_time_ms=-1,
            log_start_offset=-1,
            error_message=error.message,
            record_errors=[
                BatchIndexAndErrorMessage(batch_index=i, batch_index_error_message=text)
                for i, text in getattr(error, "record_errors", ())
            ],
        )
        if partition is not None and self._is_from_log(partition, error):
            answer.log_start_offset = partition.log.log_start_offset
        if self.hints is not None and error.code in HINTED:
            leader = self.hints.leader_of(topic.name or topic.topic_id, index)
            if leader is not None:
                answer.current_leader = LeaderIdAndEpoch(leader_id=leader[0], leader_epoch=leader[1])
        return answer

    def _is_from_log(self, partition: Partition, error: KafkaError) -> bool:
        """Returns True if the error came from the log, not from the request or from the transaction's coordinator."""
        if error.code not in FROM_THE_LOG or isinstance(error, NotOneBatchError):
            return False
        return self.verified is None or not isinstance(self.verified.get(partition), ErrorCode)


class _Acknowledgement:
    """Waits until all batches of a request can be acknowledged, and sets the result of each partition."""

    __slots__ = ("future", "left", "response", "timer", "waiting")

    def __init__(self, waiting: list[Waiting], response: ProduceResponse, timeout_ms: int) -> None:
        loop = asyncio.get_running_loop()
        self.waiting = waiting
        self.response = response
        self.left = len(waiting)
        self.timer = loop.call_later(max(0, timeout_ms) / 1000, _time_out, waiting)
        self.future: asyncio.Future[None] = waiting[0][1] if self.left == 1 else loop.create_future()
        for _, safe in waiting:
            safe.add_done_callback(self._one_done)
        if self.left > 1:
            self.future.add_done_callback(self._all_done)

    def later(self) -> Later[ProduceResponse]:
        return Later(self.future, self._tell)

    def _one_done(self, _: asyncio.Future[None]) -> None:
        self.left -= 1
        if self.left:
            return
        self.timer.cancel()
        if not self.future.done():
            self.future.set_result(None)

    def _all_done(self, future: asyncio.Future[None]) -> None:
        if future.cancelled():
            self.timer.cancel()
            _forget(self.waiting)

    def _tell(self, _: asyncio.Future[None]) -> ProduceResponse:
        for answer, safe in self.waiting:
            error = safe.exception()  # not raised: a traceback would create a reference cycle with this frame
            if isinstance(error, KafkaError):
                answer.error_code, answer.base_offset, answer.error_message = error.code, -1, error.message
            elif error is not None:
                raise error
        return self.response


def _time_out(waiting: list[Waiting]) -> None:
    for _, safe in waiting:
        if not safe.done() and not isinstance(safe, asyncio.Task):  # fsync has no timeout
            safe.set_exception(
                KafkaError(
                    ErrorCode.REQUEST_TIMED_OUT, "The in-sync replicas did not replicate the batch in time: retry."
                )
            )


def _forget(waiting: list[Waiting]) -> None:
    """Cancels the futures for which a cancelled request waits, and ignores their errors."""
    for _, safe in waiting:
        if safe.done():
            if not safe.cancelled():
                safe.exception()
        else:
            safe.cancel()
