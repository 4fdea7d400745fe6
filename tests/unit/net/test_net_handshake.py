"""Tests accepted TLS connections whose handshake has not begun when the listener closes."""

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

    def leave(self, host: str) -> None:
        self.inside -= 1

    def failed(self, host: str, reason: str) -> None:
        raise AssertionError(reason)


def test_peer_that_waits_for_its_handshake_is_closed_and_no_longer_counted_when_the_listener_closes() -> None:
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
