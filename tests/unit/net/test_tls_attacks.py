"""Tests that a peer that breaks TLS during or after the handshake harms only its own connection."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from net_harness import LOOPS, run_on, until
from test_tls import echo, tls_server

from penstock.net.tls import TlsSource
from tools.certificates import Authority

PING = struct.pack(">i", 4) + b"ping"


class Peer:
    """Implements a TLS client whose records the test can change."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self._in, self._out, server_hostname="localhost")
        self.socket = socket.socket()
        self.socket.setblocking(False)

    async def connect(self, port: int) -> None:
        loop = asyncio.get_running_loop()
        await loop.sock_connect(self.socket, ("127.0.0.1", port))
        while True:
            try:
                self.tls.do_handshake()
            except ssl.SSLWantReadError:
                await self.send()
                self._in.write(await loop.sock_recv(self.socket, 1 << 16))
            else:
                return await self.send()

    async def send(self, more: bytes = b"") -> None:
        await asyncio.get_running_loop().sock_sendall(self.socket, self._out.read() + more)

    def record(self, data: bytes) -> bytes:
        self.tls.write(data)
        return self._out.read()

    def close_notify(self) -> bytes:
        with pytest.raises(ssl.SSLWantReadError):
            self.tls.unwrap()
        return self._out.read()

    async def closed(self) -> None:
        """Waits until the server has closed the connection."""
        loop = asyncio.get_running_loop()
        try:
            while await loop.sock_recv(self.socket, 1 << 16):
                pass
        except ConnectionError:
            pass
        finally:
            self.socket.close()


def cut(record: bytes) -> bytes:
    return record[: len(record) // 2]


def changed(record: bytes) -> bytes:
    return record[:-1] + bytes([record[-1] ^ 1])


ATTACKS: dict[str, Callable[[Peer], bytes]] = {
    "no TLS at all": lambda _: b"\xff" * 100,
    "a frame in clear text": lambda _: PING,
    "a record of 65,535 bytes": lambda _: b"\x17\x03\x03\xff\xff" + bytes(70_000),
    "a record of random bytes": lambda _: b"\x17\x03\x03\x00\x40" + bytes(64),
    "a changed record": lambda peer: changed(peer.record(PING)),
    "a record twice": lambda peer: peer.record(PING) * 2,
    "a fatal alert": lambda _: b"\x15\x03\x03\x00\x02\x02\x28",
    "a handshake message in clear text": lambda _: b"\x16\x03\x03\x00\x04\x01\x00\x00\x00",
    "close_notify": lambda peer: peer.close_notify(),
    "close_notify behind half a frame": lambda peer: peer.record(PING[:6]) + peer.close_notify(),
    "data after close_notify": lambda peer: peer.close_notify() + b"\x17\x03\x03\x00\x40" + bytes(64),
}


def attacked(loop: str, where: Path, attack: Callable[[int, ssl.SSLContext], Awaitable[None]]) -> None:
    authority = Authority(where, "ca")
    source = TlsSource({"ssl.keystore.location": authority.store("server.pem", "localhost")})

    async def scenario() -> None:
        server, port = await tls_server(source)
        errors: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
        await attack(port, authority.trusting)
        await echo(port, authority.trusting)
        await until(lambda: not server.counts.total)
        assert errors == []
        await server.stop(0)

    run_on(loop, scenario())


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("name", ATTACKS)
def test_invalid_tls_records_close_only_their_connection(
    loop: str, name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def attack(port: int, context: ssl.SSLContext) -> None:
        peer = Peer(context)
        await peer.connect(port)
        await peer.send(ATTACKS[name](peer))
        await peer.closed()

    with caplog.at_level(logging.ERROR):
        attacked(loop, tmp_path, attack)
    assert caplog.records == []


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_application_data_before_the_end_of_the_tls_handshake_closes_the_connection(
    loop: str, version: ssl.TLSVersion, tmp_path: Path
) -> None:
    """Checks that early data of TLS 1.3 is not enabled, because an attacker could replay a request in it."""

    async def attack(port: int, context: ssl.SSLContext) -> None:
        context.maximum_version = version
        peer = Peer(context)
        await asyncio.get_running_loop().sock_connect(peer.socket, ("127.0.0.1", port))
        with pytest.raises(ssl.SSLWantReadError):
            peer.tls.do_handshake()
        await peer.send(b"\x17\x03\x03\x00\x08" + PING)
        await peer.closed()

    attacked(loop, tmp_path, attack)


@pytest.mark.parametrize("loop", LOOPS)
def test_server_closes_a_tls_connection_whose_peer_has_closed_its_sending_side(loop: str, tmp_path: Path) -> None:
    async def attack(port: int, context: ssl.SSLContext) -> None:
        peer = Peer(context)
        await peer.connect(port)
        peer.socket.shutdown(socket.SHUT_WR)
        await peer.closed()

    attacked(loop, tmp_path, attack)
