"""ShareFetch v1-2 (KIP-932): acquires records for a member of a share group, and takes its acknowledgements.

Served: share sessions, piggybacked acknowledgements, leader hints, parked fetches, both isolation levels (from the
group config); since v2 the acquire modes (KIP-1206) and renewal of locks (KIP-1222). When a connection closes, its
sessions end, and all records that their members hold are released. Markers, aborted records and offsets without a
record are archived by the broker; Kafka delivers them and the client reports them as gaps.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from penstock.broker.handlers.group_calls import check_feature
from penstock.broker.handlers.leader_hints import LeaderHints
from penstock.broker.handlers.share_acknowledgements import (
    HINTED,
    Acknowledgements,
    check_size,
    member_of,
    watch_connection,
)
from penstock.broker.requests.slices import SLICE_PARTITIONS
from penstock.broker.share.share_fetch import Delivery, ShareFetching, ShareWish
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_78_share_fetch import (
    AcquiredRecords,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
    ShareFetchableTopicResponse,
    ShareFetchRequest,
    ShareFetchResponse,
)
from penstock.share.sessions import FINAL_EPOCH, FIRST_EPOCH, ShareSession, Slot
from penstock.share.state_journal import ShareKey
from penstock.share.states import AcquireMode

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.requests.context import RequestContext

#: Partitions that do not exist, for which a session waits: the metadata of this node may be older than the client's.
#: More of them are answered once and leave the session.
MAX_UNKNOWN = 1000
UNKNOWN = frozenset({ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})
#: Partitions that are opened in one slice: the first use of a partition may create files.
SLICE_LOADS = 50
MAX_RECORDS = 10_000  # upper limit of a request's max_records; the client then polls again


async def handle(broker: Broker, ctx: RequestContext, request: ShareFetchRequest) -> ShareFetchResponse:
    try:
        return await _handle(broker, ctx, request)
    except KafkaError as error:  # concerns the whole request
        return ShareFetchResponse(error_code=error.code, error_message=error.message)


async def _handle(broker: Broker, ctx: RequestContext, request: ShareFetchRequest) -> ShareFetchResponse:
    check_feature(broker, "share.version", "Share groups")
    group, member = member_of(request)
    _check(request)
    check_size(request)
    shares = broker.share_partitions
    acknowledged: dict[Slot, list[Any]] = {}
    for topic in request.topics:
        for each in topic.partitions:
            if each.acknowledgement_batches:
                acknowledged.setdefault((topic.topic_id, each.partition_index), []).extend(each.acknowledgement_batches)
    final = request.share_session_epoch == FINAL_EPOCH
    if request.share_session_epoch == FIRST_EPOCH:
        watch_connection(broker, ctx)
    asked = [] if final else list(_slots(request.topics))
    session = shares.sessions.fetch(
        group,
        member,
        request.share_session_epoch,
        ctx.connection,
        asked,
        [(topic.topic_id, index) for topic in request.forgotten_topics_data for index in topic.partitions],
        acknowledges=bool(acknowledged),
    )
    acknowledgements = Acknowledgements(broker, ctx, group, member, renews=request.is_renew_ack)
    await acknowledgements.start(acknowledged.items())
    answers: dict[Slot, PartitionData] = {}
    if final:
        shares.end_session(group, member)
    elif request.max_records > 0:
        answers = await _fetch(broker, ctx, request, session, asked)
    await acknowledgements.written()
    return await _response(broker, ctx, group, answers, acknowledgements)


def _check(request: ShareFetchRequest) -> None:
    """Raises INVALID_REQUEST for an unknown acquire mode, and for a request that both renews locks and fetches."""
    limits = (request.max_wait_ms, request.min_bytes, request.max_bytes, request.max_records)
    reason = None
    if request.is_renew_ack and any(limit > 0 for limit in limits):
        reason = "A request that renews locks must not fetch: set its limits to 0."
    elif request.share_acquire_mode not in tuple(AcquireMode):
        reason = f"There is no acquire mode {request.share_acquire_mode}: use 0 or 1."
    if reason is not None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, reason)


def _slots(topics: Iterable[Any]) -> Iterable[Slot]:
    return ((topic.topic_id, each.partition_index) for topic in topics for each in topic.partitions)


async def _fetch(
    broker: Broker, ctx: RequestContext, request: ShareFetchRequest, session: ShareSession, asked: list[Slot]
) -> dict[Slot, PartitionData]:
    shares = broker.share_partitions
    denies = broker.fetch_policy.leader_consumer(ctx).denies
    answers = {slot: PartitionData(partition_index=slot[1]) for slot in asked if slot in session.partitions}
    opened = []
    await shares.verify(session)
    unknown = []
    for count, slot in enumerate(session.rotated(), 1):
        if count % SLICE_LOADS == 0:
            await broker.slices.turn()
        topic = broker.metadata.image.topics_by_id.get(slot[0])
        try:
            if topic is not None and denies is not None and denies(topic.name):
                raise KafkaError(
                    ErrorCode.TOPIC_AUTHORIZATION_FAILED, "The client may not read the topic: add an ACL for READ."
                )
            opened.append(shares.open(ShareKey(session.group, *slot)))
        except KafkaError as error:
            answers[slot] = PartitionData(partition_index=slot[1], error_code=error.code, error_message=error.message)
            if error.code in UNKNOWN:
                unknown.append(slot)
    shares.sessions.forget(session, unknown[MAX_UNKNOWN:])
    wish = ShareWish(
        member=session.member,
        max_wait_ms=0 if any(answer.error_code for answer in answers.values()) else request.max_wait_ms,
        min_bytes=request.min_bytes,
        max_bytes=min(
            request.max_bytes, broker.fetch_policy.max_bytes, broker.quotas.max_fetch_bytes(ctx), broker.unsent.share
        ),
        max_records=min(request.max_records, MAX_RECORDS),
        batch_size=max(1, request.batch_size),
        mode=AcquireMode(request.share_acquire_mode),
        committed_only=shares.settings_of(session.group).committed_only,
    )
    for delivery in await ShareFetching(wish, opened).run():
        slot = (delivery.led.key.topic_id, delivery.led.key.partition)
        answers[slot] = _partition(delivery)
    return answers


def _partition(delivery: Delivery) -> PartitionData:
    index = delivery.led.key.partition
    if delivery.error is not None:
        return PartitionData(
            partition_index=index, error_code=delivery.error.code, error_message=delivery.error.message
        )
    return PartitionData(
        partition_index=index,
        records=delivery.records,
        acquired_records=[
            AcquiredRecords(first_offset=first, last_offset=last, delivery_count=count)
            for first, last, count in delivery.acquired
        ],
    )


async def _response(
    broker: Broker,
    ctx: RequestContext,
    group: str,
    answers: dict[Slot, PartitionData],
    acknowledgements: Acknowledgements,
) -> ShareFetchResponse:
    for slot in acknowledgements.slots:
        answer = answers.setdefault(slot, PartitionData(partition_index=slot[1]))
        error = acknowledgements.errors.get(slot)
        if error is not None:
            answer.acknowledge_error_code, answer.acknowledge_error_message = error.code, error.message
    hints = LeaderHints(broker, ctx)
    topics: dict[bytes, ShareFetchableTopicResponse] = {}
    size = 0
    for count, ((topic_id, index), answer) in enumerate(answers.items(), 1):
        if count % SLICE_PARTITIONS == 0:
            await broker.slices.turn()
        if not HINTED.isdisjoint((answer.error_code, answer.acknowledge_error_code)):
            leader = hints.leader_of(topic_id, index)
            if leader is not None:
                answer.current_leader = LeaderIdAndEpoch(leader_id=leader[0], leader_epoch=leader[1])
        size += len(answer.records or b"")
        topic = topics.setdefault(topic_id, ShareFetchableTopicResponse(topic_id=topic_id))
        topic.partitions.append(answer)
    return ShareFetchResponse(
        throttle_time_ms=broker.quotas.record_fetch(ctx, size),
        acquisition_lock_timeout_ms=broker.share_partitions.settings_of(group).limits.lock_duration_ms,
        responses=list(topics.values()),
        node_endpoints=[NodeEndpoint(**node) for node in hints.nodes.values()],
    )
