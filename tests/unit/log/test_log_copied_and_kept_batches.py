"""Tests which batches a move copies, a compaction keeps and a changed config accepts."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from log_harness import finish, manager, new_log, offsets, produce, read_all, run
from move_harness import directories, log_in_a
from test_log_sync_state import turns

from penstock.log.cleaner import Cleaner
from penstock.log.future_log import finished
from penstock.metadata.configs.topic import LogConfig
from penstock.protocol.errors import ErrorCode, KafkaError

COMPACT = LogConfig(cleanup_policy=frozenset({"compact"}), min_cleanable_dirty_ratio=0.0)


def test_compaction_keeps_the_last_committed_batch_of_a_producer_in_a_later_segment() -> None:
    logs = manager()
    log = new_log(COMPACT, logs)
    for number in range(3):
        produce(log, producer_id=9, producer_epoch=0, base_sequence=number)
        log.roll()
    produce(log)  # another producer has the last value of the key
    log.roll()
    committed = log.log_end_offset
    produce(log, producer_id=9, producer_epoch=0, base_sequence=3, commit=False)
    finish(Cleaner(logs).run())
    assert [header.base_offset for header, _ in read_all(log)][:2] == [2, 3]
    log.snapshots.remove_all()
    assert log.truncate_to(committed)
    assert [entry.last_sequence for entry in log.producers] == [2]


def test_changed_limit_of_the_batch_size_applies_to_the_next_batch() -> None:
    log = new_log()
    produce(log, value=bytes(1000))
    log.update_config(replace(log.config, max_message_bytes=500))
    with pytest.raises(KafkaError) as refusal:
        produce(log, value=bytes(1000))
    assert refusal.value.code is ErrorCode.MESSAGE_TOO_LARGE
    log.update_config(LogConfig())
    produce(log, value=bytes(1000))
    assert offsets(log) == [0, 1]


@pytest.mark.parametrize("at_once", [False, True])
def test_move_does_not_copy_a_batch_that_the_copy_already_has(at_once: bool) -> None:
    logs = directories()
    log = log_in_a(logs)
    produce(log, 3)
    future = logs.futures.create(log, logs.dirs[1])
    run(future.copy(1000))
    future.log.log_end_offset = 2  # as if the copy ended inside of a batch of its log
    with pytest.raises(KafkaError) as refusal:
        future.copy_tail(1000) if at_once else run(future.copy(1000))
    assert refusal.value.code is ErrorCode.CORRUPT_MESSAGE
    assert future.log.size == log.size


def test_cancelled_move_waits_for_the_end_of_its_write() -> None:
    async def story() -> None:
        gate = asyncio.Event()
        ended: list[bool] = []

        async def write() -> None:
            await gate.wait()
            ended.append(True)

        task = asyncio.ensure_future(finished(write()))
        await turns()
        task.cancel()
        await turns()
        assert not task.done(), "a half-written batch would be left behind"
        gate.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended == [True]

    run(story())
