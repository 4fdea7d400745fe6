"""DescribeClientQuotas, versions 0 to 1: quotas of users, client ids and addresses, by exact name, default or type.

A filter that makes no sense is an error of the whole request, with null entries. `strict` leaves out entities that have
more parts than the filter names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.metadata.controller.quotas import describe_client_quotas
from penstock.protocol.errors import KafkaError
from penstock.protocol.messages.api_48_describe_client_quotas import (
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.context import RequestContext


def handle(broker: Broker, ctx: RequestContext, request: DescribeClientQuotasRequest) -> DescribeClientQuotasResponse:
    try:
        return describe_client_quotas(broker.metadata.image, request)
    except KafkaError as error:
        return DescribeClientQuotasResponse(error_code=error.code, error_message=error.message, entries=None)
