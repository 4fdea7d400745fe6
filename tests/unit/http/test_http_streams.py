"""Tests server-sent events: events and records of a running node, limits, and clients that read slowly or leave."""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from http_harness import Site, ask, get, serving, status
from rest_harness import HTTP, LIMIT_S, url_of
from rest_harness import ask as rest

from penstock.http import connection, streams, view
from penstock.http.messages import Request, Response
from penstock.http.streams import EVENT_STREAM, HEARTBEAT, Streams, message
from penstock.testing import Broker
from waiting import until


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(topics={"orders": 2}, config=HTTP) as running:
        yield running


@pytest.fixture(autouse=True)
def uncached(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turns the cache off, so that every request reads the node's current state."""
    monkeypatch.setattr(view, "FRESH_S", 0.0)


def messages(broker: Broker, path: str) -> Generator[tuple[str, Any], None, None]:
    """Yields the kind and the value of each server-sent event."""
    with urllib.request.urlopen(url_of(broker) + path, timeout=LIMIT_S) as answer:
        assert answer.headers["Content-Type"] == EVENT_STREAM
        assert answer.readline() + answer.readline() == HEARTBEAT
        kind = ""
        for line in answer:
            name, _, value = line.decode().rstrip("\n").partition(": ")
            if name == "event":
                kind = value
            elif name == "data":
                yield kind, json.loads(value)


@contextmanager
def repeating(action: Callable[[], None]) -> Iterator[None]:
    """Repeats an action in a thread, because the test can't know when a new stream has reached the log end."""
    stop = threading.Event()

    def loop() -> None:
        while not stop.is_set():
            action()

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def test_record_stream_sends_new_records_that_match_the_filter(broker: Broker) -> None:
    found = messages(broker, "/v1/topics/orders/records/stream?contains=wanted")
    with broker.client() as client, client.producer() as producer:

        def send() -> None:
            for value in (b"other", b"wanted"):
                producer.send("orders", value, partition=1).result()

        with repeating(send):
            told = [next(found) for _ in range(3)]
    rows = [row for kind, row in told if kind == "record"]
    assert rows
    assert all(row["value"] == {"text": "wanted"} and row["partition"] == 1 for row in rows)
    found.close()


def test_record_stream_with_a_start_offset_sends_the_records_from_that_offset_on(broker: Broker) -> None:
    broker.create_topic("past", 1)
    with broker.client() as client, client.producer() as producer:
        producer.send_many("past", [(None, b"%d" % number, (), None) for number in range(5)], partition=0)
    found = messages(broker, "/v1/topics/past/records/stream?partition=0&offset=3")
    assert [next(found)[1]["offset"] for _ in range(2)] == [3, 4]
    found.close()


def test_record_stream_that_is_far_behind_skips_records_and_sends_their_number(broker: Broker) -> None:
    broker.create_topic("much", 1)
    with broker.client() as client, client.producer() as producer:
        producer.send_many("much", [(None, bytes(1000), (), None)] * 2000, partition=0)
    found = messages(broker, "/v1/topics/much/records/stream?partition=0&offset=0")
    sent = skipped = 0
    while sent + skipped < 2000:
        kind, value = next(found)
        sent += kind == "record"
        skipped += value["records"] if kind == "skipped" else 0
    assert (sent + skipped, sent <= 200) == (2000, True)
    found.close()


def test_record_stream_with_wrong_parameters_is_refused(broker: Broker) -> None:
    assert rest(broker, "GET", "/v1/topics/none/records/stream").status == 404
    assert rest(broker, "GET", "/v1/topics/orders/records/stream?partition=9").status == 404
    assert rest(broker, "GET", "/v1/topics/orders/records/stream?offset=0").status == 400


def test_event_stream_sends_each_new_event_of_the_cluster(broker: Broker) -> None:
    found = messages(broker, f"/v1/events/stream?{urllib.parse.urlencode({'kind': 'topic', 'last': 0})}")
    numbers = itertools.count()
    with repeating(lambda: broker.create_topic(f"made-{next(numbers)}", 1)):
        kind, row = next(found)
    assert (kind, row["node"], row["kind"].startswith("topic")) == ("event", 1, True)
    found.close()


def test_streams_are_limited_in_number_and_a_closed_stream_allows_a_new_one(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "HEARTBEAT_S", 0.1)
    monkeypatch.setattr("penstock.http.rest.events.HEARTBEAT_S", 0.1)
    until(lambda: rest(broker, "GET", "/v1/events/stream").status == 200)
    where, opened = f"{url_of(broker)}/v1/events/stream", []

    def open_all() -> None:
        while True:
            opened.append(urllib.request.urlopen(where, timeout=LIMIT_S))

    with pytest.raises(urllib.error.HTTPError, match="429") as refused:
        open_all()
    with refused.value as answer:
        told = json.load(answer)
    assert (told["limit"], told["allowed"]) == ("streams of one user", streams.MAX_STREAMS_OF_USER)
    assert "User:ANONYMOUS at 127.0.0.1 has 8 streams" in told["detail"]
    assert 1 <= len(opened) <= streams.MAX_STREAMS_OF_USER
    assert rest(broker, "GET", "/livez").status == 200
    for each in opened:
        each.close()
    until(lambda: rest(broker, "GET", "/v1/events/stream").status == 200)


# --- the connection, with a source of bytes


class Source:
    """Yields parts until it is closed."""

    def __init__(self, part: bytes, count: int | None = None) -> None:
        self.made = 0
        self.closed = asyncio.Event()
        self._part, self._count = part, count

    async def __call__(self) -> AsyncGenerator[bytes, None]:
        try:
            while self._count is None or self.made < self._count:
                self.made += 1
                yield self._part
        finally:
            self.closed.set()


def streaming(source: Source, all_streams: Streams) -> Site:
    async def answer(request: Request) -> Response:
        return Response(200, EVENT_STREAM, b"", stream=all_streams.open("User:ann", lambda _: source()))

    return Site(answer)


def test_connection_can_be_used_again_after_a_stream_has_ended() -> None:
    async def scenario() -> bytes:
        source, counted = Source(message("n", 1), 2), Streams()
        async with serving(streaming(source, counted)) as (_, port):
            answer = await ask(port, get("/", more="") + get("/"))
            assert counted.count == 0
            return answer

    answer = asyncio.run(scenario())
    assert answer.count(b"HTTP/1.1 200") == 2
    assert b"Transfer-Encoding: chunked" in answer
    assert answer.count(b"event: n\ndata: 1\n\n") == 2


def test_head_request_for_a_stream_is_answered_without_a_body() -> None:
    async def scenario() -> None:
        source, counted = Source(b"x"), Streams()
        async with serving(streaming(source, counted)) as (_, port):
            answer = await ask(port, get("/", method="HEAD"))
            assert (status(answer), source.made, counted.count) == (200, 0, 0)

    asyncio.run(scenario())


def test_client_that_reads_nothing_from_a_stream_is_cut_off_and_no_data_is_buffered_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection, "SLOW_S", 0.2)

    async def scenario() -> None:
        source, counted = Source(bytes(64 * 1024)), Streams()
        async with serving(streaming(source, counted)) as (_, port):
            _, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
            raw = writer.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            writer.write(get("/"))
            await source.closed.wait()
            assert source.made * 64 * 1024 < 32 * 1024 * 1024, "only what the kernel's buffers take is made"
            assert counted.count == 0
            writer.close()

    asyncio.run(scenario())


def test_stream_is_closed_when_the_client_disconnects_and_when_the_server_stops() -> None:
    async def scenario() -> None:
        counted = Streams()
        source = Source(b": alive\n\n")
        waits = asyncio.Event()

        async def quiet() -> AsyncGenerator[bytes, None]:
            try:
                yield HEARTBEAT
                await waits.wait()
            finally:
                source.closed.set()

        async def answer(request: Request) -> Response:
            return Response(200, EVENT_STREAM, b"", stream=counted.open("User:ann", lambda _: quiet()))

        async with serving(Site(answer)) as (_, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(get("/"))
            await reader.readuntil(HEARTBEAT)
            writer.close()
            await source.closed.wait()
            source.closed.clear()
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(get("/"))
            await reader.readuntil(HEARTBEAT)
        await source.closed.wait()
        assert counted.count == 0
        writer.close()

    asyncio.run(scenario())


def test_record_stream_ends_with_the_reason_when_its_topic_is_deleted(broker: Broker) -> None:
    broker.create_topic("gone", 1)
    found = messages(broker, "/v1/topics/gone/records/stream?partition=0&offset=0")
    with broker.client() as client, client.producer() as producer:
        producer.send("gone", b"x", partition=0).result()
        assert next(found)[0] == "record"
        client.delete_topics(["gone"])
    kind, value = next(found)
    assert (kind, value["kafka_error"].startswith("UNKNOWN_TOPIC")) == ("problem", True)
    assert list(found) == [], "the stream has ended"
