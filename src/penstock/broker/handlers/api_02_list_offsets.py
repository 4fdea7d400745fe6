"""ListOffsets v1-11: returns the offset for a timestamp, or a special offset such as the latest.

Special timestamps:

- -1: latest; this is the high watermark, or the last stable offset for read_committed
- -2: earliest
- -3: the record with the largest timestamp
- -4: earliest local; the same as -2, because there is no tiered storage
- -5: latest tiered; has no offset
- -6: earliest pending upload; has no offset

For a follower the latest offset is the end of the log. A new leader does not know the end of the committed records
until its high watermark reaches the start of its epoch. Until then it answers OFFSET_NOT_AVAILABLE, and clients retry.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from penstock.broker.requests.steps import Steps, run_steps
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_02_list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from penstock.protocol.vocabulary import (
    CONSUMER_REPLICA,
    DEBUGGING_REPLICA,
    EARLIEST,
    EARLIEST_LOCAL,
    EARLIEST_PENDING_UPLOAD,
    LATEST,
    LATEST_TIERED,
    MAX_TIMESTAMP,
    READ_COMMITTED,
)

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.replicas.partition import Partition
    from penstock.broker.requests.context import RequestContext
    from penstock.log.timestamps import TimestampedOffset
    from penstock.net.later import Later

LEADER_EPOCH_SINCE = 4
NOT_AVAILABLE_SINCE = 5
LEADER_NOT_AVAILABLE = ErrorCode.LEADER_NOT_AVAILABLE
FIRST_VERSION_WITH = {
    LATEST: 1,
    EARLIEST: 1,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}
NEVER = 1 << 15  # past the greatest version
COUNTED_IN_A_STEP = 50
NOTHING = (-1, -1, -1)  # timestamp, offset, leader epoch


def handle(
    broker: Broker, ctx: RequestContext, request: ListOffsetsRequest
) -> ListOffsetsResponse | Later[ListOffsetsResponse]:
    return run_steps(_steps(broker, ctx, request))


def _steps(broker: Broker, ctx: RequestContext, request: ListOffsetsRequest) -> Steps[ListOffsetsResponse]:
    asked: Counter[tuple[str, int]] = Counter()
    for topic in request.topics:
        for start in range(0, len(topic.partitions), COUNTED_IN_A_STEP):
            some = topic.partitions[start : start + COUNTED_IN_A_STEP]
            asked.update((topic.name, spec.partition_index) for spec in some)
            yield None
    response = ListOffsetsResponse()
    for topic in request.topics:
        answers = []
        twice: dict[int, ListOffsetsPartitionResponse] = {}
        for spec in topic.partitions:
            index = spec.partition_index
            if asked[topic.name, index] > 1:
                twice[index] = _refusal(index, ErrorCode.INVALID_REQUEST)
            else:
                try:
                    answers.append((yield from _answer(broker, ctx, request, topic.name, spec)))
                except KafkaError as error:
                    answers.append(_refusal(index, error.code))
            yield None
        if topic.partitions:
            answers += twice.values()
            response.topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=answers))
        yield None
    return response


def _refusal(index: int, code: ErrorCode) -> ListOffsetsPartitionResponse:
    return ListOffsetsPartitionResponse(
        partition_index=index, error_code=code, timestamp=-1, offset=-1, leader_epoch=-1
    )


def _answer(
    broker: Broker, ctx: RequestContext, request: ListOffsetsRequest, topic: str, spec: ListOffsetsPartition
) -> Steps[ListOffsetsPartitionResponse]:
    if spec.timestamp < 0 and ctx.api_version < FIRST_VERSION_WITH.get(spec.timestamp, NEVER):
        raise KafkaError(
            ErrorCode.UNSUPPORTED_VERSION,
            f"ListOffsets v{ctx.api_version} does not support timestamp {spec.timestamp}: use a newer version.",
        )
    partition = broker.partitions.get(topic, spec.partition_index)
    if request.replica_id == DEBUGGING_REPLICA:  # asks this replica, leader or not, for the end of its log
        partition.replica_log(spec.current_leader_epoch)
    else:
        partition.leader_log(spec.current_leader_epoch)
    end = _end(partition, request)
    try:
        timestamp, offset, epoch = yield from _find(
            partition, spec.timestamp, end, settled=_settled(partition, request)
        )
    except _NotYetError:
        code = ErrorCode.OFFSET_NOT_AVAILABLE if ctx.api_version >= NOT_AVAILABLE_SINCE else LEADER_NOT_AVAILABLE
        raise KafkaError(code, "The new leader's followers have not caught up yet: retry soon.") from None
    return ListOffsetsPartitionResponse(
        partition_index=spec.partition_index,
        timestamp=timestamp,
        offset=offset,
        leader_epoch=epoch if ctx.api_version >= LEADER_EPOCH_SINCE else -1,
    )


class _NotYetError(Exception):
    """Raised by a new leader that does not know yet which records the previous leader has committed."""


def _end(partition: Partition, request: ListOffsetsRequest) -> int:
    """Returns the offset after the last record that the sender of the request may read."""
    log = partition.log
    if request.replica_id != CONSUMER_REPLICA:
        return log.log_end_offset
    return log.last_stable_offset if request.isolation_level == READ_COMMITTED else log.high_watermark


def _settled(partition: Partition, request: ListOffsetsRequest) -> bool:
    """Returns True if this leader's high watermark has reached the start of its leader epoch.

    The last stable offset can't be used for this check: an open transaction may keep it far behind the high watermark.
    """
    if request.replica_id != CONSUMER_REPLICA or partition.leading is None:
        return True
    return partition.log.high_watermark >= partition.leading.epoch_start


def _find(partition: Partition, timestamp: int, end: int, *, settled: bool) -> Steps[tuple[int, int, int]]:
    log = partition.log
    if timestamp == LATEST:
        if not settled:
            raise _NotYetError
        return -1, end, partition.leader_epoch
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        return -1, log.log_start_offset, partition.epoch_at(log.log_start_offset)
    if timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return NOTHING
    found: TimestampedOffset | None
    if timestamp == MAX_TIMESTAMP:
        found = yield log.max_timestamp_offset()
    else:
        found = yield log.offset_for_timestamp(timestamp)
    if found is None or found.offset >= end:
        if not settled:
            raise _NotYetError
        return NOTHING
    return found.timestamp, found.offset, _epoch(found.leader_epoch)


def _epoch(epoch: int | None) -> int:
    return -1 if epoch is None else epoch
