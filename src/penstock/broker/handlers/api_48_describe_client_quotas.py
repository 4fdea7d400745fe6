"""DescribeClientQuotas, versions 0 to 1: lists quotas of users, client ids and addresses.

A filter selects the entity with an exact name, the default entity, or all entities of a type. A filter with `strict`
for a user selects only the quotas of this user, not the quotas of a user and client id together. For an invalid filter
the response has an error and no entries.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.requests.encoded_responses import SMALL_ITEMS, Encoded, encoded_aside
from penstock.broker.requests.steps import Steps, run_steps
from penstock.metadata.controller.quotas import describe_client_quotas
from penstock.protocol.errors import KafkaError
from penstock.protocol.messages.api_48_describe_client_quotas import (
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    EntryData,
)

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.requests.context import RequestContext
    from penstock.net.later import Later


def handle(
    broker: Broker, ctx: RequestContext, request: DescribeClientQuotasRequest
) -> DescribeClientQuotasResponse | Encoded | Later[DescribeClientQuotasResponse | Encoded]:
    return run_steps(_steps(broker, ctx, request))


def _steps(
    broker: Broker, ctx: RequestContext, request: DescribeClientQuotasRequest
) -> Steps[DescribeClientQuotasResponse | Encoded]:
    entries: list[EntryData] = []
    try:
        for some in describe_client_quotas(broker.metadata.image, request):
            entries += some
            yield None
    except KafkaError as error:
        return DescribeClientQuotasResponse(error_code=error.code, error_message=error.message, entries=None)
    response = DescribeClientQuotasResponse(entries=entries)
    if len(entries) <= SMALL_ITEMS:
        return response
    encoded: Encoded = yield encoded_aside(broker.logs.environment.disk, response, ctx.api_version)
    return encoded
