"""InitProducerId v0-6: assigns an id to an idempotent producer, an id and an epoch to a transactional producer.

A new transactional producer fences the previous producer and aborts its open transaction. The new producer gets
CONCURRENT_TRANSACTIONS until the abort is complete. Since v3 a producer may name the id and epoch with which it
continues (KIP-360). A fenced producer gets INVALID_PRODUCER_EPOCH before v4, PRODUCER_FENCED since v4. v6 is unstable
in Kafka 4.3 and served only if transaction.two.phase.commit.enable is set: with v6 a producer can use two-phase commit
(KIP-939). Its transactions then have no timeout, and it can keep the open transaction of the previous producer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.coordinators.runtime import committed
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_22_init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from penstock.protocol.vocabulary import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from penstock.transactions.initialize import initialize
from penstock.transactions.transaction import Owner
from penstock.transactions.turn import Answer

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.requests.context import RequestContext

FENCED_SINCE = 4
TWO_PHASE_SINCE = 6


async def handle(broker: Broker, ctx: RequestContext, request: InitProducerIdRequest) -> InitProducerIdResponse:
    try:
        answer = await _initialize(broker, request)
    except KafkaError as error:
        answer = Answer(error.code)
    code = answer.code
    if code is ErrorCode.PRODUCER_FENCED and ctx.api_version < FENCED_SINCE:
        code = ErrorCode.INVALID_PRODUCER_EPOCH
    response = InitProducerIdResponse(
        error_code=code, producer_id=answer.producer_id, producer_epoch=answer.producer_epoch
    )
    if ctx.api_version >= TWO_PHASE_SINCE:
        response.ongoing_txn_producer_id = answer.ongoing_producer_id
        response.ongoing_txn_producer_epoch = answer.ongoing_producer_epoch
    return response


async def _initialize(broker: Broker, request: InitProducerIdRequest) -> Answer:
    expected = Owner(request.producer_id, request.producer_epoch)
    if (expected.producer_id == NO_PRODUCER_ID) != (expected.producer_epoch == NO_PRODUCER_EPOCH):
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, "The request has only one of producer id and epoch: give both, or neither."
        )
    transactional_id = request.transactional_id
    if transactional_id is None:
        return Answer(ErrorCode.NONE, await broker.producer_ids.next(), 0)
    if not transactional_id:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, "The transactional id is empty: give an id, or null for an idempotent producer."
        )
    coordinator = await broker.transactions.coordinator(transactional_id)
    result = coordinator.run(
        lambda shard, turn: initialize(
            shard,
            turn,
            transactional_id,
            request.transaction_timeout_ms,
            None if expected.producer_id == NO_PRODUCER_ID else expected,
            two_phase=request.enable_2pc,
            keep=request.keep_prepared_txn,
        )
    )
    return await committed(result)
