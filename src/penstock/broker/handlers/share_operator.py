"""Serves an operator's request about a running share group: describes it, or releases or archives stuck records.

The command `penstock share` sends a ShareAcknowledge with a reserved member id to the leader of the partitions. The
request needs READ on the group and on the topics. If a partition in the request has batches, their records are released
(RELEASE) or archived (REJECT), no matter which member holds them. Otherwise the partition is described: the error
message of its result is the JSON of `/v1/share-windows`.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

from penstock.broker.handlers.share_acknowledgements import check_topic_access
from penstock.broker.share.share_rows import share_row
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_79_share_acknowledge import (
    PartitionData,
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
    ShareAcknowledgeTopicResponse,
)
from penstock.protocol.vocabulary import SHARE_OPERATOR, Acknowledge
from penstock.share.sessions import FINAL_EPOCH
from penstock.share.state_journal import ShareKey

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.requests.context import RequestContext

logger = logging.getLogger(__name__)

#: Runs of records in the same state that are described of one partition; the text must fit into 32,767 bytes.
RUNS_MAX = 150
MAX_PARTITIONS = 100  # of one request
MAX_BATCHES = 100  # of one partition


def is_operator(request: ShareAcknowledgeRequest) -> bool:
    return request.member_id == SHARE_OPERATOR and request.share_session_epoch == FINAL_EPOCH


async def serve(broker: Broker, ctx: RequestContext, request: ShareAcknowledgeRequest) -> ShareAcknowledgeResponse:
    """Serves the partitions one after the other. Errors are per partition, unless the request is too large."""
    if sum(len(topic.partitions) for topic in request.topics) > MAX_PARTITIONS:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"The request has more than {MAX_PARTITIONS} partitions: split it.")
    denies = broker.fetch_policy.leader_consumer(ctx).denies
    response = ShareAcknowledgeResponse()
    for topic in request.topics:
        answers = []
        for partition in topic.partitions:
            await broker.slices.turn()
            answer = PartitionData(partition_index=partition.partition_index)
            answers.append(answer)
            try:
                check_topic_access(broker, denies, (topic.topic_id, partition.partition_index))
                key = ShareKey(str(request.group_id), topic.topic_id, partition.partition_index)
                if partition.acknowledgement_batches:
                    await _operate(broker, key, partition.acknowledgement_batches)
                    logger.info("%s changed the state of in-flight records of share group %r", ctx.principal, key.group)
                else:
                    answer.error_message = _described(broker, key)
            except KafkaError as error:
                answer.error_code, answer.error_message = error.code, error.message
        response.responses.append(ShareAcknowledgeTopicResponse(topic_id=topic.topic_id, partitions=answers))
    return response


async def _operate(broker: Broker, key: ShareKey, batches: list[Any]) -> None:
    for batch in batches[: MAX_BATCHES + 1]:
        kinds = set(batch.acknowledge_types)
        if len(batches) > MAX_BATCHES or not kinds or not kinds <= {Acknowledge.RELEASE, Acknowledge.REJECT}:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"The partition has more than {MAX_BATCHES} ranges, or a range whose type is not RELEASE or REJECT: "
                "send fewer ranges, and only these types.",
            )
        if len(kinds) > 1 or not 0 <= batch.first_offset <= batch.last_offset:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                "A range has several types, or ends before it begins: give one type, and the first offset first.",
            )
    shares = broker.share_partitions
    led = await shares.open_loaded(key)
    try:
        for batch in batches:
            stop = batch.last_offset + 1
            await led.operate(batch.first_offset, stop, batch.acknowledge_types[0], broker.slices.turn)
    finally:
        shares.done_with(led)


def _described(broker: Broker, key: ShareKey) -> str:
    """Returns the JSON of a share partition.

    If no member fetches from the partition, its state is not loaded, and the JSON says "idle".
    """
    shares = broker.share_partitions
    broker.partitions.get_by_id(key.topic_id, key.partition).leader_log()
    led = shares.find(key)
    row = {"state": "idle"} if led is None else share_row(led, broker.metadata.image, RUNS_MAX)
    return json.dumps({**row, "dead_letter_topic": shares.settings_of(key.group).dead_letter_topic or None})
