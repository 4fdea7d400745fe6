"""ListTransactions v0-2: lists the transactional ids that this node coordinates.

Filters by state and producer id, since v1 by duration, since v2 by a pattern in RE2's syntax. The pattern must match
the whole id; a pattern that takes too long gets INVALID_REGULAR_EXPRESSION. The response lists the unknown state names
in the filter. While one of this node's coordinators loads, the whole request gets COORDINATOR_LOAD_IN_PROGRESS.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from penstock.broker.coordinators.runtime import committed
from penstock.metadata.patterns import Pattern, Work
from penstock.protocol.errors import KafkaError
from penstock.protocol.messages.api_66_list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
    TransactionState,
)
from penstock.transactions.queries import list_transactions
from penstock.transactions.states import BY_LABEL

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.requests.context import RequestContext


async def handle(broker: Broker, ctx: RequestContext, request: ListTransactionsRequest) -> ListTransactionsResponse:
    response = ListTransactionsResponse(
        unknown_state_filters=[name for name in request.state_filters if name not in BY_LABEL]
    )
    states = {BY_LABEL[name] for name in request.state_filters if name in BY_LABEL}
    if request.state_filters and not states:
        return response
    try:
        listing = partial(
            list_transactions,
            wall_ms=ctx.now_ms,
            states=states,
            producer_ids=set(request.producer_id_filters),
            longer_than_ms=request.duration_filter,
            matches=_matcher(request.transactional_id_pattern),
        )
        for coordinator in broker.transactions.coordinators:
            found: list[TransactionState] = await committed(coordinator.run(lambda shard, turn: list(listing(shard))))
            response.transaction_states += found
    except KafkaError as error:
        return ListTransactionsResponse(error_code=error.code)
    return response


def _matcher(pattern: str | None) -> Callable[[str], bool] | None:
    work = Work()
    return partial(Pattern(pattern, work).matches, work=work) if pattern else None
