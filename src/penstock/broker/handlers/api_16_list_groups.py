"""ListGroups v0-5: what the coordinators of this node know, filtered by state since v4 and by type since v5."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.groups import admin
from penstock.protocol.errors import KafkaError
from penstock.protocol.messages.api_16_list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.context import RequestContext


def handle(broker: Broker, ctx: RequestContext, request: ListGroupsRequest) -> ListGroupsResponse:
    states = frozenset(state.lower() for state in request.states_filter)
    types = frozenset(kind.lower() for kind in request.types_filter)
    groups: list[ListedGroup] = []
    try:
        for coordinator in broker.groups.coordinators():
            groups += admin.list_groups(coordinator.active(), states, types)
    except KafkaError as error:
        return ListGroupsResponse(error_code=error.code)
    return ListGroupsResponse(groups=groups)
