"""Attacks listeners as clients that never log in: makes the bytes of whole connections, and sends them.

Run as `python tests/fuzz/strangers.py PORT TLS_PORT FRAMES SEED`.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import ssl
import struct
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from frames import FrameMaker

from penstock.net.loop import run as run_loop
from penstock.protocol.codec import encode
from penstock.protocol.messages.api_17_sasl_handshake import SaslHandshakeRequest
from penstock.protocol.messages.api_18_api_versions import ApiVersionsRequest
from penstock.protocol.messages.api_36_sasl_authenticate import SaslAuthenticateRequest
from penstock.security.oauthbearer import first_message
from penstock.security.plain import plain_message

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI", "", "x" * 200)
USERS = ("ann", "bob", "nobody", "a" * 900, "=2C", "ü", "")
SIZES = (-1, 0, 1, 3, 524_288, 524_289, 2**31 - 1, -(2**31))
#: Requests that are answered, and hostile frames; together more than a client may send before it authenticates.
ANSWERED, HOSTILE = 20, 5
CONNECTIONS = 96
PATIENCE_S = 0.3
JWT = "eyJhbGciOiJSUzI1NiIsImtpZCI6ImtleS0xIn0.eyJzdWIiOiJhbm4iLCJpYXQiOjEsImV4cCI6OTk5OTk5OTk5OX0.c2lnbmF0dXJl"


class Strangers:
    """Makes the bytes of connections: failing logins, broken tokens, early requests, wrong sizes and random bytes."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.frames = FrameMaker(seed)
        self.sent = 0

    def connection(self) -> bytes:
        """Returns the bytes that one connection sends, and counts its frames."""
        rng = self.random
        answered = [self._api_versions() for _ in range(rng.randint(0, ANSWERED))]
        parts = [struct.pack(">i", len(frame)) + frame for frame in answered]
        self.sent += len(parts)
        raw = False
        for _ in range(rng.randint(1, HOSTILE)):
            self.sent += 1
            choice = rng.random()
            if choice < 0.02:
                parts.append(struct.pack(">i", rng.choice(SIZES)) + rng.randbytes(rng.randint(0, 40)))
                continue
            if choice < 0.04:
                frame = rng.randbytes(rng.randint(0, 200))
            elif choice < 0.06:
                frame = self.frames.mutated()
            elif choice < 0.45 and not raw:
                version = rng.choice((0, 1, 1, 1))
                frame, raw = self._handshake(version), version == 0
            else:
                token = self._token()
                frame = token if raw else self._authenticate(token)
            if rng.random() < 0.15:
                frame = self._changed(frame)
            parts.append(struct.pack(">i", len(frame)) + frame)
        stream = b"".join(parts)
        return stream[: rng.randrange(len(stream))] if stream and rng.random() < 0.05 else stream

    def _api_versions(self) -> bytes:
        version = self.random.randint(0, 4)
        request = ApiVersionsRequest(client_software_name="fuzz", client_software_version="1")
        return self._header(18, version, 3) + encode(request, version)

    def _handshake(self, version: int) -> bytes:
        mechanism = self.random.choice(MECHANISMS)
        return self._header(17, version, 99) + encode(SaslHandshakeRequest(mechanism=mechanism), version)

    def _authenticate(self, token: bytes) -> bytes:
        version = self.random.randint(0, 2)
        return self._header(36, version, 2) + encode(SaslAuthenticateRequest(auth_bytes=token), version)

    def _header(self, key: int, version: int, flexible_from: int) -> bytes:
        header = struct.pack(">hhih", key, version, self.random.getrandbits(31), 4) + b"fuzz"
        return header + (b"\0" if version >= flexible_from else b"")

    def _token(self) -> bytes:
        rng = self.random
        user = rng.choice(USERS)
        token = rng.choice(
            (
                plain_message(user, "wrong"),
                f"{user}\0ann\0wrong".encode(),
                f"n,,n={user},r={rng.randbytes(8).hex()}".encode(),
                f"n,,n={user},r=x,tokenauth=true".encode(),
                b"c=biws,r=" + rng.randbytes(30).hex().encode() + b",p=AAAA",
                b"n" + b"," * 8_000,
                first_message(JWT),
                first_message("a." * 2000),
                b"\x01",
                b"",
                rng.randbytes(rng.choice((1, 100, 5_000, 60_000))),
            )
        )
        return self._changed(token) if rng.random() < 0.5 else token

    def _changed(self, content: bytes) -> bytes:
        rng, changed = self.random, bytearray(content)
        for _ in range(rng.choice((1, 1, 2, 8))):
            at = rng.randrange(len(changed) + 1)
            match rng.randrange(3):
                case 0:
                    changed[at : at + 1] = rng.randbytes(1)
                case 1:
                    del changed[at : at + rng.randint(1, 8)]
                case _:
                    changed[at:at] = rng.choice((b"\xff" * 4, b"\x7f\xff\xff\xff", b"\0" * 8, b"\x01", b",", b"="))
        return bytes(changed)

    def hello(self) -> bytes:
        """Returns a TLS ClientHello with changed bytes, the beginning of a ClientHello, or a ClientHello twice."""
        self.sent += 1
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        with contextlib.suppress(ssl.SSLWantReadError):  # it waits for the answer to its hello
            trusting().wrap_bio(incoming, outgoing, server_hostname="localhost").do_handshake()
        hello = outgoing.read()
        return self.random.choice((self._changed(hello), hello[: self.random.randrange(len(hello))], hello + hello))


def trusting() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


class Sender(asyncio.Protocol):
    """Sends bytes and ignores responses. Closes a connection that the node keeps open for some time."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        transport.write(self._content)
        if transport.can_write_eof():
            transport.write_eof()
        self._timer = asyncio.get_running_loop().call_later(PATIENCE_S, transport.abort)

    def connection_lost(self, error: Exception | None) -> None:
        self._timer.cancel()
        if not self.closed.done():
            self.closed.set_result(None)


async def attack(port: int, tls_port: int, frames: int, seed: int) -> None:
    strangers, context = Strangers(seed), trusting()
    loop = asyncio.get_running_loop()

    async def one() -> None:
        choice = strangers.random.random()
        if choice < 0.7:
            content, at, tls = strangers.connection(), port, None
        elif choice < 0.85:
            content, at, tls = strangers.connection(), tls_port, context
        elif choice < 0.95:
            content, at, tls = strangers.hello(), tls_port, None
        else:
            content, at, tls = strangers.connection(), tls_port, None
        try:
            _, sender = await loop.create_connection(lambda: Sender(content), "127.0.0.1", at, ssl=tls)
            await sender.closed
        except (OSError, ssl.SSLError):
            return  # the node refused the connection

    async def keep_on() -> None:
        while strangers.sent < frames:
            await one()

    await asyncio.gather(*(keep_on() for _ in range(CONNECTIONS)))
    print(strangers.sent)


if __name__ == "__main__":
    run_loop(attack(*map(int, sys.argv[1:])))
