"""Tests the controller's decisions on delegation tokens without a node."""

from random import Random

import pytest

from penstock.metadata.apply import apply
from penstock.metadata.controller import tokens
from penstock.metadata.controller.tokens import (
    MAX_RENEWERS,
    TOKENS_SINCE,
    TokenRules,
    create_token,
    expire_token,
    remove_expired,
    renew_token,
)
from penstock.metadata.image import METADATA_VERSION, MetadataImage, TokenImage
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_38_create_delegation_token import (
    CreatableRenewers,
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
)
from penstock.protocol.messages.api_39_renew_delegation_token import RenewDelegationTokenRequest
from penstock.protocol.messages.api_40_expire_delegation_token import ExpireDelegationTokenRequest
from penstock.security.delegation_tokens import TokenMacs

NOW = 1_000_000
LIFETIME, EXPIRY = 10_000, 1_000
RULES = TokenRules("secret", LIFETIME, EXPIRY)
EMPTY = MetadataImage(features={METADATA_VERSION: TOKENS_SINCE})


def created(
    image: MetadataImage = EMPTY,
    *,
    rules: TokenRules = RULES,
    requester: str = "User:ann",
    renewers: tuple[str, ...] = (),
    renewer_type: str = "User",
    owner: tuple[str, str] | None = None,
    lifetime_ms: int = -1,
    now_ms: int = NOW,
) -> tuple[CreateDelegationTokenResponse, MetadataImage]:
    request = CreateDelegationTokenRequest(
        owner_principal_type=owner[0] if owner else None,
        owner_principal_name=owner[1] if owner else None,
        renewers=[CreatableRenewers(principal_type=renewer_type, principal_name=name) for name in renewers],
        max_lifetime_ms=lifetime_ms,
    )
    seed = Random(len(image.delegation_tokens))
    decision = create_token(image, request, rules, requester, now_ms, seed)
    return decision.reply, apply(image, decision.records)


def renewed(image: MetadataImage, mac: bytes, period_ms: int, now_ms: int, requester: str = "User:ann") -> int:
    """Renews the token. Returns its new expiry time, which must be the same in the response and in the image."""
    request = RenewDelegationTokenRequest(hmac=mac, renew_period_ms=period_ms)
    decision = renew_token(image, request, RULES, requester, now_ms, TokenMacs(RULES.secret))
    [token] = apply(image, decision.records).delegation_tokens.values()
    assert decision.reply.expiry_timestamp_ms == token.expiration_timestamp
    return token.expiration_timestamp


def expired(
    image: MetadataImage, mac: bytes, period_ms: int, now_ms: int, requester: str = "User:ann"
) -> tuple[int, MetadataImage]:
    request = ExpireDelegationTokenRequest(hmac=mac, expiry_time_period_ms=period_ms)
    decision = expire_token(image, request, RULES, requester, now_ms, TokenMacs(RULES.secret))
    return decision.reply.expiry_timestamp_ms, apply(image, decision.records)


def test_new_token_belongs_to_its_requester_and_expires_before_its_maximum_lifetime() -> None:
    answer, image = created(renewers=("bob",))
    assert list(image.delegation_tokens.values()) == [
        TokenImage("User:ann", "User:ann", ("User:bob",), NOW, NOW + LIFETIME, NOW + EXPIRY)
    ]
    assert (answer.issue_timestamp_ms, answer.expiry_timestamp_ms, answer.max_timestamp_ms) == (
        NOW,
        NOW + EXPIRY,
        NOW + LIFETIME,
    )


def test_token_requested_for_another_user_is_stored_with_its_owner_and_its_requester() -> None:
    answer, image = created(owner=("User", "bob"))
    assert (answer.principal_name, answer.token_requester_principal_name) == ("bob", "ann")
    [token] = image.delegation_tokens.values()
    assert (token.owner, token.requester) == ("User:bob", "User:ann")


@pytest.mark.parametrize(
    ("asked_ms", "lifetime_ms", "expiry_ms"),
    [
        (-1, LIFETIME, EXPIRY),
        (0, LIFETIME, EXPIRY),
        (1, 1, 1),
        (EXPIRY - 1, EXPIRY - 1, EXPIRY - 1),
        (EXPIRY + 1, EXPIRY + 1, EXPIRY),
        (LIFETIME + 1, LIFETIME, EXPIRY),
    ],
)
def test_lifetime_of_a_token_is_bounded_by_the_settings(asked_ms: int, lifetime_ms: int, expiry_ms: int) -> None:
    answer, _ = created(lifetime_ms=asked_ms)
    assert (answer.max_timestamp_ms - NOW, answer.expiry_timestamp_ms - NOW) == (lifetime_ms, expiry_ms)


def refusal(**fields: object) -> ErrorCode:
    with pytest.raises(KafkaError) as refused:
        created(**fields)  # type: ignore[arg-type]
    return refused.value.code


def test_token_creation_is_refused_without_a_secret_key_or_for_a_principal_that_is_not_a_user() -> None:
    old = MetadataImage(features={METADATA_VERSION: TOKENS_SINCE - 1})
    assert refusal(rules=RULES._replace(secret=None)) is ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
    assert refusal(image=old) is ErrorCode.UNSUPPORTED_VERSION
    assert refusal(renewers=("bob",), renewer_type="Group") is ErrorCode.INVALID_PRINCIPAL_TYPE
    assert refusal(owner=("Group", "bob")) is ErrorCode.INVALID_PRINCIPAL_TYPE


def test_number_of_renewers_of_a_token_is_limited() -> None:
    names = tuple(f"u{number}" for number in range(MAX_RENEWERS + 1))
    assert created(renewers=names[1:])[0].error_code == 0
    assert refusal(renewers=names) is ErrorCode.POLICY_VIOLATION


def test_number_of_tokens_of_an_owner_and_of_the_cluster_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "MAX_TOKENS_PER_OWNER", 2)
    monkeypatch.setattr(tokens, "MAX_TOKENS", 3)
    image = created(created()[1])[1]
    assert refusal(image=image) is ErrorCode.POLICY_VIOLATION
    image = created(image, requester="User:bob")[1]
    assert refusal(image=image, requester="User:cid") is ErrorCode.POLICY_VIOLATION


def test_renewal_extends_a_token_up_to_its_maximum_lifetime() -> None:
    answer, image = created()
    mac = answer.hmac
    assert renewed(image, mac, -1, NOW + 500) == NOW + 500 + EXPIRY
    assert renewed(image, mac, 0, NOW + 500) == NOW + 500
    assert renewed(image, mac, 5_000, NOW + 500) == NOW + 5_500
    assert renewed(image, mac, LIFETIME, NOW + 500) == NOW + LIFETIME


def test_only_the_owner_the_requester_and_the_renewers_may_renew_or_expire_a_token() -> None:
    answer, image = created(owner=("User", "bob"), renewers=("cid", "dan"))
    for user in ("User:ann", "User:bob", "User:cid", "User:dan"):
        assert renewed(image, answer.hmac, -1, NOW, user) == NOW + EXPIRY
        assert expired(image, answer.hmac, 1, NOW, user)[0] == NOW + 1
    for act in (renewed, expired):
        with pytest.raises(KafkaError) as refused:
            act(image, answer.hmac, 1, NOW, "User:eve")
        assert refused.value.code is ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH


def test_renewal_of_an_unknown_or_an_expired_token_is_refused() -> None:
    answer, image = created()
    for act in (renewed, expired):
        with pytest.raises(KafkaError) as refused:
            act(image, b"unknown", 1, NOW)
        assert refused.value.code is ErrorCode.DELEGATION_TOKEN_NOT_FOUND
        act(image, answer.hmac, 1, NOW + EXPIRY)
        with pytest.raises(KafkaError) as refused:
            act(image, answer.hmac, 1, NOW + EXPIRY + 1)
        assert refused.value.code is ErrorCode.DELEGATION_TOKEN_EXPIRED
    at, left = expired(image, answer.hmac, -1, NOW + EXPIRY + 1)
    assert (at, dict(left.delegation_tokens)) == (NOW + EXPIRY + 1, {})


def test_expiry_time_of_a_token_can_be_set_up_to_its_maximum_lifetime() -> None:
    answer, image = created()
    for period_ms, expected in ((0, NOW), (5_000, NOW + 5_000), (LIFETIME + 1, NOW + LIFETIME)):
        at, changed = expired(image, answer.hmac, period_ms, NOW)
        assert at == expected == changed.delegation_tokens[answer.token_id].expiration_timestamp


def test_one_controller_decision_removes_all_expired_tokens_and_keeps_valid_tokens() -> None:
    image = created(created()[1], lifetime_ms=EXPIRY // 2)[1]
    image = created(image, now_ms=NOW + 1)[1]
    assert remove_expired(image, NOW + EXPIRY // 2).reply == 0
    assert remove_expired(image, NOW + EXPIRY // 2 + 1).reply == 1
    decision = remove_expired(image, NOW + EXPIRY + 1)
    assert decision.reply == 2
    assert [each.issue_timestamp for each in apply(image, decision.records).delegation_tokens.values()] == [NOW + 1]
