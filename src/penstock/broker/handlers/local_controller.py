"""Answers requests to the active controller on the same node, without a connection."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from penstock.broker.handlers.access import guarded
from penstock.broker.handlers.registry import load_handler
from penstock.broker.requests.context import RequestContext
from penstock.broker.requests.error_replies import error_response
from penstock.broker.requests.local_connection import LocalConnection
from penstock.net.later import settled
from penstock.protocol.apis import APIS
from penstock.protocol.errors import KafkaError

if TYPE_CHECKING:
    from random import Random

    from penstock.broker.controlplane.controller import Controller
    from penstock.broker.controlplane.metadata_log import MetadataLog
    from penstock.broker.limits.quotas import Quotas
    from penstock.broker.requests.access_control import AccessControl
    from penstock.clock import Clock
    from penstock.metadata.configs.settings import Settings
    from penstock.protocol.schema import Message
    from penstock.security.delegation_tokens import TokenMacs


@dataclass(frozen=True, slots=True)
class LocalController:
    """Calls the handlers of the active controller on this node.

    These handlers get this object, which has the fields of `ControllerParts`, instead of the whole `Broker`.
    """

    node_id: int
    cluster_id: str
    settings: Settings
    clock: Clock
    random: Random
    metadata: MetadataLog
    controller: Controller
    connection: LocalConnection
    quotas: Quotas
    #: Quotas without limits, for requests of this node itself.
    unlimited: Quotas
    token_macs: TokenMacs
    access: AccessControl | None = None

    async def answer(self, request: Message) -> Any:
        """Returns the response to a request that this node itself sends. A refusal is a response with an error code."""
        api_key, version = request.API_KEY, APIS[request.API_KEY].latest_stable
        ctx = RequestContext(api_key, version, 0, f"node-{self.node_id}", self.connection, self.clock.wall_ms())
        try:
            own = replace(self, quotas=self.unlimited)
            return await settled(load_handler(ctx.api_key)(own, ctx, request))
        except KafkaError as error:
            return error_response(api_key, version, request, error.code, error.message)

    async def answer_client(self, ctx: RequestContext, request: Message) -> Any:
        """Returns the response to a request that a client sent to this node. Raises the handler's KafkaError."""
        handler = guarded(load_handler(ctx.api_key), ctx.api_key, self.access)
        return await settled(handler(self, ctx, request))
