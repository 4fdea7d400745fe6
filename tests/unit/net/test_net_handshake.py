"""Tests accepted TLS connections whose handshake is ended: their listener closes, or a newer connection needs room."""

import asyncio
import socket
import ssl

from penstock.net.handshake import TlsAcceptor
from penstock.net.limits import AT_ONCE, Arrival


class Admission:
    """Admits every peer, and closes the acceptor before the handshake of the first peer begins."""

    def __init__(self) -> None:
        self.acceptor: TlsAcceptor | None = None
        self.inside = 0

    def context(self) -> ssl.SSLContext:
        raise AssertionError("the handshake began after the acceptor was closed")

    def enter(self, host: str) -> Arrival:
        self.inside += 1
        assert self.acceptor is not None
        asyncio.get_running_loop().call_soon(self.acceptor.close)
        return AT_ONCE

    def completed(self, host: str) -> None:
        raise AssertionError("no handshake is completed")

    def leave(self, host: str) -> None:
        self.inside -= 1

    def failed(self, host: str, reason: str) -> None:
        raise AssertionError(reason)


def test_connection_whose_listener_closes_before_the_handshake_is_closed_and_no_longer_counted() -> None:
    asyncio.run(_close_before_the_handshake())


async def _close_before_the_handshake() -> None:
    loop = asyncio.get_running_loop()
    listening = socket.create_server(("127.0.0.1", 0))
    listening.setblocking(False)
    admission = Admission()
    admission.acceptor = TlsAcceptor(listening, asyncio.Protocol, admission)
    with socket.socket() as peer:
        peer.setblocking(False)
        await loop.sock_connect(peer, listening.getsockname())
        async with asyncio.timeout(5):
            assert await loop.sock_recv(peer, 1) == b""
    assert admission.inside == 0


class OneAtATime:
    """Admits every peer, and ends the handshake in progress for the next one."""

    def __init__(self) -> None:
        self.inside = 0
        self.reasons: list[str] = []

    def context(self) -> ssl.SSLContext:
        return ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)

    def enter(self, host: str) -> Arrival:
        self.inside += 1
        return Arrival(closes=host if self.inside > 1 else None)

    def completed(self, host: str) -> None:
        raise AssertionError("no handshake is completed")

    def leave(self, host: str) -> None:
        self.inside -= 1

    def failed(self, host: str, reason: str) -> None:
        self.reasons.append(reason)


def test_new_connection_beyond_the_handshake_limit_of_a_host_ends_the_oldest_handshake_of_the_host() -> None:
    asyncio.run(_three_silent_peers())


async def _three_silent_peers() -> None:
    loop = asyncio.get_running_loop()
    listening = socket.create_server(("127.0.0.1", 0))
    listening.setblocking(False)
    admission = OneAtATime()
    acceptor = TlsAcceptor(listening, asyncio.Protocol, admission)
    peers = [socket.socket() for _ in range(3)]
    for peer in peers:
        peer.setblocking(False)
        await loop.sock_connect(peer, listening.getsockname())
    async with asyncio.timeout(60):
        for ended in peers[:2]:
            assert await loop.sock_recv(ended, 1) == b""
        assert admission.inside == 1
        assert admission.reasons == ["its place was needed for a newer connection"] * 2
        acceptor.close()
        assert await loop.sock_recv(peers[2], 1) == b""
    assert admission.inside == 0
    for peer in peers:
        peer.close()
