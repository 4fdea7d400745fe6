"""Tests the leader epochs of a log for all small logs: every answer agrees with the epochs of the records.

A log is the list of its records' epochs; it may start above offset 0.
"""

from __future__ import annotations

from itertools import combinations_with_replacement, product

import pytest

from penstock.log.checkpoints import CheckpointError
from penstock.log.epochs import LeaderEpochCache, common_end

LONGEST = 4
Epochs = tuple[int, ...]
LOGS: list[Epochs] = [log for length in range(LONGEST + 1) for log in combinations_with_replacement((1, 3, 4), length)]


def cache_of(log: Epochs, start: int = 0) -> LeaderEpochCache:
    cache = LeaderEpochCache()
    for offset, epoch in enumerate(log):
        if offset >= start:
            assert cache.assign(epoch, offset) == (offset == start or log[offset - 1] != epoch)
    return cache


def check_answers(cache: LeaderEpochCache, log: Epochs, start: int = 0) -> None:
    """Compares all answers with the epochs of the records."""
    kept = log[start:]
    assert cache.epochs == sorted(set(kept))
    assert cache.starts == [start + kept.index(epoch) for epoch in cache.epochs]
    assert cache.latest_epoch == (kept[-1] if kept else None)
    assert [cache.epoch_for_offset(offset) for offset in range(start, len(log))] == list(kept)
    assert start == 0 or cache.epoch_for_offset(start - 1) == -1
    for epoch in range(6):
        known = max((each for each in kept if each <= epoch), default=epoch)
        end = next((offset for offset in range(start, len(log)) if log[offset] > epoch), len(log))
        expected = (-1, -1) if not kept or epoch > kept[-1] else (known, end)
        assert cache.end_offset_for(epoch, len(log)) == expected, epoch
    for offset in range(start, len(log)):
        ends = [later for later in range(offset + 1, len(log)) if log[later] != log[later - 1]]
        assert cache.next_start(offset) == (ends[0] if ends else 1 << 63)
    assert LeaderEpochCache.from_bytes(cache.to_bytes()).entries == cache.entries
    assert LeaderEpochCache.from_bytes(cache.to_bytes()).latest_epoch == cache.latest_epoch


@pytest.mark.parametrize("log", LOGS, ids=lambda log: "".join(map(str, log)) or "empty")
def test_epochs_of_a_log_agree_with_its_records_after_every_truncation_and_new_log_start(log: Epochs) -> None:
    check_answers(cache_of(log), log)
    for start, end in product(range(len(log) + 1), repeat=2):
        cache = cache_of(log)
        cache.changed = False
        cache.truncate_from_end(end)
        check_answers(cache, log[:end])
        assert cache.changed == (cache_of(log).entries != cache.entries)
        if start < end:
            before = cache.entries
            cache.changed = False
            cache.truncate_from_start(start)
            check_answers(cache, log[:end], start)
            assert cache.changed == (before != cache.entries)


def test_new_epoch_replaces_entries_that_contradict_it_and_a_known_or_negative_epoch_changes_nothing() -> None:
    for log, epoch, offset in product(LOGS, (2, 3, 4, 5), range(LONGEST + 2)):
        cache = cache_of(log)
        cache.changed = False
        before = cache.entries
        assert not cache.assign(-1, offset)
        if log and log[-1] == epoch:
            assert not cache.assign(epoch, offset)
            assert (cache.entries, cache.changed) == (before, False)
            continue
        assert cache.assign(epoch, offset)
        kept = [(known, start) for known, start in before if known < epoch and start < offset]
        assert cache.entries == [*kept, (epoch, offset)]
        assert (cache.latest_epoch, cache.changed) == (epoch, True)


def test_clearing_or_copying_leader_epochs_marks_them_as_changed_only_if_they_differ() -> None:
    for log, other in product(LOGS, repeat=2):
        cache = cache_of(log)
        cache.changed = False
        cache.copy_from(cache_of(other))
        check_answers(cache, other)
        assert cache.changed == (cache_of(log).entries != cache_of(other).entries)
        cache.changed = False
        cache.clear()
        check_answers(cache, ())
        assert cache.changed == bool(other)


@pytest.mark.parametrize("lines", [b"1 0\n1 5\n", b"2 0\n1 5\n", b"1 5\n2 4\n"])
def test_leader_epoch_file_with_epochs_out_of_order_is_refused(lines: bytes) -> None:
    with pytest.raises(CheckpointError):
        LeaderEpochCache.from_bytes(b"0\n2\n" + lines)


def test_common_end_of_two_logs_is_the_first_offset_with_different_epochs() -> None:
    for one, other in product(LOGS, repeat=2):
        for start in range(LONGEST + 1):
            end = min(len(one), len(other))
            differing = [offset for offset in range(min(start, end), end) if one[offset] != other[offset]]
            found = common_end(cache_of(one), len(one), cache_of(other), len(other), start)
            assert found == (differing[0] if differing else end), (one, other, start)
