"""DescribeDelegationToken v1-3: lists the delegation tokens that the client may see.

The client may see a token if it is the token's owner, requester or renewer. With an authorizer, it may also see a token
if it has DESCRIBE on the token, or DESCRIBE_TOKENS on the token's owner. An empty list of owners selects no token, null
selects all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.handlers.token_calls import token_rules
from penstock.metadata.controller.tokens import may_use, users_of
from penstock.protocol.errors import ErrorCode
from penstock.protocol.messages.api_41_describe_delegation_token import (
    DescribedDelegationToken,
    DescribedDelegationTokenRenewer,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
)
from penstock.security.delegation_tokens import token_hmac
from penstock.security.vocabulary import AclResource, Operation

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.requests.context import RequestContext
    from penstock.metadata.image import TokenImage


#: Tokens that are looked at in one pass of the event loop.
SLICE_TOKENS = 1_000


async def handle(
    broker: Broker, ctx: RequestContext, request: DescribeDelegationTokenRequest
) -> DescribeDelegationTokenResponse:
    secret = token_rules(broker.settings).secret
    if not secret:
        return DescribeDelegationTokenResponse(error_code=ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED)
    owners = None
    if request.owners is not None:
        owners = {f"{owner.principal_type}:{owner.principal_name}" for owner in request.owners}
    described = []
    for number, (token_id, token) in enumerate(broker.metadata.image.delegation_tokens.items(), 1):
        if (owners is None or not owners.isdisjoint(users_of(token))) and _sees(broker, ctx, token_id, token):
            described.append(_described(secret, token_id, token))
        if not number % SLICE_TOKENS:
            await broker.slices.turn()
    return DescribeDelegationTokenResponse(tokens=described)


def _sees(broker: Broker, ctx: RequestContext, token_id: str, token: TokenImage) -> bool:
    if may_use(token, ctx.principal):
        return True
    access = broker.access
    return access is None or (
        access.sees(ctx, Operation.DESCRIBE, AclResource.DELEGATION_TOKEN, token_id)
        or access.sees(ctx, Operation.DESCRIBE_TOKENS, AclResource.USER, token.owner)
    )


def _described(secret: str, token_id: str, token: TokenImage) -> DescribedDelegationToken:
    owner_type, _, owner_name = token.owner.partition(":")
    requester_type, _, requester_name = token.requester.partition(":")
    return DescribedDelegationToken(
        principal_type=owner_type,
        principal_name=owner_name,
        token_requester_principal_type=requester_type,
        token_requester_principal_name=requester_name,
        issue_timestamp=token.issue_timestamp,
        expiry_timestamp=token.expiration_timestamp,
        max_timestamp=token.max_timestamp,
        token_id=token_id,
        hmac=token_hmac(secret, token_id),
        renewers=[
            DescribedDelegationTokenRenewer(principal_type=kind, principal_name=name)
            for kind, _, name in (each.partition(":") for each in token.renewers)
        ],
    )
