"""Helps the handlers of delegation tokens: reads their settings, and checks which connections may request tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.broker.requests.authentication import BY_TOKEN
from penstock.broker.requests.error_replies import error_response
from penstock.metadata.controller.tokens import TokenRules
from penstock.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.handlers.registry import Handler
    from penstock.broker.requests.context import RequestContext
    from penstock.metadata.configs.settings import Settings

#: CreateDelegationToken, RenewDelegationToken, ExpireDelegationToken, DescribeDelegationToken.
TOKEN_APIS = frozenset({38, 39, 40, 41})


def token_rules(settings: Settings) -> TokenRules:
    return TokenRules(
        settings.optional_str("delegation.token.secret.key"),
        settings.int("delegation.token.max.lifetime.ms"),
        settings.int("delegation.token.expiry.time.ms"),
    )


def for_logged_in(handler: Handler) -> Handler:
    """Returns a handler that refuses clients that are not logged in, and clients that logged in with a delegation
    token.

    A client that logged in with a token could otherwise prolong its access by making new tokens.
    """

    def handle(broker: Broker, ctx: RequestContext, request: Any) -> Any:
        connection = ctx.connection
        if connection.principal is None or connection.state.get(BY_TOKEN):
            code = ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
            return error_response(ctx.api_key, ctx.api_version, request, code)
        return handler(broker, ctx, request)

    return handle
