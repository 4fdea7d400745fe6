"""DescribeTransactions v0: state, producer, start, timeout and partitions of transactional ids, each with its error."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.protocol.errors import KafkaError
from penstock.protocol.messages.api_65_describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TransactionState,
)
from penstock.transactions.queries import describe, describe_error

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.context import RequestContext


def handle(broker: Broker, ctx: RequestContext, request: DescribeTransactionsRequest) -> DescribeTransactionsResponse:
    return DescribeTransactionsResponse(
        transaction_states=[_describe(broker, transactional_id) for transactional_id in request.transactional_ids]
    )


def _describe(broker: Broker, transactional_id: str) -> TransactionState:
    try:
        return describe(broker.transactions.coordinators.of(transactional_id).active(), transactional_id)
    except KafkaError as error:
        return describe_error(transactional_id, error.code)
