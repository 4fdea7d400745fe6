"""LeaveGroup v0-5: removes a member from its group; since v3 several members, by member or instance id."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.handlers.group_calls import finish, unchanged
from penstock.groups import membership
from penstock.protocol.errors import ErrorCode
from penstock.protocol.messages.api_13_leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.requests.context import RequestContext
    from penstock.net.later import Later

BATCHED_SINCE = 3


def handle(
    broker: Broker, ctx: RequestContext, request: LeaveGroupRequest
) -> LeaveGroupResponse | Later[LeaveGroupResponse]:
    batched = ctx.api_version >= BATCHED_SINCE
    members = request.members if batched else [MemberIdentity(member_id=request.member_id)]
    coordinator = broker.groups.coordinator(request.group_id)
    result = coordinator.run(lambda shard, turn: membership.leave(shard, turn, request.group_id, members))
    return finish(result, unchanged if batched else _single)


def _single(response: LeaveGroupResponse) -> LeaveGroupResponse:
    """Returns the response for versions before 3: the member's error code is at the top level."""
    code = response.error_code
    if code == ErrorCode.NONE and response.members:
        code = response.members[0].error_code
    return LeaveGroupResponse(error_code=code)
