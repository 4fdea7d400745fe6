"""Tests in virtual time how long an HTTP request may take to arrive, and when a client is asked for a body."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

import pytest

from penstock.http.address import HttpAddress, Names
from penstock.http.connection import RECEIVE_BYTES_PER_S, RECEIVE_S, HttpConnection
from penstock.http.messages import BODY_MAX_BYTES, Request, Response, text
from penstock.sim.engine.loop import Timeline


class Server:
    """Answers each request with the size of its body."""

    def __init__(self) -> None:
        self.names = Names(HttpAddress("127.0.0.1", 0))
        self.stopping = False

    def admit(self, connection: HttpConnection) -> None:
        pass

    def refuse_unread(self, connection: HttpConnection, size: int) -> None:
        pass

    def forget(self, connection: HttpConnection) -> None:
        pass

    async def respond(self, request: Request) -> Response:
        return text(200, f"{len(request.body)} bytes")


class Wire(asyncio.Transport):
    """Replaces the transport of a connection: keeps what the connection sends, and takes all at once."""

    def __init__(self) -> None:
        super().__init__({"peername": ("10.0.0.1", 1)})
        self.sent = b""
        self.closed_at: float | None = None

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.sent += data

    def can_write_eof(self) -> bool:
        return False

    def close(self) -> None:
        self.closed_at = self.closed_at or asyncio.get_running_loop().time()

    def abort(self) -> None:
        self.close()

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def status(self) -> int | None:
        """Returns the status of the last answer; None before an answer."""
        _, found, rest = self.sent.rpartition(b"HTTP/1.1 ")
        return int(rest[:3]) if found else None


def header(size: int, more: str = "") -> bytes:
    return f"POST /page HTTP/1.1\r\nHost: localhost\r\nContent-Length: {size}\r\n{more}\r\n".encode()


def connected(scenario: Callable[[HttpConnection, Wire], Awaitable[None]]) -> None:
    """Runs the scenario with a new connection, in virtual time."""

    async def run() -> None:
        connection, wire = HttpConnection(Server()), Wire()
        connection.connection_made(wire)
        await scenario(connection, wire)
        connection.connection_lost(None)

    world = Timeline(Random(1))
    world.run(run(), world.process("main"))


async def after_s(seconds: float) -> None:
    """Moves the virtual time on."""
    await asyncio.sleep(seconds)


@pytest.mark.parametrize("pieces", [[header(1000)], [header(1000)[:20], header(1000)[20:]], [header(1000) + b"a"]])
def test_request_whose_body_does_not_arrive_is_refused_with_408(pieces: list[bytes]) -> None:
    async def scenario(connection: HttpConnection, wire: Wire) -> None:
        for piece in pieces:
            connection.data_received(piece)
        await after_s(RECEIVE_S - 0.1)
        assert wire.status() is None
        await after_s(0.2)
        assert wire.status() == 408
        await after_s(2)
        assert wire.closed_at is not None

    connected(scenario)


def test_request_whose_body_arrives_byte_by_byte_is_refused_with_408() -> None:
    async def scenario(connection: HttpConnection, wire: Wire) -> None:
        connection.data_received(header(1000))
        for _ in range(int(RECEIVE_S) + 1):
            await after_s(1)
            connection.data_received(b" ")
        assert wire.status() == 408

    connected(scenario)


def test_longest_body_is_accepted_if_it_keeps_arriving_at_the_minimum_rate() -> None:
    async def scenario(connection: HttpConnection, wire: Wire) -> None:
        connection.data_received(header(BODY_MAX_BYTES))
        for _ in range(0, BODY_MAX_BYTES, RECEIVE_BYTES_PER_S):
            await after_s(1)
            connection.data_received(bytes(RECEIVE_BYTES_PER_S))
        await after_s(0.1)
        assert wire.status() == 200
        assert wire.sent.endswith(f"{BODY_MAX_BYTES} bytes\n".encode())

    connected(scenario)


def test_body_that_stops_arriving_is_refused_with_408_once_it_is_below_the_minimum_rate() -> None:
    async def scenario(connection: HttpConnection, wire: Wire) -> None:
        connection.data_received(header(BODY_MAX_BYTES) + bytes(5 * RECEIVE_BYTES_PER_S))
        await after_s(RECEIVE_S + 4.9)
        assert wire.status() is None
        await after_s(0.2)
        assert wire.status() == 408

    connected(scenario)


def test_time_limit_is_the_same_for_every_request_of_a_connection() -> None:
    async def scenario(connection: HttpConnection, wire: Wire) -> None:
        for _ in range(3):
            wire.sent = b""
            connection.data_received(header(2) + b"a")
            await after_s(RECEIVE_S - 1)
            connection.data_received(b"b")
            await after_s(RECEIVE_S + 1)
            assert wire.status() == 200
            assert wire.closed_at is None
        connection.data_received(header(2) + b"a")
        await after_s(RECEIVE_S + 0.1)
        assert wire.status() == 408

    connected(scenario)


EXPECT = "Expect: 100-continue\r\n"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


def test_client_that_waits_for_100_continue_gets_it_once_per_request() -> None:
    async def scenario(connection: HttpConnection, wire: Wire) -> None:
        for _ in range(2):
            wire.sent = b""
            connection.data_received(header(2, EXPECT)[:-1])
            assert wire.sent == b""
            connection.data_received(header(2, EXPECT)[-1:])
            assert wire.sent == CONTINUE
            connection.data_received(b"a")
            assert wire.sent == CONTINUE
            connection.data_received(b"b")
            await after_s(1)
            assert wire.sent.startswith(CONTINUE + b"HTTP/1.1 200 ")
            assert wire.sent.count(CONTINUE) == 1

    connected(scenario)


def test_client_that_was_asked_for_its_body_and_does_not_send_it_gets_408() -> None:
    async def scenario(connection: HttpConnection, wire: Wire) -> None:
        connection.data_received(header(2, EXPECT))
        await after_s(RECEIVE_S + 0.1)
        assert wire.sent.startswith(CONTINUE + b"HTTP/1.1 408 ")

    connected(scenario)


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (header(BODY_MAX_BYTES + 1, EXPECT), 413),
        (header(2, EXPECT).replace(b"localhost", b"evil.example"), 421),
        (header(2, EXPECT) + b"ab", 200),  # the body is already there
        (header(0, EXPECT), 200),
    ],
)
def test_request_that_is_refused_or_complete_gets_its_answer_without_100_continue(sent: bytes, expected: int) -> None:
    async def scenario(connection: HttpConnection, wire: Wire) -> None:
        connection.data_received(sent)
        await after_s(0.1)
        assert wire.sent.startswith(b"HTTP/1.1 %d " % expected)

    connected(scenario)
