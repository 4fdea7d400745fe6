"""ReadShareGroupState v0: returns a share partition's state to its leader, and fences earlier leaders.

The size of a response is limited. When the response is full, the remaining partitions get COORDINATOR_NOT_AVAILABLE,
and their leader reads them again. A large response is encoded in a thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.handlers.share_state_calls import Decide, Outcome, decide_each, error_fields
from penstock.broker.requests.encoded_responses import SMALL_ITEMS, Encoded
from penstock.protocol.codec import encode
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_84_read_share_group_state import (
    PartitionData,
    PartitionResult,
    ReadShareGroupStateRequest,
    ReadShareGroupStateResponse,
    ReadStateResult,
    StateBatch,
)
from penstock.share import state_requests
from penstock.share.state_journal import ShareKey, fields_of
from penstock.share.state_requests import Read

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.requests.context import RequestContext
    from penstock.share.state_shard import ShareStateShard, Turn


#: State batches in a response. The partition that reaches this number is the last one that is read.
MAX_BATCHES = 20_000


class _Reading:
    """Reads the states of a request's partitions until the response is full."""

    def __init__(self) -> None:
        self.batches = 0

    def decision(self, key: ShareKey, wanted: PartitionData) -> Decide[Read]:
        def decide(shard: ShareStateShard, turn: Turn) -> Read:
            if self.batches >= MAX_BATCHES:
                raise KafkaError(
                    ErrorCode.COORDINATOR_NOT_AVAILABLE, "The response is full: read the partition in another request."
                )
            found = state_requests.read(shard, turn, key, wanted.leader_epoch)
            self.batches += len(found.batches)
            return found

        return decide


async def handle(
    broker: Broker, ctx: RequestContext, request: ReadShareGroupStateRequest
) -> ReadShareGroupStateResponse | Encoded:
    reading = _Reading()
    decided = await decide_each(broker, request.group_id, request.topics, reading.decision)
    if reading.batches <= SMALL_ITEMS:
        return _response(decided)
    version = ctx.api_version
    return await broker.logs.environment.disk.run(lambda: Encoded(encode(_response(decided), version)))


def _response(decided: list[tuple[bytes, list[tuple[int, Outcome[Read]]]]]) -> ReadShareGroupStateResponse:
    return ReadShareGroupStateResponse(
        results=[
            ReadStateResult(topic_id=topic_id, partitions=[_result(*each) for each in some])
            for topic_id, some in decided
        ]
    )


def _result(index: int, outcome: Outcome[Read]) -> PartitionResult:
    if isinstance(outcome, KafkaError):
        return PartitionResult(partition=index, **error_fields(outcome))
    return PartitionResult(
        partition=index,
        state_epoch=outcome.state_epoch,
        start_offset=outcome.start_offset,
        state_batches=[StateBatch(**fields_of(batch)) for batch in outcome.batches],
    )
