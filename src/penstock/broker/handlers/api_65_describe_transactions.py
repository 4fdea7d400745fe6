"""DescribeTransactions v0: returns state, producer, start time, timeout and partitions of each transactional id."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.coordinators.runtime import committed
from penstock.protocol.errors import KafkaError
from penstock.protocol.messages.api_65_describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TransactionState,
)
from penstock.transactions.queries import describe, describe_error

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.requests.context import RequestContext


async def handle(
    broker: Broker, ctx: RequestContext, request: DescribeTransactionsRequest
) -> DescribeTransactionsResponse:
    return DescribeTransactionsResponse(
        transaction_states=[await _describe(broker, transactional_id) for transactional_id in request.transactional_ids]
    )


async def _describe(broker: Broker, transactional_id: str) -> TransactionState:
    try:
        coordinator = broker.transactions.coordinators.of(transactional_id)
        return await committed(coordinator.run(lambda shard, turn: describe(shard, transactional_id)))
    except KafkaError as error:
        return describe_error(transactional_id, error.code)
