"""CreateAcls v1-3: creates ACLs, with a result for each ACL.

Without an authorizer every result is SECURITY_DISABLED.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.handlers.api_29_describe_acls import NO_AUTHORIZER
from penstock.metadata.controller.acls import create_acls
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_30_create_acls import AclCreationResult, CreateAclsRequest, CreateAclsResponse

if TYPE_CHECKING:
    from penstock.broker.controlplane.controller_parts import ControllerParts
    from penstock.broker.requests.context import RequestContext


async def handle(broker: ControllerParts, ctx: RequestContext, request: CreateAclsRequest) -> CreateAclsResponse:
    if broker.access is None:
        refusal = AclCreationResult(error_code=ErrorCode.SECURITY_DISABLED, error_message=NO_AUTHORIZER)
        return CreateAclsResponse(results=[refusal] * len(request.creations))
    try:
        return await broker.metadata.submit(lambda image: create_acls(image, request, broker.random))
    except KafkaError as error:
        refusal = AclCreationResult(error_code=error.code, error_message=error.message)
        return CreateAclsResponse(results=[refusal] * len(request.creations))
