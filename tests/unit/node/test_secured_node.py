"""Tests authentication on a running node: order of requests, tokens without a header, session ends, and deadlines."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from penstock.broker.requests import authentication
from penstock.client.connection import BrokerConnection, ConnectionSettings
from penstock.client.login import Login
from penstock.disk.memory import MemoryDisk
from penstock.metadata.configs.definition import ConfigError
from penstock.net.network import RealNetwork
from penstock.node import listener_security
from penstock.node.listeners import ListenerError
from penstock.node.local import format_if_new, local_settings, make_node
from penstock.node.node import Node
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages import api_01_fetch as fetch
from penstock.protocol.messages.api_03_metadata import MetadataRequest, MetadataRequestTopic
from penstock.protocol.messages.api_10_find_coordinator import FindCoordinatorRequest
from penstock.protocol.messages.api_11_join_group import JoinGroupRequest, JoinGroupRequestProtocol
from penstock.protocol.messages.api_17_sasl_handshake import SaslHandshakeRequest
from penstock.protocol.messages.api_18_api_versions import ApiVersionsRequest
from penstock.protocol.messages.api_19_create_topics import CreatableTopic
from penstock.protocol.messages.api_36_sasl_authenticate import SaslAuthenticateRequest
from penstock.security.plain import plain_message

USERS = 'x.PlainLoginModule required username="admin" password="a" user_admin="a" user_ann="secret" user_bob="b";'
SECURED = {
    "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
    "inter.broker.listener.name": "SASL_PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
    "sasl.mechanism.inter.broker.protocol": "PLAIN",
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": USERS,
    "connection.failed.authentication.delay.ms": "0",
}
#: The listener of SECURED is one of other nodes.
OTHERS = {"listener.security.protocol.map": "SASL_PLAINTEXT:SASL_PLAINTEXT,SSL:SSL"}
ANN = Login("PLAIN", "ann", "secret")
JOIN_GROUP = 11


def with_node(scenario: Callable[[Node, int], Awaitable[None]], **overrides: str) -> None:
    async def main() -> None:
        settings = local_settings(
            "/data", overrides={**SECURED, **{k.replace("_", "."): v for k, v in overrides.items()}}
        )
        node = make_node(settings, MemoryDisk(), seed=1)
        format_if_new(node)
        await node.start()
        try:
            await scenario(node, int(node.bootstrap.rpartition(":")[2]))
        finally:
            await node.stop()

    asyncio.run(asyncio.wait_for(main(), 120))


async def connect(port: int, login: Login | None = None) -> BrokerConnection:
    return await BrokerConnection.open(RealNetwork(), "127.0.0.1", port, ConnectionSettings(login=login))


async def closes(request: Awaitable[Any]) -> bool:
    try:
        await request
    except KafkaError as error:
        return error.code is ErrorCode.NETWORK_EXCEPTION
    return False


def test_only_authenticated_connections_are_served() -> None:
    async def scenario(node: Node, port: int) -> None:
        stranger = await connect(port)
        assert await closes(stranger.request(MetadataRequest(topics=None)))
        ann = await connect(port, ANN)
        assert (await ann.request(MetadataRequest(topics=None))).topics == []
        late = await ann.request(SaslHandshakeRequest(mechanism="PLAIN"), version=1)
        assert late.error_code == ErrorCode.ILLEGAL_SASL_STATE
        late = await ann.request(SaslAuthenticateRequest(auth_bytes=b"x"))
        assert late.error_code == ErrorCode.ILLEGAL_SASL_STATE
        ann.close()

    with_node(scenario)


def test_unknown_sasl_mechanism_gets_the_list_of_enabled_mechanisms_and_closes_the_connection() -> None:
    async def scenario(node: Node, port: int) -> None:
        peer = await connect(port)
        answer = await peer.request(SaslHandshakeRequest(mechanism="GSSAPI"), version=1)
        assert answer.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
        assert answer.mechanisms == ["PLAIN", "SCRAM-SHA-256"]
        await peer.wait_closed()

    with_node(scenario)


def test_sasl_token_without_a_handshake_is_refused_and_closes_the_connection() -> None:
    async def scenario(node: Node, port: int) -> None:
        peer = await connect(port)
        answer = await peer.request(SaslAuthenticateRequest(auth_bytes=plain_message("ann", "secret")))
        assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        await peer.wait_closed()

    with_node(scenario)


@pytest.mark.parametrize("password", ["secret", "wrong"])
def test_sasl_token_in_a_frame_without_a_request_header_is_accepted_from_old_clients(password: str) -> None:
    async def scenario(node: Node, port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)

        async def ask(frame: bytes) -> bytes:
            writer.write(struct.pack(">i", len(frame)) + frame)
            (size,) = struct.unpack(">i", await reader.readexactly(4))
            return await reader.readexactly(size)

        handshake = struct.pack(">hhih", 17, 0, 7, -1) + struct.pack(">h5s", 5, b"PLAIN")
        assert struct.unpack_from(">ih", await ask(handshake)) == (7, 0)
        token = plain_message("ann", password)
        if password == "wrong":
            with pytest.raises(asyncio.IncompleteReadError):
                await ask(token)
        else:
            assert await ask(token) == b""
            metadata = struct.pack(">hhih", 3, 1, 8, -1) + struct.pack(">i", -1)
            assert struct.unpack_from(">i", await ask(metadata)) == (8,)
        writer.close()

    with_node(scenario)


def test_sasl_session_ends_unless_the_client_authenticates_again() -> None:
    async def scenario(node: Node, port: int) -> None:
        peer = await connect(port)
        loop = asyncio.get_running_loop()

        async def authenticate(user: str, password: str) -> Any:
            chosen = await peer.request(SaslHandshakeRequest(mechanism="PLAIN"), version=1)
            assert chosen.error_code == 0
            return await peer.request(SaslAuthenticateRequest(auth_bytes=plain_message(user, password)))

        answer = await authenticate("ann", "secret")
        assert (answer.error_code, answer.session_lifetime_ms) == (0, 3_600_000)
        (connection,) = node._server.connections.values()
        session = authentication.session_of(connection)
        assert session is not None
        session.ends_at = loop.time() - 1
        answer = await authenticate("ann", "secret")
        assert answer.error_code == 0
        assert (await peer.request(MetadataRequest(topics=None))).topics == []
        session.ends_at = loop.time() - 1
        assert await closes(peer.request(MetadataRequest(topics=None)))

    with_node(scenario, connections_max_reauth_ms="3600000")


def test_fetch_that_is_parked_when_its_sasl_session_ends_gets_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authentication, "GRACE_S", 0.0)

    async def scenario(node: Node, port: int) -> None:
        await node.broker.topic_creator.create([CreatableTopic(name="t", num_partitions=1, replication_factor=1)])
        (topic,) = node.broker.metadata.image.topics.values()
        peer = await connect(port, ANN)
        part = fetch.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)
        wanted = [fetch.FetchTopic(topic="t", topic_id=topic.topic_id, partitions=[part])]
        parked = fetch.FetchRequest(max_wait_ms=10_000_000, min_bytes=1, max_bytes=1000, topics=wanted)
        assert await closes(peer.request(parked, timeout_s=10_000))

    with_node(scenario, connections_max_reauth_ms="200")


def test_join_group_is_answered_although_its_sasl_session_ends_while_it_waits() -> None:
    async def scenario(node: Node, port: int) -> None:
        peer = await connect(port, ANN)
        while (await peer.request(FindCoordinatorRequest(key="g"), version=3)).error_code:
            pass  # the topic of the group is being created
        (connection,) = node._server.connections.values()
        session = authentication.session_of(connection)
        assert session is not None
        protocols = [JoinGroupRequestProtocol(name="range", metadata=b"")]
        joining = JoinGroupRequest(
            group_id="g",
            session_timeout_ms=10_000,
            rebalance_timeout_ms=10_000,
            protocol_type="consumer",
            protocols=protocols,
        )
        joined = asyncio.ensure_future(peer.request(joining, version=3))
        while not (connection.busy and session.last_key == JOIN_GROUP):  # noqa: ASYNC110
            await asyncio.sleep(0)
        session.ends_at = asyncio.get_running_loop().time() - 1
        session._cut_off_waiting()
        handshake = peer.request(SaslHandshakeRequest(mechanism="PLAIN"), version=1)
        answers = await asyncio.gather(joined, handshake)
        assert [answer.error_code for answer in answers] == [0, 0]
        answer = await peer.request(SaslAuthenticateRequest(auth_bytes=plain_message("ann", "secret")))
        assert answer.error_code == 0
        peer.close()

    with_node(scenario, connections_max_reauth_ms="3600000", group_initial_rebalance_delay_ms="500")


def test_idle_connection_stays_open_when_its_sasl_session_ends() -> None:
    async def scenario(node: Node, port: int) -> None:
        peer = await connect(port, ANN)
        (connection,) = node._server.connections.values()
        session = authentication.session_of(connection)
        assert session is not None
        session.ends_at = asyncio.get_running_loop().time() - 1
        session._cut_off_waiting()
        await peer.request(SaslHandshakeRequest(mechanism="PLAIN"), version=1)
        answer = await peer.request(SaslAuthenticateRequest(auth_bytes=plain_message("ann", "secret")))
        assert answer.error_code == 0
        peer.close()

    with_node(scenario, connections_max_reauth_ms="3600000")


def test_sasl_session_lifetime_can_be_set_for_one_listener_and_mechanism() -> None:
    settings = local_settings(
        "/data", overrides={**SECURED, "listener.name.sasl_plaintext.plain.connections.max.reauth.ms": "60000"}
    )
    rules = make_node(settings, MemoryDisk())._security["SASL_PLAINTEXT"].sasl
    assert rules is not None
    assert rules.lifetime_ms == 60_000
    assert "secret" not in repr(rules)


def test_reauthentication_as_another_user_is_refused() -> None:
    async def scenario(node: Node, port: int) -> None:
        peer = await connect(port, ANN)
        await peer.request(SaslHandshakeRequest(mechanism="PLAIN"), version=1)
        answer = await peer.request(SaslAuthenticateRequest(auth_bytes=plain_message("bob", "b")))
        assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        await peer.wait_closed()

    with_node(scenario, connections_max_reauth_ms="3600000")


def test_connection_that_does_not_authenticate_in_time_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener_security, "AUTHENTICATION_DEADLINE_S", 0.01)

    async def scenario(node: Node, port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await reader.read() == b""
        writer.close()

    with_node(scenario)


def test_large_frame_before_authentication_closes_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener_security, "AUTHENTICATION_DEADLINE_S", 10_000)

    async def scenario(node: Node, port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(struct.pack(">i", 600))
        assert await reader.read() == b""
        writer.close()
        ann = await connect(port, ANN)
        topics = [MetadataRequestTopic(name=str(number) * 200) for number in range(4)]
        assert len((await ann.request(MetadataRequest(topics=topics))).topics) == 4
        ann.close()

    with_node(scenario, sasl_server_max_receive_size="500")


def test_many_requests_before_authentication_close_the_connection() -> None:
    async def scenario(node: Node, port: int) -> None:
        request = ApiVersionsRequest(client_software_name="test", client_software_version="1")
        peer = await connect(port)  # which asks for ApiVersions once
        for _ in range(authentication.MAX_REQUESTS_BEFORE - 1):
            assert (await peer.request(request)).api_keys
        assert await closes(peer.request(request))

    with_node(scenario)


def test_pipelined_request_after_a_failed_reauthentication_is_not_served() -> None:
    async def scenario(node: Node, port: int) -> None:
        peer = await connect(port, ANN)
        await peer.request(SaslHandshakeRequest(mechanism="PLAIN"), version=1)
        failing = peer.request(SaslAuthenticateRequest(auth_bytes=plain_message("ann", "wrong")))
        behind = [peer.request(MetadataRequest(topics=None)) for _ in range(3)]
        answers = await asyncio.gather(failing, *behind, return_exceptions=True)
        assert not isinstance(answers[0], BaseException)
        assert answers[0].error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert [type(answer) for answer in answers[1:]] == [KafkaError] * 3

    with_node(scenario, connections_max_reauth_ms="3600000")


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        ({"sasl.enabled.mechanisms": "GSSAPI"}, "GSSAPI of sasl.enabled.mechanisms is not supported"),
        ({"sasl.enabled.mechanisms": "PLAIN,OAUTHBEARER"}, "OAUTHBEARER"),
        ({"listener.name.sasl_plaintext.plain.sasl.jaas.config": "x required;"}, "PLAIN needs users"),
        ({"listener.name.sasl_plaintext.plain.sasl.jaas.config": 'x required user_a="b'}, "can't be parsed"),
        ({"listener.name.sasl_plaintext.plain.sasl.jaas.config": 'x required user_a="b";'}, "login of its own"),
        ({"sasl.mechanism.inter.broker.protocol": "GSSAPI"}, "login of its own|not supported"),
        ({**OTHERS, "listeners": "SSL://127.0.0.1:0", "inter.broker.listener.name": "SSL"}, "needs a certificate"),
        ({**OTHERS, "listeners": "FOO://127.0.0.1:0", "inter.broker.listener.name": "FOO"}, "protocol FOO is unknown"),
    ],
)
def test_node_refuses_to_start_with_an_incomplete_security_configuration_of_a_listener(
    overrides: dict[str, str], reason: str
) -> None:
    settings = local_settings("/data", port=0, overrides={**SECURED, **overrides})
    with pytest.raises((ListenerError, ConfigError), match=reason) as refused:
        make_node(settings, MemoryDisk())
    assert "secret" not in str(refused.value)
