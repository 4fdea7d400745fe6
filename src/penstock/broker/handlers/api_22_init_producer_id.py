"""InitProducerId v0-6: a fresh producer id for an idempotent producer.

Ids come in blocks that the controller hands out as metadata records, so that none is ever given twice, whatever
crashes. Transactional ids are the transaction coordinator's business.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_22_init_producer_id import InitProducerIdRequest, InitProducerIdResponse

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.context import RequestContext


async def handle(broker: Broker, ctx: RequestContext, request: InitProducerIdRequest) -> InitProducerIdResponse:
    try:
        if request.transactional_id is not None:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return InitProducerIdResponse(producer_id=await broker.producer_ids.next(), producer_epoch=0)
    except KafkaError as error:
        return InitProducerIdResponse(error_code=error.code, producer_id=-1, producer_epoch=-1)
