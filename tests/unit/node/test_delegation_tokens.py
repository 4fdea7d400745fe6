"""Tests delegation tokens on a running node: creation, login, renewal, expiry, listing, and refused requests."""

from __future__ import annotations

import asyncio
import base64
import random
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from penstock.broker.dispatch.large_requests import WIDEST
from penstock.client.client_security import credentials_of
from penstock.client.connection import BrokerConnection, ConnectionSettings
from penstock.client.login import Login
from penstock.disk.memory import MemoryDisk
from penstock.metadata.controller.tokens import (
    MAX_TOKENS_PER_OWNER,
    TokenRules,
    create_token,
    expire_token,
    may_use,
    remove_expired,
    renew_token,
    users_of,
)
from penstock.metadata.image import MetadataImage, TokenImage
from penstock.net.network import RealNetwork
from penstock.node.local import format_if_new, local_settings, make_node
from penstock.node.node import Node
from penstock.node.token_users import TokenUsers
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages import api_30_create_acls as acls
from penstock.protocol.messages import api_38_create_delegation_token as create
from penstock.protocol.messages import api_39_renew_delegation_token as renew
from penstock.protocol.messages import api_40_expire_delegation_token as expire
from penstock.protocol.messages import api_41_describe_delegation_token as describe
from penstock.protocol.messages.api_03_metadata import MetadataRequest
from penstock.security import delegation_tokens
from penstock.security.delegation_tokens import TokenMacs, token_hmac
from penstock.security.scram import ScramMechanism

JAAS = 'x required username="admin" password="a" user_admin="a" user_ann="b" user_bob="c";'
SECURED = {
    "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
    "inter.broker.listener.name": "SASL_PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
    "sasl.mechanism.inter.broker.protocol": "PLAIN",
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": JAAS,
    "connection.failed.authentication.delay.ms": "0",
    "delegation.token.secret.key": "cluster-secret",
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:admin",
}
RULES = TokenRules("cluster-secret", 7_000, 1_000)
IMAGE = MetadataImage(features={"metadata.version": 25})


def with_node(scenario: Callable[[Node, int], Awaitable[None]], **changes: str) -> None:
    async def main() -> None:
        own = {**SECURED, **{name.replace("_", "."): value for name, value in changes.items()}}
        settings = local_settings("/data", port=0, overrides={name: value for name, value in own.items() if value})
        node = make_node(settings, MemoryDisk(), seed=1)
        format_if_new(node)
        await node.start()
        try:
            await scenario(node, int(node.bootstrap.rpartition(":")[2]))
        finally:
            await node.stop(0.1)

    asyncio.run(asyncio.wait_for(main(), 120))


async def connect(port: int, login: Any) -> BrokerConnection:
    return await BrokerConnection.open(RealNetwork(), "127.0.0.1", port, ConnectionSettings(login=login))


def creation(owner: str | None = None, *renewers: str, **fields: Any) -> create.CreateDelegationTokenRequest:
    return create.CreateDelegationTokenRequest(
        owner_principal_type="User" if owner else None,
        owner_principal_name=owner,
        renewers=[create.CreatableRenewers(principal_type="User", principal_name=name) for name in renewers],
        **{"max_lifetime_ms": -1, **fields},
    )


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_client_that_logs_in_with_a_token_has_the_principal_of_the_token_owner(mechanism: str) -> None:
    async def scenario(node: Node, port: int) -> None:
        ann = await connect(port, Login("PLAIN", "ann", "b"))
        made = await ann.request(creation())
        assert (made.error_code, made.principal_name) == (0, "ann")
        line = f'x required username="{made.token_id}" password="{base64.b64encode(made.hmac).decode()}"'
        properties = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": mechanism}
        login = credentials_of({**properties, "sasl.jaas.config": f'{line} tokenauth="true";'}).login
        job = await connect(port, login)
        (_, second) = sorted(node._server.connections.values(), key=lambda one: one.id)
        assert second.principal == "User:ann"
        assert (await job.request(MetadataRequest(topics=[]))).brokers
        for refused in (creation(), describe.DescribeDelegationTokenRequest(owners=None)):
            assert (await job.request(refused)).error_code == ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
        for wrong in (
            Login(mechanism, made.token_id, "wrong", token=True),
            Login(mechanism, made.token_id, base64.b64encode(made.hmac).decode()),
            Login(mechanism, "ann", base64.b64encode(made.hmac).decode(), token=True),
        ):
            with pytest.raises(KafkaError, match="Invalid credentials"):
                await connect(port, wrong)
        ended = await ann.request(expire.ExpireDelegationTokenRequest(hmac=made.hmac, expiry_time_period_ms=-1))
        assert ended.error_code == 0
        with pytest.raises(KafkaError, match="Invalid credentials"):
            await connect(port, login)

    with_node(scenario)


def test_delegation_tokens_are_described_to_their_owner_and_to_users_with_an_acl() -> None:
    async def scenario(node: Node, port: int) -> None:
        ann, bob = await connect(port, Login("PLAIN", "ann", "b")), await connect(port, Login("PLAIN", "bob", "c"))
        admin = await connect(port, Login("PLAIN", "admin", "a"))

        async def seen(peer: BrokerConnection, owners: list[str] | None = None) -> list[str]:
            named = None
            if owners is not None:
                kind = describe.DescribeDelegationTokenOwner
                named = [kind(principal_type="User", principal_name=name) for name in owners]
            answer = await peer.request(describe.DescribeDelegationTokenRequest(owners=named))
            assert answer.error_code == 0
            return [token.principal_name for token in answer.tokens]

        await ann.request(creation())
        assert (await seen(ann), await seen(bob), await seen(admin)) == (["ann"], [], ["ann"])
        assert (await seen(ann, []), await seen(ann, ["bob"]), await seen(ann, ["ann"])) == ([], [], ["ann"])
        denied = await bob.request(creation("ann"))
        assert denied.error_code == ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED
        for operation in (13, 14):  # CREATE_TOKENS, DESCRIBE_TOKENS
            acl = acls.AclCreation(
                resource_type=7,
                resource_name="User:ann",
                resource_pattern_type=3,
                principal="User:bob",
                host="*",
                operation=operation,
                permission_type=3,
            )
            await admin.request(acls.CreateAclsRequest(creations=[acl]))
        made = await bob.request(creation("ann"))
        assert (made.principal_name, made.token_requester_principal_name) == ("ann", "bob")
        assert await seen(bob) == ["ann", "ann"]

    with_node(scenario)


def test_client_with_describe_permission_on_one_token_sees_only_that_token() -> None:
    async def scenario(node: Node, port: int) -> None:
        ann, bob = await connect(port, Login("PLAIN", "ann", "b")), await connect(port, Login("PLAIN", "bob", "c"))
        admin = await connect(port, Login("PLAIN", "admin", "a"))
        shown, _ = await ann.request(creation()), await ann.request(creation())
        acl = acls.AclCreation(
            resource_type=6,
            resource_name=shown.token_id,
            resource_pattern_type=3,
            principal="User:bob",
            host="*",
            operation=8,
            permission_type=3,
        )
        assert (await admin.request(acls.CreateAclsRequest(creations=[acl]))).results[0].error_code == 0
        answer = await bob.request(describe.DescribeDelegationTokenRequest(owners=None))
        assert [token.token_id for token in answer.tokens] == [shown.token_id]

    with_node(scenario)


def test_describing_tokens_of_many_owners_checks_the_permission_for_each_token_once() -> None:
    async def scenario(node: Node, port: int) -> None:
        ann = await connect(port, Login("PLAIN", "ann", "b"))
        for _ in range(100):
            await ann.request(creation())
        kind = describe.DescribeDelegationTokenOwner
        owners = [kind(principal_type="User", principal_name=f"u{number}") for number in range(WIDEST)]
        owners[-1] = kind(principal_type="User", principal_name="ann")
        compared = 0

        def count(frame: Any, event: str, arg: Any) -> None:
            nonlocal compared
            compared += event == "call" and frame.f_code in (may_use.__code__, users_of.__code__)

        sys.setprofile(count)
        try:
            answer = await ann.request(describe.DescribeDelegationTokenRequest(owners=owners))
        finally:
            sys.setprofile(None)
        assert (answer.error_code, len(answer.tokens)) == (0, 100)
        assert compared <= 300
        more = [*owners, kind(principal_type="User", principal_name="one more")]
        refused = await ann.request(describe.DescribeDelegationTokenRequest(owners=more))
        assert (refused.error_code, refused.tokens) == (ErrorCode.INVALID_REQUEST, [])

    with_node(scenario)


def test_delegation_tokens_are_disabled_if_no_secret_key_is_set() -> None:
    async def scenario(node: Node, port: int) -> None:
        ann = await connect(port, Login("PLAIN", "ann", "b"))
        for request in (creation(), describe.DescribeDelegationTokenRequest(owners=None)):
            assert (await ann.request(request)).error_code == ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED

    with_node(scenario, delegation_token_secret_key="")


# --- decisions --------------------------------------------------------------------------------------


def with_token(**changes: Any) -> tuple[MetadataImage, bytes]:
    token = TokenImage("User:ann", "User:ann", ("User:carl",), 0, 7_000, 1_000)
    image = replace(IMAGE, delegation_tokens={"id": replace(token, **changes)})
    return image, token_hmac("cluster-secret", "id")


def macs() -> TokenMacs:
    return TokenMacs("cluster-secret")


def test_one_owner_may_have_only_a_limited_number_of_delegation_tokens() -> None:
    image, _ = with_token()
    token = image.delegation_tokens["id"]
    many = {str(number): token for number in range(MAX_TOKENS_PER_OWNER)}
    image, dice = replace(image, delegation_tokens=many), random.Random(1)
    with pytest.raises(KafkaError, match="User:ann has 1000 delegation tokens") as refused:
        create_token(image, creation(), RULES, "User:ann", 0, dice)
    assert refused.value.code is ErrorCode.POLICY_VIOLATION
    assert create_token(image, creation(), RULES, "User:bob", 0, dice).records
    del many["0"]
    assert create_token(image, creation(), RULES, "User:ann", 0, dice).records


def test_search_for_a_delegation_token_by_hmac_computes_the_hmac_of_each_token_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    computed: list[str] = []

    def counted(secret: str, token_id: str) -> bytes:
        computed.append(token_id)
        return token_hmac(secret, token_id)

    monkeypatch.setattr(delegation_tokens, "token_hmac", counted)
    index, tokens = macs(), {str(number): object() for number in range(100)}
    for _ in range(3):
        assert index.find(tokens, token_hmac("cluster-secret", "7")) == "7"
        assert index.find(tokens, b"unknown") is None
    assert len(computed) == 100
    index.update({**tokens, "new": object()})
    assert index.find({**tokens, "new": object()}, token_hmac("cluster-secret", "new")) == "new"
    assert computed[100:] == ["new"]
    assert index.find(tokens, token_hmac("cluster-secret", "new")) is None
    index.update({"7": object()})
    assert index.find(tokens, token_hmac("cluster-secret", "8")) == "8"
    assert TokenMacs(None).find(tokens, token_hmac("cluster-secret", "7")) is None


def test_lifetime_of_a_delegation_token_is_limited_by_the_settings() -> None:
    dice = random.Random(1)
    for asked, most, until in ((-1, 7_000, 1_000), (500, 500, 500), (90_000, 7_000, 1_000)):
        made = create_token(IMAGE, creation(max_lifetime_ms=asked), RULES, "User:ann", 0, dice)
        assert (made.reply.max_timestamp_ms, made.reply.expiry_timestamp_ms) == (most, until)


@pytest.mark.parametrize("principal", ["User:ann", "User:carl"])
def test_delegation_token_can_be_renewed_up_to_its_maximum_lifetime(principal: str) -> None:
    image, mac = with_token()
    for period, until in ((-1, 1_900), (3_000, 3_900), (90_000, 7_000)):
        request = renew.RenewDelegationTokenRequest(hmac=mac, renew_period_ms=period)
        decided = renew_token(image, request, RULES, principal, 900, macs())
        assert decided.reply.expiry_timestamp_ms == until
        assert decided.records[0].expiration_timestamp == until


def test_expiry_time_of_a_delegation_token_can_be_set_up_to_its_maximum_lifetime() -> None:
    image, mac = with_token()
    for period, until in ((0, 900), (3_000, 3_900), (90_000, 7_000)):
        request = expire.ExpireDelegationTokenRequest(hmac=mac, expiry_time_period_ms=period)
        decided = expire_token(image, request, RULES, "User:ann", 900, macs())
        assert decided.reply.expiry_timestamp_ms == until


@pytest.mark.parametrize(
    ("mac", "principal", "now_ms", "code"),
    [
        (b"wrong", "User:ann", 0, ErrorCode.DELEGATION_TOKEN_NOT_FOUND),
        (None, "User:bob", 0, ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH),
        (None, "User:carla", 0, ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH),
        (None, "User:anna", 0, ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH),
        (None, "User:ann", 1_001, ErrorCode.DELEGATION_TOKEN_EXPIRED),
    ],
)
def test_renewing_and_expiring_a_token_is_refused_for_other_users_and_for_expired_tokens(
    mac: bytes | None, principal: str, now_ms: int, code: ErrorCode
) -> None:
    image, right = with_token()
    with pytest.raises(KafkaError) as refused:
        renew_token(image, renew.RenewDelegationTokenRequest(hmac=mac or right), RULES, principal, now_ms, macs())
    assert refused.value.code is code
    with pytest.raises(KafkaError) as refused:
        expire_token(image, expire.ExpireDelegationTokenRequest(hmac=mac or right), RULES, principal, now_ms, macs())
    assert refused.value.code is code


def test_login_with_a_token_is_refused_after_its_expiry_even_within_its_maximum_lifetime() -> None:
    image, _ = with_token()
    now_ms = [0]
    users = TokenUsers("cluster-secret", lambda: image.delegation_tokens, lambda: now_ms[0])
    for now_ms[0], found in ((999, True), (1_000, False), (6_999, False)):
        token = users.find(ScramMechanism.SHA_256, "id")
        assert (token is not None) is found
        assert token is None or token.expires_ms == 1_000


def test_controller_removes_expired_delegation_tokens() -> None:
    image, _ = with_token()
    assert remove_expired(image, 1_000).records == []
    (record,) = remove_expired(image, 1_001).records
    assert record.token_id == "id"


def test_token_creation_with_a_renewer_that_is_not_a_user_is_refused() -> None:
    request = creation()
    request.renewers = [create.CreatableRenewers(principal_type="Group", principal_name="x")]
    with pytest.raises(KafkaError) as refused:
        create_token(IMAGE, request, RULES, "User:ann", 0, random.Random(1))
    assert refused.value.code is ErrorCode.INVALID_PRINCIPAL_TYPE
