"""DescribeAcls v1-3: answered with SECURITY_DISABLED, as in Kafka without an authorizer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.protocol.errors import ErrorCode
from penstock.protocol.messages.api_29_describe_acls import DescribeAclsRequest, DescribeAclsResponse

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.requests.context import RequestContext

NO_AUTHORIZER = "No authorizer is configured, so there are no ACLs: every client is allowed every operation."


def handle(broker: Broker, ctx: RequestContext, request: DescribeAclsRequest) -> DescribeAclsResponse:
    return DescribeAclsResponse(error_code=ErrorCode.SECURITY_DISABLED, error_message=NO_AUTHORIZER)
