"""DescribeAcls v1-3: returns the ACLs that match a filter, by resource.

Without an authorizer the response is SECURITY_DISABLED.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.requests.steps import Steps, run_steps
from penstock.metadata.controller.acls import described, filter_of, matching_acls
from penstock.protocol.errors import ErrorCode
from penstock.protocol.messages.api_29_describe_acls import DescribeAclsRequest, DescribeAclsResponse

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.requests.context import RequestContext
    from penstock.metadata.image import AclImage
    from penstock.net.later import Later

NO_AUTHORIZER = "No authorizer is configured, so there are no ACLs: every client is allowed every operation."
ACLS_PER_STEP = 20


def handle(
    broker: Broker, ctx: RequestContext, request: DescribeAclsRequest
) -> DescribeAclsResponse | Later[DescribeAclsResponse]:
    if broker.access is None:
        return DescribeAclsResponse(error_code=ErrorCode.SECURITY_DISABLED, error_message=NO_AUTHORIZER)
    return run_steps(_steps(broker, request))


def _steps(broker: Broker, request: DescribeAclsRequest) -> Steps[DescribeAclsResponse]:
    found: list[AclImage] = []
    for number, acl in enumerate(matching_acls(broker.metadata.image.acls.values(), filter_of(request))):
        if acl is not None:
            found.append(acl)
        if number % ACLS_PER_STEP == 0:
            yield None
    return DescribeAclsResponse(resources=described(found))
