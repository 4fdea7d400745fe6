"""EndTxn v0-5: commits or aborts a transaction.

The response is sent when the decision is committed; it does not wait for the markers.

Since v5 (transaction version 2) the producer gets a new epoch at the end of each transaction, or a new id when its
epochs are used up. So the epoch in a request shows whether the request is a retry, or ends the next transaction. A
fenced producer gets INVALID_PRODUCER_EPOCH before v2, PRODUCER_FENCED since v2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.coordinators.runtime import committed
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_26_end_txn import EndTxnRequest, EndTxnResponse
from penstock.protocol.vocabulary import EPOCH_PER_TRANSACTION
from penstock.transactions.ending import end
from penstock.transactions.turn import Answer

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.requests.context import RequestContext

FENCED_SINCE = 2
EPOCH_BUMP_SINCE = 5


async def handle(broker: Broker, ctx: RequestContext, request: EndTxnRequest) -> EndTxnResponse:
    client_version = EPOCH_PER_TRANSACTION if ctx.api_version >= EPOCH_BUMP_SINCE else 0
    who = (request.transactional_id, request.producer_id, request.producer_epoch)
    try:
        coordinator = await broker.transactions.coordinator(request.transactional_id)
        result = coordinator.run(lambda shard, turn: end(shard, turn, *who, request.committed, client_version))
        answer = await committed(result)
    except KafkaError as error:
        answer = Answer(error.code)
    code = answer.code
    if code is ErrorCode.PRODUCER_FENCED and ctx.api_version < FENCED_SINCE:
        code = ErrorCode.INVALID_PRODUCER_EPOCH
    return EndTxnResponse(error_code=code, producer_id=answer.producer_id, producer_epoch=answer.producer_epoch)
