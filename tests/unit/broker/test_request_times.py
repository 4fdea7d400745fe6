"""Tests the histograms of request phases: which requests are timed, their weights, and the time of each phase."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

from penstock.broker.requests.request_times import ALL_TIMED, BOUNDS_NS, PHASES, RequestTimes, Sample
from penstock.net.later import Later
from penstock.net.reply import Close, Reply, WatchedReply

MS = 1_000_000


@dataclass
class Route:
    left: int
    until: int
    gap: int


@dataclass
class StubConnection:
    waiting_since_ns: int = 0
    muted_s: float = 0.0


class Timed:
    """Times requests on a clock that the test moves."""

    def __init__(self, every: int = 4) -> None:
        self.now = 1_000 * MS
        self.times = RequestTimes(lambda: self.now, every)
        self.route = Route(*[self.times.first()] * 3)
        self.times.countdowns.append(("Produce", self.route))

    def request(self) -> int | None:
        """Counts a request as the dispatcher does. Returns the weight of a timed request, otherwise None."""
        self.route.left -= 1
        return None if self.route.left else self.times.begin(self.route).weight

    def sample(self, connection: StubConnection | None = None) -> Sample:
        self.route.left -= 1
        began = self.times.begin(self.route)
        return Sample(self.times, "Produce", began, connection or StubConnection())

    def phases(self) -> dict[str, int]:
        """Returns the sum of each phase in milliseconds."""
        return {phase: found.total // MS for phase, found in zip(PHASES, self.times.by_api()["Produce"])}


def test_first_requests_of_an_api_are_all_timed_and_later_requests_are_sampled() -> None:
    timed = Timed(every=16)
    weights = [timed.request() for _ in range(20_000)]
    assert all(weights[:ALL_TIMED])
    late = [weight for weight in weights[10_000:] if weight]
    assert 10_000 / 16 * 0.8 < len(late) < 10_000 / 16 * 1.25
    assert len(set(late)) > 10  # the gaps vary, so that no client's pattern hides from them


def test_the_weights_of_timed_requests_add_up_to_all_requests() -> None:
    timed = Timed(every=16)
    weights = [timed.request() or 0 for _ in range(5_000)]
    last = max(number for number, weight in enumerate(weights) if weight)
    assert sum(weights) == last + 1
    assert timed.times.requests() == {"Produce": 5_000}


def test_requests_are_counted_but_never_timed_if_timing_is_off() -> None:
    timed = Timed(every=0)
    assert [timed.request() for _ in range(1_000)] == [None] * 1_000
    assert timed.times.requests() == {"Produce": 1_000}
    assert timed.times.by_api() == {}


def test_request_that_is_answered_at_once_has_queue_local_throttle_and_send_time() -> None:
    timed = Timed()
    sample = timed.sample(StubConnection(waiting_since_ns=timed.now - 3 * MS, muted_s=0.25))
    timed.now += 5 * MS
    reply = sample.watch([b"answer"])
    assert isinstance(reply, WatchedReply)
    assert list(reply) == [b"answer"]
    timed.now += 7 * MS
    reply.sent()
    assert timed.phases() == {"queue": 3, "local": 5, "remote": 0, "throttle": 250, "send": 7, "total": 15}


def test_time_that_a_request_waits_for_a_future_counts_as_remote() -> None:
    async def scenario() -> None:
        timed = Timed()
        sample = timed.sample()
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        timed.now += 2 * MS
        later = sample.watch(Later(future))
        assert isinstance(later, Later)
        timed.now += 40 * MS
        future.set_result([b"answer"])
        reply = await later
        assert isinstance(reply, WatchedReply)
        reply.sent()
        assert timed.phases() == {"queue": 0, "local": 2, "remote": 40, "throttle": 0, "send": 0, "total": 42}

    asyncio.run(scenario())


def test_time_of_a_handler_counts_as_local_until_it_waits_for_the_first_time() -> None:
    timed = Timed()

    async def handler(parked: asyncio.Future[None]) -> Reply:
        timed.now += 6 * MS
        await parked
        timed.now += 1 * MS
        return None

    async def scenario() -> None:
        parked: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        later = timed.sample().watch(Later(handler(parked)))
        assert isinstance(later, Later)
        assert not isinstance(later.source, asyncio.Future)
        task: asyncio.Task[Any] = asyncio.get_running_loop().create_task(later.source)
        await asyncio.sleep(0)
        timed.now += 30 * MS
        parked.set_result(None)
        await task
        assert later.make(task) is None
        assert timed.phases() == {"queue": 0, "local": 6, "remote": 31, "throttle": 0, "send": 0, "total": 37}

    asyncio.run(scenario())


def test_timed_coroutine_raises_the_handlers_error_and_is_closed_together_with_the_handler() -> None:
    closed = []

    async def fails() -> Reply:
        raise ValueError("broken")

    async def waits(parked: asyncio.Future[None]) -> Reply:
        try:
            await parked
        finally:
            closed.append(True)
        return None

    async def scenario() -> None:
        later = Timed().sample().watch(Later(fails()))
        assert isinstance(later, Later)
        with pytest.raises(ValueError, match="broken"):
            await later
        parked: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        later = Timed().sample().watch(Later(waits(parked)))
        assert isinstance(later, Later)
        assert not isinstance(later.source, asyncio.Future)
        task: asyncio.Task[Any] = asyncio.get_running_loop().create_task(later.source)
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        assert closed == [True]

    asyncio.run(scenario())


def test_request_without_a_response_is_timed() -> None:
    timed = Timed()
    closing = Close("broken")
    assert timed.sample().watch(closing) is closing
    assert timed.sample().watch(None) is None
    assert sum(timed.times.by_api()["Produce"][0].counts) == 2


def test_bucket_of_a_request_time_histogram_includes_its_upper_bound() -> None:
    timed = Timed()
    for duration in (0, BOUNDS_NS[0], BOUNDS_NS[0] + 1, BOUNDS_NS[-1] + 1):
        sample = timed.sample()
        timed.now += duration
        sample.watch(None)
    total = timed.times.by_api()["Produce"][PHASES.index("total")]
    assert total.counts == [2, 1, *[0] * (len(BOUNDS_NS) - 2), 1]
