"""ShareAcknowledge v1-2 (KIP-932): a member accepts, releases or rejects the records that it has acquired.

Since v2 the member may also renew its acquisition locks (KIP-1222). The response is sent once the share coordinators
have stored the new states. Epoch -1 ends the share session and releases all records that the member holds. An
operator's request (`share_operator`) has no session.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.handlers import share_operator
from penstock.broker.handlers.group_calls import check_feature
from penstock.broker.handlers.leader_hints import LeaderHints
from penstock.broker.handlers.share_acknowledgements import HINTED, Acknowledgements, check_size, member_of
from penstock.broker.requests.slices import SLICE_PARTITIONS
from penstock.protocol.errors import KafkaError
from penstock.protocol.messages.api_79_share_acknowledge import (
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
    ShareAcknowledgeTopicResponse,
)
from penstock.share.sessions import FINAL_EPOCH

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.requests.context import RequestContext


async def handle(broker: Broker, ctx: RequestContext, request: ShareAcknowledgeRequest) -> ShareAcknowledgeResponse:
    try:
        return await _handle(broker, ctx, request)
    except KafkaError as error:  # concerns the whole request
        return ShareAcknowledgeResponse(error_code=error.code, error_message=error.message)


async def _handle(broker: Broker, ctx: RequestContext, request: ShareAcknowledgeRequest) -> ShareAcknowledgeResponse:
    check_feature(broker, "share.version", "Share groups")
    group, member = member_of(request)
    if share_operator.is_operator(request):
        return await share_operator.serve(broker, ctx, request)
    check_size(request)
    shares = broker.share_partitions
    shares.sessions.next(group, member, request.share_session_epoch)
    acknowledgements = Acknowledgements(broker, ctx, group, member, renews=request.is_renew_ack)
    await acknowledgements.start(
        ((topic.topic_id, partition.partition_index), partition.acknowledgement_batches)
        for topic in request.topics
        for partition in topic.partitions
    )
    if request.share_session_epoch == FINAL_EPOCH:
        shares.end_session(group, member)
    await acknowledgements.written()
    return await _response(broker, ctx, request, acknowledgements)


async def _response(
    broker: Broker, ctx: RequestContext, request: ShareAcknowledgeRequest, acknowledgements: Acknowledgements
) -> ShareAcknowledgeResponse:
    limits = broker.share_partitions.settings_of(str(request.group_id)).limits
    response = ShareAcknowledgeResponse(acquisition_lock_timeout_ms=limits.lock_duration_ms)
    hints = LeaderHints(broker, ctx)
    for topic in request.topics:
        answers = []
        for count, partition in enumerate(topic.partitions, 1):
            if count % SLICE_PARTITIONS == 0:
                await broker.slices.turn()
            answer = PartitionData(partition_index=partition.partition_index)
            answers.append(answer)
            error = acknowledgements.errors.get((topic.topic_id, answer.partition_index))
            if error is None:
                continue
            answer.error_code, answer.error_message = error.code, error.message
            leader = hints.leader_of(topic.topic_id, answer.partition_index) if error.code in HINTED else None
            if leader is not None:
                answer.current_leader = LeaderIdAndEpoch(leader_id=leader[0], leader_epoch=leader[1])
        response.responses.append(ShareAcknowledgeTopicResponse(topic_id=topic.topic_id, partitions=answers))
    response.node_endpoints = [NodeEndpoint(**node) for node in hints.nodes.values()]
    return response
