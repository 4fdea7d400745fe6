"""Tests faults around one partition: records that can't be appended, answers from the past, a disk that fails."""

from __future__ import annotations

import asyncio
import errno
from dataclasses import replace
from typing import Any

import pytest
from one_replica import LED as LED_BY_ME
from one_replica import SOLE, Replica, code_of
from replica_cluster import run, until
from scripted_leader import LED, Follower, data, forgotten, named, records

from penstock.broker.replicas import partition as partition_module
from penstock.log.flush import make_countable
from penstock.log.log import Log
from penstock.metadata.configs.topic import LogConfig
from penstock.protocol.errors import ErrorCode
from penstock.protocol.messages.api_01_fetch import EpochEndOffset
from penstock.protocol.vocabulary import EARLIEST


def now() -> float:
    return asyncio.get_running_loop().time()


def damaged(batch: bytes) -> bytes:
    return batch[:-1] + bytes([batch[-1] ^ 1])


@pytest.mark.parametrize("fault", ["damaged", "wrong offset", "program"])
def test_partition_whose_records_cannot_be_appended_pauses_and_asks_for_them_again(
    fault: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("CRITICAL")
    append, faults = Log.append_as_follower, [ValueError("seven")] if fault == "program" else []

    def failing(self: Log, *arguments: Any) -> Any:
        if faults and self.partition == 0:
            raise faults.pop()
        return append(self, *arguments)

    monkeypatch.setattr(Log, "append_as_follower", failing)

    async def scenario() -> None:
        follower = await Follower(2).start()
        await follower.asked(1)
        follower.answer(data(0, records(0), high_watermark=1), data(1, records(0)))
        if not faults:
            await follower.asked(2)
            follower.answer(
                data(0, damaged(records(1)) if fault == "damaged" else records(0), high_watermark=2),
                data(1, records(1)),
            )
        number = len(follower.leader.fetches) + 1
        request = await follower.asked(number)
        end = 0 if fault == "program" else 1
        assert (named(request), forgotten(request)) == ({1: end + 1}, [0])
        assert (follower.end(0), follower.partitions[0].log.high_watermark) == (end, end)
        assert follower.entry(0).not_before == pytest.approx(now() + 0.1, abs=0.01)
        await asyncio.sleep(0.2)
        follower.answer()
        assert named(await follower.asked(number + 1)) == {0: end}
        follower.answer(data(0, records(end), high_watermark=end + 1))
        assert named(await follower.asked(number + 2)) == {0: end + 1}
        await follower.fetcher.close()

    run(scenario())


@pytest.mark.parametrize("change", [{"leader_epoch": 2}, {"leader": 3}, {}])
@pytest.mark.parametrize("answer", ["records", "divergence", "out of range"])
def test_answer_is_ignored_if_the_metadata_has_another_leader_or_epoch_by_then(
    answer: str, change: dict[str, Any]
) -> None:
    async def scenario() -> None:
        follower = await Follower(2).start()
        follower.leader.offset_at = lambda timestamp: 1
        await follower.asked(1)
        follower.answer(data(0, records(0, 2) + records(2)))
        await follower.asked(2)
        follower.partitions[0].follow_image(replace(LED, partition_epoch=2, **change))
        one = data(0, records(3))
        if answer == "divergence":
            one = data(0, diverging_epoch=EpochEndOffset(epoch=1, end_offset=2))
        elif answer == "out of range":
            one = data(0, error_code=ErrorCode.OFFSET_OUT_OF_RANGE)
        follower.answer(one, data(1, records(0)))
        await follower.asked(3)
        changed = {"records": 4, "divergence": 2, "out of range": 0}[answer]
        assert (follower.end(0), follower.end(1)) == (3 if change else changed, 1)
        assert not follower.is_paused(0)
        await follower.fetcher.close()

    run(scenario())


@pytest.mark.parametrize("change", [{"leader_epoch": 2}, {"leader": 3}])
def test_bounds_of_the_leader_are_ignored_if_the_metadata_changes_while_they_are_asked_for(
    change: dict[str, Any],
) -> None:
    async def scenario() -> None:
        follower = await Follower(1).start()
        gate = asyncio.Event()

        async def bound(timestamp: int) -> int:
            await gate.wait()
            return 5 if timestamp == EARLIEST else 9

        follower.leader.offset_at = bound
        await follower.asked(1)
        follower.answer(data(0, error_code=ErrorCode.OFFSET_OUT_OF_RANGE))
        await until(lambda: bool(follower.leader.listings))
        follower.partitions[0].follow_image(replace(LED, partition_epoch=2, **change))
        gate.set()
        await asyncio.sleep(0.05)
        assert (follower.end(0), follower.counts.resets) == (0, 0)
        await follower.fetcher.close()

    run(scenario())


def test_batch_that_begins_before_the_end_of_the_log_removes_no_record() -> None:
    async def scenario() -> None:
        follower = await Follower(1).start()
        log = follower.partitions[0].log
        await follower.asked(1)
        follower.answer(data(0, records(0, 2) + records(2), high_watermark=2))
        await follower.asked(2)
        follower.answer(data(0, records(2, 3), high_watermark=5))
        await until(follower.is_paused)
        assert (log.log_start_offset, log.log_end_offset, log.high_watermark) == (0, 3, 2)
        await follower.fetcher.close()

    run(scenario())


def test_log_start_of_the_leader_moves_the_log_start_of_a_follower_at_most_to_its_high_watermark() -> None:
    async def scenario() -> None:
        follower = await Follower(1).start()
        log = follower.partitions[0].log
        bounds = []
        await follower.asked(1)
        follower.answer(data(0, records(0) + records(1), high_watermark=1, log_start_offset=4))
        for number, start in ((2, 4), (3, 2)):
            await follower.asked(number)
            bounds.append((log.log_start_offset, log.high_watermark, follower.is_paused()))
            follower.answer(data(0, records(number), high_watermark=number, log_start_offset=start))
        await follower.asked(4)
        bounds.append((log.log_start_offset, log.high_watermark, follower.is_paused()))
        assert bounds == [(1, 1, False), (2, 2, False), (2, 3, False)]
        await follower.fetcher.close()

    run(scenario())


def test_fetch_waits_at_least_a_millisecond_if_a_pause_ends_at_once() -> None:
    async def scenario() -> None:
        follower = await Follower(2, replica_fetch_wait_max_ms="500").start()
        await follower.asked(1)
        follower.fetcher._pause(follower.entry(1), now() + 0.0004)
        follower.answer()
        assert (await follower.asked(2)).max_wait_ms == 1
        await follower.fetcher.close()

    run(scenario())


@pytest.mark.parametrize("image", [SOLE, LED_BY_ME])
def test_commits_that_wait_for_a_sync_fail_with_the_disk(image: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = asyncio.Event()

    async def broken(log: Log) -> None:
        await gate.wait()
        raise log.health.failed(OSError(errno.EIO, "broken"))

    monkeypatch.setattr(partition_module, "make_countable", broken)

    async def scenario() -> None:
        replica = await Replica(image, LogConfig(flush_messages=1)).start()
        waits = [replica.partition.when_committed(replica.append(value)) for value in (b"a", b"b")]
        gate.set()
        await asyncio.sleep(0.01)
        assert [each is not None and code_of(each.result) for each in waits] == [ErrorCode.KAFKA_STORAGE_ERROR] * 2
        assert replica.partition.log.high_watermark == 0
        assert not [each for each in asyncio.all_tasks() if each.get_name().startswith("high watermark")]

    run(scenario())


def test_record_that_is_appended_during_a_sync_is_synced_by_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    gates: list[asyncio.Event] = []

    async def held(log: Log) -> None:
        gates.append(asyncio.Event())
        await make_countable(log)
        await gates[-1].wait()

    monkeypatch.setattr(partition_module, "make_countable", held)

    async def scenario() -> None:
        replica = await Replica(SOLE, LogConfig(flush_messages=1)).start()
        log = replica.partition.log
        replica.append(b"a")
        await until(lambda: log.countable_offset == 1)
        waiting = replica.partition.when_committed(replica.append(b"b"))
        assert waiting is not None
        gates[0].set()
        await until(lambda: len(gates) == 2)
        assert (log.high_watermark, waiting.done()) == (1, False)
        gates[1].set()
        await asyncio.wait_for(waiting, 1)
        assert log.high_watermark == 2

    run(scenario())
