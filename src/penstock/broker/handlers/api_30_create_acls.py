"""CreateAcls v1-3: answers SECURITY_DISABLED for each ACL, as Kafka does without an authorizer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.handlers.api_29_describe_acls import NO_AUTHORIZER
from penstock.protocol.errors import ErrorCode
from penstock.protocol.messages.api_30_create_acls import AclCreationResult, CreateAclsRequest, CreateAclsResponse

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.requests.context import RequestContext


def handle(broker: Broker, ctx: RequestContext, request: CreateAclsRequest) -> CreateAclsResponse:
    refusal = AclCreationResult(error_code=ErrorCode.SECURITY_DISABLED, error_message=NO_AUTHORIZER)
    return CreateAclsResponse(results=[refusal] * len(request.creations))
