"""Tests the copy of one moving replica: its chunks, its pauses, and changes of the log while it is copied."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from disk_node import A, B, DiskNode, contents, soon
from replica_cluster import run

from penstock.broker.replicas import replica_move
from penstock.log import moved_mark
from penstock.log.free_space import FreeSpace
from penstock.log.future_log import FutureLog
from penstock.log.log import Log
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.replication.directory_move import MoveState

RATE = "replica.alter.log.dirs.io.max.bytes.per.second"
CHUNK_BYTES = 2000


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes chunks small, so that a log of 20 KB has many of them."""
    monkeypatch.setattr(replica_move, "CHUNK_BYTES", CHUNK_BYTES)
    monkeypatch.setattr(replica_move, "BUSY_CHUNK_BYTES", CHUNK_BYTES // 2)


async def with_log_in_a(records: int = 120, rate: int | None = None) -> DiskNode:
    node = await DiskNode(settings={} if rate is None else {RATE: str(rate)}).start()
    node.move(A)
    node.create("t")
    node.write(records)
    return node


def watch_copies(monkeypatch: pytest.MonkeyPatch, before: Callable[[FutureLog, int], Any]) -> None:
    """Calls `before` with the future log and the number of bytes before each chunk; awaits its result, if any."""
    copy = FutureLog.copy

    async def watched(self: FutureLog, max_bytes: int) -> int:
        awaited = before(self, max_bytes)
        if awaited is not None:
            await awaited
        return await copy(self, max_bytes)

    monkeypatch.setattr(FutureLog, "copy", watched)


def append(node: DiskNode) -> None:
    node.write(30, size=90)


def truncate(node: DiskNode) -> None:
    node.log().truncate_to(5)


def truncate_and_append(node: DiskNode) -> None:
    node.log().truncate_to(5)
    node.write(40, size=80)


def delete_first_records(node: DiskNode) -> None:
    node.partitions.get("t", 0).delete_before(3)


def delete_most_records(node: DiskNode) -> None:
    node.partitions.get("t", 0).delete_before(100)


def start_over(node: DiskNode) -> None:
    node.log().truncate_fully_and_start_at(500)
    node.write(10)


def truncate_below_the_copied_start(node: DiskNode) -> None:
    node.log().truncate_fully_and_start_at(0)


CHANGES = [
    append,
    truncate,
    truncate_and_append,
    delete_first_records,
    delete_most_records,
    start_over,
    truncate_below_the_copied_start,
]


def bounds(log: Log) -> tuple[int, int]:
    return log.log_start_offset, log.log_end_offset


@pytest.mark.parametrize(
    ("change", "moment"),
    [
        *((change, moment) for change in CHANGES for moment in ("copying", "caught up")),
        *((change, "reading") for change in (truncate, truncate_and_append, start_over)),
    ],
)
def test_moved_log_equals_the_current_log_if_the_log_changes_during_the_move(
    change: Callable[[DiskNode], None], moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        node = await with_log_in_a()
        expected: list[object] = []

        def change_once() -> None:
            if not expected:
                change(node)
                expected.extend((contents(node.log()), bounds(node.log())))

        copy = FutureLog.copy

        async def change_and_copy(self: FutureLog, max_bytes: int) -> int:
            if moment == "reading" and not expected and self.log.log_end_offset:
                change_once()
                if self.cut_at is not None:
                    raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, "The log was truncated while it was read.")
            copied = await copy(self, max_bytes)
            if moment == "copying":
                change_once()
            return copied

        monkeypatch.setattr(FutureLog, "copy", change_and_copy)
        if moment == "caught up":
            node.answer_assignment = change_once
        node.move(B)
        await soon(lambda: bool(node.moves.ended))
        assert node.moves.ended[0].state is MoveState.DONE
        log = node.log()
        assert [contents(log), bounds(log)] == expected
        assert (log.log_dir, node.assigned) == (B, [("t", 0, B)])
        node.write(1)
        image = node.image
        assert image is not None
        after = contents(log)
        again = await DiskNode(await node.crash()).start(image)
        assert (contents(again.log()), again.log().log_dir) == (after, B)
        await again.stop()

    run(scenario())


def test_small_synced_log_moves_to_another_directory() -> None:
    async def scenario() -> None:
        node = await with_log_in_a(records=2)
        await node.log().flush()
        before = contents(node.log())
        node.move(B)
        await soon(lambda: bool(node.moves.ended))
        assert (contents(node.log()), node.log().log_dir) == (before, B)
        await node.stop()

    run(scenario())


def test_marks_of_a_move_are_on_disk_before_the_controller_learns_of_the_new_directory() -> None:
    async def scenario() -> None:
        node = await with_log_in_a()
        seen: list[object] = []

        def look() -> None:
            [future] = node.logs.futures
            seen.append(node.log().log_dir)
            seen.append(moved_mark.read(node.disk, future.log.path))
            seen.append(moved_mark.read_leaving(node.disk, node.log().path))

        node.answer_assignment = look
        node.move(B)
        await soon(lambda: bool(node.moves.ended))
        assert seen == [A, {node.directory(A).directory_id}, {node.directory(B).directory_id}]
        await node.stop()

    run(scenario())


def test_move_that_fails_before_its_report_does_not_report_the_old_directory(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("CRITICAL")

    async def scenario() -> None:
        node = await with_log_in_a()

        def fail(kind: str, path: str) -> None:
            if kind == "create" and path.endswith(f"{moved_mark.MOVED_MARK_FILE}.tmp"):
                raise OSError(28, "no space left on device", path)

        node.disk.on_write = fail
        node.move(B)
        await soon(lambda: bool(node.moves.ended))
        node.disk.on_write = None
        assert node.moves.ended[0].state is MoveState.FAILED
        assert (node.assigned, node.reverted) == ([], [])
        await node.stop()

    run(scenario())


def test_other_tasks_run_between_two_chunks_of_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    turns, seen = 0, []

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    watch_copies(monkeypatch, lambda future, size: seen.append(turns))

    async def scenario() -> None:
        node = await with_log_in_a()
        counting = asyncio.ensure_future(count_turns())
        node.move(B)
        await soon(lambda: bool(node.moves.ended))
        counting.cancel()
        assert len(seen) > 5
        assert all(earlier < later for earlier, later in pairwise(seen))
        await node.stop()

    run(scenario())


@pytest.mark.parametrize(
    ("rate", "chunk", "at_once"),
    [(None, CHUNK_BYTES, 3), (1, 1024, 1), (12_000, 1500, 3), (1_000_000, CHUNK_BYTES, 3)],
)
def test_copy_reserves_free_space_for_one_chunk_at_a_time(
    rate: int | None, chunk: int, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        node = await with_log_in_a(rate=rate)
        taken: list[tuple[str, int]] = []
        sizes: list[int] = []
        monkeypatch.setattr(FreeSpace, "take_for_copy", lambda self, path, size: taken.append((path, size)))
        watch_copies(monkeypatch, lambda future, size: sizes.append(size))
        node.move(B)
        await soon(lambda: len(sizes) >= at_once)
        assert (taken, sizes) == ([(B, chunk)] * at_once, [chunk] * at_once)
        await node.stop()

    run(scenario())


def test_copy_reserves_no_more_free_space_than_the_rest_of_the_log_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        node = await with_log_in_a(records=11)
        size, taken = node.log().size, []
        monkeypatch.setattr(FreeSpace, "take_for_copy", lambda self, path, size: taken.append(size))
        node.move(B)
        await soon(lambda: bool(node.moves.ended))
        assert taken == [size]
        await node.stop()

    run(scenario())


def test_throttled_copy_lasts_about_as_long_as_its_rate_limit_implies() -> None:
    async def scenario() -> None:
        node = await with_log_in_a(rate=500)
        size, began = node.log().size, asyncio.get_running_loop().time()
        node.move(B)
        await asyncio.wait_for(node.moves.settle(), 1000)
        took = asyncio.get_running_loop().time() - began
        burst, tail = 10 * 500 + CHUNK_BYTES, size // 4
        assert (size - burst - tail) / 500 < took < size / 500
        await node.stop()

    run(scenario())


def test_busy_node_copies_smaller_chunks_and_pauses_as_long_as_each_chunk_took(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        node = await with_log_in_a()
        loop = asyncio.get_running_loop()
        chunks: list[tuple[float, int]] = []

        def take_time(future: FutureLog, size: int) -> Any:
            chunks.append((loop.time(), size))
            if len(chunks) <= 3:
                node.passes += 1  # requests arrive while the first three chunks are copied
            return asyncio.sleep(0.04)

        watch_copies(monkeypatch, take_time)
        node.move(B)
        await asyncio.wait_for(node.moves.settle(), 30)
        assert [size for _, size in chunks[:6]] == [CHUNK_BYTES] + [CHUNK_BYTES // 2] * 3 + [CHUNK_BYTES] * 2
        gaps = [round(later - earlier, 2) for (earlier, _), (later, _) in pairwise(chunks[:6])]
        assert gaps == [0.04, 0.08, 0.08, 0.08, 0.04]
        await node.stop()

    run(scenario())


def test_copy_is_synced_before_its_end_whenever_too_many_bytes_are_unsynced(monkeypatch: pytest.MonkeyPatch) -> None:
    flush, flushed = FutureLog.flush, []

    async def counted(self: FutureLog) -> None:
        flushed.append(self.log.size)
        await flush(self)

    monkeypatch.setattr(FutureLog, "flush", counted)

    async def scenario() -> None:
        node = await with_log_in_a()
        object.__setattr__(node.logs.environment, "unflushed_bytes", 3 * CHUNK_BYTES)
        node.move(B)
        await soon(lambda: bool(node.moves.ended))
        assert len(flushed) >= 2
        assert all(later - earlier < 5 * CHUNK_BYTES for earlier, later in pairwise([0, *flushed]))
        await node.stop()

    run(scenario())


def test_progress_of_a_move_is_the_copied_and_the_remaining_part_of_the_log() -> None:
    async def scenario() -> None:
        node = await with_log_in_a(rate=500)
        log = node.log()
        node.move(B)
        [requested] = node.moves.figures()
        assert (requested.state, requested.copied_bytes, requested.bytes_per_second) == (MoveState.REQUESTED, 0, 0.0)
        assert (requested.bytes_left, requested.records_left) == (log.size, 120)
        await asyncio.sleep(12)
        [copying] = node.moves.figures()
        assert copying.state is MoveState.COPYING
        assert 0 < copying.copied_bytes == log.size - copying.bytes_left
        assert copying.records_left == 120 * copying.bytes_left // log.size
        assert 0 < copying.bytes_per_second < 1200
        await asyncio.wait_for(node.moves.settle(), 1000)
        [ended] = node.moves.ended
        assert (ended.state, ended.bytes_left, ended.records_left) == (MoveState.DONE, 0, 0)
        assert (ended.bytes_per_second, ended.reason) == (0.0, "")
        await node.stop()

    run(scenario())
