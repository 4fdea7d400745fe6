"""DeleteAcls v1-3: answers SECURITY_DISABLED for each filter, as Kafka does without an authorizer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.handlers.api_29_describe_acls import NO_AUTHORIZER
from penstock.protocol.errors import ErrorCode
from penstock.protocol.messages.api_31_delete_acls import (
    DeleteAclsFilterResult,
    DeleteAclsRequest,
    DeleteAclsResponse,
)

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.requests.context import RequestContext


def handle(broker: Broker, ctx: RequestContext, request: DeleteAclsRequest) -> DeleteAclsResponse:
    refusal = DeleteAclsFilterResult(error_code=ErrorCode.SECURITY_DISABLED, error_message=NO_AUTHORIZER)
    return DeleteAclsResponse(filter_results=[refusal] * len(request.filters))
