"""Compares the choice of a segment to refill, and the batches that a refill accepts, with plain rules."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import replace

import pytest
from log_harness import batch, finish, manager, new_log, produce, read_all

from penstock.disk.memory import MemoryDisk
from penstock.log.log import AppendOrigin, Log
from penstock.log.manager import LogManager
from penstock.log.refill import refill, segment_to_refill
from penstock.metadata.configs.topic import LogConfig
from penstock.protocol.errors import KafkaError
from penstock.records.build import build_batch
from penstock.records.control import EndTxn, build_end_txn

NOW = 1_700_000_000_000
SIZE = len(batch())
CONFIG = LogConfig(segment_bytes=SIZE * 3, retention_ms=-1, index_interval_bytes=1)


def filled(logs: LogManager | None = None) -> Log:
    """Returns a log with uncommitted records at the offsets 0 to 6, in segments that start at 0, 3 and 6."""
    log = new_log(CONFIG, logs)
    for _ in range(7):
        produce(log, epoch=4, commit=False)
    return log


def test_segment_with_a_damaged_batch_is_refilled_only_if_the_whole_segment_is_committed_and_not_deleted() -> None:
    ends = {0: 3, 3: 6, 6: 7}
    for committed in range(8):
        for start in {0, 1, 4, committed} & set(range(committed + 1)):
            for offset in range(-1, 9):
                log = filled()
                log.update_high_watermark(committed)
                log.advance_log_start_offset(start)
                found = segment_to_refill(log, offset)
                base = min(max(offset, 0) // 3 * 3, 6)
                if start <= offset < committed and ends[base] <= committed:
                    assert found is not None
                    assert (found[0].base_offset, found[1]) == (base, ends[base])
                    assert found[0] is not log.segments.active
                else:
                    assert found is None


def offline(log: Log) -> None:
    log.health.take_offline(OSError(errno.EIO, "broken"))


def moving(log: Log) -> None:
    log.on_truncation = lambda offset: None


def compacted(log: Log) -> None:
    log.update_config(replace(CONFIG, cleanup_policy=frozenset({"compact"})))


@pytest.mark.parametrize("change", [offline, moving, compacted])
def test_segment_of_a_log_that_is_offline_or_moving_or_compacted_is_not_refilled(change: Callable[[Log], None]) -> None:
    log = filled()
    log.update_high_watermark(7)
    change(log)
    for offset in range(7):
        assert segment_to_refill(log, offset) is None
    assert log.segments.bases == [0, 3, 6], "the active segment is not sealed"


def records(base: int, count: int = 1, *, epoch: int = 4) -> bytes:
    return build_batch([(NOW, b"key", b"other", ())] * count, base_offset=base, leader_epoch=epoch)


def damaged(base: int) -> bytes:
    data = bytearray(records(base))
    data[-2] ^= 1
    return bytes(data)


def answer(log: Log, answers: list[bytes], asked: list[int]) -> bool:
    """Refills the segment of the offsets 3 to 5 with these answers of the other replica, one for each fetch."""
    found = segment_to_refill(log, 4)
    assert found is not None

    async def fetch(at: int) -> bytes:
        asked.append(at)
        assert answers, "the other replica is not asked without end"
        return answers.pop(0)

    return finish(refill(log, *found, fetch, 4))


WHOLE = records(3) + records(4) + records(5)


@pytest.mark.parametrize(
    ("answers", "asked", "content"),
    [
        ([WHOLE], [3], WHOLE),
        ([records(3, 3)], [3], records(3, 3)),
        ([records(3), records(4), records(5)], [3, 4, 5], WHOLE),
        ([records(3, 2) + records(5)[:-1], records(5)], [3, 5], records(3, 2) + records(5)),
        ([records(3, 2, epoch=3) + records(5)], [3], records(3, 2, epoch=3) + records(5)),
        ([WHOLE + records(6) + records(7)], [3], WHOLE),
        ([WHOLE + damaged(6)], [3], WHOLE),
        ([records(3) + records(5)], [3], records(3) + records(5)),
        ([records(4, 2)], [3], records(4, 2)),
    ],
)
def test_refill_takes_the_batches_of_the_segment_from_one_or_several_answers(
    answers: list[bytes], asked: list[int], content: bytes
) -> None:
    log = filled()
    log.update_high_watermark(7)
    others = [each for each in read_all(log) if not 3 <= each[0].base_offset < 6]
    seen: list[int] = []
    assert answer(log, list(answers), seen)
    assert seen == asked
    assert log.segments.bases == [0, 3, 6]
    assert log.segments[1].file.pread(1 << 20, 0) == content
    assert [each for each in read_all(log) if not 3 <= each[0].base_offset < 6] == others


@pytest.mark.parametrize(
    "answers",
    [
        [b""],
        [records(3)[:-1]],
        [records(3, 2), b""],
        [records(3, 2), records(3, 2)],
        [records(3) + records(3) + records(4, 2)],
        [records(2) + records(3, 3)],
        [records(2, 4)],
        [records(3, 4)],
        [records(3, 2) + records(5, 2)],
        [records(6)],
        [records(3) + records(4, epoch=5) + records(5)],
        [records(3) + damaged(4) + records(5)],
        [records(3, 2) + records(4, 2)],
    ],
)
def test_refill_with_missing_overlapping_damaged_or_later_batches_keeps_the_segment(answers: list[bytes]) -> None:
    logs = manager()
    log = filled(logs)
    log.update_high_watermark(7)
    before = read_all(log)
    with pytest.raises(KafkaError):
        answer(log, list(answers), [])
    assert read_all(log) == before
    assert not [name for name in logs.disk.listdir(log.path) if name.endswith((".cleaned", ".swap"))]


@pytest.mark.parametrize("start", [3, 4, 5])
def test_refill_asks_for_the_records_from_the_log_start_on(start: int) -> None:
    log = filled()
    log.update_high_watermark(7)
    log.advance_log_start_offset(start)
    found = segment_to_refill(log, 5)
    assert found is not None
    asked: list[int] = []

    async def fetch(at: int) -> bytes:
        asked.append(at)
        return records(start, 6 - start)

    assert finish(refill(log, *found, fetch, 4))
    assert asked == [start]
    assert [header.base_offset for header, _ in read_all(log)] == [start, 6]

    async def older(at: int) -> bytes:
        asked.append(at)
        assert len(asked) < 5
        return records(3, 1)

    if start > 3:
        found = segment_to_refill(log, 5)
        assert found is not None
        with pytest.raises(KafkaError, match="has no records"):
            finish(refill(log, *found, older, 4))


def test_failed_write_of_a_refill_leaves_no_file() -> None:
    disk = MemoryDisk()
    log = filled(manager(disk))
    log.update_high_watermark(7)
    found = segment_to_refill(log, 4)
    assert found is not None

    async def fetch(at: int) -> bytes:
        disk.on_write = fail
        return records(3, 3)

    def fail(operation: str, path: str) -> None:
        if operation == "append" and ".log.cleaned" in path:
            disk.on_write = None
            raise OSError(errno.ENOSPC, "full")

    with pytest.raises(KafkaError):
        finish(refill(log, *found, fetch, 4))
    assert not [name for name in disk.listdir(log.path) if name.endswith(".cleaned")]


@pytest.mark.parametrize("change", ["truncated", "deleted", "closed"])
def test_log_that_changes_during_a_refill_keeps_no_file_of_it(change: str) -> None:
    disk = MemoryDisk()
    logs = manager(disk)
    log = filled(logs)
    log.update_high_watermark(7)
    found = segment_to_refill(log, 4)
    assert found is not None

    async def fetch(at: int) -> bytes:
        if change == "truncated":
            log.truncate_to(5)
        elif change == "deleted":
            log.advance_log_start_offset(6)
            assert log.delete_old_segments(NOW) == 2
        else:
            log.close()
        return records(3, 3)

    assert not finish(refill(log, *found, fetch, 4))
    finish(logs.removal.run(all_of_them=True))
    names = disk.listdir(log.path)
    assert not [name for name in names if name.endswith((".cleaned", ".swap", ".deleted"))]
    assert (f"{3:020d}.log" in names) is (change != "deleted")


def test_refilled_segment_keeps_all_its_aborted_transactions_and_both_indexes() -> None:
    logs = manager()
    log = new_log(replace(CONFIG, segment_bytes=1 << 20), logs)
    for producer in (5, 6, 7):
        data = build_batch(
            [(NOW, b"k", b"v", ())], producer_id=producer, producer_epoch=0, base_sequence=0, transactional=True
        )
        log.append_as_leader(data, leader_epoch=4, now_ms=NOW)
        marker = build_end_txn(EndTxn(False, 0), producer_id=producer, producer_epoch=0, timestamp=NOW)
        log.append_as_leader(marker, leader_epoch=4, now_ms=NOW, origin=AppendOrigin.COORDINATOR)
    log.update_high_watermark(6)
    before, content = log.aborted_transactions(0, 6), log.read(0, 1 << 20, upper_bound=6).read_now()
    assert len(before) == 3
    found = segment_to_refill(log, 0)
    assert found is not None
    old = found[0].index.entries(), found[0].time_index.entries()

    async def fetch(at: int) -> bytes:
        return bytes(content)

    assert finish(refill(log, *found, fetch, 4))
    assert log.segments[0] is not found[0]
    assert log.aborted_transactions(0, 6) == before
    segment = log.segments[0]
    assert (segment.index.entries(), segment.time_index.entries()) == old
    assert segment.synced_size == segment.size
    assert {f"{0:020d}.index", f"{0:020d}.timeindex", f"{0:020d}.txnindex"} <= set(logs.disk.listdir(log.path))
