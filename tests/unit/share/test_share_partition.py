"""Tests single rules for acquiring and acknowledging records, each with the smallest example."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.vocabulary import Acknowledge
from penstock.share.acquiring import Wish
from penstock.share.partition import MAX_BATCH_RECORDS, MAX_RUNS, SharePartition
from penstock.share.portions import portions
from penstock.share.states import (
    AcknowledgedRange,
    AcquireMode,
    FetchedBatch,
    RecordState,
    ShareLimits,
    StateBatch,
)
from penstock.share.window import Run, Window

LIMITS = ShareLimits(lock_duration_ms=1000, max_deliveries=5, max_record_locks=100)
TEN = [FetchedBatch(0, 9)]


def ranges(share: SharePartition) -> list[tuple[int, int, str, int]]:
    return [(run.first, run.stop - 1, RecordState(run.state).name, run.deliveries) for run, _ in share.inspect()]


def deliver(share: SharePartition, times: int, batches: list[FetchedBatch], limits: ShareLimits = LIMITS) -> None:
    """Delivers the available records several times, and lets their locks expire each time."""
    for _ in range(times):
        now_ms = (share.locks.next_deadline() or 0) + 1
        share.acquire(Wish("m", 1000), share.next_fetch_offset(), batches, limits, now_ms)
        share.expire(limits, now_ms + 10_000)


def test_share_partition_stores_consecutive_records_of_equal_state_as_one_range() -> None:
    share = SharePartition(0)
    assert share.acquire(Wish("m", 500), 0, TEN, LIMITS, 0) == [(0, 9, 1)]
    assert len(share.window) == 1


def test_acknowledging_single_records_of_a_share_partition_splits_and_merges_its_ranges() -> None:
    share = SharePartition(0)
    share.acquire(Wish("m", 500), 0, TEN, LIMITS, 0)
    for offset in (4, 6, 5):
        transition = share.acknowledge("m", [AcknowledgedRange(offset, offset, (Acknowledge.ACCEPT,))], LIMITS, 0)
        assert transition is not None
        share.commit(transition, 0)
    assert ranges(share) == [(0, 3, "ACQUIRED", 1), (4, 6, "ACKNOWLEDGED", 1), (7, 9, "ACQUIRED", 1)]
    assert share.complete_count == 3


def test_share_fetch_acquires_whole_batches_unless_its_mode_is_record_limit() -> None:
    whole, strict = SharePartition(0), SharePartition(0)
    assert whole.acquire(Wish("m", 4), 0, TEN, LIMITS, 0) == [(0, 9, 1)]
    assert strict.acquire(Wish("m", 4, mode=AcquireMode.RECORD_LIMIT), 0, TEN, LIMITS, 0) == [(0, 3, 1)]
    assert strict.next_fetch_offset() == 4


def test_acquired_records_are_returned_in_whole_batches_of_about_the_requested_size() -> None:
    share = SharePartition(0)
    batches = [FetchedBatch(first, first + 3) for first in range(0, 20, 4)]
    assert share.acquire(Wish("m", 500, batch_size=8), 0, batches, LIMITS, 0) == [(0, 7, 1), (8, 15, 1), (16, 19, 1)]


def test_share_partition_archives_offsets_without_deliverable_records() -> None:
    share = SharePartition(0)
    batches = [FetchedBatch(2, 3), FetchedBatch(4, 4, deliverable=False), FetchedBatch(8, 9)]
    assert share.acquire(Wish("m", 500), 0, batches, LIMITS, 0) == [(2, 3, 1), (8, 9, 1)]
    assert ranges(share) == [(2, 3, "ACQUIRED", 1), (4, 7, "ARCHIVED", 0), (8, 9, "ACQUIRED", 1)]


def test_share_partition_at_its_record_lock_limit_delivers_only_released_records() -> None:
    limits = LIMITS._replace(max_record_locks=10)
    share = SharePartition(0)
    batches = [*TEN, FetchedBatch(10, 19)]
    assert share.acquire(Wish("a", 500), 0, batches, limits, 0) == [(0, 9, 1)]
    assert not share.can_acquire(limits)
    release = share.acknowledge("a", [AcknowledgedRange(5, 5, (Acknowledge.RELEASE,))], limits, 0)
    assert release is not None
    share.commit(release, 0)
    assert share.acquire(Wish("b", 500), 5, batches, limits, 0) == [(5, 5, 2)]


def test_records_that_were_delivered_often_are_delivered_again_in_smaller_batches() -> None:
    share = SharePartition(0)
    batch = [FetchedBatch(0, 7)]
    deliver(share, 3, batch)
    assert share.acquire(Wish("m", 500), 0, batch, LIMITS, 20_000) == [(0, 3, 4)]
    share.expire(LIMITS, 40_000)
    assert share.acquire(Wish("m", 500), 0, batch, LIMITS, 40_000) == [(0, 0, 5)]
    assert share.acquire(Wish("m", 500), 1, batch, LIMITS, 40_000) == [(1, 1, 5)]


def test_a_released_record_is_not_available_before_its_back_off_is_over() -> None:
    limits = LIMITS._replace(retry_ms=1_000, max_retry_ms=1_500)
    share = SharePartition(0)
    now_ms = 0
    for deliveries, backoff_ms in ((1, 1_000), (2, 1_500), (3, 1_500)):
        assert share.acquire(Wish("m", 500), share.next_fetch_offset(), TEN, limits, now_ms) == [(0, 9, deliveries)]
        release = share.acknowledge("m", [AcknowledgedRange(0, 9, (Acknowledge.RELEASE,))], limits, now_ms)
        assert release is not None
        share.commit(release, now_ms)
        assert ranges(share) == [(0, 9, "DELAYED", deliveries)]
        assert share.next_fetch_offset() == 10
        assert list(share.stored([StateBatch(0, 9, 0, 0)])) == [StateBatch(0, 9, RecordState.AVAILABLE, deliveries)]
        share.expire(limits, now_ms + backoff_ms)
        assert share.next_fetch_offset() == 10
        now_ms = share.delays.next_deadline() or 0
        share.expire(limits, now_ms)
        assert ranges(share) == [(0, 9, "AVAILABLE", deliveries)]


def test_new_share_partition_leader_starts_the_retry_delay_of_released_records_again() -> None:
    limits = LIMITS._replace(retry_ms=1_000, max_retry_ms=60_000)
    stored = [StateBatch(0, 4, RecordState.AVAILABLE, 2), StateBatch(5, 9, RecordState.AVAILABLE, 0)]
    share = SharePartition(0, stored, limits, 50_000)
    assert ranges(share) == [(0, 4, "DELAYED", 2), (5, 9, "AVAILABLE", 0)]
    assert (share.delays.next_deadline() or 0) >= 52_000
    share.acquire(Wish("m", 500), 5, TEN, limits, 50_000)
    share.abandon("m")
    closed = share.release(limits)
    assert closed is not None
    share.commit(closed, 50_000)
    assert ranges(share) == [(0, 4, "DELAYED", 2), (5, 9, "AVAILABLE", 0)]


def test_one_call_ends_the_retry_delays_of_a_limited_number_of_ranges() -> None:
    limits = LIMITS._replace(retry_ms=1_000, max_retry_ms=60_000)
    stored = [StateBatch(each, each, RecordState.AVAILABLE, 1) for each in range(0, 10, 2)]
    share = SharePartition(0, stored, limits, 0)
    over = (share.next_deadline() or 0) + 1
    left = []
    while share.has_due(over):
        share.expire(limits, over, most=2)
        left.append(share.window.totals[RecordState.DELAYED])
    assert left == [3, 1, 0]


def test_unsaved_release_of_a_closed_session_leaves_records_locked_until_their_lock_expires() -> None:
    share = SharePartition(0)
    share.acquire(Wish("m", 500), 0, TEN, LIMITS, 0)
    share.abandon("m")
    released = share.release(LIMITS)
    assert released is not None
    share.rollback(released, 0)
    assert ranges(share) == [(0, 9, "ACQUIRED", 1)]
    share.expire(LIMITS, (share.next_deadline() or 0) + 1)
    assert ranges(share) == [(0, 9, "AVAILABLE", 1)]


def test_one_fetch_acquires_a_limited_number_of_single_records_of_a_large_batch() -> None:
    batch = [FetchedBatch(0, 5 * MAX_RUNS - 1)]
    stored = [
        StateBatch(each, each, RecordState.ACKNOWLEDGED if each % 2 else RecordState.AVAILABLE, 1)
        for each in range(5 * MAX_RUNS)
    ]
    share = SharePartition(0, stored)
    found = [share.acquire(Wish("m", 500), share.next_fetch_offset(), batch, LIMITS, 0) for _ in range(6)]
    assert [len(each) for each in found] == [MAX_RUNS // 2] * 5 + [0]
    assert [each.first for some in found for each in some] == list(range(0, 5 * MAX_RUNS, 2))


def test_one_fetch_archives_a_limited_number_of_single_records_of_an_aborted_batch() -> None:
    batch = [FetchedBatch(0, 3 * MAX_RUNS - 1, deliverable=False)]
    stored = [StateBatch(each, each, RecordState.AVAILABLE, 1 + each % 2) for each in range(3 * MAX_RUNS)]
    share = SharePartition(0, stored)
    starts = []
    for _ in range(3):
        assert share.acquire(Wish("m", 500), share.next_fetch_offset(), batch, LIMITS, 0) == []
        starts.append(share.start_offset)
    assert starts == [MAX_RUNS, 2 * MAX_RUNS, 3 * MAX_RUNS]


def test_very_large_batch_is_acquired_in_several_fetches() -> None:
    share = SharePartition(0)
    limits = LIMITS._replace(max_record_locks=MAX_BATCH_RECORDS + 1)
    batch = [FetchedBatch(0, 3 * MAX_BATCH_RECORDS)]
    found = [share.acquire(Wish("m", 500), share.next_fetch_offset(), batch, limits, 0) for _ in range(3)]
    assert [[(each.first, each.last) for each in some] for some in found] == [
        [(0, MAX_BATCH_RECORDS - 1)],
        [(MAX_BATCH_RECORDS, 2 * MAX_BATCH_RECORDS - 1)],
        [],
    ]


def test_one_call_expires_the_locks_of_a_limited_number_of_ranges() -> None:
    share = SharePartition(0)
    share.acquire(Wish("m", 500), 0, TEN, LIMITS, 0)
    accepted = share.acknowledge("m", [AcknowledgedRange(each, each, (1,)) for each in range(0, 10, 2)], LIMITS, 0)
    assert accepted is not None
    share.commit(accepted, 0)
    over = (share.next_deadline() or 0) + 1
    assert [change.first for change in share.expire(LIMITS, over, most=2)] == [1, 3]
    assert share.next_deadline() == over - 1
    assert [change.first for change in share.expire(LIMITS, over, most=2)] == [5, 7]
    assert [change.first for change in share.expire(LIMITS, over, most=2)] == [9]
    assert share.next_deadline() is None


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(1, 6), st.booleans()), min_size=1, max_size=8),
    st.integers(1, 5),
)
def test_splitting_a_long_acknowledgement_keeps_each_offset_once_and_in_order(
    shapes: list[tuple[int, int, bool]], most: int
) -> None:
    share = SharePartition(0)
    share.acquire(Wish("m", 500), 0, [FetchedBatch(0, 99)], LIMITS, 0)
    wanted, position = [], 0
    for gap, size, single in shapes:
        first = position + gap
        wanted.append(AcknowledgedRange(first, first + size - 1, (1,) if single else tuple(range(size))))
        position = first + size

    def spread(ranges: list[AcknowledgedRange]) -> list[tuple[int, int]]:
        return [
            (offset, each.types[0] if len(each.types) == 1 else each.types[offset - each.first])
            for each in ranges
            for offset in range(each.first, each.last + 1)
        ]

    found = list(portions(share.window, wanted, most))
    assert [one for part in found for one in spread(part)] == spread(wanted)
    for part in found:
        assert sum(1 if len(each.types) == 1 else len(each.types) for each in part) <= most


def test_a_record_is_archived_after_its_last_delivery() -> None:
    limits = LIMITS._replace(max_deliveries=2)
    share = SharePartition(0)
    deliver(share, 2, TEN, limits)
    assert (share.start_offset, share.end_offset) == (10, 10)


def test_records_above_a_lowered_delivery_limit_are_archived_instead_of_delivered() -> None:
    share = SharePartition(0, [StateBatch(0, 9, RecordState.AVAILABLE, 3)])
    assert share.acquire(Wish("m", 500), 0, TEN, LIMITS._replace(max_deliveries=3), 0) == []
    assert share.start_offset == 10


def test_renew_acknowledgement_extends_the_lock_of_a_record() -> None:
    share = SharePartition(0)
    share.acquire(Wish("m", 500), 0, TEN, LIMITS, 0)
    assert share.acknowledge("m", [AcknowledgedRange(3, 3, (Acknowledge.RENEW,))], LIMITS, 900) is None
    share.expire(LIMITS, 1100)
    assert ranges(share) == [(0, 2, "AVAILABLE", 1), (3, 3, "ACQUIRED", 1), (4, 9, "AVAILABLE", 1)]


@pytest.mark.parametrize(
    ("member", "first", "last", "code"),
    [
        ("other", 0, 9, ErrorCode.INVALID_RECORD_STATE),
        ("m", 0, 10, ErrorCode.INVALID_REQUEST),
        ("m", 20, 29, ErrorCode.INVALID_REQUEST),
    ],
)
def test_a_refused_acknowledgement_changes_nothing(member: str, first: int, last: int, code: ErrorCode) -> None:
    share = SharePartition(0)
    share.acquire(Wish("m", 500), 0, TEN, LIMITS, 0)
    good = AcknowledgedRange(0, 3, (Acknowledge.ACCEPT,))
    with pytest.raises(KafkaError) as refused:
        share.acknowledge(member, [good, AcknowledgedRange(max(first, 4), last, (Acknowledge.ACCEPT,))], LIMITS, 0)
    assert refused.value.code is code
    assert ranges(share) == [(0, 9, "ACQUIRED", 1)]


def test_loaded_share_partition_makes_offsets_without_a_stored_state_available() -> None:
    share = SharePartition(0, [StateBatch(4, 5, RecordState.ACKNOWLEDGED, 1)])
    assert ranges(share) == [(0, 3, "AVAILABLE", 0), (4, 5, "ACKNOWLEDGED", 1)]
    assert share.acquire(Wish("m", 500), 0, TEN, LIMITS, 0) == [(0, 3, 1), (6, 9, 1)]


def test_acknowledging_single_records_creates_no_object_per_record() -> None:
    share = SharePartition(0)
    limits = LIMITS._replace(max_record_locks=10_000)
    batch = [FetchedBatch(0, 9_999)]
    share.acquire(Wish("m", 10_000), 0, batch, limits, 0)
    kinds = (Acknowledge.RELEASE, Acknowledge.ACCEPT) * 5_000
    transition = share.acknowledge("m", [AcknowledgedRange(0, 9_999, kinds)], limits, 0)
    assert transition is not None
    share.commit(transition, 0)
    assert len(share.window) == 10_000
    assert share.window.bytes < 10_000 * 20


class CountingWindow(Window):
    """Counts the visited ranges, and the calls of `_cut`, which splits a range at an offset."""

    visited = cuts = 0

    def runs(self, first: int, stop: int) -> Iterator[Run]:
        for run in super().runs(first, stop):
            self.visited += 1
            yield run

    def _cut(self, offset: int) -> int:
        self.cuts += 1
        return super()._cut(offset)


def test_release_of_all_locks_of_a_member_takes_time_linear_in_its_ranges() -> None:
    share = SharePartition(0)
    limits = LIMITS._replace(max_record_locks=10_000, lock_duration_ms=1_000_000)
    share.window = CountingWindow(0)
    share.acquire(Wish("m", 500), 0, [FetchedBatch(0, 399)], limits, 0)
    for number in range(1, 100):  # each lock holds the first, the last and one other record, and covers all of them
        some = [AcknowledgedRange(each, each, (Acknowledge.RENEW,)) for each in (0, 2 * number, 399)]
        share.acknowledge("m", some, limits, number * 100)
    share.window.visited = 0
    share.abandon("m")
    transition = share.release(limits)
    assert transition is not None
    assert share.window.visited < 3 * len(transition.undo)
    share.commit(transition, 0)
    assert ranges(share) == [(0, 399, "AVAILABLE", 0)]


def test_acknowledgement_with_alternating_types_rewrites_the_ranges_only_a_few_times() -> None:
    share = SharePartition(0)
    share.window = CountingWindow(0)
    share.acquire(Wish("m", 500), 0, [FetchedBatch(0, 399)], LIMITS, 0)
    kinds = (Acknowledge.RELEASE, Acknowledge.ACCEPT) * 200
    transition = share.acknowledge("m", [AcknowledgedRange(0, 399, kinds)], LIMITS, 0)
    assert transition is not None
    share.commit(transition, 0)
    assert len(share.window) == 400
    assert share.window.cuts < 10


@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(0, 2)), min_size=1, max_size=12),
    st.lists(st.tuples(st.integers(0, 4), st.integers(1, 5), st.integers(0, 2)), max_size=8),
    st.integers(0, 10),
)
def test_changing_many_record_ranges_at_once_has_the_same_result_as_one_by_one(
    sizes: list[tuple[int, int]], gaps: list[tuple[int, int, int]], first: int
) -> None:
    states = (RecordState.AVAILABLE, RecordState.ACQUIRED, RecordState.ARCHIVED)
    whole, single = Window(5), Window(5)
    for size, kind in sizes:
        for window in (whole, single):
            window.append(window.end + size, states[kind], kind, kind)
    wanted, position = [], first
    for gap, size, kind in gaps:
        wanted.append(Run(position + gap, position + gap + size, states[kind], kind, kind))
        position += gap + size
    whole.fill_all(wanted)
    for run in wanted:
        single.fill(*run)
    assert list(whole.runs(0, 100)) == list(single.runs(0, 100))
    assert whole.totals == single.totals
