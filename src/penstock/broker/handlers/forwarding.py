"""Forwards requests that only the active controller can handle: clients may send them to any broker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.broker.requests.error_replies import merge
from penstock.metadata.controller.configs import own_refusal
from penstock.net.later import Later, settled
from penstock.protocol.vocabulary import ResourceType

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.handlers.registry import Handler
    from penstock.broker.requests.context import RequestContext

INCREMENTAL_ALTER_CONFIGS = 44
#: CreateTopics, DeleteTopics, AlterConfigs, CreatePartitions, ElectLeaders, IncrementalAlterConfigs,
#: AlterPartitionReassignments, ListPartitionReassignments, AlterClientQuotas, AlterUserScramCredentials, CreateAcls,
#: DeleteAcls, CreateDelegationToken, RenewDelegationToken, ExpireDelegationToken, DescribeQuorum, UpdateFeatures,
#: UnregisterBroker, AddRaftVoter, RemoveRaftVoter.
CONTROLLER_APIS = frozenset({19, 20, 30, 31, 33, 37, 38, 39, 40, 43, 44, 45, 46, 49, 51, 55, 57, 64, 80, 81})


def by_the_controller(handler: Handler) -> Handler:
    """Returns a handler that calls `handler` on the active controller, and forwards the request on other nodes."""

    def handle(broker: Broker, ctx: RequestContext, request: Any) -> Any:
        if broker.metadata.leading:
            return handler(broker, ctx, request)
        if ctx.api_key == INCREMENTAL_ALTER_CONFIGS:
            return Later(_forward_configs(handler, broker, ctx, request))
        return Later(broker.channel.forward(ctx, request))

    return handle


async def _forward_configs(handler: Handler, broker: Broker, ctx: RequestContext, request: Any) -> Any:
    """Forwards config changes to the active controller.

    This node itself handles changes of its log levels, and refuses invalid settings of this broker.
    """
    is_own = [
        resource.resource_type == ResourceType.BROKER_LOGGER or own_refusal(resource, broker.settings) is not None
        for resource in request.resources
    ]
    if not any(is_own):
        return await broker.channel.forward(ctx, request)
    everything = request.resources
    request.resources = [resource for resource, here in zip(everything, is_own) if here]
    response = await settled(handler(broker, ctx, request))
    if not all(is_own):
        request.resources = [resource for resource, here in zip(everything, is_own) if not here]
        response = merge(response, await broker.channel.forward(ctx, request), ctx.api_version)
    return response
