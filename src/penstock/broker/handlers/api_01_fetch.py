"""Fetch v4-18: returns records to consumers and followers.

- Served: sessions (v7+), leader epochs (v9+), diverging epochs (v12+), topic ids (v13+), leader hints after
  NOT_LEADER_OR_FOLLOWER and FENCED_LEADER_EPOCH (v16+, KIP-951), parked fetches, both isolation levels.
- The first batch of the first partition with data is returned completely, even if it exceeds all limits, so that a
  consumer always makes progress.
- Since v11 consumers may read from any replica, and the response names a replica in their rack (KIP-392).
- A Fetch comes from a follower if it names a registered broker with its current broker epoch (v15+, KIP-903) and
  arrives on the inter-broker listener. With an authorizer it may arrive on any listener, but its principal needs
  CLUSTER_ACTION. Any other Fetch with a replica id gets no records.
- A follower's fetch offset advances the high watermark. Client quotas do not apply to followers and, with an
  authorizer, not to the guards of other nodes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from penstock.broker.fetch.fetch_sessions import NO_SESSION, FetchSession, Wanted
from penstock.broker.fetch.large_fetch import SMALL_FETCH_PARTITIONS, LargeFetching
from penstock.broker.fetch.long_poll import UNKNOWN, Fetching, PartitionRead, Reader
from penstock.broker.handlers.leader_hints import LeaderHints
from penstock.broker.requests.encoded_responses import Encoded
from penstock.broker.requests.slices import SLICE_PARTITIONS
from penstock.net.later import Later
from penstock.protocol.codec import encode
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
from penstock.protocol.vocabulary import NO_BROKER_EPOCH, NO_REPLICA, READ_COMMITTED

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.requests.context import RequestContext

FIRST_VERSION_WITH_RACK = 11
FIRST_VERSION_WITH_IDS = 13
FIRST_VERSION_WITH_REPLICA_STATE = 15
FIRST_VERSION_WITH_HINTS = 16

Pair = tuple[PartitionRead, Any]  # a read and its records
Answer = FetchResponse | Encoded
Topics = dict[str | bytes, FetchableTopicResponse]


def handle(broker: Broker, ctx: RequestContext, request: FetchRequest) -> Answer | Later[Answer]:
    if ctx.large:
        return Later(_handle_large(broker, ctx, request))
    try:
        session, wanted, incremental = broker.fetch_sessions.open(request, ctx.now_ms)
    except KafkaError as error:
        return FetchResponse(error_code=error.code, session_id=NO_SESSION)
    fetching = _fetching(broker, ctx, request, wanted)
    if len(wanted) > SMALL_FETCH_PARTITIONS and not fetching.reader.is_follower:
        # A follower that names few partitions rarely has data in the others, so they are read quickly.
        work = _fetch_and_encode(broker, ctx, request, session, fetching, incremental)
        return Later(broker.slices.serve(work))

    def finish(reads: list[PartitionRead], chunks: list[Any]) -> FetchResponse:
        refusal = _account(broker, ctx, session, fetching.reader, reads, chunks)
        if refusal is not None:
            return refusal
        response = _respond(broker, ctx, session, incremental, request.isolation_level, reads, chunks)
        if fetching.reader.replica_id >= 0:
            response.node_endpoints = []  # brokers know each other's addresses from the metadata
        return response

    return fetching.run(request.max_wait_ms, finish)


def _fetching(broker: Broker, ctx: RequestContext, request: FetchRequest, wanted: list[Wanted]) -> Fetching:
    reader = _reader(broker, ctx, request)
    if reader.replica_id >= 0:
        max_bytes = request.max_bytes
    else:
        max_bytes = min(request.max_bytes, broker.fetch_policy.max_bytes)
        if broker.quotas.fetch.limits and not broker.fetch_policy.is_node(ctx):
            max_bytes = min(max_bytes, broker.quotas.max_fetch_bytes(ctx))
    return Fetching(
        broker.partitions,
        wanted,
        min_bytes=min(request.min_bytes, max_bytes),
        max_bytes=max_bytes,
        isolation=request.isolation_level,
        by_id=ctx.api_version >= FIRST_VERSION_WITH_IDS,
        reader=reader,
        unsent=broker.unsent if reader.replica_id < 0 else None,
    )


def _account(
    broker: Broker,
    ctx: RequestContext,
    session: FetchSession | None,
    reader: Reader,
    reads: list[PartitionRead],
    chunks: list[Any],
) -> FetchResponse | None:
    """Counts the bytes of the response against throttles and quotas.

    Returns an empty response if the client has exceeded its quota.
    """
    if reader.replica_id >= 0:
        broker.fetch_policy.sent(reads, chunks)
        return None
    if not broker.quotas.fetch.limits or broker.fetch_policy.is_node(ctx):
        return None
    throttle_ms = broker.quotas.record_fetch(ctx, sum(map(len, chunks)))
    if not throttle_ms:
        return None
    return FetchResponse(throttle_time_ms=throttle_ms, session_id=session.id if session else NO_SESSION)


# --- very many partitions ---------------------------------------------------------------------------


async def _handle_large(broker: Broker, ctx: RequestContext, request: FetchRequest) -> FetchResponse:
    disk = broker.logs.environment.disk
    try:
        opened = await broker.fetch_sessions.open_in_slices(request, ctx.now_ms, broker.slices, disk)
    except KafkaError as error:
        return FetchResponse(error_code=error.code, session_id=NO_SESSION)
    await disk.run(_free, request)
    session, wanted, incremental = opened
    fetching = _fetching(broker, ctx, request, wanted)
    return await _fetch_in_slices(broker, ctx, request, session, fetching, incremental)


def _free(request: FetchRequest) -> None:
    """Frees the memory of a large request's partitions in slices, so that the event loop is not blocked.

    The fetch has its own copy of the partitions.
    """
    for topics in (request.topics, request.forgotten_topics_data):
        while topics:
            partitions = topics.pop().partitions
            while partitions:
                del partitions[-SLICE_PARTITIONS:]


async def _fetch_and_encode(
    broker: Broker,
    ctx: RequestContext,
    request: FetchRequest,
    session: FetchSession | None,
    fetching: Fetching,
    incremental: bool,
) -> FetchResponse | Encoded:
    response = await _fetch_in_slices(broker, ctx, request, session, fetching, incremental)
    if sum(len(topic.partitions) for topic in response.responses) <= SMALL_FETCH_PARTITIONS:
        return response
    box = [response]
    del response
    with broker.slices.uncollected():
        return await broker.logs.environment.disk.run(_encoded, box, ctx.api_version)


def _encoded(box: list[FetchResponse], version: int) -> Encoded:
    encoded = Encoded(encode(box[0], version))
    box.clear()
    return encoded


async def _fetch_in_slices(
    broker: Broker,
    ctx: RequestContext,
    request: FetchRequest,
    session: FetchSession | None,
    fetching: Fetching,
    incremental: bool,
) -> FetchResponse:
    if session is not None:
        if session.busy:
            return FetchResponse(error_code=ErrorCode.INVALID_FETCH_SESSION_EPOCH, session_id=NO_SESSION)
        session.busy = True
    try:
        large = LargeFetching(fetching, broker.slices)
        reads = await large.locate(request.max_wait_ms)
        chunks = await large.read(reads)
        response = _account(broker, ctx, session, fetching.reader, reads, chunks)
        if response is None:
            response = await _respond_in_slices(broker, ctx, session, incremental, request, reads, chunks)
            if fetching.reader.replica_id >= 0:
                response.node_endpoints = []
        return response
    finally:
        if session is not None:
            session.busy = False


async def _respond_in_slices(
    broker: Broker,
    ctx: RequestContext,
    session: FetchSession | None,
    incremental: bool,
    request: FetchRequest,
    reads: list[PartitionRead],
    chunks: list[Any],
) -> FetchResponse:
    topics: Topics = {}
    hints = LeaderHints(broker, ctx) if ctx.api_version >= FIRST_VERSION_WITH_HINTS else None
    by_place: tuple[list[Pair], list[Pair], list[Pair]] = ([], [], [])
    while reads:
        await broker.slices.turn()
        for pair in zip(reads[:SLICE_PARTITIONS], chunks[:SLICE_PARTITIONS]):
            by_place[_place(pair)].append(pair)
        del reads[:SLICE_PARTITIONS], chunks[:SLICE_PARTITIONS]
    for pairs in by_place:
        while pairs:
            await broker.slices.turn()
            _tell(pairs[:SLICE_PARTITIONS], topics, hints, session, incremental, request.isolation_level)
            del pairs[:SLICE_PARTITIONS]
    return _response(topics, hints, session)


# --- the reader and the response ----------------------------------------------------------------------


def _reader(broker: Broker, ctx: RequestContext, request: FetchRequest) -> Reader:
    replica_id, broker_epoch = request.replica_id, NO_BROKER_EPOCH
    if ctx.api_version >= FIRST_VERSION_WITH_REPLICA_STATE:
        replica_id, broker_epoch = request.replica_state.replica_id, request.replica_state.replica_epoch
    if replica_id >= 0:
        return broker.fetch_policy.follower(replica_id, broker_epoch, ctx)
    if ctx.api_version < FIRST_VERSION_WITH_RACK:
        return broker.fetch_policy.leader_consumer(ctx)
    return broker.fetch_policy.consumer(request.rack_id, ctx)


def _respond(
    broker: Broker,
    ctx: RequestContext,
    session: FetchSession | None,
    incremental: bool,
    isolation: int,
    reads: list[PartitionRead],
    chunks: list[Any],
) -> FetchResponse:
    topics: Topics = {}
    hints = LeaderHints(broker, ctx) if ctx.api_version >= FIRST_VERSION_WITH_HINTS else None
    _tell(_in_order(reads, chunks), topics, hints, session, incremental, isolation)
    return _response(topics, hints, session)


def _tell(
    pairs: Iterable[Pair],
    topics: Topics,
    hints: LeaderHints | None,
    session: FetchSession | None,
    incremental: bool,
    isolation: int,
) -> None:
    served = []
    for read, records in pairs:
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


def _response(topics: Topics, hints: LeaderHints | None, session: FetchSession | None) -> FetchResponse:
    response = FetchResponse(session_id=session.id if session else NO_SESSION, responses=list(topics.values()))
    if hints is not None and hints.nodes:
        response.node_endpoints = [NodeEndpoint(**node) for node in hints.nodes.values()]
    return response


def _in_order(reads: list[PartitionRead], chunks: list[Any]) -> Iterable[Pair]:
    """Returns (read, bytes) pairs in Kafka's order.

    Existing partitions come first, then unknown topic ids, then unknown partitions.
    """
    pairs = zip(reads, chunks)
    if not any(read.error for read in reads):
        return pairs
    return sorted(pairs, key=_place)


def _place(pair: Pair) -> int:
    return UNKNOWN.index(pair[0].error) + 1 if pair[0].unknown else 0


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
    # After an error the session keeps no values, so that the next answer without an error is always sent.
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
