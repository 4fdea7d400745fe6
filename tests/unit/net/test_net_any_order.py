"""Tests that responses are complete and in order, for any order of events in the network, the peer and the handlers.

The connection has no socket. The test chooses events at random: bytes arrive in parts of any size, handlers respond at
once, later or never, the peer stops and starts reading, quotas delay requests, the transport pauses, the event loop
runs.
"""

import asyncio
import struct
from collections.abc import Callable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.net.connection import Connection
from penstock.net.later import Later
from penstock.net.limits import LimitedLog, Limits
from penstock.net.reply import Reply
from penstock.net.server import Listener, Server
from penstock.net.turns import Turns
from tools.examples import examples

LARGEST_BODY = 700


def limits(queued_max_request_bytes: int) -> Limits:
    return Limits(
        pipelined_max_bytes=300,
        pipelined_max_requests=5,
        queued_max_request_bytes=queued_max_request_bytes,
        receive_buffer_bytes=256,
        pass_max_requests=3,
    )


class Wire:
    """Imitates a transport: it keeps the written bytes and pauses writing when the test says so."""

    def __init__(self) -> None:
        self.written = bytearray()
        self.reading = True
        self.closed = False

    def get_extra_info(self, name: str) -> Any:
        return ("10.0.0.1", 1234) if name == "peername" else None

    def set_write_buffer_limits(self, high: int) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 1000

    def write(self, data: bytes) -> None:
        assert not self.closed
        self.written += data

    def writelines(self, parts: list[bytes]) -> None:
        for part in parts:
            self.write(bytes(part))

    def pause_reading(self) -> None:
        assert self.reading
        self.reading = False

    def resume_reading(self) -> None:
        assert not self.reading
        self.reading = True

    def close(self) -> None:
        self.closed = True

    abort = close


class World:
    """Drives a server and one connection with numbered requests.

    The first byte of a request body tells how its handler responds.
    """

    def __init__(self, bodies: list[bytes], budget: int) -> None:
        self.stream = b"".join(struct.pack(">i", len(body)) + body for body in bodies)
        self.position = 0
        self.started: list[bytes] = []
        self.parked: list[tuple[asyncio.Future[Reply], bytes]] = []
        self.server = Server(self.dispatch, limits(budget))
        self.server.loop = asyncio.get_running_loop()
        self.server.log = LimitedLog(self.server.logger, self.server.loop.time)
        self.server.turns = Turns(self.server.limits, self.server.loop.call_soon, lambda: 0)
        self.wire = Wire()
        self.connection = Connection(self.server, Listener())
        self.connection.connection_made(self.wire)  # type: ignore[arg-type]
        self.congested = False

    def dispatch(self, connection: Connection, frame: memoryview) -> Reply | Later[Reply]:
        assert not self.parked, "one request is in progress at a time"
        assert not self.congested, "a peer that doesn't read gets nothing new"
        body = bytes(frame)
        self.started.append(body)
        how = body[0] % 4
        if how == 0:
            return [body[:1], body[1:]]
        if how == 1:
            return None
        if how == 2:
            connection.mute_for(1000)
            return [body]
        future: asyncio.Future[Reply] = self.server.loop.create_future()
        self.parked.append((future, body))
        return Later(future)

    def arrive(self, most: int) -> None:
        if self.wire.reading and self.position < len(self.stream):
            room = self.connection.get_buffer(-1)
            count = min(most, len(room), len(self.stream) - self.position)
            room[:count] = self.stream[self.position : self.position + count]
            self.position += count
            self.connection.buffer_updated(count)

    async def answer(self) -> None:
        if self.parked:
            future, body = self.parked.pop()
            future.set_result([body])
            await asyncio.sleep(0)

    def congest(self) -> None:
        if not self.congested:
            self.congested = True
            self.connection.pause_writing()

    def relieve(self) -> None:
        if self.congested:
            self.congested = False
            self.connection.resume_writing()


def expected_answers(bodies: list[bytes]) -> bytes:
    return b"".join(struct.pack(">i", len(body)) + body for body in bodies if body[0] % 4 != 1)


bodies_of_any_size = st.lists(
    st.binary(min_size=1, max_size=8)
    | st.binary(min_size=1, max_size=40)
    | st.binary(min_size=200, max_size=LARGEST_BODY),
    max_size=40,
)
portions = st.integers(min_value=1, max_value=400)
moves = st.sampled_from(["answer", "congest", "relieve", "unmute", "turn"])
steps = st.lists(portions | portions | portions | moves, max_size=60)
budgets = st.sampled_from([-1, 300, 2000])


@settings(max_examples=examples(80), deadline=None)
@given(bodies=bodies_of_any_size, walk=steps, budget=budgets)
def test_every_request_is_answered_once_and_completely_and_in_order(
    bodies: list[bytes], walk: list[int | str], budget: int
) -> None:
    async def scenario() -> None:
        world = World(bodies, budget)
        others: dict[str, Callable[[], None]] = {
            "congest": world.congest,
            "relieve": world.relieve,
            "unmute": world.connection._unmute,
        }
        for step in walk:
            if isinstance(step, int):
                world.arrive(step)
            elif step == "answer":
                await world.answer()
            elif step == "turn":
                await asyncio.sleep(0)
            else:
                others[step]()
            assert world.started == bodies[: len(world.started)]
            # One read beyond the limit: it may complete a large frame, or bring a receive buffer full of small ones.
            assert world.connection._queued_bytes <= 300 + LARGEST_BODY
            # A read is cut into no more requests than may wait.
            assert len(world.connection._queue or ()) <= 5
        # From here on everybody behaves: all there is gets through.
        world.relieve()
        for _ in range(10_000):
            world.connection._unmute()
            await world.answer()
            await asyncio.sleep(0)
            world.arrive(100)
            if len(world.started) == len(bodies) and not world.parked:
                break
        assert bytes(world.wire.written) == expected_answers(bodies)
        assert world.wire.reading
        assert world.server.budget.used == world.server.unsent.used == 0
        world.connection._unmute()
        world.connection.connection_lost(None)

    asyncio.run(scenario())


@settings(max_examples=examples(60), deadline=None)
@given(bodies=bodies_of_any_size, walk=steps, budget=budgets)
def test_connection_that_is_lost_between_any_two_events_releases_all_its_resources(
    bodies: list[bytes], walk: list[int | str], budget: int
) -> None:
    async def scenario() -> None:
        world = World(bodies, budget)
        for step in walk:
            if isinstance(step, int):
                world.arrive(step)
            elif step == "answer":
                await world.answer()
        world.congested = False
        world.connection.connection_lost(ConnectionResetError())
        while world.parked or world.connection._queue is not None:
            world.connection._unmute()
            await world.answer()
            await asyncio.sleep(0)
        assert world.server.budget.used == world.server.unsent.used == 0
        assert not world.server.in_progress
        assert not world.server.connections
        assert world.server.counts.total == 0
        assert world.server.budget.waiting == 0
        world.connection._unmute()

    asyncio.run(scenario())
