"""Tests the waits at a partition with several waiters of each kind, for all small offsets."""

from __future__ import annotations

import asyncio
from itertools import permutations, product

from parked_fetch import ParkedFetch

from penstock.broker.replicas.partition_waiters import PartitionWaiters
from penstock.protocol.errors import ErrorCode, KafkaError


def parked(waiters: PartitionWaiters) -> tuple[list[ParkedFetch], list[ParkedFetch]]:
    """Parks three fetches of consumers and three fetches of followers."""
    consumers, followers = [ParkedFetch() for _ in range(3)], [ParkedFetch() for _ in range(3)]
    for fetches, from_follower in ((consumers, False), (followers, True)):
        for each in fetches:
            waiters.park(each, from_follower=from_follower)
    return consumers, followers


def test_every_parked_fetch_is_notified_and_stays_parked() -> None:
    waiters = PartitionWaiters()
    consumers, followers = parked(waiters)
    for number in (1, 2):
        waiters.on_append(10 * number)
        waiters.on_high_watermark(number, number)
    assert [each.notified for each in followers] == [[10, 20]] * 3
    assert [each.notified for each in consumers] == [[1, 2]] * 3
    assert [each.abandoned for each in (*consumers, *followers)] == [0] * 6


def test_change_of_the_log_start_answers_every_follower_and_a_change_of_the_leader_every_fetch() -> None:
    waiters = PartitionWaiters()
    consumers, followers = parked(waiters)
    waiters.answer_followers()
    assert [each.abandoned for each in (*consumers, *followers)] == [0, 0, 0, 1, 1, 1]
    waiters.answer_parked()
    assert [each.abandoned for each in (*consumers, *followers)] == [1, 1, 1, 2, 2, 2]


def test_only_the_unparked_fetch_is_no_longer_notified() -> None:
    waiters = PartitionWaiters()
    consumers, followers = parked(waiters)
    waiters.unpark(consumers[1])
    waiters.unpark(followers[1])
    waiters.unpark(ParkedFetch())
    waiters.on_append(5)
    waiters.on_high_watermark(1, 6)
    waiters.answer_parked()
    assert [each.notified for each in consumers] == [[6], [], [6]]
    assert [each.notified for each in followers] == [[5], [], [5]]
    assert [each.abandoned for each in (*consumers, *followers)] == [1, 0, 1] * 2


def test_partition_without_waiters_needs_no_collections() -> None:
    waiters = PartitionWaiters()
    waiters.unpark(ParkedFetch())
    waiters.on_append(1)
    waiters.on_high_watermark(1, 1)
    waiters.on_low_watermark(1)
    waiters.answer_followers()
    waiters.answer_parked()
    waiters.fail(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "The leader is node 2."))
    assert (waiters.consumers, waiters.followers, waiters.commits, waiters.deletions) == (None, None, None, None)


def test_commit_is_done_exactly_if_the_high_watermark_has_reached_its_offset() -> None:
    async def scenario() -> None:
        for offsets, first in product(permutations((1, 2, 2, 4)), range(6)):
            waiters = PartitionWaiters()
            waits = [(offset, waiters.commit(offset)) for offset in offsets]
            for mark in (first, first + 1):
                waiters.on_high_watermark(mark, 0)
                assert [wait.done() for _, wait in waits] == [offset <= mark for offset in offsets], (offsets, mark)

    asyncio.run(scenario())


def test_deletion_is_done_exactly_if_the_low_watermark_has_reached_its_offset() -> None:
    async def scenario() -> None:
        for offsets, first in product(permutations((1, 2, 4)), range(6)):
            waiters = PartitionWaiters()
            waits = [(offset, waiters.deletion(offset)) for offset in offsets]
            for mark in (first, first + 1):
                waiters.on_low_watermark(mark)
                assert [wait.done() for _, wait in waits] == [offset <= mark for offset in offsets], (offsets, mark)
                assert (waiters.deletions is None) == (mark >= 4)

    asyncio.run(scenario())


def test_commits_and_deletions_do_not_end_each_other() -> None:
    async def scenario() -> None:
        waiters = PartitionWaiters()
        commit, deletion = waiters.commit(3), waiters.deletion(3)
        waiters.on_low_watermark(2)
        waiters.on_high_watermark(2, 0)
        assert (commit.done(), deletion.done()) == (False, False)
        waiters.on_high_watermark(3, 0)
        assert (commit.done(), deletion.done()) == (True, False)
        waiters.on_low_watermark(3)
        assert deletion.done()

    asyncio.run(scenario())


def test_cancelled_waits_are_skipped_by_later_events() -> None:
    async def scenario() -> None:
        for cancelled in range(3):
            waiters = PartitionWaiters()
            commits, deletions = [waiters.commit(1) for _ in range(3)], [waiters.deletion(1) for _ in range(3)]
            for waits in (commits, deletions):
                waits[cancelled].cancel()
            late = waiters.commit(5), waiters.deletion(5)
            waiters.on_high_watermark(1, 0)
            waiters.on_low_watermark(1)
            for waits in (commits, deletions):
                assert [each.cancelled() for each in waits] == [index == cancelled for index in range(3)]
                assert all(each.done() for each in waits)
            assert not any(each.done() for each in late)
            late[0].cancel()
            waiters.fail(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "The leader is node 2."))
            assert (late[0].cancelled(), isinstance(late[1].exception(), KafkaError)) == (True, True)

    asyncio.run(scenario())


def test_failed_partition_fails_every_wait_with_the_code_and_has_room_for_new_waits() -> None:
    async def scenario() -> None:
        waiters = PartitionWaiters()
        waits = [*(waiters.commit(offset) for offset in (1, 2, 3)), *(waiters.deletion(offset) for offset in (1, 2))]
        waiters.fail(KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "The disk failed."))
        errors = [each.exception() for each in waits]
        assert [isinstance(each, KafkaError) and (each.code, each.message) for each in errors] == [
            (ErrorCode.KAFKA_STORAGE_ERROR, "The disk failed.")
        ] * 5
        late = waiters.commit(1), waiters.deletion(1)
        waiters.on_high_watermark(1, 0)
        waiters.on_low_watermark(1)
        assert [each.done() and each.exception() is None for each in late] == [True, True]

    asyncio.run(scenario())
