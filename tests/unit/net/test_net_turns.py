"""Tests how many requests a pass of the event loop starts, and in which order connections start their requests."""

import asyncio

import pytest
from net_harness import LOOPS, run_on, serving

from penstock.net.connection import EAGER_TASKS, Connection
from penstock.net.later import Later
from penstock.net.limits import Limits
from penstock.net.reply import Reply
from penstock.net.turns import TASK_COST, Turns

MANY = 1000


class Passes:
    """Handles requests, and counts the requests of each pass of the event loop.

    A pass may begin before its count does, so one count may include requests of two passes.
    """

    def __init__(self, *, tasks: bool = False) -> None:
        self.started: list[bytes] = []
        self.in_pass: list[int] = []
        self._tasks = tasks
        self._open = False

    def __call__(self, connection: Connection, frame: memoryview) -> Reply | Later[Reply]:
        if not self._open:
            self._open = True
            self.in_pass.append(0)
            asyncio.get_running_loop().call_soon(self._close)
        self.in_pass[-1] += 1
        self.started.append(bytes(frame))
        return Later(self._later(frame)) if self._tasks else [frame]

    def _close(self) -> None:
        self._open = False

    async def _later(self, frame: memoryview) -> Reply:
        return [frame]


@pytest.mark.parametrize("loop", LOOPS)
def test_event_loop_iteration_starts_a_limited_number_of_requests_of_one_connection(loop: str) -> None:
    async def test() -> None:
        passes = Passes()
        async with serving(passes, Limits(pass_max_requests=20)) as harness:
            client = await harness.client()
            bodies = [b"%04d" % number for number in range(MANY)]
            client.send(*bodies)
            assert [await client.receive() for _ in bodies] == bodies
        assert passes.started == bodies
        assert max(passes.in_pass) <= 2 * 20

    run_on(loop, test())


@pytest.mark.parametrize("loop", LOOPS)
def test_before_python_3_12_an_event_loop_iteration_starts_fewer_requests_that_need_a_task(loop: str) -> None:
    async def test() -> None:
        passes = Passes(tasks=True)
        async with serving(passes, Limits(pass_max_requests=2 * TASK_COST)) as harness:
            clients = [await harness.client() for _ in range(30)]
            for client in clients:
                client.send(b"x")
            assert [await client.receive() for client in clients] == [b"x"] * 30
        # From Python 3.12 on a task starts at once and its time counts, so it counts as any other request.
        a_pass = 2 * TASK_COST if EAGER_TASKS else 2
        assert max(passes.in_pass) <= 2 * a_pass

    run_on(loop, test())


@pytest.mark.parametrize("loop", LOOPS)
def test_single_request_does_not_wait_for_all_pipelined_requests_of_another_connection(loop: str) -> None:
    async def test() -> None:
        passes = Passes()
        async with serving(passes, Limits(pass_max_requests=10)) as harness:
            greedy, modest = await harness.client(), await harness.client()
            greedy.send(*[b"greedy"] * MANY)
            while not passes.started:  # noqa: ASYNC110
                await asyncio.sleep(0)
            assert await modest.ask(b"modest") == b"modest"
            assert passes.started.index(b"modest") < MANY // 2
            for _ in range(MANY):
                await greedy.receive()
        assert len(passes.started) == MANY + 1

    run_on(loop, test())


@pytest.mark.parametrize("loop", LOOPS)
def test_handler_knows_the_time_at_which_its_request_began_to_wait(loop: str) -> None:
    since: list[int] = []

    def note(connection: Connection, frame: memoryview) -> Reply:
        since.append(connection.waiting_since_ns)
        return [frame]

    async def test() -> None:
        async with serving(note, Limits(pass_max_requests=2), nanoseconds=lambda: 1_000 + len(since)) as harness:
            client = await harness.client()
            client.send(*[b"x"] * 10)
            for _ in range(10):
                await client.receive()
            assert since[0] == 0
            assert all(0 < before <= 1_000 + number for number, before in enumerate(since[3:], 3))
            since.clear()
            await client.ask(b"alone")
            assert since == [0]

    run_on(loop, test())


class Waiter:
    def __init__(self, turns: Turns, requests: int, order: list["Waiter"]) -> None:
        self.turns, self.requests, self.order = turns, requests, order

    def take_turn(self) -> None:
        if not self.turns.open:
            self.turns.begin()
        elif not self.turns.may_start():
            self.turns.wait(self)
            return
        self.requests -= 1
        self.order.append(self)
        if self.requests:
            self.turns.wait(self)


def test_waiting_connections_start_one_request_each_in_turn() -> None:
    soon: list[object] = []
    turns = Turns(Limits(pass_max_requests=4), soon.append, lambda: 0)
    order: list[Waiter] = []
    many, one = Waiter(turns, 9, order), Waiter(turns, 1, order)
    turns.wait(many)
    turns.wait(one)
    passes = 0
    while soon:
        passes += 1
        soon.pop()()  # type: ignore[operator]
    assert order == [many, one, *[many] * 8]
    assert passes == 4  # four, four and two requests, and one that finds nobody
    assert turns.passes == passes


def test_event_loop_iteration_starts_no_request_after_its_time_limit() -> None:
    now = 0
    turns = Turns(Limits(pass_max_requests=100, pass_max_ms=10), lambda work: None, lambda: now)
    turns.begin()
    now = 10_000_000
    assert turns.may_start()
    now += 1
    assert not turns.may_start()
    assert turns.spent
