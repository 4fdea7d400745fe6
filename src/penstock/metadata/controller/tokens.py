"""Decides requests for delegation tokens (APIs 38 to 40), and removes expired tokens.

Three kinds of principals may renew and expire a token: its owner, the requester that created it, and its renewers.
Principals are strings such as `User:ann`, as Kafka stores them.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import NamedTuple

from penstock.metadata.decision import MAX_RECORDS_PER_REQUEST, Decision
from penstock.metadata.image import METADATA_VERSION, MetadataImage, TokenImage
from penstock.metadata.names import random_uuid
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_38_create_delegation_token import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
)
from penstock.protocol.messages.api_39_renew_delegation_token import (
    RenewDelegationTokenRequest,
    RenewDelegationTokenResponse,
)
from penstock.protocol.messages.api_40_expire_delegation_token import (
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
)
from penstock.protocol.persisted.metadata.delegation_token_record import DelegationTokenRecord
from penstock.protocol.persisted.metadata.remove_delegation_token_record import RemoveDelegationTokenRecord
from penstock.protocol.uuid import uuid_to_str
from penstock.security.delegation_tokens import TokenMacs, token_hmac

USER = "User"
#: Kafka's first metadata.version with delegation tokens, 3.6-IV2.
TOKENS_SINCE = 14
#: Tokens of a cluster, tokens of one owner, and renewers of one token.
MAX_TOKENS, MAX_TOKENS_PER_OWNER, MAX_RENEWERS = 100_000, 1_000, 100


class TokenRules(NamedTuple):
    """Holds the settings of delegation tokens. Without a secret key, delegation tokens are disabled."""

    secret: str | None
    max_lifetime_ms: int
    expiry_ms: int


def may_use(token: TokenImage, principal: str) -> bool:
    """Returns True if the principal needs no ACL to describe, renew or expire the token."""
    return principal in users_of(token)


def users_of(token: TokenImage) -> tuple[str, ...]:
    return (token.owner, token.requester, *token.renewers)


def create_token(
    image: MetadataImage,
    request: CreateDelegationTokenRequest,
    rules: TokenRules,
    requester: str,
    now_ms: int,
    random: Random,
) -> Decision[CreateDelegationTokenResponse]:
    secret = _secret(rules)
    if image.features.get(METADATA_VERSION, 0) < TOKENS_SINCE:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_VERSION, "Delegation tokens need metadata.version 3.6-IV2 or later: upgrade it."
        )
    owner = owner_of(request, requester)
    _check_limits(image, owner, len(request.renewers))
    if any(each.principal_type != USER for each in request.renewers) or not owner.startswith(f"{USER}:"):
        raise KafkaError(
            ErrorCode.INVALID_PRINCIPAL_TYPE,
            f"Owner and renewers must have the principal type {USER}: write User:name.",
        )
    lifetime_ms = rules.max_lifetime_ms
    if request.max_lifetime_ms > 0:
        lifetime_ms = min(lifetime_ms, request.max_lifetime_ms)
    token_id = uuid_to_str(random_uuid(random))
    token = TokenImage(
        owner,
        requester,
        tuple(f"{USER}:{each.principal_name}" for each in request.renewers),
        now_ms,
        now_ms + lifetime_ms,
        now_ms + min(lifetime_ms, rules.expiry_ms),
    )
    owner_type, _, owner_name = owner.partition(":")
    requester_type, _, requester_name = requester.partition(":")
    response = CreateDelegationTokenResponse(
        principal_type=owner_type,
        principal_name=owner_name,
        token_requester_principal_type=requester_type,
        token_requester_principal_name=requester_name,
        issue_timestamp_ms=token.issue_timestamp,
        expiry_timestamp_ms=token.expiration_timestamp,
        max_timestamp_ms=token.max_timestamp,
        token_id=token_id,
        hmac=token_hmac(secret, token_id),
    )
    return Decision([_record(token_id, token, token.expiration_timestamp)], response)


def _check_limits(image: MetadataImage, owner: str, renewers: int) -> None:
    tokens = image.delegation_tokens
    if renewers > MAX_RENEWERS or len(tokens) >= MAX_TOKENS:
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION, "The token has too many renewers, or the cluster too many tokens: use fewer."
        )
    if sum(token.owner == owner for token in tokens.values()) >= MAX_TOKENS_PER_OWNER:
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION,
            f"{owner} has {MAX_TOKENS_PER_OWNER} delegation tokens, the maximum: expire tokens that are not needed.",
        )


def owner_of(request: CreateDelegationTokenRequest, requester: str) -> str:
    """Returns the owner that a CreateDelegationToken request names; by default the requester."""
    if not request.owner_principal_name:
        return requester
    return f"{request.owner_principal_type}:{request.owner_principal_name}"


def renew_token(
    image: MetadataImage,
    request: RenewDelegationTokenRequest,
    rules: TokenRules,
    requester: str,
    now_ms: int,
    macs: TokenMacs,
) -> Decision[RenewDelegationTokenResponse]:
    token_id, token = _found(image, bytes(request.hmac), rules, macs)
    _check_not_expired(token, now_ms)
    _check_user(token, requester)
    period_ms = rules.expiry_ms if request.renew_period_ms < 0 else request.renew_period_ms
    expiry_ms = min(token.max_timestamp, now_ms + period_ms)
    return Decision([_record(token_id, token, expiry_ms)], RenewDelegationTokenResponse(expiry_timestamp_ms=expiry_ms))


def expire_token(
    image: MetadataImage,
    request: ExpireDelegationTokenRequest,
    rules: TokenRules,
    requester: str,
    now_ms: int,
    macs: TokenMacs,
) -> Decision[ExpireDelegationTokenResponse]:
    """Sets a new expiry time of the token. With a negative period, removes the token at once."""
    token_id, token = _found(image, bytes(request.hmac), rules, macs)
    _check_user(token, requester)
    if request.expiry_time_period_ms < 0:
        removal = RemoveDelegationTokenRecord(token_id=token_id)
        return Decision([removal], ExpireDelegationTokenResponse(expiry_timestamp_ms=now_ms))
    _check_not_expired(token, now_ms)
    expiry_ms = min(token.max_timestamp, now_ms + request.expiry_time_period_ms)
    response = ExpireDelegationTokenResponse(expiry_timestamp_ms=expiry_ms)
    return Decision([_record(token_id, token, expiry_ms)], response)


def remove_expired(image: MetadataImage, now_ms: int) -> Decision[int]:
    """Removes expired tokens. The reply is their number."""
    expired = list(_expired(image, now_ms))[:MAX_RECORDS_PER_REQUEST]
    return Decision([RemoveDelegationTokenRecord(token_id=token_id) for token_id in expired], len(expired))


def _expired(image: MetadataImage, now_ms: int) -> Iterator[str]:
    for token_id, token in image.delegation_tokens.items():
        if min(token.max_timestamp, token.expiration_timestamp) < now_ms:
            yield token_id


def _secret(rules: TokenRules) -> str:
    if not rules.secret:
        raise KafkaError(
            ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED, "Set delegation.token.secret.key on all nodes to use tokens."
        )
    return rules.secret


def _found(image: MetadataImage, mac: bytes, rules: TokenRules, macs: TokenMacs) -> tuple[str, TokenImage]:
    _secret(rules)
    token_id = macs.find(image.delegation_tokens, mac)
    if token_id is None:
        raise KafkaError(
            ErrorCode.DELEGATION_TOKEN_NOT_FOUND,
            "No delegation token has this HMAC: it may have expired. Create a new token.",
        )
    return token_id, image.delegation_tokens[token_id]


def _check_user(token: TokenImage, requester: str) -> None:
    if not may_use(token, requester):
        raise KafkaError(
            ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH,
            "Only a token's owner, requester and renewers may renew or expire the token: log in as one of them.",
        )


def _check_not_expired(token: TokenImage, now_ms: int) -> None:
    if min(token.max_timestamp, token.expiration_timestamp) < now_ms:
        raise KafkaError(ErrorCode.DELEGATION_TOKEN_EXPIRED, "The delegation token has expired: create a new token.")


def _record(token_id: str, token: TokenImage, expiry_ms: int) -> DelegationTokenRecord:
    return DelegationTokenRecord(
        owner=token.owner,
        requester=token.requester,
        renewers=list(token.renewers),
        issue_timestamp=token.issue_timestamp,
        max_timestamp=token.max_timestamp,
        expiration_timestamp=expiry_ms,
        token_id=token_id,
    )
