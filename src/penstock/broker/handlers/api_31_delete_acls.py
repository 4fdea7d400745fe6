"""DeleteAcls v1-3: deletes the ACLs that match each filter.

Without an authorizer every filter gets SECURITY_DISABLED.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.handlers.api_29_describe_acls import NO_AUTHORIZER
from penstock.metadata.controller.acls import delete_acls
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_31_delete_acls import (
    DeleteAclsFilterResult,
    DeleteAclsRequest,
    DeleteAclsResponse,
)

if TYPE_CHECKING:
    from penstock.broker.controlplane.controller_parts import ControllerParts
    from penstock.broker.requests.context import RequestContext


async def handle(broker: ControllerParts, ctx: RequestContext, request: DeleteAclsRequest) -> DeleteAclsResponse:
    if broker.access is None:
        refusal = DeleteAclsFilterResult(error_code=ErrorCode.SECURITY_DISABLED, error_message=NO_AUTHORIZER)
        return DeleteAclsResponse(filter_results=[refusal] * len(request.filters))
    try:
        return await broker.metadata.submit(lambda image: delete_acls(image, request))
    except KafkaError as error:
        refusal = DeleteAclsFilterResult(error_code=error.code, error_message=error.message)
        return DeleteAclsResponse(filter_results=[refusal] * len(request.filters))
