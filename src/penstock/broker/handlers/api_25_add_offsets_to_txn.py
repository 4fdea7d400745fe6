"""AddOffsetsToTxn v0-4: adds a group's partition of `__consumer_offsets` to a transaction.

Creates the topic on first use, because the group's partition depends on the partition count. A fenced producer gets
INVALID_PRODUCER_EPOCH before v2, PRODUCER_FENCED since v2. Clients of transaction version 2 do not send this request:
their TxnOffsetCommit adds the partition.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.coordinators.runtime import committed
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_25_add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from penstock.protocol.vocabulary import CONSUMER_OFFSETS
from penstock.transactions import partitions as decide

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.requests.context import RequestContext

FENCED_SINCE = 2


async def handle(broker: Broker, ctx: RequestContext, request: AddOffsetsToTxnRequest) -> AddOffsetsToTxnResponse:
    try:
        coordinator = broker.transactions.coordinators.of(request.transactional_id)
        await broker.topic_creator.ensure(CONSUMER_OFFSETS)
        partition = (CONSUMER_OFFSETS, broker.groups.partition_of(request.group_id))
        who = (request.transactional_id, request.producer_id, request.producer_epoch)
        code = await committed(coordinator.run(lambda shard, turn: decide.add(shard, turn, *who, [partition], 0)))
    except KafkaError as error:
        code = error.code
    if code is ErrorCode.PRODUCER_FENCED and ctx.api_version < FENCED_SINCE:
        code = ErrorCode.INVALID_PRODUCER_EPOCH
    return AddOffsetsToTxnResponse(error_code=code)
