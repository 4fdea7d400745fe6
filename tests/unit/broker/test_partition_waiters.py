"""Tests requests that wait at a partition: the order in which they continue, and the events that end their wait."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from penstock.broker.replicas.partition_waiters import PartitionWaiters
from penstock.protocol.errors import ErrorCode, KafkaError


class Fetch:
    """Replaces a parked fetch. It is unparked as soon as it is answered."""

    def __init__(self, waiters: PartitionWaiters, *, from_follower: bool = False) -> None:
        self.seen: list[int] = []
        self.answered = False
        self._waiters = waiters
        waiters.park(self, from_follower=from_follower)

    def notify(self, appended_bytes: int) -> None:
        self.seen.append(appended_bytes)

    def abandon(self) -> None:
        self.answered = True
        self._waiters.unpark(self)


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(scenario)


def test_high_watermark_notifies_parked_consumer_fetches_and_an_append_notifies_parked_follower_fetches() -> None:
    waiters = PartitionWaiters()
    consumer, follower = Fetch(waiters), Fetch(waiters, from_follower=True)
    waiters.on_append(10)
    assert (consumer.seen, follower.seen) == ([], [10])
    waiters.on_high_watermark(1, 7)
    assert (consumer.seen, follower.seen) == ([7], [10])


def test_fetch_that_is_no_longer_parked_is_not_notified_again() -> None:
    waiters = PartitionWaiters()
    consumer, follower = Fetch(waiters), Fetch(waiters, from_follower=True)
    waiters.unpark(consumer)
    waiters.unpark(follower)
    waiters.on_append(10)
    waiters.on_high_watermark(1, 7)
    waiters.answer_parked()
    assert [consumer.seen, follower.seen] == [[], []]
    assert [consumer.answered, follower.answered] == [False, False]


def test_new_log_start_answers_parked_follower_fetches_and_a_removed_partition_answers_all_parked_fetches() -> None:
    waiters = PartitionWaiters()
    consumers, followers = [Fetch(waiters) for _ in range(2)], [Fetch(waiters, from_follower=True) for _ in range(2)]
    waiters.answer_followers()
    assert [each.answered for each in (*consumers, *followers)] == [False, False, True, True]
    late = Fetch(waiters, from_follower=True)
    waiters.answer_parked()
    assert all(each.answered for each in (*consumers, late))


def test_waiting_produce_requests_complete_in_the_order_of_their_offsets() -> None:
    async def scenario() -> None:
        waiters = PartitionWaiters()
        commits = {offset: waiters.commit(offset) for offset in (5, 3, 9, 4)}
        waiters.on_high_watermark(4, 1)
        assert {offset for offset, future in commits.items() if future.done()} == {3, 4}
        waiters.on_high_watermark(9, 1)
        assert all(future.done() for future in commits.values())

    run(scenario())


def test_cancelled_produce_requests_do_not_accumulate_while_the_high_watermark_does_not_advance() -> None:
    async def scenario() -> None:
        waiters = PartitionWaiters()
        for _ in range(100):
            waiters.commit(5).cancel()
        assert waiters.commits is not None
        assert len(waiters.commits) == 1

    run(scenario())


def test_delete_records_requests_complete_when_the_low_watermark_reaches_their_offset() -> None:
    async def scenario() -> None:
        waiters = PartitionWaiters()
        near, far, gone = waiters.deletion(3), waiters.deletion(8), waiters.deletion(9)
        gone.cancel()
        waiters.on_low_watermark(3)
        assert near.done()
        assert not far.done()
        waiters.on_low_watermark(8)
        assert far.done()
        assert waiters.deletions is None

    run(scenario())


def test_failed_partition_fails_waiting_produce_and_delete_records_requests_but_not_parked_fetches() -> None:
    async def scenario() -> None:
        waiters = PartitionWaiters()
        fetch = Fetch(waiters)
        waiting = [waiters.commit(1), waiters.commit(2), waiters.deletion(3)]
        waiters.fail(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "The leader is node 2."))
        for each in waiting:
            with pytest.raises(KafkaError, match="The leader is node 2"):
                await each
        errors = [each.exception() for each in waiting]
        assert len(set(map(id, errors))) == len(errors)
        assert not fetch.answered
        waiters.on_high_watermark(9, 1)  # nothing is left to end
        assert fetch.seen == [1]

    run(scenario())
