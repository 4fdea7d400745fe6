"""Tests the limits of a server without sockets."""

import logging
from dataclasses import dataclass, field

import pytest

from penstock.net.framing import (
    ANSWER_AT_ONCE_BYTES,
    PARTIAL_MIN_BYTES,
    SIZE,
    FrameReader,
    PartialFrame,
    foreign_protocol,
)
from penstock.net.limits import ByteBudget, ConnectionCounts, IdleWheel, LimitedLog, Limits


@dataclass(eq=False)
class Sleeper:
    active_tick: int = 0
    idle_slot: int = 0
    stays: bool = False
    expired_at: list[int] = field(default_factory=list)
    wheel: IdleWheel | None = None

    def idle_expired(self) -> bool:
        assert self.wheel is not None
        if self.stays:
            return False
        self.expired_at.append(self.wheel.now)
        return True


def test_connection_expires_after_one_whole_idle_period() -> None:
    wheel = IdleWheel()
    for _ in range(5):
        wheel.tick()
    silent, active = Sleeper(wheel=wheel), Sleeper(wheel=wheel)
    wheel.add(silent)
    wheel.add(active)
    for _ in range(100):
        active.active_tick = wheel.now
        wheel.tick()
    assert silent.expired_at == [5 + IdleWheel.SLOTS + 1]
    assert active.expired_at == []


def test_connection_that_is_busy_when_its_idle_time_ends_is_closed_once_it_is_free() -> None:
    wheel = IdleWheel()
    held = Sleeper(wheel=wheel, stays=True)
    wheel.add(held)
    for _ in range(40):
        wheel.tick()
    held.stays = False
    wheel.tick()
    assert held.expired_at == [41]


def test_idle_connections_expire_in_the_order_of_their_arrival() -> None:
    wheel = IdleWheel()
    order: list[Sleeper] = []

    class Noted(Sleeper):
        def idle_expired(self) -> bool:
            order.append(self)
            return True

    sleepers = [Noted(wheel=wheel) for _ in range(50)]
    for sleeper in reversed(sleepers):
        wheel.add(sleeper)
    for _ in range(40):
        wheel.tick()
    assert order == sleepers[::-1]


def test_removed_connection_does_not_expire() -> None:
    wheel = IdleWheel()
    gone = Sleeper(wheel=wheel)
    wheel.add(gone)
    wheel.remove(gone)
    for _ in range(40):
        wheel.tick()
    assert gone.expired_at == []


def test_byte_budget_resumes_waiting_connections_in_order_once_bytes_are_free() -> None:
    budget = ByteBudget(100)
    woken: list[str] = []

    def second() -> None:
        woken.append("second")
        budget.take(100)

    budget.take(150)
    assert budget.exhausted
    budget.wait(lambda: woken.append("first"))
    budget.wait(second)
    budget.wait(lambda: woken.append("third"))
    budget.give_back(40)
    assert woken == []
    budget.give_back(60)
    assert woken == ["first", "second"]
    assert budget.waiting == 1


def test_byte_budget_without_a_limit_is_never_exhausted() -> None:
    budget = ByteBudget(-1)
    budget.take(1 << 40)
    assert not budget.exhausted


def test_byte_budget_reports_its_free_bytes_and_use_above_half_or_above_twice_its_limit() -> None:
    budget = ByteBudget(100)
    budget.take(50)
    assert (budget.room, budget.strained) == (50, False)
    budget.take(60)
    assert (budget.room, budget.strained, budget.overdrawn) == (0, True, False)
    budget.take(91)
    assert budget.overdrawn
    unbounded = ByteBudget(-1)
    unbounded.take(1 << 40)
    assert unbounded.room > 1 << 60
    assert not unbounded.strained
    assert not unbounded.overdrawn


def test_connection_counts_return_to_zero_when_all_connections_are_closed() -> None:
    counts = ConnectionCounts(Limits(max_connections_per_ip=2))
    counts.add("10.0.0.1")
    counts.add("10.0.0.1")
    assert "max.connections.per.ip=2 connections are open from 10.0.0.1" in str(counts.refusal("10.0.0.1"))
    assert counts.refusal("10.0.0.2") is None
    counts.remove("10.0.0.1")
    counts.remove("10.0.0.1")
    assert counts.total == 0
    counts.add("10.0.0.1")
    assert counts.refusal("10.0.0.1") is None


@pytest.mark.parametrize(
    "limits",
    [
        Limits(max_connections_per_ip=0),
        Limits(max_connections=0),
        Limits(descriptor_connections=0),
        Limits(max_connections_per_ip_overrides={"127.0.0.1": 0, "::1": 0, "::ffff:127.0.0.1": 0}),
    ],
)
@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "::ffff:127.0.0.1"])
def test_some_loopback_connections_are_accepted_even_if_all_connection_limits_are_reached(
    limits: Limits, host: str
) -> None:
    counts = ConnectionCounts(limits)
    for _ in range(limits.loopback_connections):
        assert counts.refusal(host) is None
        counts.add(host)
    assert counts.refusal(host) is not None
    counts.remove(host)
    assert counts.refusal(host) is None


def test_connection_that_would_take_one_of_the_last_file_descriptors_is_refused() -> None:
    counts = ConnectionCounts(Limits(descriptor_connections=2))
    counts.add("10.0.0.1")
    counts.add("10.0.0.2")
    assert "ulimit -n" in str(counts.refusal("10.0.0.3"))


def test_inter_broker_listener_obeys_the_limit_per_address_but_not_max_connections() -> None:
    counts = ConnectionCounts(Limits(max_connections=1, max_connections_per_ip=1))
    counts.add("10.0.0.1")
    assert counts.full
    assert counts.refusal("10.0.0.2") is not None
    assert counts.refusal("10.0.0.2", protected=True) is None
    assert counts.refusal("10.0.0.1", protected=True) is not None


def test_rate_limited_log_counts_the_lines_that_it_omits(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    log = LimitedLog(logging.getLogger("penstock.net"), lambda: now)
    for number in range(100):
        log.warning("flood", f"line {number}")
    log.warning("other", "something else")
    assert caplog.messages == [*(f"line {number}" for number in range(LimitedLog.LINES)), "something else"]
    now += LimitedLog.PERIOD_S
    log.warning("flood", "again")
    assert caplog.messages[-2:] == [
        f"{100 - LimitedLog.LINES} log lines of the same kind as the next line were left out",
        "again",
    ]


@pytest.mark.parametrize("enabled", [True, False])
def test_log_line_about_omitted_lines_has_the_log_level_of_the_omitted_lines(
    caplog: pytest.LogCaptureFixture, enabled: bool
) -> None:
    now = 0.0
    log = LimitedLog(logging.getLogger("penstock.net"), lambda: now)
    caplog.set_level(logging.INFO if enabled else logging.WARNING, "penstock.net")
    for _ in range(100):
        log.info("flood", lambda: "line")
    now += LimitedLog.PERIOD_S
    log.info("flood", lambda: "again")
    assert {record.levelno for record in caplog.records} == ({logging.INFO} if enabled else set())
    assert any("were left out" in line for line in caplog.messages) is enabled


def test_repeated_stack_traces_do_not_flood_the_log(caplog: pytest.LogCaptureFixture) -> None:
    log = LimitedLog(logging.getLogger("penstock.net"), lambda: 0.0)
    for _ in range(100):
        log.exception("Fetch", "Fetch v3 failed", ZeroDivisionError())
    assert len(caplog.records) == LimitedLog.LINES
    assert all(record.exc_info is not None for record in caplog.records)


def test_buffer_of_a_large_frame_grows_only_with_the_received_bytes() -> None:
    partial = PartialFrame(100_000_000, memoryview(b""))
    assert partial.capacity == PARTIAL_MIN_BYTES
    received = 0
    while received < 1_000_000:
        tail = partial.tail()
        assert partial.capacity <= max(PARTIAL_MIN_BYTES, 4 * received)
        partial.advance(len(tail))
        received += len(tail)


def test_buffer_of_a_complete_frame_has_exactly_the_size_of_the_frame() -> None:
    body = bytes(range(256)) * 1000
    partial = PartialFrame(len(body), memoryview(body)[:10])
    held = []
    position = 10
    while position < len(body):
        tail = partial.tail()
        held.append(tail)
        count = min(len(tail), 5000)
        tail[:count] = body[position : position + count]
        position += count
        whole = partial.advance(count)
    assert whole
    assert partial.take() == body
    assert partial.capacity == len(body)


def test_client_allocates_the_memory_for_a_response_in_one_step_unless_the_response_is_huge() -> None:
    for size, room in ((1_000_000, 1_000_000), (100_000_000, ANSWER_AT_ONCE_BYTES)):
        reader = FrameReader(100_000_000)
        start = SIZE.pack(size) + b"begins"
        reader.buffer()[: len(start)] = start
        assert reader.received(len(start)) == []
        assert len(reader.buffer()) == room - len(b"begins")


def test_other_protocols_are_recognised_by_their_first_bytes() -> None:
    assert foreign_protocol(b"\x16\x03\x01\x00") == "a TLS handshake"
    assert foreign_protocol(b"POST") == "an HTTP request"
    assert foreign_protocol(b"\x00\x00\x00\x10") is None
