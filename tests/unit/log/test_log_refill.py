"""Tests how a damaged segment is replaced by the batches of another replica."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from random import Random

import pytest
from log_harness import batch, check_indexes, finish, manager, new_log, offsets, produce, read_all

from penstock.disk.memory import MemoryDisk
from penstock.log.log import AppendOrigin, Log
from penstock.log.manager import LogManager
from penstock.log.refill import refill, segment_to_refill
from penstock.metadata.configs.topic import LogConfig
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.records.control import EndTxn, build_end_txn

NOW = 1_700_000_000_000
SIZE = len(batch())
THREE_EACH = LogConfig(segment_bytes=SIZE * 3, retention_ms=-1, index_interval_bytes=1)
FILE = "/logs/t-0/00000000000000000003.log"


def filled(logs: LogManager | None = None, count: int = 8, *, epoch: int = 4) -> Log:
    log = new_log(THREE_EACH, logs)
    for number in range(count):
        produce(log, value=b"%05d" % number, epoch=epoch)
    return log


def fetch_from(source: Log) -> Callable[[int], Awaitable[bytes]]:
    async def fetch(at: int) -> bytes:
        return bytes(source.read(at, SIZE * 2, upper_bound=source.high_watermark).read_now())

    return fetch


def refilled(log: Log, source: Log, offset: int, epoch: int = 4) -> bool:
    found = segment_to_refill(log, offset)
    assert found is not None
    return finish(refill(log, *found, fetch_from(source), epoch))


def rotten(logs: LogManager, log: Log) -> Log:
    disk = logs.disk
    assert isinstance(disk, MemoryDisk)
    disk.inode(FILE).data[SIZE + 70] ^= 1
    return log


def test_damaged_segment_is_replaced_by_the_batches_of_the_other_replica() -> None:
    logs = manager()
    log, good = rotten(logs, filled(logs)), filled()
    assert read_all(log) != read_all(good)
    end, mark = log.log_end_offset, log.high_watermark
    assert refilled(log, good, 4)
    assert read_all(log) == read_all(good)
    assert (log.log_end_offset, log.high_watermark, log.segments.bases) == (end, mark, [0, 3, 6])
    for segment in log.segments:
        check_indexes(segment)
    assert produce(log) == 8
    assert offsets(log) == list(range(9))


def test_active_segment_is_sealed_before_it_is_replaced() -> None:
    log, good = filled(), filled()
    assert refilled(log, good, 7)
    assert log.segments.bases == [0, 3, 6, 8]
    assert read_all(log) == read_all(good)
    assert produce(log) == 8


def test_a_segment_with_uncommitted_records_is_not_replaced() -> None:
    log = new_log(THREE_EACH)
    produce(log)
    produce(log, commit=False)
    assert segment_to_refill(log, 0) is None
    log.update_high_watermark(2)
    assert segment_to_refill(log, 0) is not None


@pytest.mark.parametrize("offset", [-1, 8, 9])
def test_segment_of_an_uncommitted_offset_is_not_replaced(offset: int) -> None:
    assert segment_to_refill(filled(), offset) is None


def test_damaged_segment_of_a_compacted_log_is_not_replaced() -> None:
    log = filled()
    log.update_config(replace(THREE_EACH, cleanup_policy=frozenset({"compact"})))
    assert segment_to_refill(log, 4) is None


def test_refill_from_a_replica_with_a_damaged_batch_leaves_the_segment_unchanged() -> None:
    logs, others = manager(), manager()
    log, bad = filled(logs), rotten(others, filled(others))
    before = read_all(log)
    with pytest.raises(KafkaError) as caught:
        refilled(log, bad, 4)
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE
    assert read_all(log) == before
    assert not any(name.endswith(".cleaned") for name in logs.disk.listdir("/logs/t-0"))


def test_refill_from_a_replica_that_lacks_records_leaves_the_segment_unchanged() -> None:
    logs = manager()
    log, short = filled(logs), filled(count=5)
    with pytest.raises(KafkaError, match="has no records from offset 5 to 5"):
        refilled(log, short, 4)
    assert offsets(log) == list(range(8))
    assert not any(name.endswith(".cleaned") for name in logs.disk.listdir("/logs/t-0"))


def test_refill_refuses_batches_of_a_later_leader_epoch() -> None:
    log, good = filled(), filled(epoch=9)
    with pytest.raises(KafkaError, match="does not fit into the segment"):
        refilled(log, good, 4)


def test_refill_drops_the_new_segment_if_the_log_is_truncated_meanwhile() -> None:
    logs = manager()
    log, good = filled(logs), filled()
    found = segment_to_refill(log, 4)
    assert found is not None

    async def fetch(at: int) -> bytes:
        log.truncate_to(4)
        return await fetch_from(good)(at)

    assert not finish(refill(log, *found, fetch, 4))
    assert offsets(log) == [0, 1, 2, 3]
    assert not any(name.endswith((".cleaned", ".swap")) for name in logs.disk.listdir("/logs/t-0"))


def test_refilled_segment_keeps_the_aborted_transactions_in_its_index() -> None:
    def with_abort(log: Log) -> Log:
        produce(log, value=b"a")
        options = {"producer_id": 5, "producer_epoch": 0, "base_sequence": 0, "transactional": True}
        log.append_as_leader(batch(**options), leader_epoch=4, now_ms=NOW, origin=AppendOrigin.CLIENT)  # type: ignore[arg-type]
        marker = build_end_txn(EndTxn(False, 0), producer_id=5, producer_epoch=0, timestamp=NOW)
        log.append_as_leader(marker, leader_epoch=4, now_ms=NOW, origin=AppendOrigin.COORDINATOR)
        log.update_high_watermark(log.log_end_offset)
        return log

    log, good = with_abort(new_log(LogConfig())), with_abort(new_log(LogConfig()))
    before = log.aborted_transactions(0, 3)
    assert len(before) == 1
    assert refilled(log, good, 0)
    assert log.aborted_transactions(0, 3) == before


def test_power_loss_at_any_write_of_a_refill_leaves_the_old_or_the_new_segment() -> None:
    """Crashes before every change of the disk. The log keeps its end, and every batch is good or still damaged."""
    good = read_all(filled())
    outcomes: set[bool] = set()
    step = 0
    while True:
        step += 1
        disk = MemoryDisk(crashable=True)
        logs = manager(disk)
        log = filled(logs)
        finish(log.flush())
        logs.write_checkpoints()
        disk.inode(FILE).data[SIZE + 70] ^= 1
        bad = read_all(log)
        survivors: list[MemoryDisk] = []

        def count(operation: str, path: str, left: list[int] = [step], disk: MemoryDisk = disk) -> None:  # noqa: B006
            left[0] -= 1
            if left[0] == 0:
                survivors.append(disk.crash(Random(step)))  # noqa: B023

        disk.on_write = count
        assert refilled(log, filled(), 4)
        if not survivors:
            break
        again = manager(survivors[0])
        found = next(each for each in again if each.topic == "t")
        found.update_high_watermark(found.log_end_offset)
        assert found.log_end_offset == 8
        found.segments[1].trusted_from = 0  # read the rotten batch too
        content = read_all(found)
        assert content in (good, bad)
        outcomes.add(content == good)
    assert outcomes == {True, False}
    assert step > 5
