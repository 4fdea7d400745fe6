"""ListGroups v0-5: lists the groups that this node coordinates, filtered by state since v4 and by type since v5.

A long list of groups is built in several passes of the event loop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.broker.requests.encoded_responses import SMALL_ITEMS, Encoded, encoded_aside
from penstock.broker.requests.steps import Steps, run_steps
from penstock.groups import admin
from penstock.protocol.errors import KafkaError
from penstock.protocol.messages.api_16_list_groups import ListGroupsRequest, ListGroupsResponse
from penstock.security.vocabulary import CLUSTER_NAME, AclResource, Operation

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.requests.access_control import AccessControl
    from penstock.broker.requests.context import RequestContext
    from penstock.net.later import Later


GROUPS_PER_STEP = 20


def handle(
    broker: Broker, ctx: RequestContext, request: ListGroupsRequest
) -> ListGroupsResponse | Encoded | Later[ListGroupsResponse | Encoded]:
    return run_steps(_steps(broker, ctx, request))


def _steps(broker: Broker, ctx: RequestContext, request: ListGroupsRequest) -> Steps[ListGroupsResponse | Encoded]:
    states = frozenset(state.lower().strip() for state in request.states_filter)
    types = frozenset(kind.lower() for kind in request.types_filter)
    response = ListGroupsResponse()
    visible = _visibility(broker.access, ctx)
    for coordinator in list(broker.groups.coordinators()):
        try:
            groups = list(coordinator.active().groups.values())
        except KafkaError as error:
            return ListGroupsResponse(error_code=error.code)
        for start in range(0, len(groups), GROUPS_PER_STEP):
            some = groups[start : start + GROUPS_PER_STEP]
            response.groups += admin.list_groups([group for group in some if visible(group.group_id)], states, types)
            yield None
    if len(response.groups) <= SMALL_ITEMS:
        return response
    encoded: Encoded = yield encoded_aside(broker.logs.environment.disk, response, ctx.api_version)
    return encoded


def _visibility(access: AccessControl | None, ctx: RequestContext) -> Callable[[str], bool]:
    """Returns a function that takes a group id and returns True if the client may describe the group."""
    if access is None or access.sees(ctx, Operation.DESCRIBE, AclResource.CLUSTER, CLUSTER_NAME):
        return lambda _: True
    return lambda group_id: access.sees(ctx, Operation.DESCRIBE, AclResource.GROUP, group_id)
