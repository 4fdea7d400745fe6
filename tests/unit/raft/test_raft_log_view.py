"""Tests starts and ends of epochs in a log, and the comparison with another log."""

from __future__ import annotations

import pytest

from penstock.check import InvariantError
from penstock.raft.log_view import Batch, Behind, Diverging, LogView, OffsetAndEpoch


def view() -> LogView:
    """Returns a log with offsets 0 to 4 of epoch 1, 5 to 7 of epoch 3, 8 and 9 of epoch 4."""
    return LogView(end_offset=10, epochs=[(1, 0), (3, 5), (4, 8)])


@pytest.mark.parametrize(
    ("offset", "last_epoch", "expected"),
    [
        (0, 0, None),  # an empty log
        (3, 1, None),
        (5, 1, None),
        (8, 3, None),
        (10, 4, None),
        (6, 1, Diverging(OffsetAndEpoch(5, 1))),  # has more records of epoch 1
        (9, 2, Diverging(OffsetAndEpoch(5, 1))),  # an epoch that this log never had
        (12, 4, Diverging(OffsetAndEpoch(10, 4))),
        (10, 9, Diverging(OffsetAndEpoch(10, 4))),
    ],
)
def test_comparison_with_a_diverging_log_returns_the_end_of_the_last_shared_epoch(
    offset: int, last_epoch: int, expected: Diverging | None
) -> None:
    assert view().compare(offset, last_epoch) == expected


@pytest.mark.parametrize(
    ("end", "cut"),
    [
        (OffsetAndEpoch(7, 3), 7),  # the leader's epoch 3 is shorter
        (OffsetAndEpoch(20, 3), 8),  # the leader's epoch is longer: it contains all of ours
        (OffsetAndEpoch(6, 2), 5),  # an epoch that we do not have: truncate to the epoch before
        (OffsetAndEpoch(2, 1), 2),
    ],
)
def test_a_follower_truncates_to_the_end_of_the_shared_epoch(end: OffsetAndEpoch, cut: int) -> None:
    assert view().cut_for(end) == cut


def test_truncation_of_the_raft_log_removes_epochs_that_start_at_or_after_its_new_end() -> None:
    log = view()
    log.truncate_to(6)
    assert (log.end_offset, log.last_epoch) == (6, 3)
    log.truncate_to(5)
    assert (log.end_offset, log.last_epoch) == (5, 1)
    log.append(Batch(5, 6, 7, "new"))
    assert log.end_offset_for(6) == OffsetAndEpoch(5, 1)


def test_truncating_the_raft_log_during_an_fsync_raises_an_invariant_error() -> None:
    log = view()
    log.append(Batch(10, 10, 4, "unflushed"))
    with pytest.raises(InvariantError):
        log.truncate_to(9)


def test_follower_below_the_log_start_is_told_to_fetch_the_snapshot() -> None:
    log = view()
    log.snapshot_taken(OffsetAndEpoch(8, 3), 8)
    assert log.compare(7, 3) == Behind(OffsetAndEpoch(8, 3))
    assert log.compare(0, 0) == Behind(OffsetAndEpoch(8, 3))
    assert log.compare(8, 1) == Behind(OffsetAndEpoch(8, 3))
    assert log.compare(8, 3) is None
    assert log.compare(9, 4) is None
    assert log.compare(9, 3) == Behind(OffsetAndEpoch(8, 3))


def test_log_that_starts_at_its_snapshot_has_the_epoch_of_the_record_before_its_start() -> None:
    log = LogView(start_offset=8, end_offset=10, epochs=[(4, 8)], snapshot=OffsetAndEpoch(8, 3))
    assert log.compare(8, 3) is None
    assert LogView(start_offset=8, end_offset=8, snapshot=OffsetAndEpoch(8, 3)).last_epoch == 3


def test_installing_a_snapshot_empties_the_raft_log() -> None:
    log = view()
    log.reset(OffsetAndEpoch(30, 6))
    assert (log.start_offset, log.end_offset, log.flushed_offset, log.last_epoch) == (30, 30, 30, 6)
    log.append(Batch(30, 30, 7, "next"))
    assert log.end_offset_for(6) == OffsetAndEpoch(30, 6)


def test_a_log_with_a_later_last_epoch_is_more_up_to_date_than_a_longer_log() -> None:
    log = view()
    assert log.is_at_most(5, 3)
    assert log.is_at_most(4, 10)
    assert not log.is_at_most(4, 9)
    assert not log.is_at_most(3, 100)
