"""Tests moves between log directories: states, answers to requests, steps of the copy, and progress."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.protocol.errors import ErrorCode
from penstock.replication.directory_move import (
    RATE_SECONDS,
    SAMPLE_SECONDS,
    Action,
    Bounds,
    CopyRate,
    Decision,
    MoveEvent,
    MoveFigures,
    MoveState,
    Replica,
    Step,
    StepKind,
    after,
    decide,
    next_step,
    tail_bytes,
)


def test_directory_move_swaps_the_logs_after_the_copy_has_caught_up() -> None:
    state = MoveState.REQUESTED
    for event in (
        MoveEvent.STARTED,
        MoveEvent.REACHED,
        MoveEvent.BEHIND,
        MoveEvent.REACHED,
        MoveEvent.CONFIRMED,
        MoveEvent.SWAPPED,
    ):
        state = after(state, event)
    assert state is MoveState.DONE


@pytest.mark.parametrize("state", [MoveState.REQUESTED, MoveState.COPYING, MoveState.SWAPPING])
def test_directory_move_cannot_swap_the_logs_before_the_copy_has_caught_up(state: MoveState) -> None:
    with pytest.raises(ValueError, match="can't have the event"):
        after(state, MoveEvent.CONFIRMED)


def test_directory_move_that_has_begun_to_swap_the_logs_can_fail_but_not_be_cancelled() -> None:
    assert after(MoveState.SWAPPING, MoveEvent.FAILED) is MoveState.FAILED
    with pytest.raises(ValueError, match="can't have the event"):
        after(MoveState.SWAPPING, MoveEvent.CANCELLED)


@pytest.mark.parametrize("state", [MoveState.DONE, MoveState.FAILED, MoveState.CANCELLED])
@pytest.mark.parametrize("event", list(MoveEvent))
def test_state_change_of_a_directory_move_that_has_ended_raises_an_error(state: MoveState, event: MoveEvent) -> None:
    with pytest.raises(ValueError, match="can't have the event"):
        after(state, event)


HERE = Replica("/a")


@pytest.mark.parametrize(
    ("target", "offline", "replica", "expected"),
    [
        pytest.param(None, False, HERE, Decision(Action.NOTHING, ErrorCode.LOG_DIR_NOT_FOUND), id="unknown target"),
        pytest.param("/b", True, HERE, Decision(Action.NOTHING, ErrorCode.KAFKA_STORAGE_ERROR), id="offline target"),
        pytest.param(
            "/b",
            False,
            Replica("/a", offline=True),
            Decision(Action.NOTHING, ErrorCode.KAFKA_STORAGE_ERROR),
            id="offline replica",
        ),
        pytest.param(
            "/b", False, None, Decision(Action.REMEMBER, ErrorCode.REPLICA_NOT_AVAILABLE), id="no replica yet"
        ),
        pytest.param("/a", False, HERE, Decision(Action.NOTHING), id="already there"),
        pytest.param("/b", False, HERE, Decision(Action.START), id="another directory"),
        pytest.param("/b", False, Replica("/a", moves_to="/b"), Decision(Action.NOTHING), id="same target again"),
        pytest.param("/c", False, Replica("/a", moves_to="/b"), Decision(Action.REPLACE), id="another target"),
        pytest.param("/a", False, Replica("/a", moves_to="/b"), Decision(Action.CANCEL), id="back to the current one"),
        pytest.param(
            "/a",
            False,
            Replica("/a", moves_to="/b", swapping=True),
            Decision(Action.NOTHING, ErrorCode.KAFKA_STORAGE_ERROR),
            id="cancelled during the swap",
        ),
    ],
)
def test_request_to_move_a_replica_gets_the_same_error_code_as_in_kafka(
    target: str | None, offline: bool, replica: Replica | None, expected: Decision
) -> None:
    assert decide(target, offline, replica, 40) == expected


def test_directory_of_a_move_request_is_stored_if_the_partition_does_not_exist_yet() -> None:
    expected = Decision(Action.REMEMBER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    assert decide("/b", False, None, 40, exists=False) == expected


def test_move_of_a_topic_with_a_name_too_long_for_the_directory_suffix_is_refused() -> None:
    assert decide("/b", False, HERE, 256).error is ErrorCode.INVALID_TOPIC_EXCEPTION


@pytest.mark.parametrize(("size", "tail"), [(0, 1024), (100_000, 25_000), (1 << 30, 256 * 1024)])
def test_log_size_limits_the_bytes_that_the_swap_of_a_directory_move_may_copy(size: int, tail: int) -> None:
    assert tail_bytes(size) == tail


@pytest.mark.parametrize(
    ("current", "future", "cut_at", "expected"),
    [
        pytest.param((0, 9), (0, 4), None, Step(StepKind.COPY, 4), id="behind"),
        pytest.param((0, 9), (0, 9), None, Step(StepKind.NOTHING, 9), id="equal"),
        pytest.param((0, 5), (0, 9), None, Step(StepKind.TRUNCATE, 5), id="truncated"),
        pytest.param((0, 20), (0, 9), 5, Step(StepKind.TRUNCATE, 5), id="truncated and grown again"),
        pytest.param((0, 20), (0, 5), 5, Step(StepKind.COPY, 5), id="the cut is done"),
        pytest.param((7, 9), (0, 7), None, Step(StepKind.ADVANCE_START, 7), id="start moved within the copy"),
        pytest.param((8, 9), (0, 7), None, Step(StepKind.START_OVER, 8), id="start passed the copy's end"),
        pytest.param((0, 0), (3, 7), None, Step(StepKind.TRUNCATE, 3), id="all was truncated: first the records"),
        pytest.param((0, 9), (3, 7), None, Step(StepKind.START_OVER, 0), id="start moved down"),
        pytest.param((0, 0), (3, 3), None, Step(StepKind.START_OVER, 0), id="all was truncated: then the start"),
        pytest.param((5, 5), (0, 5), None, Step(StepKind.ADVANCE_START, 5), id="all was deleted"),
    ],
)
def test_start_and_end_of_both_logs_decide_the_next_action_of_a_directory_move(
    current: tuple[int, int], future: tuple[int, int], cut_at: int | None, expected: Step
) -> None:
    assert next_step(Bounds(*current), Bounds(*future), cut_at) == expected


@given(st.data())
def test_directory_move_makes_start_and_end_of_both_logs_equal(data: st.DataObject) -> None:
    offsets = st.integers(0, 30)
    start = data.draw(offsets)
    current = Bounds(start, start + data.draw(offsets))
    start = data.draw(offsets)
    future = Bounds(start, start + data.draw(offsets))
    cut_at = data.draw(st.none() | offsets)
    for _ in range(6):
        step = next_step(current, future, cut_at)
        match step.kind:
            case StepKind.TRUNCATE:
                assert step.offset < future.end
                future = Bounds(future.start, step.offset)
            case StepKind.START_OVER:
                future, cut_at = Bounds(step.offset, step.offset), None
            case StepKind.ADVANCE_START:
                future = Bounds(step.offset, future.end)
            case StepKind.COPY:
                assert step.offset == future.end
                future, cut_at = Bounds(future.start, current.end), None
            case StepKind.NOTHING:
                break
    assert future == current


def test_copy_rate_counts_only_recently_copied_bytes() -> None:
    rate = CopyRate()
    assert rate.per_second(0.0) == 0.0
    rate.add(1000, 1.0)
    rate.add(1000, 2.0)
    assert rate.per_second(3.0) == 1000.0
    rate.add(50, 100.0)
    rate.add(50, 100.0 + RATE_SECONDS)
    assert rate.per_second(100.0 + RATE_SECONDS) == 5.0
    assert rate.copied == 2100


def test_copy_rate_keeps_few_samples_of_many_small_copies() -> None:
    rate = CopyRate()
    for number in range(10_000):
        rate.add(1, number / 1_000)
    assert len(rate._samples) <= RATE_SECONDS / SAMPLE_SECONDS + 3


def test_remaining_time_is_computed_from_rate_and_remaining_bytes() -> None:
    def figures(left: int, rate: float) -> MoveFigures:
        return MoveFigures("t", 0, "/a", "/b", MoveState.COPYING, 0, left, 0, rate)

    assert figures(1000, 100.0).seconds_left == 10.0
    assert figures(1000, 0.0).seconds_left is None
    assert figures(0, 0.0).seconds_left == 0.0
