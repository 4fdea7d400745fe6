"""Tests clients that send SASL requests out of order, in pieces, pipelined, too often or too large."""

from __future__ import annotations

import asyncio
import struct
from dataclasses import replace
from typing import Any

import pytest
from test_secured_node import ANN, connect, with_node

from penstock.broker.requests import authentication
from penstock.client.connection import BrokerConnection
from penstock.node.node import Node
from penstock.protocol.codec import encode
from penstock.protocol.errors import ErrorCode
from penstock.protocol.messages.api_03_metadata import MetadataRequest
from penstock.protocol.messages.api_17_sasl_handshake import SaslHandshakeRequest
from penstock.protocol.messages.api_36_sasl_authenticate import SaslAuthenticateRequest
from penstock.security.plain import plain_message

LONG = "3600000"


def frame(key: int, version: int, number: int, request: Any) -> bytes:
    body = struct.pack(">hhih", key, version, number, -1) + encode(request, version)
    return struct.pack(">i", len(body)) + body


def login(password: str, *, first: int = 1) -> bytes:
    handshake = SaslHandshakeRequest(mechanism="PLAIN")
    token = SaslAuthenticateRequest(auth_bytes=plain_message("ann", password))
    return frame(17, 1, first, handshake) + frame(36, 1, first + 1, token)


METADATA = frame(3, 1, 3, MetadataRequest(topics=None))


class Raw:
    """Opens a connection on which the test chooses each byte."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def open(cls, port: int) -> Raw:
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def answer(self) -> tuple[int, int]:
        """Returns the correlation id of the next answer, and its first two bytes, which are the error code of SASL."""
        (size,) = struct.unpack(">i", await self.reader.readexactly(4))
        number, code = struct.unpack_from(">ih", await self.reader.readexactly(size))
        return number, code


def test_sasl_login_that_arrives_byte_by_byte_is_accepted() -> None:
    async def scenario(node: Node, port: int) -> None:
        raw = await Raw.open(port)
        for byte in login("secret"):
            raw.writer.write(bytes([byte]))
            await raw.writer.drain()
        assert [await raw.answer(), await raw.answer()] == [(1, 0), (2, 0)]
        raw.writer.close()

    with_node(scenario)


def test_requests_that_are_pipelined_after_a_sasl_login_are_served_in_order() -> None:
    async def scenario(node: Node, port: int) -> None:
        raw = await Raw.open(port)
        raw.writer.write(login("secret") + METADATA)
        numbers = [(await raw.answer())[0] for _ in range(3)]
        assert numbers == [1, 2, 3]
        raw.writer.close()

    with_node(scenario)


@pytest.mark.parametrize("delay_ms", ["0", "50"])
def test_requests_that_are_pipelined_after_a_failed_sasl_login_are_not_served(delay_ms: str) -> None:
    async def scenario(node: Node, port: int) -> None:
        raw = await Raw.open(port)
        raw.writer.write(login("wrong") + METADATA + login("secret", first=4) + METADATA)
        assert await raw.answer() == (1, 0)
        assert await raw.answer() == (2, ErrorCode.SASL_AUTHENTICATION_FAILED)
        assert await raw.reader.read() == b""
        raw.writer.close()

    with_node(scenario, connection_failed_authentication_delay_ms=delay_ms)


def test_second_sasl_handshake_before_a_token_closes_the_connection() -> None:
    async def scenario(node: Node, port: int) -> None:
        raw = await Raw.open(port)
        handshake = SaslHandshakeRequest(mechanism="PLAIN")
        raw.writer.write(frame(17, 1, 1, handshake) + frame(17, 1, 2, handshake) + login("secret", first=3))
        assert await raw.answer() == (1, 0)
        assert await raw.answer() == (2, ErrorCode.ILLEGAL_SASL_STATE)
        assert await raw.reader.read() == b""
        raw.writer.close()

    with_node(scenario)


async def handshake_code(peer: BrokerConnection) -> int:
    return int((await peer.request(SaslHandshakeRequest(mechanism="PLAIN"), version=1)).error_code)


async def token(peer: BrokerConnection, message: bytes) -> Any:
    return await peer.request(SaslAuthenticateRequest(auth_bytes=message))


def test_second_reauthentication_within_a_second_is_refused() -> None:
    async def scenario(node: Node, port: int) -> None:
        peer = await connect(port, ANN)
        assert await handshake_code(peer) == 0
        assert (await token(peer, plain_message("ann", "secret"))).error_code == 0
        (connection,) = node._server.connections.values()
        session = authentication.session_of(connection)
        assert session is not None
        session._next_start = asyncio.get_running_loop().time() + 1000  # the second that has just begun, made longer
        assert await handshake_code(peer) == ErrorCode.ILLEGAL_SASL_STATE
        assert (await peer.request(MetadataRequest(topics=None))).topics == []
        session._next_start = asyncio.get_running_loop().time()
        assert await handshake_code(peer) == 0
        peer.close()

    with_node(scenario, connections_max_reauth_ms=LONG)


def test_too_large_sasl_token_is_refused_at_reauthentication() -> None:
    async def scenario(node: Node, port: int) -> None:
        peer = await connect(port, ANN)
        assert await handshake_code(peer) == 0
        answer = await token(peer, plain_message("ann", "x" * 1000))
        assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert "sasl.server.max.receive.size" in answer.error_message
        await peer.wait_closed()

    with_node(scenario, connections_max_reauth_ms=LONG, sasl_server_max_receive_size="500")


def test_reauthentication_uses_the_current_session_lifetime_of_the_listener() -> None:
    async def scenario(node: Node, port: int) -> None:
        peer = await connect(port, ANN)
        (connection,) = node._server.connections.values()
        session = authentication.session_of(connection)
        assert session is not None
        before = session.ends_at
        session.rules = replace(session.rules, lifetime_ms=60_000)
        assert await handshake_code(peer) == 0
        answer = await token(peer, plain_message("ann", "secret"))
        assert answer.session_lifetime_ms == 60_000
        assert session.ends_at < before
        peer.close()

    with_node(scenario, connections_max_reauth_ms=LONG)
