"""Tests the guarantees of a listener to its clients, and how it protects clients from each other."""

import asyncio
import logging

import pytest
from net_harness import LOOPS, RawClient, echo, frame, run_on, serving, until

from penstock.net.connection import Connection
from penstock.net.later import Later
from penstock.net.limits import IdleWheel, Limits
from penstock.net.reply import CLOSE, Close, Reply
from penstock.net.server import Listener, Server
from penstock.net.traffic import KNOWN


@pytest.fixture(params=sorted(LOOPS))
def loop(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class Parked:
    """Implements a dispatcher whose responses wait until the test releases them."""

    def __init__(self) -> None:
        self.started: list[bytes] = []
        self.futures: list[asyncio.Future[Reply]] = []

    def __call__(self, connection: Connection, request: memoryview) -> Reply | Later[Reply]:
        self.started.append(bytes(request))
        if bytes(request[:4]) == b"sync":
            return [request]
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self.futures.append(future)
        return Later(future)

    def answer(self, index: int) -> None:
        self.futures[index].set_result([self.started[index]])


def test_response_begins_with_its_size(loop: str) -> None:
    async def scenario() -> None:
        async with serving() as harness:
            client = await harness.client()
            assert await client.ask(b"hello") == b"<hello>"

    run_on(loop, scenario())


def test_pipelined_requests_are_answered_in_order(loop: str) -> None:
    async def scenario() -> None:
        async with serving() as harness:
            client = await harness.client()
            bodies = [b"%d" % number * (number % 300 + 1) for number in range(500)]
            client.send(*bodies)
            assert [await client.receive() for _ in bodies] == [b"<" + body + b">" for body in bodies]

    run_on(loop, scenario())


def test_next_request_starts_only_when_the_previous_request_is_answered(loop: str) -> None:
    async def scenario() -> None:
        parked = Parked()
        async with serving(parked) as harness:
            client = await harness.client()
            client.send(b"first", b"sync second", b"third")
            await until(lambda: parked.started)
            await until(lambda: harness.only_connection._queued_bytes == len(b"sync second" + b"third"))
            assert parked.started == [b"first"]
            parked.answer(0)
            assert await client.receive() == b"first"
            assert await client.receive() == b"sync second"
            assert parked.started == [b"first", b"sync second", b"third"]
            parked.futures[1].set_result([b"th", b"ird"])
            assert await client.receive() == b"third"

    run_on(loop, scenario())


def test_request_whose_handler_is_a_coroutine_is_answered(loop: str) -> None:
    async def answer(request: memoryview) -> Reply:
        await asyncio.sleep(0)
        return [bytes(request).upper()]

    async def at_once(request: memoryview) -> Reply:
        return [request]

    async def scenario() -> None:
        def dispatch(connection: Connection, request: memoryview) -> Later[Reply]:
            return Later(at_once(request) if request[0] == ord("!") else answer(request))

        async with serving(dispatch) as harness:
            client = await harness.client()
            client.send(b"a", b"!b", b"c")
            assert [await client.receive() for _ in range(3)] == [b"A", b"!b", b"C"]

    run_on(loop, scenario())


def test_request_frames_that_arrive_in_pieces_are_reassembled(loop: str) -> None:
    async def scenario() -> None:
        async with serving() as harness:
            witness = await harness.client()
            stream = frame(b"one") + frame(b"fourteen bytes") + frame(b"x")
            for cut in range(1, len(stream)):
                client = await harness.client()
                # An answer to another connection shows that the loop has polled since the first part was written.
                client.writer.write(stream[:cut])
                assert await witness.ask(b"?") == b"<?>"
                client.writer.write(stream[cut:])
                answers = [await client.receive() for _ in range(3)]
                assert answers == [b"<one>", b"<fourteen bytes>", b"<x>"]
                await client.close()

    run_on(loop, scenario())


@pytest.mark.parametrize("size", [100_000, 131_072, 3_000_000])
def test_large_frame_and_the_frame_after_it_are_received_completely(loop: str, size: int) -> None:
    async def scenario() -> None:
        async with serving() as harness:
            client = await harness.client()
            body = bytes(range(256)) * (size // 256) + b"end"
            client.send(b"before", body, b"after")
            assert await client.receive() == b"<before>"
            assert await client.receive() == b"<" + body + b">"
            assert await client.receive() == b"<after>"

    run_on(loop, scenario())


def test_a_frame_stays_unchanged_after_its_handler_has_returned(loop: str) -> None:
    kept: list[memoryview] = []

    def keep(connection: Connection, request: memoryview) -> Reply:
        kept.append(request)
        return [b"ok"]

    async def scenario() -> None:
        async with serving(keep) as harness:
            client = await harness.client()
            bodies = [b"a" * 10, b"b" * 200_000, b"c" * 10, b"d" * 20]
            for body in bodies:
                await client.ask(body)
            assert [bytes(view) for view in kept] == bodies

    run_on(loop, scenario())


def test_responses_stay_in_order_if_a_request_in_between_gets_no_response(loop: str) -> None:
    def every_other(connection: Connection, request: memoryview) -> Reply:
        return None if request[0] == ord("0") else [request]

    async def scenario() -> None:
        async with serving(every_other) as harness:
            client = await harness.client()
            client.send(b"0a", b"1b", b"0c", b"1d")
            assert [await client.receive(), await client.receive()] == [b"1b", b"1d"]

    run_on(loop, scenario())


@pytest.mark.parametrize("way", ["sentinel", "reply", "call"])
def test_responses_to_earlier_requests_are_sent_before_the_dispatcher_closes_a_connection(
    loop: str, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(connection: Connection, request: memoryview) -> Reply:
        if bytes(request) != b"bad":
            return [request]
        if way == "call":
            connection.close("it asked for nonsense")
            return None
        return CLOSE if way == "sentinel" else Close("it asked for nonsense")

    async def scenario() -> None:
        async with serving(refuse) as harness:
            client = await harness.client()
            client.send(b"good", b"bad", b"never")
            assert await client.receive() == b"good"
            assert await client.closed_by_server() == b""
            await until(lambda: not harness.server.connections)

    with caplog.at_level(logging.WARNING, "penstock.net"):
        run_on(loop, scenario())
    assert "connection 1 from 127.0.0.1:" in caplog.text
    if way != "sentinel":
        assert "closed: it asked for nonsense" in caplog.text


@pytest.mark.parametrize("where", ["dispatch", "coroutine"])
def test_exception_of_a_handler_closes_only_the_connection_of_its_request(
    loop: str, where: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def later() -> Reply:
        await asyncio.sleep(0)
        raise ZeroDivisionError

    def dispatch(connection: Connection, request: memoryview) -> Reply | Later[Reply]:
        if bytes(request) == b"bug":
            if where == "dispatch":
                raise ZeroDivisionError
            return Later(later())
        return [request]

    async def scenario() -> None:
        async with serving(dispatch) as harness:
            unlucky, other = await harness.client(), await harness.client()
            unlucky.send(b"bug")
            assert await unlucky.closed_by_server() == b""
            assert await other.ask(b"fine") == b"fine"

    run_on(loop, scenario())
    assert "ZeroDivisionError" in caplog.text


def test_client_that_sends_single_bytes_does_not_delay_another_client(loop: str) -> None:
    async def scenario() -> None:
        async with serving() as harness:
            slow, other = await harness.client(), await harness.client()
            for byte in frame(b"slowly"):
                slow.writer.write(bytes([byte]))
                assert await other.ask(b"quick") == b"<quick>"
            assert await slow.receive() == b"<slowly>"

    run_on(loop, scenario())


def test_client_that_never_reads_is_no_longer_served_and_does_not_delay_another_client(loop: str) -> None:
    started: list[int] = []

    def big(connection: Connection, request: memoryview) -> Reply:
        if bytes(request[:4]) == b"more":
            started.append(connection.id)
            return [bytes(100_000)]
        return [request]

    async def scenario() -> None:
        limits = Limits(write_queue_max_bytes=200_000, pipelined_max_requests=10)
        async with serving(big, limits) as harness:
            deaf, other = await harness.client(), await harness.client()
            connection = harness.server.connections[1]
            deaf.transport.pause_reading()
            for _ in range(1000):
                deaf.send(b"more" * 100)
            await until(lambda: connection._congested and not connection._reading)
            transport = connection._transport
            assert transport is not None
            served = len(started)
            # The kernel's socket buffers took some; the server holds no more than its limit and one answer.
            assert transport.get_write_buffer_size() <= 200_000 + 100_004 * 2
            assert await other.ask(b"fine") == b"fine"
            assert len(started) == served < 1000
            deaf.transport.resume_reading()
            for _ in range(1000):
                assert len(await deaf.receive()) == 100_000

    run_on(loop, scenario())


def test_unread_responses_use_up_the_response_memory_limit_until_slow_readers_are_closed(loop: str) -> None:
    async def scenario() -> None:
        limits = Limits(queued_max_response_bytes=30_000_000, slow_reader_timeout_ms=0)
        async with serving(lambda *_: [bytes(20_000_000)], limits) as harness:
            deaf, reader = await harness.client(), await harness.client()
            server = harness.server
            deaf.transport.pause_reading()
            deaf.send(b"much")
            await until(lambda: server.unsent.used)
            assert 15_000_000 < server.unsent.used <= 20_000_004
            assert server.unsent.room == 30_000_000 - server.unsent.used
            assert len(await reader.ask(b"much")) == 20_000_000
            server.shed_slow_readers()
            await until(lambda: len(server.connections) == 1)
            assert server.unsent.used == 0
            assert len(await reader.ask(b"much")) == 20_000_000
            await until(lambda: server.unsent.used == 0)

    run_on(loop, scenario())


def test_server_closes_connections_if_unread_responses_exceed_twice_the_memory_limit(loop: str) -> None:
    async def scenario() -> None:
        async with serving(lambda *_: [bytes(20_000_000)], Limits(queued_max_response_bytes=15_000_000)) as harness:
            deaf = [await harness.client() for _ in range(3)]
            server = harness.server
            for client in deaf:
                client.transport.pause_reading()
                client.send(b"much")
                await until(lambda: server.requests == 3 or server.unsent.used)
            await until(lambda: server.requests == 3 and len(server.connections) < 3 and not server.unsent.overdrawn)
            assert server.unsent.used <= 2 * server.unsent.limit

    run_on(loop, scenario())


def test_connections_with_the_oldest_unread_responses_are_closed_first(
    loop: str,
) -> None:
    async def scenario() -> None:
        async with serving(lambda *_: [bytes(20_000_000)], Limits(queued_max_response_bytes=20_000_000)) as harness:
            clients = [await harness.client() for _ in range(3)]
            server = harness.server
            in_order = list(server.connections)
            for client in clients:
                held = server.unsent.used
                client.transport.pause_reading()
                client.send(b"much")
                await until(lambda held=held: server.unsent.used != held)  # type: ignore[misc]
            await until(lambda: len(server.connections) == 1)
            assert list(server.connections) == in_order[2:]
            clients[2].transport.resume_reading()
            assert len(await clients[2].receive()) == 20_000_000

    run_on(loop, scenario())


def test_server_pauses_reading_a_connection_while_too_many_of_its_requests_wait(loop: str) -> None:
    async def scenario() -> None:
        parked = Parked()
        async with serving(parked, Limits(pipelined_max_bytes=1000)) as harness:
            client = await harness.client()
            client.send(b"first")
            await until(lambda: parked.started)
            client.send(*[b"sync" + b"x" * 500 for _ in range(5000)])
            await until(lambda: not harness.only_connection._reading)
            queued = harness.only_connection._queued_bytes
            assert 1000 <= queued <= 1000 + 2 * harness.server.limits.receive_buffer_bytes
            parked.answer(0)
            assert await client.receive() == b"first"
            for _ in range(5000):
                assert len(await client.receive()) == 504

    run_on(loop, scenario())


@pytest.mark.parametrize(
    ("sent", "sentence"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "it sent a TLS handshake, but listener PLAINTEXT speaks"),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", "it sent an HTTP request, but listener PLAINTEXT speaks"),
        (b"\xff\xff\xff\xf0garbage", "it announced a request of -16 bytes"),
        (b"\x00\x00\x00\x00", "it announced a request of 0 bytes"),
        (b"\x7f\x00\x00\x00", "over socket.request.max.bytes=104857600"),
    ],
)
def test_a_connection_with_another_protocol_is_closed_and_the_log_names_the_protocol(
    loop: str, sent: bytes, sentence: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with serving() as harness:
            stranger, other = await harness.client(), await harness.client()
            stranger.writer.write(sent)
            assert await stranger.closed_by_server() == b""
            assert await other.ask(b"fine") == b"<fine>"

    with caplog.at_level(logging.WARNING, "penstock.net"):
        run_on(loop, scenario())
    assert sentence in caplog.text
    assert len(caplog.records) == 1


def test_muting_a_connection_delays_its_next_request_but_not_the_current_response(loop: str) -> None:
    async def scenario() -> None:
        def mute(connection: Connection, request: memoryview) -> Reply:
            if bytes(request) == b"greedy":
                connection.mute_for(3600)
                connection.mute_for(1)
            return [request]

        async with serving(mute) as harness:
            client = await harness.client()
            client.send(b"greedy", b"next")
            assert await client.receive() == b"greedy"
            connection = harness.only_connection
            assert connection.requests == 1
            assert connection._muted_until > asyncio.get_running_loop().time() + 3000
            connection._unmute()
            assert await client.receive() == b"next"

    run_on(loop, scenario())


def test_muted_connection_serves_the_next_request_when_its_mute_time_is_over(loop: str) -> None:
    async def scenario() -> None:
        def mute(connection: Connection, request: memoryview) -> Reply:
            connection.mute_for(0.02)
            return [request]

        async with serving(mute) as harness:
            client = await harness.client()
            began = asyncio.get_running_loop().time()
            client.send(b"a", b"b")
            assert [await client.receive(), await client.receive()] == [b"a", b"b"]
            assert asyncio.get_running_loop().time() - began >= 0.015

    run_on(loop, scenario())


def test_new_connection_beyond_max_connections_is_refused(loop: str, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with serving(limits=Limits(max_connections=2, loopback_connections=0)) as harness:
            first, second, third = [await harness.client() for _ in range(3)]
            assert await third.closed_by_server() == b""
            assert await first.ask(b"1") == b"<1>"
            assert await second.ask(b"2") == b"<2>"
            await second.close()
            await until(lambda: harness.server.counts.total == 1)
            assert await (await harness.client()).ask(b"4") == b"<4>"
            assert harness.server.refused == 1

    run_on(loop, scenario())
    assert "refused: max.connections=2 connections are open" in caplog.text


def test_connection_from_a_broker_replaces_the_longest_idle_client_connection_at_the_limit(
    loop: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        limits = Limits(max_connections=2, loopback_connections=0)
        nodes = Listener("CONTROLLER", protected=True)
        async with serving(limits=limits, listeners=[Listener(), nodes]) as harness:
            idle, active = await harness.client(), await harness.client()
            for _ in range(3):
                harness.server.wheel.tick()
                assert await active.ask(b"1") == b"<1>"
            node = RawClient(*await asyncio.open_connection("127.0.0.1", nodes.port))
            assert await node.ask(b"2") == b"<2>"
            assert await idle.closed_by_server() == b""
            assert await active.ask(b"3") == b"<3>"
            assert await (await harness.client()).closed_by_server() == b""
            await node.close()

    run_on(loop, scenario())
    assert "max.connections is reached and another node needs a connection" in caplog.text


def test_connections_per_address_are_limited_and_overrides_accept_host_names(loop: str) -> None:
    async def scenario() -> None:
        overrides = {"localhost": 1}
        limits = Limits(max_connections_per_ip=0, max_connections_per_ip_overrides=overrides, loopback_connections=0)
        async with serving(limits=limits) as harness:
            assert await (await harness.client()).ask(b"1") == b"<1>"
            assert await (await harness.client()).closed_by_server() == b""

        async with serving(limits=Limits(max_connections_per_ip=1, loopback_connections=0)) as harness:
            assert await (await harness.client()).ask(b"1") == b"<1>"
            assert await (await harness.client()).closed_by_server() == b""

    run_on(loop, scenario())


def test_idle_connection_is_closed_but_not_an_active_or_busy_connection(loop: str) -> None:
    async def scenario() -> None:
        parked = Parked()
        async with serving(parked) as harness:
            idle, active, busy = [await harness.client() for _ in range(3)]
            busy.send(b"wait")
            assert await active.ask(b"sync") == b"sync"
            await until(lambda: parked.started == [b"wait", b"sync"] or parked.started == [b"sync", b"wait"])
            for _ in range(IdleWheel.SLOTS):
                harness.server.wheel.tick()
            assert await active.ask(b"sync") == b"sync"
            harness.server.wheel.tick()
            assert await idle.closed_by_server() == b""
            assert await active.ask(b"sync") == b"sync"
            parked.futures[0].set_result([b"done"])
            assert await busy.receive() == b"done"
            harness.server.wheel.tick()
            harness.server.wheel.tick()
            await until(lambda: len(harness.server.connections) == 2)

    run_on(loop, scenario())


def test_request_bytes_of_all_connections_together_are_limited(loop: str) -> None:
    async def scenario() -> None:
        parked = Parked()
        async with serving(parked, Limits(queued_max_request_bytes=1000)) as harness:
            greedy, other = await harness.client(), await harness.client()
            greedy.send(b"x" * 2000)
            await until(lambda: parked.started)
            assert harness.server.budget.exhausted
            # What a connection has already read is served; then it waits for memory.
            assert await other.ask(b"sync 1") == b"sync 1"
            await until(lambda: harness.server.budget.waiting == 2)
            other.send(b"sync 2")
            await asyncio.sleep(0)
            parked.answer(0)
            assert len(await greedy.receive()) == 2000
            assert await other.receive() == b"sync 2"
            assert harness.server.budget.used == 0

    run_on(loop, scenario())


def test_connection_with_a_slow_frame_is_closed_when_other_connections_wait_for_memory(
    loop: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        limits = Limits(queued_max_request_bytes=1000, slow_frame_timeout_ms=0)
        async with serving(limits=limits) as harness:
            slow, other = await harness.client(), await harness.client()
            slow.writer.write(frame(bytes(100_000))[:2000])
            await until(lambda: harness.server.budget.exhausted)
            assert await other.ask(b"1") == b"<1>"
            await until(lambda: harness.server.budget.waiting == 1)
            harness.server.shed_slow_frames()
            assert await slow.closed_by_server() == b""
            assert await other.ask(b"2") == b"<2>"

    run_on(loop, scenario())
    assert "its request arrives too slowly while other requests wait for queued.max.request.bytes" in caplog.text


def test_client_that_has_closed_its_sending_side_gets_the_responses_to_its_requests(loop: str) -> None:
    async def scenario() -> None:
        parked = Parked()
        async with serving(parked) as harness:
            client = await harness.client()
            client.send(b"first", b"sync second")
            client.writer.write_eof()
            await until(lambda: parked.started)
            await until(lambda: harness.only_connection._eof)
            parked.answer(0)
            assert await client.closed_by_server() == frame(b"first") + frame(b"sync second")

    run_on(loop, scenario())


def test_requests_of_a_client_that_has_disconnected_are_still_processed(loop: str) -> None:
    async def scenario() -> None:
        parked = Parked()
        gone: list[int] = []
        async with serving(parked) as harness:
            client = await harness.client()
            client.send(b"first", b"sync second", b"sync third")
            await until(lambda: harness.server.connections and harness.only_connection._queued_bytes)
            harness.only_connection.on_close(lambda: gone.append(1))
            client.writer.transport.abort()
            await until(lambda: gone or harness.only_connection._eof)
            parked.answer(0)
            await until(lambda: parked.started == [b"first", b"sync second", b"sync third"])
            await until(lambda: gone)
            assert harness.server.budget.used == 0

    run_on(loop, scenario())


def test_stopping_server_completes_requests_in_progress_and_starts_no_further_requests(loop: str) -> None:
    async def scenario() -> None:
        parked = Parked()
        async with serving(parked) as harness:
            busy, idle = await harness.client(), await harness.client()
            busy.send(b"wait", b"sync too late")
            await until(lambda: parked.started)
            await until(lambda: len(harness.server.connections) == 2)
            stopping = asyncio.ensure_future(harness.server.stop(grace_s=30))
            assert await idle.closed_by_server() == b""
            with pytest.raises(ConnectionError):
                await harness.client()
            parked.answer(0)
            assert await busy.closed_by_server() == frame(b"wait")
            await stopping
            assert not harness.server.connections

    run_on(loop, scenario())


def test_stopping_server_closes_connections_whose_requests_take_longer_than_the_grace_period(loop: str) -> None:
    async def scenario() -> None:
        parked = Parked()
        async with serving(parked) as harness:
            client = await harness.client()
            client.send(b"wait")
            await until(lambda: parked.started)
            await harness.server.stop(grace_s=0.01)
            assert await client.closed_by_server() == b""

    run_on(loop, scenario())


def test_listeners_with_port_0_report_their_ports_and_pass_requests_to_one_dispatcher(loop: str) -> None:
    async def scenario() -> None:
        listeners = [Listener("INTERNAL"), Listener("EXTERNAL", "localhost")]
        seen: list[str] = []

        def note(connection: Connection, request: memoryview) -> Reply:
            seen.append(connection.listener.name)
            return [request]

        async with serving(note, listeners=listeners) as harness:
            assert len({listener.port for listener in harness.server.listeners} - {0}) == 2
            for listener in listeners:
                reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
                writer.write(frame(b"x"))
                assert await reader.readexactly(5) == frame(b"x")
                writer.close()
                await writer.wait_closed()
        assert seen == ["INTERNAL", "EXTERNAL"]

    run_on(loop, scenario())


def test_start_with_a_port_in_use_raises_an_error_and_leaves_no_socket_open(loop: str) -> None:
    async def scenario() -> None:
        async with serving() as harness:
            second = Server(echo)
            with pytest.raises(OSError):
                await second.start([Listener("A"), Listener("B", port=harness.port)])
            assert second._open == []

    run_on(loop, scenario())


@pytest.mark.skipif(not KNOWN, reason="only Linux counts the bytes of a connection")
def test_traffic_counters_include_the_bytes_of_open_and_of_closed_connections(loop: str) -> None:
    async def scenario() -> None:
        async with serving(echo) as harness:
            client = await harness.client()
            assert await client.ask(b"x" * 1000) == b"<" + b"x" * 1000 + b">"
            assert harness.only_connection.traffic().received == 1004
            await client.close()
            await until(lambda: not harness.server.connections)
            (listener,) = harness.server.listeners
            assert listener.gone.received - 1004 in (0, 1)  # the kernel may count the end as a byte
            assert listener.gone.sent == 1006

    run_on(loop, scenario())
