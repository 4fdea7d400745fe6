"""Tests how a node sends clients' requests to the active controller: what it forwards, where to, and for how long."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from test_controller_requests import CREATE_TOPICS, VERSION, client, created, run

from penstock.broker.controlplane.controller_channel import DEFAULT_TIMEOUT_MS, ControllerChannel
from penstock.protocol.apis import request_header_version
from penstock.protocol.codec import decode, decode_prefix, encode
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_19_create_topics import CreatableTopic, CreateTopicsRequest
from penstock.protocol.messages.api_58_envelope import EnvelopeRequest, EnvelopeResponse
from penstock.protocol.messages.api_63_broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from penstock.protocol.messages.default_principal_data import DefaultPrincipalData
from penstock.protocol.messages.headers import RequestHeader, ResponseHeader


class Node:
    """Holds a node's channel. The test plays the metadata log, the connections and the local controller."""

    def __init__(self) -> None:
        self.leading = False
        self.address: tuple[str, int] | None = ("h", 2)
        self.asked: list[tuple[Any, Any]] = []
        self.local: list[Any] = []
        self.answer_remote: Any = KafkaError(ErrorCode.NETWORK_EXCEPTION, "Lost.")
        self.hangs = False
        self.channel = ControllerChannel(cast(Any, None), 3, cast(Any, self), cast(Any, self))
        self.channel._links = cast(Any, SimpleNamespace(request=self.request))

    def active_controller(self) -> tuple[int, tuple[str, int] | None]:
        return 2, self.address

    async def request(self, key: Any, address: Any, message: Any, left_s: float) -> Any:
        self.asked.append((address, message))
        if self.hangs:
            await asyncio.Event().wait()
        if isinstance(self.answer_remote, KafkaError):
            raise self.answer_remote
        return self.answer_remote

    async def answer(self, request: Any) -> Any:
        self.local.append(request)
        return BrokerHeartbeatResponse()

    async def answer_client(self, ctx: Any, request: Any) -> Any:
        self.local.append((ctx, request))
        return created(ErrorCode.NONE)


def accepted() -> EnvelopeResponse:
    data = encode(ResponseHeader(correlation_id=5), 1) + encode(created(ErrorCode.NONE), VERSION)
    return EnvelopeResponse(response_data=data)


def now() -> float:
    return asyncio.get_running_loop().time()


def test_node_that_becomes_the_active_controller_while_it_asks_answers_itself() -> None:
    async def scenario() -> None:
        node, ctx = Node(), client()
        forwarding = asyncio.ensure_future(node.channel.forward(ctx, CreateTopicsRequest(timeout_ms=5000)))
        asking = asyncio.ensure_future(node.channel.ask(BrokerHeartbeatRequest()))
        await asyncio.sleep(0.5)
        assert not forwarding.done()
        assert node.local == []
        node.leading = True
        remote = len(node.asked)
        assert await forwarding == created(ErrorCode.NONE)
        assert await asking == BrokerHeartbeatResponse()
        assert len(node.local) == 2
        assert (ctx, CreateTopicsRequest(timeout_ms=5000)) in node.local
        assert len(node.asked) == remote

    run(scenario())


def test_requests_wait_for_a_controller_to_be_known_and_go_to_its_address() -> None:
    async def scenario() -> None:
        node = Node()
        node.address, node.answer_remote = None, accepted()
        forwarding = asyncio.ensure_future(node.channel.forward(client(), CreateTopicsRequest(timeout_ms=5000)))
        await asyncio.sleep(1)
        assert node.asked == []
        node.address = ("new", 7)
        await forwarding
        assert [address for address, _ in node.asked] == [("new", 7)]

    run(scenario())


@pytest.mark.parametrize("hangs", [False, True])
@pytest.mark.parametrize("timeout_ms", [-1, 0, 1, 700])
def test_forwarded_request_waits_for_its_own_timeout_or_for_the_default(timeout_ms: int, hangs: bool) -> None:
    async def scenario() -> None:
        node, began = Node(), now()
        node.hangs = hangs
        with pytest.raises(KafkaError) as caught:
            await node.channel.forward(client(), CreateTopicsRequest(timeout_ms=timeout_ms))
        assert caught.value.code is ErrorCode.REQUEST_TIMED_OUT
        expected_ms = timeout_ms if timeout_ms > 0 else DEFAULT_TIMEOUT_MS
        assert now() - began == pytest.approx(expected_ms / 1000, abs=0.001)
        assert len(node.asked) == 1 if hangs else len(node.asked) >= 1

    run(scenario())


@pytest.mark.parametrize(
    ("host", "packed"),
    [("10.0.0.7", bytes([10, 0, 0, 7])), ("::1", bytes(15) + b"\1"), ("a name", bytes(4)), ("", bytes(4))],
)
@pytest.mark.parametrize(
    ("principal", "kind", "name"),
    [("User:u", "User", "u"), ("User:CN=a:b", "User", "CN=a:b"), ("Robot:", "Robot", "")],
)
def test_envelope_has_the_request_its_header_and_the_client(
    host: str, packed: bytes, principal: str, kind: str, name: str
) -> None:
    async def scenario() -> None:
        node, ctx = Node(), client()
        node.answer_remote = accepted()
        connection: Any = ctx.connection
        connection.peer_host, connection.principal = host, principal
        sent = CreateTopicsRequest(topics=[CreatableTopic(name="t", num_partitions=3)], timeout_ms=900)
        await node.channel.forward(ctx, sent)
        [(_, envelope)] = node.asked
        assert isinstance(envelope, EnvelopeRequest)
        assert bytes(envelope.client_host_address) == packed
        data = bytes(envelope.request_principal or b"")
        assert data[:2] == b"\0\0"
        assert decode(DefaultPrincipalData, 0, data, 2) == DefaultPrincipalData(type=kind, name=name)
        frame = bytes(envelope.request_data)
        header, start = decode_prefix(RequestHeader, request_header_version(CREATE_TOPICS, VERSION), frame)
        assert (header.request_api_key, header.request_api_version) == (CREATE_TOPICS, VERSION)
        assert (header.correlation_id, header.client_id) == (5, "c")
        assert decode(CreateTopicsRequest, VERSION, frame, start) == sent

    run(scenario())
