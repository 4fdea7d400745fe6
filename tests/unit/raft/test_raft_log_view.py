"""Where epochs begin and end, and what that says about another log."""

from __future__ import annotations

import pytest

from penstock.check import InvariantError
from penstock.raft.log_view import Batch, Behind, Diverging, LogView, OffsetAndEpoch


def view() -> LogView:
    """Epoch 1 has 0 to 4, epoch 3 has 5 to 7, epoch 4 has 8 and 9."""
    return LogView(end_offset=10, epochs=[(1, 0), (3, 5), (4, 8)])


@pytest.mark.parametrize(
    ("offset", "last_epoch", "expected"),
    [
        (0, 0, None),  # an empty log
        (3, 1, None),
        (5, 1, None),
        (8, 3, None),
        (10, 4, None),
        (6, 1, Diverging(OffsetAndEpoch(5, 1))),  # has more of epoch 1
        (9, 2, Diverging(OffsetAndEpoch(5, 1))),  # an epoch that this log never had
        (12, 4, Diverging(OffsetAndEpoch(10, 4))),
        (10, 9, Diverging(OffsetAndEpoch(10, 4))),
    ],
)
def test_a_log_is_a_prefix_or_parts_at_the_end_of_an_epoch(
    offset: int, last_epoch: int, expected: Diverging | None
) -> None:
    assert view().compare(offset, last_epoch) == expected


@pytest.mark.parametrize(
    ("end", "cut"),
    [
        (OffsetAndEpoch(7, 3), 7),  # the leader's epoch 3 is shorter
        (OffsetAndEpoch(20, 3), 8),  # longer: all of ours is in it
        (OffsetAndEpoch(6, 2), 5),  # an epoch we don't have: back to the one before
        (OffsetAndEpoch(2, 1), 2),
    ],
)
def test_a_follower_cuts_where_both_logs_have_the_epoch(end: OffsetAndEpoch, cut: int) -> None:
    assert view().cut_for(end) == cut


def test_a_cut_takes_the_epochs_that_begin_behind_it() -> None:
    log = view()
    log.truncate_to(6)
    assert (log.end_offset, log.last_epoch) == (6, 3)
    log.truncate_to(5)
    assert (log.end_offset, log.last_epoch) == (5, 1)
    log.append(Batch(5, 6, 7, "new"))
    assert log.end_offset_for(6) == OffsetAndEpoch(5, 1)


def test_a_log_is_not_cut_while_an_fsync_is_under_way() -> None:
    log = view()
    log.append(Batch(10, 10, 4, "unflushed"))
    with pytest.raises(InvariantError):
        log.truncate_to(9)


def test_who_is_behind_the_start_gets_the_snapshot() -> None:
    log = view()
    log.snapshot_taken(OffsetAndEpoch(8, 3), 8)
    assert log.compare(7, 3) == Behind(OffsetAndEpoch(8, 3))
    assert log.compare(0, 0) == Behind(OffsetAndEpoch(8, 3))
    assert log.compare(8, 1) == Behind(OffsetAndEpoch(8, 3))
    assert log.compare(8, 3) is None
    assert log.compare(9, 4) is None
    assert log.compare(9, 3) == Behind(OffsetAndEpoch(8, 3))


def test_a_log_that_starts_at_its_snapshot_knows_the_epoch_before_its_first_record() -> None:
    log = LogView(start_offset=8, end_offset=10, epochs=[(4, 8)], snapshot=OffsetAndEpoch(8, 3))
    assert log.compare(8, 3) is None
    assert LogView(start_offset=8, end_offset=8, snapshot=OffsetAndEpoch(8, 3)).last_epoch == 3


def test_an_installed_snapshot_is_all_there_is() -> None:
    log = view()
    log.reset(OffsetAndEpoch(30, 6))
    assert (log.start_offset, log.end_offset, log.flushed_offset, log.last_epoch) == (30, 30, 30, 6)
    log.append(Batch(30, 30, 7, "next"))
    assert log.end_offset_for(6) == OffsetAndEpoch(30, 6)


def test_a_later_epoch_beats_a_longer_log() -> None:
    log = view()
    assert log.is_at_most(5, 3)
    assert log.is_at_most(4, 10)
    assert not log.is_at_most(4, 9)
    assert not log.is_at_most(3, 100)
