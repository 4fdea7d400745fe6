"""Tests that any bytes in any pieces get an answer or a closed connection, and cause no exception."""

from __future__ import annotations

import asyncio
from typing import Any

from http_harness import Site, get
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.http.address import HttpAddress
from penstock.http.connection import HttpConnection
from penstock.http.server import HttpServer
from penstock.net.network import RealNetwork
from tools.examples import examples

WORDS = st.sampled_from(
    [
        *(b"GET", b"HEAD", b"POST", b" ", b"/", b"/metrics", b"HTTP/1.1", b"HTTP/1.0", b"\r\n", b"\n", b"\r\n\r\n"),
        *(b"Host: localhost", b"Host: evil.example", b"Content-Length: 3", b"Transfer-Encoding: chunked", b":", b"\0"),
        *(
            b"Connection: close",
            b"Expect: 100-continue",
            b"Upgrade: websocket",
            b"abc",
            b"\xff\xfe",
            get(),
            get(more=""),
        ),
    ]
)


class Wire(asyncio.Transport):
    """Imitates a transport: accepts all bytes at once and keeps them."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = bytearray()
        self.ended = False

    def write(self, data: Any) -> None:
        assert not self.ended, "something is sent after the end"
        self.sent += data

    def write_eof(self) -> None:
        self.ended = True

    def can_write_eof(self) -> bool:
        return True

    def close(self) -> None:
        self.ended = True

    def abort(self) -> None:
        self.ended = True

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass


@settings(max_examples=examples(200), deadline=None)
@given(
    st.lists(st.one_of(WORDS, WORDS, st.binary(max_size=20)), max_size=30),
    st.lists(st.integers(1, 40), min_size=1, max_size=8),
)
def test_http_connection_raises_no_exception_for_any_bytes_in_any_pieces(words: list[bytes], pieces: list[int]) -> None:
    stream = b"".join(words)

    async def scenario() -> None:
        unhandled: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: unhandled.append(context))
        site = Site()
        server = HttpServer(HttpAddress("127.0.0.1", 0), RealNetwork())
        server._site = site
        wire = Wire()
        connection = HttpConnection(server)
        connection.connection_made(wire)
        at = 0
        while at < len(stream):
            size = pieces[at % len(pieces)]
            connection.data_received(stream[at : at + size])
            at += size
            await asyncio.sleep(0)
        connection.eof_received()
        for _ in range(50 * (len(words) + 1)):
            if wire.ended:
                break
            await asyncio.sleep(0)
        connection.connection_lost(None)
        await asyncio.sleep(0)
        assert unhandled == []
        assert wire.ended
        assert all(request.method in ("GET", "HEAD") and request.path.startswith("/") for request in site.asked)
        assert not wire.sent or wire.sent.startswith(b"HTTP/1.1 ")
        assert server.connections == 0

    asyncio.run(scenario())
