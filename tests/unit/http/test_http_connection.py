"""Tests HTTP connections: which requests are answered or refused, connection limits, slow readers, and failures."""

from __future__ import annotations

import asyncio
import contextlib
import socket

import pytest
from http_harness import Site, ask, body, get, serving, status

from penstock.http import connection as connections
from penstock.http import places
from penstock.http.connection import http_date
from penstock.http.messages import BODY_MAX_BYTES, HEADER_MAX_BYTES, TARGET_MAX_BYTES, Request, Response, text
from penstock.http.server import HttpServer

#: More than the buffers of two sockets on loopback hold.
ENDLESS_BYTES = 64 * 1024 * 1024
ENDLESS = bytes(ENDLESS_BYTES)


def answer_to(sent: bytes, site: Site | None = None) -> bytes:
    async def scenario() -> bytes:
        async with serving(site or Site()) as (_, port):
            return await ask(port, sent)

    return asyncio.run(scenario())


def test_http_response_has_a_content_length_and_security_headers() -> None:
    answer = answer_to(get("/some%20page?a=1&b="))
    head = answer.partition(b"\r\n\r\n")[0].decode().lower()
    assert status(answer) == 200
    assert body(answer) == b"/some page\n"
    assert f"content-length: {len(body(answer))}" in head
    assert "x-content-type-options: nosniff" in head
    assert "content-security-policy: default-src 'none'" in head
    assert "frame-ancestors 'none'" in head
    assert "cache-control: no-store" in head
    assert "access-control" not in head


def test_head_request_returns_the_headers_of_get_without_the_body() -> None:
    site = Site()
    answer = answer_to(get("/page", method="HEAD"), site)
    assert status(answer) == 200
    assert b"content-length: 6" in answer.lower()
    assert body(answer) == b""
    assert [(each.method, each.path) for each in site.asked] == [("HEAD", "/page")]


@pytest.mark.parametrize("host", ["evil.example", "10.1.2.3", "localhost.evil.example"])
def test_request_with_a_foreign_host_header_is_refused(host: str) -> None:
    site = Site()
    assert status(answer_to(get(host=host), site)) == 421
    assert site.asked == []


@pytest.mark.parametrize("method", ["OPTIONS", "TRACE", "CONNECT", "BREW"])
def test_requests_with_unknown_http_methods_are_refused(method: str) -> None:
    site = Site()
    answer = answer_to(get(method=method), site)
    assert status(answer) == 405
    assert b"allow: get, head, post" in answer.lower()
    assert site.asked == []


def test_request_body_and_its_content_type_are_passed_to_the_request_handler() -> None:
    site = Site()
    more = "Content-Length: 7\r\nContent-Type: Application/JSON; charset=utf-8\r\nConnection: close\r\n"
    assert status(answer_to(get(method="POST", more=more) + b'{"a":1}', site)) == 200
    assert [(each.content_type, each.body) for each in site.asked] == [("application/json", b'{"a":1}')]


@pytest.mark.parametrize(
    ("method", "more"),
    [
        ("GET", "Content-Length: 5\r\n"),
        ("HEAD", "Content-Length: 5\r\n"),
        ("GET", "Transfer-Encoding: chunked\r\n"),
        ("POST", "Transfer-Encoding: chunked\r\n"),
        ("POST", f"Content-Length: {BODY_MAX_BYTES + 1}\r\n"),
        ("DELETE", f"Content-Length: {'9' * 20}\r\n"),
    ],
)
def test_request_body_that_is_too_long_or_chunked_or_sent_with_get_is_refused(method: str, more: str) -> None:
    assert status(answer_to(get(method=method, more=more))) == 413


def test_get_request_with_a_content_length_of_zero_is_accepted() -> None:
    assert status(answer_to(get(more="Content-Length: 0\r\nConnection: close\r\n"))) == 200


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),  # no Host
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
        (get("*", method="GET"), 400),
        (get("//evil.example/"), 400),
        (get("http://localhost/"), 400),
        (get("/%ff"), 400),
        (get("/?" + "&".join(f"a{number}=1" for number in range(100))), 400),
        (get("/" + "a" * TARGET_MAX_BYTES), 414),
        (get(more=f"X-Long: {'a' * HEADER_MAX_BYTES}\r\n"), 431),
        (get(more="X-Many: a\r\n" * 2000), 431),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Endless: " + b"a" * 4 * HEADER_MAX_BYTES, 431),
    ],
)
def test_invalid_or_too_long_http_request_is_refused_and_its_connection_closed(sent: bytes, expected: int) -> None:
    site = Site()
    assert status(answer_to(sent, site)) == expected
    assert site.asked == []


def test_requests_of_one_connection_are_answered_in_order() -> None:
    first, last = get("/1", more=""), get("/2")

    async def scenario() -> None:
        async with serving(Site()) as (_, port):
            answer = await ask(port, first + last)
            assert answer.index(b"/1\n") < answer.index(b"/2\n")
            assert answer.count(b"HTTP/1.1 200") == 2

    asyncio.run(scenario())


def test_request_that_arrives_in_pieces_is_handled_as_one_request() -> None:
    async def scenario() -> None:
        async with serving(Site()) as (_, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            for byte in get("/page"):
                writer.write(bytes([byte]))
                await writer.drain()
            assert body(await reader.read()) == b"/page\n"
            writer.close()

    asyncio.run(scenario())


def test_client_that_closes_its_sending_side_still_gets_the_answer() -> None:
    async def slowly(request: Request) -> Response:
        await asyncio.sleep(0.01)
        return text(200, "late")

    async def scenario() -> None:
        async with serving(Site(slowly)) as (_, port):
            assert body(await ask(port, get(more=""), eof=True)) == b"late\n"

    asyncio.run(scenario())


def test_connection_of_an_http_1_0_client_is_closed_after_the_answer() -> None:
    assert status(answer_to(b"GET / HTTP/1.0\r\nHost: localhost\r\n\r\n")) == 200


def test_exception_in_a_request_handler_is_answered_500_and_logged_and_the_next_request_is_served(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def fails(request: Request) -> Response:
        if request.path == "/bad":
            raise ZeroDivisionError
        return text(200, "fine")

    async def scenario() -> None:
        async with serving(Site(fails)) as (_, port):
            assert status(await ask(port, get("/bad"))) == 500
            assert status(await ask(port, get("/good"))) == 200

    asyncio.run(scenario())
    assert "GET /bad failed" in caplog.text


def test_http_requests_get_503_before_the_broker_is_ready() -> None:
    async def scenario() -> None:
        async with serving(None) as (_, port):
            assert status(await ask(port, get())) == 503

    asyncio.run(scenario())


def test_new_http_connection_above_the_limit_gets_503_while_all_open_connections_have_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(places, "MAX_CONNECTIONS", 1)

    async def scenario() -> None:
        begun, answer = asyncio.Event(), asyncio.Event()

        async def slow(request: Request) -> Response:
            begun.set()
            await answer.wait()
            return text(200, "done")

        async with serving(Site(slow)) as (_, port):
            first = asyncio.ensure_future(ask(port, get()))
            await begun.wait()
            assert status(await ask(port, get())) == 503
            answer.set()
            assert status(await first) == 200
            while status(await ask(port, get())) != 200:
                pass

    asyncio.run(scenario())


def test_idle_http_connection_is_closed_if_a_new_connection_exceeds_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checks that idle connections can't keep out the health probes of an orchestrator."""
    monkeypatch.setattr(places, "MAX_CONNECTIONS", 1)

    async def scenario() -> None:
        async with serving(Site()) as (_, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(get("/", more=""))
            await reader.readuntil(b"\r\n\r\n")
            assert status(await ask(port, get())) == 200
            with contextlib.suppress(ConnectionError):
                await reader.read()  # returns when the node has closed the idle connection
            writer.close()

    asyncio.run(scenario())


class SlowReaders:
    """Runs clients that request a very long answer and never read it."""

    def __init__(self, server: HttpServer, port: int) -> None:
        self._server = server
        self._port = port
        self._sockets: list[socket.socket] = []

    async def add(self, count: int) -> None:
        """Connects `count` more clients, and waits until the server has unread answers for all clients."""
        for _ in range(count):
            self._sockets.append(socket.create_connection(("127.0.0.1", self._port)))
            self._sockets[-1].sendall(get("/endless"))
        while sum(each.unread_bytes > 0 for each in self._server.open_connections) < len(self._sockets):  # noqa: ASYNC110
            await asyncio.sleep(0)

    def close(self) -> None:
        for each in self._sockets:
            each.close()


async def endless(request: Request) -> Response:
    if request.path == "/endless":
        return Response(200, "text/plain", ENDLESS)
    return text(200, request.path)


@pytest.fixture
def slow_readers_keep_their_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "UNREAD_MAX_BYTES", 10 * ENDLESS_BYTES)
    monkeypatch.setattr(connections, "SLOW_AFTER_S", 1000.0)


@pytest.mark.usefixtures("slow_readers_keep_their_places")
def test_health_probes_are_answered_while_slow_readers_use_all_allowed_connections(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(places, "MAX_CONNECTIONS", 3)

    async def scenario() -> None:
        async with serving(Site(endless)) as (server, port):
            with contextlib.closing(SlowReaders(server, port)) as readers:
                await readers.add(3)
                for probe in ("/livez", "/readyz"):
                    answer = await ask(port, get(probe, more=""))
                    assert (status(answer), b"connection: close" in answer.lower()) == (200, True)
                refused = await ask(port, get("/metrics"))
                assert (status(refused), b"Too many connections are open" in refused) == (503, True)

    asyncio.run(scenario())


def test_connections_of_slow_readers_are_closed_if_new_connections_exceed_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(places, "MAX_CONNECTIONS", 3)
    monkeypatch.setattr(places, "UNREAD_MAX_BYTES", 10 * ENDLESS_BYTES)
    monkeypatch.setattr(connections, "SLOW_AFTER_S", 0.0)
    monkeypatch.setattr(connections, "ANSWER_S", 1000.0)

    async def scenario() -> None:
        async with serving(Site(endless)) as (server, port):
            with contextlib.closing(SlowReaders(server, port)) as readers:
                await readers.add(3)
                for _ in range(3):
                    while status(await ask(port, get())) != 200:
                        pass  # the buffers of a reader still take bytes

    asyncio.run(scenario())


@pytest.mark.usefixtures("slow_readers_keep_their_places")
def test_request_from_an_address_with_too_many_connections_gets_503_unless_it_is_a_health_probe() -> None:
    async def scenario() -> None:
        async with serving(Site(endless), per_host=2) as (server, port):
            with contextlib.closing(SlowReaders(server, port)) as readers:
                await readers.add(2)
                refused = await ask(port, get())
                assert (status(refused), b"penstock.http.max.connections.per.ip" in refused) == (503, True)
                assert status(await ask(port, get("/livez"))) == 200

    asyncio.run(scenario())


@pytest.mark.usefixtures("slow_readers_keep_their_places")
def test_request_gets_503_if_other_connections_of_its_address_leave_too_many_bytes_unread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(places, "UNREAD_MAX_BYTES", 1024 * 1024)

    async def scenario() -> None:
        async with serving(Site(endless)) as (server, port):
            with contextlib.closing(SlowReaders(server, port)) as readers:
                await readers.add(1)
                refused = await ask(port, get())
                assert (status(refused), b"leave too many bytes unread" in refused) == (503, True)

    asyncio.run(scenario())


def test_long_answer_lets_other_tasks_run_between_its_parts_even_if_the_client_reads_without_delay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    passes = 0
    written: list[tuple[int, int]] = []
    write = connections.HttpConnection._write

    def noted(connection: connections.HttpConnection, data: bytes | None) -> None:
        written.append((passes, len(data or b"")))
        write(connection, data)

    async def count() -> None:
        nonlocal passes
        while True:
            passes += 1
            await asyncio.sleep(0)

    async def scenario() -> None:
        counting = asyncio.ensure_future(count())
        async with serving(Site(endless)) as (_, port):
            assert body(await ask(port, get("/endless"))) == ENDLESS
        counting.cancel()

    monkeypatch.setattr(connections.HttpConnection, "_write", noted)
    asyncio.run(scenario())
    parts = [at for at, size in written if size >= connections.PART_BYTES]
    assert len(parts) == len(set(parts)) == len(ENDLESS) // connections.PART_BYTES


def test_http_connection_buffers_only_one_part_of_a_long_answer_for_a_client_that_does_not_read() -> None:
    async def scenario() -> None:
        async with serving(Site(endless)) as (server, port):
            with contextlib.closing(SlowReaders(server, port)) as readers:
                await readers.add(1)
                (one,) = server.open_connections
                assert one.unread_bytes > 16 * connections.PART_BYTES
                assert one.buffered_bytes <= connections.PART_BYTES

    asyncio.run(scenario())


def test_long_http_answer_arrives_completely() -> None:
    answer = answer_to(get("/endless"), Site(endless))
    assert body(answer) == ENDLESS


def test_http_request_that_is_not_sent_completely_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "RECEIVE_S", 0.01)
    assert status(answer_to(b"GET / HTTP/1.1\r\nHost: loc")) == 408


def test_idle_http_connection_is_closed_after_a_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "IDLE_S", 0.01)
    assert answer_to(b"") == b""


def test_http_connection_is_closed_if_the_answer_takes_too_long_or_the_client_does_not_read_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections, "ANSWER_S", 0.05)

    async def never(request: Request) -> Response:
        if request.path == "/large":
            return Response(200, "text/plain", b"x" * (64 << 20))
        await asyncio.Event().wait()
        raise AssertionError

    async def scenario() -> None:
        async with serving(Site(never)) as (server, port):
            assert await ask(port, get("/never")) == b""
            reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1)  # receives more only when read
            writer.write(get("/large"))
            await reader.readexactly(1)
            while server.connections:  # noqa: ASYNC110
                await asyncio.sleep(0)
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await reader.readexactly(64 << 20)
            writer.close()

    asyncio.run(scenario())


def test_stop_of_the_http_server_answers_pending_requests_and_closes_idle_connections() -> None:
    async def scenario() -> None:
        entered, leave = asyncio.Event(), asyncio.Event()

        async def held(request: Request) -> Response:
            entered.set()
            await leave.wait()
            return text(200, "done")

        async with serving(Site(held)) as (server, port):
            idle_reader, idle_writer = await asyncio.open_connection("127.0.0.1", port)
            asking = asyncio.ensure_future(ask(port, get(more="")))
            await entered.wait()
            stopping = asyncio.ensure_future(server.stop())
            await asyncio.sleep(0)
            leave.set()
            assert body(await asking) == b"done\n"
            assert await idle_reader.read() == b""
            idle_writer.close()
            await stopping

    asyncio.run(scenario())


def test_http_date_formats_a_timestamp_for_http_headers() -> None:
    assert http_date(784_111_777) == "Sun, 06 Nov 1994 08:49:37 GMT"


def test_http_connection_reads_no_further_bytes_while_a_request_is_in_progress() -> None:
    """Checks that the client can send no more bytes than the buffers of the two sockets hold."""

    async def scenario() -> tuple[int, list[Request]]:
        answer = asyncio.Event()

        async def slow(request: Request) -> Response:
            await answer.wait()
            return text(200, "done")

        site = Site(slow)
        async with serving(site) as (_, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(get("/first", more=""))
            sent = 0
            while sent < ENDLESS_BYTES:
                writer.write(get("/next", more="") * 1000)
                sent += len(get("/next", more="")) * 1000
                try:
                    async with asyncio.timeout(0.5):
                        await writer.drain()
                except TimeoutError:
                    break
            answer.set()
            assert status(await reader.readuntil(b"done\n")) == 200
            assert status(await reader.readuntil(b"done\n")) == 200
            writer.close()
        return sent, site.asked

    sent, asked = asyncio.run(scenario())
    assert sent < ENDLESS_BYTES
    assert [each.path for each in asked[:2]] == ["/first", "/next"]
