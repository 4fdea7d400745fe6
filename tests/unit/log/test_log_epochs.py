"""Tests leader epochs: Kafka's answers to OffsetsForLeaderEpoch, and the epochs that remain after a truncation."""

from __future__ import annotations

import pytest

from penstock.log.checkpoints import CheckpointError
from penstock.log.epochs import LeaderEpochCache, common_end


def cache(*entries: tuple[int, int]) -> LeaderEpochCache:
    made = LeaderEpochCache()
    for epoch, start in entries:
        made.assign(epoch, start)
    return made


@pytest.mark.parametrize(
    ("wanted", "answer"),
    [
        (-1, (-1, -1)),
        (1, (1, 10)),
        (2, (2, 20)),
        (3, (2, 20)),
        (4, (4, 30)),
        (6, (6, 99)),
        (7, (-1, -1)),
    ],
)
def test_leader_epoch_ends_at_the_start_of_the_next_epoch(wanted: int, answer: tuple[int, int]) -> None:
    assert cache((2, 10), (4, 20), (6, 30)).end_offset_for(wanted, 99) == answer


def test_an_empty_log_has_no_epochs() -> None:
    assert LeaderEpochCache().end_offset_for(0, 0) == (-1, -1)
    assert LeaderEpochCache().latest_epoch is None
    assert LeaderEpochCache().epoch_for_offset(0) == -1


def test_an_offset_belongs_to_the_last_epoch_that_began_at_or_before_it() -> None:
    epochs = cache((2, 10), (4, 20))
    assert [epochs.epoch_for_offset(offset) for offset in (9, 10, 19, 20, 99)] == [-1, 2, 2, 4, 4]


def test_new_leader_epoch_is_recorded_once_and_removes_contradicting_entries() -> None:
    epochs = cache((2, 10), (4, 20), (6, 30))
    assert not epochs.assign(6, 35)
    assert epochs.assign(7, 25)
    assert epochs.entries == [(2, 10), (4, 20), (7, 25)]
    assert epochs.assign(8, 25)
    assert epochs.entries == [(2, 10), (4, 20), (8, 25)]
    assert not epochs.assign(-1, 40)


@pytest.mark.parametrize(
    ("end", "left"),
    [(31, [(2, 10), (4, 20), (6, 30)]), (30, [(2, 10), (4, 20)]), (11, [(2, 10)]), (10, []), (0, [])],
)
def test_truncation_removes_epochs_that_start_at_or_after_the_new_end(end: int, left: list[tuple[int, int]]) -> None:
    epochs = cache((2, 10), (4, 20), (6, 30))
    epochs.truncate_from_end(end)
    assert epochs.entries == left


@pytest.mark.parametrize(
    ("start", "left"),
    [
        (5, [(2, 10), (4, 20), (6, 30)]),
        (10, [(2, 10), (4, 20), (6, 30)]),
        (15, [(2, 15), (4, 20), (6, 30)]),
        (20, [(4, 20), (6, 30)]),
        (29, [(4, 29), (6, 30)]),
        (50, [(6, 50)]),
    ],
)
def test_raising_the_log_start_keeps_the_epoch_that_contains_the_new_start(
    start: int, left: list[tuple[int, int]]
) -> None:
    epochs = cache((2, 10), (4, 20), (6, 30))
    epochs.changed = False
    epochs.truncate_from_start(start)
    assert epochs.entries == left
    assert epochs.changed == (left != [(2, 10), (4, 20), (6, 30)])


def test_the_leader_epoch_file_has_kafkas_format() -> None:
    data = cache((2, 10), (4, 20)).to_bytes()
    assert data == b"0\n2\n2 10\n4 20\n"
    assert LeaderEpochCache.from_bytes(data).entries == [(2, 10), (4, 20)]
    assert LeaderEpochCache.from_bytes(b"").entries == []


@pytest.mark.parametrize(
    "data", [b"0\n2\n2 10\n", b"1\n0\n", b"0\n1\nx y\n", b"0\n2\n4 20\n2 10\n", b"\xff", b"0\n-1\n"]
)
def test_a_torn_leader_epoch_file_is_refused(data: bytes) -> None:
    with pytest.raises(CheckpointError):
        LeaderEpochCache.from_bytes(data)


@pytest.mark.parametrize(
    ("current", "future", "expected"),
    [
        pytest.param([(1, 0)], [(1, 0)], 8, id="one epoch"),
        pytest.param([(1, 0), (3, 5)], [(1, 0)], 5, id="one log has another epoch from 5 on"),
        pytest.param([(1, 0), (3, 5)], [(1, 0), (2, 4)], 4, id="both went on with other epochs"),
        pytest.param([(1, 0), (3, 5)], [(1, 0), (3, 5)], 8, id="the same epochs"),
        pytest.param([(4, 2)], [(1, 0), (4, 2)], 8, id="epochs below the start do not matter"),
        pytest.param([(4, 0)], [(5, 0)], 2, id="nothing in common"),
    ],
)
def test_two_logs_have_the_same_records_up_to_the_offset_where_their_epochs_differ(
    current: list[tuple[int, int]], future: list[tuple[int, int]], expected: int
) -> None:
    assert common_end(cache(*current), 10, cache(*future), 8, 2) == expected


def test_two_logs_share_no_records_if_one_ends_before_the_other_starts() -> None:
    assert common_end(cache((1, 5)), 9, cache((1, 0)), 3, 5) == 3
