"""Tests the steps of followers and directory moves for all small logs: they end at the leader's or the current log."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations_with_replacement, product

import pytest

from penstock.metadata.image import PartitionImage
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.replication.directory_move import Bounds, CopyRate, StepKind, next_step
from penstock.replication.epochs import check_leader_epoch
from penstock.replication.follower import Reset, ResetKind, reset, truncation
from penstock.replication.leader import Leading, Progress

OFFSETS = range(5)
BOUNDS = [Bounds(start, end) for start, end in combinations_with_replacement(OFFSETS, 2)]


@pytest.mark.parametrize("current", BOUNDS, ids=lambda each: f"{each.start}-{each.end}")
def test_directory_move_makes_the_copy_equal_to_the_current_log_from_any_starting_point(current: Bounds) -> None:
    for future, cut_at in product(BOUNDS, (None, *OFFSETS)):
        start, end = future.start, future.end
        valid_end = end if cut_at is None else min(end, cut_at)  # records from here on may differ
        cut: int | None = cut_at
        steps: list[StepKind] = []
        while (step := next_step(current, Bounds(start, end), cut)).kind is not StepKind.NOTHING:
            steps.append(step.kind)
            assert len(steps) <= 5, (current, future, cut_at, steps)
            match step.kind:
                case StepKind.TRUNCATE:
                    assert start <= step.offset < end
                    end, valid_end = step.offset, min(valid_end, step.offset)
                    cut = None if cut is not None and cut >= end else cut
                case StepKind.START_OVER:
                    assert step.offset == current.start
                    assert not start <= current.start <= end or (cut is not None and cut < start), "it could be cut"
                    start = end = valid_end = current.start
                    cut = None
                case StepKind.ADVANCE_START:
                    assert start < step.offset <= end
                    start = step.offset
                case StepKind.COPY:
                    assert step.offset == end < current.end
                    assert start == end or valid_end == end, "a copy after records that may differ"
                    end = valid_end = current.end
        assert Bounds(start, end) == current, (future, cut_at, steps)
        assert start == end or valid_end >= end, (current, future, cut_at, steps)


def test_follower_whose_log_end_is_out_of_range_continues_within_the_log_of_the_leader() -> None:
    for leader, log_end in product(BOUNDS, range(6)):
        expected = Reset(ResetKind.STAY, log_end)
        if log_end > leader.end:
            expected = Reset(ResetKind.TRUNCATE, leader.end)
        elif log_end < leader.start:
            expected = Reset(ResetKind.START_OVER, leader.start)
        assert reset(log_end, leader.start, leader.end) == expected


def test_leader_ignores_an_alter_partition_answer_with_another_leader_epoch_or_an_old_partition_epoch() -> None:
    for leader_epoch, partition_epoch in product((4, 5, 6), (7, 8, 9)):
        image = PartitionImage(replicas=(1, 2), isr=(1, 2), leader=1, leader_epoch=5, partition_epoch=8)
        leading = Leading(1, image, 0, 0)
        counts = leader_epoch == 5 and partition_epoch >= 8
        assert leading.accepted([1], leader_epoch, partition_epoch) is counts
        assert (leading.isr, leading.partition_epoch) == (((1,), partition_epoch) if counts else ((1, 2), 8))


def test_older_leader_epoch_gets_fenced_and_newer_leader_epoch_gets_unknown_leader_epoch() -> None:
    check_leader_epoch(-1, 5)
    check_leader_epoch(5, 5)
    for asked, code in ((4, ErrorCode.FENCED_LEADER_EPOCH), (6, ErrorCode.UNKNOWN_LEADER_EPOCH)):
        with pytest.raises(KafkaError) as error:
            check_leader_epoch(asked, 5)
        assert error.value.code is code


def test_copy_rate_is_the_average_of_the_last_ten_seconds() -> None:
    rate = CopyRate()
    assert rate.per_second(3.0) == 0.0
    rate.add(100, 3.0)
    assert rate.per_second(3.0) == 100 / 0.001
    for second in range(4, 34):
        rate.add(100 if second < 14 else 10, float(second))
    assert rate.per_second(33.0) == pytest.approx(10, rel=0.15)
    assert rate.copied == 100 + 10 * 100 + 20 * 10


def test_follower_that_is_one_fetch_behind_a_busy_leader_stays_in_sync() -> None:
    follower = Progress(2, 0, 0)
    for second in range(60):  # each fetch asks for the end that the leader had at the fetch before
        follower.on_fetch(10 * second, 0, 10 * (second + 1), 1000 * second)
        assert follower.is_caught_up(10 * (second + 1), 1000 * second, 1500), second
    follower.on_fetch(590, 0, 610, 62_000)  # it does not get further
    assert not follower.is_caught_up(610, 62_000, 1500)
    assert follower.lag_ms(610, 62_000) == 62_000 - follower.caught_up_ms


def test_metadata_image_with_the_current_partition_epoch_can_remove_replicas() -> None:
    image = PartitionImage(replicas=(1, 2, 3), isr=(1, 2), leader=1, leader_epoch=5, partition_epoch=8)
    leading = Leading(1, image, 0, 0)
    leading.expand(3, 11)
    assert leading.accepted([1, 2, 3], 5, 9)
    leading.follow(replace(image, replicas=(1, 3), isr=(1, 3), partition_epoch=9), 0)  # the reassignment is complete
    assert (leading.replicas, leading.isr, set(leading.followers)) == ((1, 3), (1, 3), {3})


def test_follower_never_truncates_to_an_offset_beyond_its_log_end() -> None:
    for leader_epoch, leader_end, own_epoch, own_end in product((-1, 1, 2), (-1, 3, 9), (-1, 1, 2), (-1, 3, 9)):
        for high_watermark in (2, 5, 9):
            step = truncation(leader_epoch, leader_end, own_epoch, own_end, 5, high_watermark)
            assert -1 <= step.offset <= 5
            if leader_end == -1:
                assert step.offset == min(high_watermark, 5)


def test_leader_remembers_the_old_and_the_new_offset_if_a_follower_fetches_from_a_lower_offset() -> None:
    follower = Progress(2, 0, 0)
    for offset in (4, 4, 7):
        follower.on_fetch(offset, 0, 10, 0)
    assert follower.retreat is None
    follower.on_fetch(6, 0, 10, 0)
    assert follower.retreat == (7, 6)
