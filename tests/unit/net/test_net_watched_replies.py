"""Tests when a connection reports a response as sent, if the transmission of the response is measured."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest
from net_harness import LOOPS, run_on, serving

from penstock.net.connection import Connection
from penstock.net.later import Later
from penstock.net.limits import ByteBudget
from penstock.net.outbox import FIRST_LOOK_S, LAST_LOOK_S, Outbox
from penstock.net.reply import Reply, WatchedReply


@pytest.mark.parametrize("loop", LOOPS)
def test_responses_with_a_sent_callback_arrive_in_order_and_their_callbacks_are_called(loop: str) -> None:
    sent: list[bytes] = []

    def watched(frame: memoryview) -> WatchedReply:
        body = bytes(frame)
        return WatchedReply([body], lambda: sent.append(body))

    async def later(frame: memoryview) -> Reply:
        return watched(frame)

    def answer(connection: Connection, frame: memoryview) -> Reply | Later[Reply]:
        match bytes(frame[:1]):
            case b"w":
                return watched(frame)
            case b"l":
                return Later(later(frame))
            case _:
                return [frame]

    async def test() -> None:
        async with serving(answer) as harness:
            client = await harness.client()
            bodies = [b"plain", b"watched", b"later", b"plain again", b"w", b"end"]
            client.send(*bodies)
            assert [await client.receive() for _ in bodies] == bodies
            assert await client.ask(b"once more") == b"once more"
            assert sent == [b"watched", b"later", b"w"]

    run_on(loop, test())


class SlowTransport:
    """Imitates a transport that has unsent bytes until it was asked a given number of times."""

    def __init__(self, looks: int) -> None:
        self.looks = looks

    def write(self, data: bytes) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        self.looks -= 1
        return max(0, self.looks)


class StubLoop:
    def __init__(self) -> None:
        self.calls: list[tuple[float, Callable[[], None]]] = []

    def call_soon(self, call: Callable[..., None], *args: object) -> None:
        self.call_later(0, call, *args)

    def call_later(self, after_s: float, call: Callable[..., None], *args: object) -> None:
        self.calls.append((after_s, lambda: call(*args)))


def test_server_checks_at_increasing_intervals_whether_a_slow_peer_has_received_a_response() -> None:
    outbox, loop = Outbox(ByteBudget(-1)), StubLoop()
    outbox.open(cast(Any, SlowTransport(15)))
    sent: list[bool] = []
    outbox.put_watched(WatchedReply([b"x"], lambda: sent.append(True)), cast(asyncio.AbstractEventLoop, loop))
    waits = []
    while loop.calls:
        assert not sent
        ((after_s, call),) = loop.calls
        loop.calls.clear()
        waits.append(after_s)
        call()
    assert sent == [True]
    assert waits[:3] == [0, FIRST_LOOK_S, 2 * FIRST_LOOK_S]
    assert waits[-1] == LAST_LOOK_S


def test_sent_callback_of_a_response_is_called_when_the_connection_is_lost() -> None:
    outbox, loop = Outbox(ByteBudget(-1)), StubLoop()
    outbox.open(cast(Any, SlowTransport(100)))
    sent: list[bool] = []
    outbox.put_watched(WatchedReply([b"x"], lambda: sent.append(True)), cast(asyncio.AbstractEventLoop, loop))
    outbox.close()
    ((_, call),) = loop.calls
    call()
    assert sent == [True]
