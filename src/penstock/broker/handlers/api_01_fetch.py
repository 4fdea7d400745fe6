"""Fetch v4-18: reads by consumers and by followers.

Served: sessions (v7+), leader epochs (v9+), diverging epochs (v12+), topic ids (v13+), leader hints after
NOT_LEADER_OR_FOLLOWER and FENCED_LEADER_EPOCH (v16+, KIP-951), long polls, both isolation levels. The first batch of
the first partition with data comes whole even when it exceeds every limit, so that a consumer always gets on. Since
v11 consumers may read from any replica, and are told of one in their rack (KIP-392). A follower's fetch says how far
it is, which is what moves the high watermark; quotas of clients don't concern it. A fetch counts as a follower's if it
comes over the inter-broker listener and names a registered broker with its current epoch (v15+, KIP-903); another one
reads nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from penstock.broker.fetch_sessions import NO_SESSION, FetchSession
from penstock.broker.fetching import (
    ANY_CONSUMER,
    NO_REPLICA,
    READ_COMMITTED,
    UNKNOWN,
    Fetching,
    PartitionRead,
    Reader,
)
from penstock.broker.hints import LeaderHints
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_01_fetch import (
    AbortedTransaction,
    EpochEndOffset,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
)
from penstock.replication.leader import NO_BROKER_EPOCH

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.context import RequestContext

FIRST_VERSION_WITH_RACK = 11
FIRST_VERSION_WITH_IDS = 13
FIRST_VERSION_WITH_REPLICA_STATE = 15
FIRST_VERSION_WITH_HINTS = 16


def handle(broker: Broker, ctx: RequestContext, request: FetchRequest) -> Any:
    try:
        session, wanted, incremental = broker.fetch_sessions.open(request, ctx.now_ms)
    except KafkaError as error:
        return FetchResponse(error_code=error.code, session_id=NO_SESSION)

    reader = _reader(broker, ctx, request)
    if reader.replica_id >= 0:
        max_bytes = request.max_bytes
    else:
        max_bytes = min(request.max_bytes, broker.fetch_max_bytes, broker.quotas.max_fetch_bytes(ctx))

    def finish(reads: list[PartitionRead], chunks: list[Any]) -> FetchResponse:
        if reader.replica_id >= 0:
            broker.partitions.readers.sent(reads, chunks)
            response = _respond(broker, ctx, session, incremental, request.isolation_level, reads, chunks)
            response.node_endpoints = []  # brokers know each other's addresses
            return response
        throttle_ms = broker.quotas.record_fetch(ctx, sum(map(len, chunks)))
        if throttle_ms:
            return FetchResponse(throttle_time_ms=throttle_ms, session_id=session.id if session else NO_SESSION)
        return _respond(broker, ctx, session, incremental, request.isolation_level, reads, chunks)

    fetching = Fetching(
        broker.partitions,
        wanted,
        min_bytes=min(request.min_bytes, max_bytes),
        max_bytes=max_bytes,
        isolation=request.isolation_level,
        finish=finish,
        by_id=ctx.api_version >= FIRST_VERSION_WITH_IDS,
        reader=reader,
        unsent=broker.unsent if reader.replica_id < 0 else None,
    )
    return fetching.run(request.max_wait_ms)


def _reader(broker: Broker, ctx: RequestContext, request: FetchRequest) -> Reader:
    replica_id, broker_epoch = request.replica_id, NO_BROKER_EPOCH
    if ctx.api_version >= FIRST_VERSION_WITH_REPLICA_STATE:
        replica_id, broker_epoch = request.replica_state.replica_id, request.replica_state.replica_epoch
    if replica_id >= 0:
        return broker.partitions.readers.follower(replica_id, broker_epoch, ctx.listener_name)
    if ctx.api_version < FIRST_VERSION_WITH_RACK:
        return ANY_CONSUMER
    return broker.partitions.readers.consumer(request.rack_id)


def _respond(
    broker: Broker,
    ctx: RequestContext,
    session: FetchSession | None,
    incremental: bool,
    isolation: int,
    reads: list[PartitionRead],
    chunks: list[Any],
) -> FetchResponse:
    topics: dict[str | bytes, FetchableTopicResponse] = {}
    hints = LeaderHints(broker, ctx) if ctx.api_version >= FIRST_VERSION_WITH_HINTS else None
    served = []
    for read, records in _in_order(reads, chunks):
        if records:
            served.append(read.wanted)
        if incremental and not _worth_telling(read, records):
            continue
        _remember(read)
        wanted = read.wanted
        topic = topics.get(wanted.topic or wanted.topic_id)
        if topic is None:
            topic = topics[wanted.topic or wanted.topic_id] = FetchableTopicResponse(
                topic=wanted.topic, topic_id=wanted.topic_id
            )
        topic.partitions.append(_partition_data(read, records, isolation, hints))
    if session is not None:
        session.rotate(served)
    response = FetchResponse(session_id=session.id if session else NO_SESSION, responses=list(topics.values()))
    if hints is not None and hints.nodes:
        response.node_endpoints = [NodeEndpoint(**node) for node in hints.nodes.values()]
    return response


def _in_order(reads: list[PartitionRead], chunks: list[Any]) -> Iterable[tuple[PartitionRead, Any]]:
    """Kafka's order: what there is, then topic ids that nobody has, then partitions that nobody has."""
    pairs = zip(reads, chunks)
    if not any(read.error for read in reads):
        return pairs
    return sorted(pairs, key=lambda pair: UNKNOWN.index(pair[0].error) + 1 if pair[0].unknown else 0)


def _worth_telling(read: PartitionRead, records: Any) -> bool:
    return bool(
        records
        or read.error
        or read.diverging
        or read.preferred != NO_REPLICA
        or read.high_watermark != read.wanted.last_high_watermark
        or read.log_start_offset != read.wanted.last_log_start_offset
    )


def _remember(read: PartitionRead) -> None:
    # After an error the next good answer must be told whatever it holds, so nothing is remembered then.
    read.wanted.last_high_watermark = read.high_watermark
    read.wanted.last_log_start_offset = read.log_start_offset


def _partition_data(read: PartitionRead, records: Any, isolation: int, hints: LeaderHints | None) -> PartitionData:
    data = PartitionData(
        partition_index=read.wanted.partition,
        error_code=read.error,
        high_watermark=read.high_watermark,
        last_stable_offset=read.last_stable_offset,
        log_start_offset=read.log_start_offset,
        aborted_transactions=[] if read.unknown else None,
        preferred_read_replica=read.preferred,
        records=records,
    )
    if isolation == READ_COMMITTED and not read.error:
        data.aborted_transactions = [
            AbortedTransaction(producer_id=txn.producer_id, first_offset=txn.first_offset) for txn in read.aborted or ()
        ]
    if read.diverging is not None:
        data.diverging_epoch = EpochEndOffset(epoch=read.diverging[0], end_offset=read.diverging[1])
    if hints is not None and read.error in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH):
        leader = hints.leader_of(read.wanted.topic or read.wanted.topic_id, read.wanted.partition)
        if leader is not None:
            data.current_leader = LeaderIdAndEpoch(leader_id=leader[0], leader_epoch=leader[1])
    return data
