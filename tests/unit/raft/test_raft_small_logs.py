"""Tests the view of the quorum's log for all small logs: comparison, truncation and snapshots agree with the records.

A log is the list of its records' epochs. Two logs that could exist at the same time never have records of one epoch
after the offset where they part, because one leader writes all records of an epoch.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import combinations_with_replacement, product

import pytest

from penstock.check import InvariantError
from penstock.raft.log_view import Batch, Behind, Diverging, LogView, OffsetAndEpoch

pytestmark = pytest.mark.exhaustive

EPOCHS = (1, 2, 3)
LONGEST = 4
Epochs = tuple[int, ...]
LOGS: list[Epochs] = [log for length in range(LONGEST + 1) for log in combinations_with_replacement(EPOCHS, length)]


def shared(one: Epochs, other: Epochs) -> int:
    """Returns the number of records that both logs begin with."""
    return next((n for n, (a, b) in enumerate(zip(one, other)) if a != b), min(len(one), len(other)))


def followers_of(leader: Epochs) -> Iterator[Epochs]:
    for log in LOGS:
        same = shared(leader, log)
        if not {*leader[same:]} & {*log[same:]}:
            yield log


def appended(log: Epochs) -> LogView:
    view = LogView()
    for offset, epoch in enumerate(log):
        view.append(Batch(offset, offset, epoch, b""))
    view.flushed(len(log))
    return view


def recovered(log: Epochs, start: int = 0, snapshot: OffsetAndEpoch | None = None) -> LogView:
    """Returns the view of a log that a start reads from disk."""
    epochs = [(epoch, offset) for offset, epoch in enumerate(log) if offset >= start]
    first = [each for n, each in enumerate(epochs) if n == 0 or epochs[n - 1][0] != each[0]]
    return LogView(start_offset=start, end_offset=len(log), epochs=first, snapshot=snapshot)


def answers(view: LogView) -> list[object]:
    ends = [view.end_offset_for(epoch) for epoch in range(5)]
    return [view.start_offset, view.end_offset, view.flushed_offset, view.last_epoch, view.snapshot, *ends]


def snapshots(log: Epochs) -> Iterator[tuple[OffsetAndEpoch, int]]:
    """Yields all snapshots of a log, and the offsets where the log may start afterwards."""
    for end in range(1, len(log) + 1):
        for start in range(end + 1):
            yield OffsetAndEpoch(end, log[end - 1]), start


@pytest.mark.parametrize("leader", LOGS, ids=lambda log: "".join(map(str, log)) or "empty")
def test_follower_truncates_exactly_the_records_that_the_leader_lacks(leader: Epochs) -> None:
    for log in followers_of(leader):
        same, view, rounds = shared(leader, log), appended(log), 0
        while (difference := appended(leader).compare(view.end_offset, view.last_epoch)) is not None:
            assert isinstance(difference, Diverging)
            cut, rounds = view.cut_for(difference.end), rounds + 1
            assert same <= cut < view.end_offset, (leader, log)
            assert rounds <= len(EPOCHS)
            view.truncate_to(cut)
            assert answers(view) == answers(appended(log[:cut])), (leader, log)
        assert view.end_offset == same, (leader, log)


@pytest.mark.parametrize("leader", LOGS, ids=lambda log: "".join(map(str, log)) or "empty")
def test_leader_sends_its_snapshot_only_to_followers_that_need_the_snapshot(leader: Epochs) -> None:
    for snapshot, start in snapshots(leader):
        view = appended(leader)
        view.snapshot_taken(snapshot, start)
        assert answers(view) == answers(recovered(leader, start, snapshot)), (leader, snapshot, start)
        for log in followers_of(leader):
            same, follower = shared(leader, log), appended(log)
            match view.compare(follower.end_offset, follower.last_epoch):
                case None:
                    assert same == len(log) >= start
                case Behind(sent):
                    assert sent == snapshot
                    assert start > 0
                    assert same <= start, (leader, snapshot, start, log)
                case Diverging(end):
                    assert same < len(log)
                    assert same <= follower.cut_for(end) < len(log), (leader, snapshot, start, log)


@pytest.mark.parametrize("log", LOGS, ids=lambda log: "".join(map(str, log)) or "empty")
def test_truncated_log_with_a_snapshot_equals_the_log_recovered_at_start(log: Epochs) -> None:
    for snapshot, start in snapshots(log):
        for cut in range(snapshot.offset, len(log) + 1):
            view = appended(log)
            view.snapshot_taken(snapshot, start)
            view.truncate_to(cut)
            assert answers(view) == answers(recovered(log[:cut], start, snapshot)), (log, snapshot, start, cut)
            view.append(Batch(cut, cut, 4, b""))
            assert (view.last_epoch, view.end_offset_for(4), view.flushed_offset) == (4, (cut + 1, 4), cut)


@pytest.mark.parametrize("log", LOGS, ids=lambda log: "".join(map(str, log)) or "empty")
def test_second_snapshot_replaces_the_first_and_never_moves_the_log_start_back(log: Epochs) -> None:
    for (first, first_start), (second, second_start) in product(snapshots(log), repeat=2):
        if first.offset <= second.offset:
            view = appended(log)
            view.snapshot_taken(first, first_start)
            view.snapshot_taken(second, second_start)
            start = max(first_start, second_start)
            assert answers(view) == answers(recovered(log, start, second)), (log, first, first_start, second, start)


def test_comparison_of_logs_uses_the_last_epoch_first_and_then_the_log_end() -> None:
    for mine in LOGS:
        for log in LOGS:
            epoch = log[-1] if log else 0
            newer = epoch > (mine[-1] if mine else 0) or (epoch == (mine[-1] if mine else 0) and len(log) >= len(mine))
            assert appended(mine).is_at_most(epoch, len(log)) is newer


@pytest.mark.parametrize("log", LOGS, ids=lambda log: "".join(map(str, log)) or "empty")
def test_installed_snapshot_replaces_the_whole_log_and_the_earlier_snapshot(log: Epochs) -> None:
    for earlier in (None, *snapshots(log)):
        view = appended(log)
        if earlier is not None:
            view.snapshot_taken(*earlier)
        snapshot = OffsetAndEpoch(len(log) + 2, 4)
        view.reset(snapshot)
        empty = LogView(start_offset=snapshot.offset, end_offset=snapshot.offset, snapshot=snapshot)
        assert answers(view) == answers(empty), (log, earlier)
        assert view.compare(len(log), 3) == Behind(snapshot)


def test_log_with_an_fsync_in_progress_is_neither_truncated_nor_reset() -> None:
    for flushed in range(3):
        view = LogView()
        for offset in range(3):
            view.append(Batch(offset, offset, 1, b""))
        view.flushed(flushed)
        for change in (partial(view.truncate_to, 1), partial(view.reset, OffsetAndEpoch(5, 2))):
            with pytest.raises(InvariantError):
                change()
        assert (view.start_offset, view.end_offset, view.flushed_offset) == (0, 3, flushed)


def test_flushed_offset_is_the_largest_that_was_reported() -> None:
    for first, second in product(range(4), repeat=2):
        view = LogView()
        view.append(Batch(0, 2, 1, b""))
        view.flushed(first)
        view.flushed(second)
        assert view.flushed_offset == max(first, second)


def test_empty_log_can_be_truncated_to_its_end() -> None:
    view = LogView()
    view.truncate_to(0)
    assert answers(view) == answers(LogView())
