"""Tests the rounds of a replica fetcher: which partitions a Fetch names, and which partitions pause or leave."""

from __future__ import annotations

import asyncio
import errno
from dataclasses import replace

import pytest
from replica_cluster import run, until
from scripted_leader import LED, SESSION, Follower, data, forgotten, named, records, response

from penstock.broker.replicas import replica_fetcher
from penstock.broker.replicas.replica_fetcher import ReplicaFetcher
from penstock.log.flush import make_countable
from penstock.log.log import Log
from penstock.metadata.configs.topic import LogConfig
from penstock.protocol.errors import ErrorCode, KafkaError


def now() -> float:
    return asyncio.get_running_loop().time()


def test_fetch_request_names_positions_limits_and_the_broker_epoch() -> None:
    async def scenario() -> None:
        limits = {
            "replica_fetch_max_bytes": "1001",
            "replica_fetch_response_max_bytes": "1002",
            "replica_fetch_min_bytes": "3",
            "replica_fetch_wait_max_ms": "404",
        }
        follower = await Follower(2, throttled_rate=None, **limits).start()
        first = await follower.asked(1)
        assert (first.replica_state.replica_id, first.replica_state.replica_epoch) == (2, 55)
        assert (first.max_wait_ms, first.min_bytes, first.max_bytes) == (404, 3, 1002)
        assert (first.session_id, first.session_epoch) == (0, 0)
        follower.answer(
            data(0, records(7, 3), high_watermark=10, log_start_offset=7), data(1, records(0), high_watermark=1)
        )
        second = await follower.asked(2)
        assert (second.session_id, second.session_epoch, forgotten(second)) == (SESSION, 1, [])
        rows = [
            (each.partition, each.fetch_offset, each.log_start_offset, each.last_fetched_epoch)
            for topic in second.topics
            for each in topic.partitions
        ]
        assert rows == [(0, 10, 7, 1), (1, 1, 0, 1)]
        asked = second.topics[0].partitions[0]
        assert (asked.current_leader_epoch, asked.partition_max_bytes) == (1, 1001)
        follower.answer(data(1, high_watermark=1), data(0, high_watermark=10, log_start_offset=8))
        third = await follower.asked(3)
        assert (third.session_epoch, named(third)) == (2, {0: 10}), "only partition 0 has a new position"
        assert third.topics[0].partitions[0].log_start_offset == 8
        follower.answer()
        assert named(await follower.asked(4)) == {}
        await follower.fetcher.close()

    run(scenario())


def test_removed_partition_is_forgotten_in_the_session_and_not_named_again() -> None:
    async def scenario() -> None:
        follower = await Follower(3).start()
        await follower.asked(1)
        follower.answer(data(0, records(0)), data(1, records(0)))
        await follower.asked(2)
        follower.answer(data(0, records(1)), data(1, records(1)))
        follower.fetcher.remove(follower.partitions[1])
        third = await follower.asked(3)
        assert (named(third), forgotten(third), len(follower.fetcher)) == ({0: 2}, [1], 2)
        follower.answer(data(1, records(1)))  # the leader read it before it got the request
        fourth = await follower.asked(4)
        assert (named(fourth), forgotten(fourth), follower.end(1)) == ({}, [], 1)
        await follower.fetcher.close()

    run(scenario())


def test_removed_partition_with_unsent_news_or_a_pause_is_gone_from_the_next_round() -> None:
    async def scenario() -> None:
        follower = await Follower(3).start()
        await follower.asked(1)
        follower.fetcher._pause(follower.entry(2), now() + 0.2)
        follower.answer(data(0, records(0)), data(1, records(0)))
        await asyncio.sleep(0)
        for index in (1, 2):
            follower.fetcher.remove(follower.partitions[index])
        await until(lambda: follower.end(0) == 1)
        second = await follower.asked(2)
        assert (named(second), sorted(forgotten(second))) == ({0: 1}, [1, 2])
        await asyncio.sleep(0.5)
        assert (len(follower.leader.fetches), follower.fetcher._paused) == (2, {})
        await follower.fetcher.close()

    run(scenario())


def test_partition_that_is_removed_added_and_removed_between_two_fetches_leaves_the_session() -> None:
    async def scenario() -> None:
        follower = await Follower(2).start()
        gate = asyncio.Event()

        async def bound() -> int:
            await gate.wait()
            return 0

        follower.leader.offset_at = lambda timestamp: bound()
        await follower.asked(1)
        follower.answer()
        await follower.asked(2)
        follower.answer(data(0, error_code=ErrorCode.OFFSET_OUT_OF_RANGE))
        await until(lambda: bool(follower.leader.listings))
        follower.fetcher.remove(follower.partitions[1])
        follower.fetcher.add(follower.partitions[1])
        follower.fetcher.remove(follower.partitions[1])
        gate.set()
        third = await follower.asked(3)
        assert (third.session_epoch, 1 in named(third), 1 in forgotten(third)) == (2, False, True)
        await follower.fetcher.close()

    run(scenario())


def test_removal_of_an_earlier_replica_keeps_the_present_replica_with_the_same_id() -> None:
    async def scenario() -> None:
        follower = await Follower(1).start()
        earlier, present = follower.partitions[0], follower.new_partition(0)
        _ = present.log
        follower.fetcher.add(present)
        follower.fetcher.remove(earlier)
        assert (len(follower.fetcher), follower.entry().partition is present) == (1, True)
        follower.fetcher.remove(present)
        assert len(follower.fetcher) == 0
        await follower.fetcher.close()

    run(scenario())


def test_partition_that_is_added_again_starts_over_only_in_another_leader_epoch() -> None:
    async def scenario() -> None:
        follower = await Follower(1).start()
        entry = follower.entry()
        entry.failures = 4
        follower.fetcher.add(follower.partitions[0])
        assert follower.entry() is entry
        follower.partitions[0].follow_image(replace(LED, leader_epoch=2, partition_epoch=2))
        follower.fetcher.add(follower.partitions[0])
        assert (follower.entry().leader_epoch, follower.entry().failures, len(follower.fetcher)) == (2, 0, 1)
        await follower.fetcher.close()

    run(scenario())


def test_added_partitions_do_not_wait_for_a_parked_fetch_and_only_one_fetch_is_abandoned_at_a_time() -> None:
    async def scenario() -> None:
        follower = await Follower(4).start(0)
        await follower.asked(1)
        follower.answer()
        await follower.asked(2)
        began = now()
        follower.fetcher.add(follower.partitions[1])
        third = await follower.asked(3)
        assert (named(third), third.session_id, third.session_epoch) == ({0: 0, 1: 0}, SESSION, 0)
        follower.fetcher.add(follower.partitions[2])
        await asyncio.sleep(0.1)
        assert len(follower.leader.fetches) == 3, "the second fetch is still abandoned"
        follower.leader.fetches[1][2].set_result(response(data(0, records(0))))
        assert named(await follower.asked(4)) == {0: 0, 1: 0, 2: 0}, "an abandoned answer is ignored"
        assert (now() - began < 0.2, follower.counts.errors) == (True, 0)
        lanes = [lane for _, lane, _ in follower.leader.fetches]
        assert lanes == ["replica-3-0", "replica-3-0", "replica-3-1", "replica-3-0"]
        assert follower.counts.requests == 4
        await follower.fetcher.close()

    run(scenario())


def test_closed_fetcher_ends_its_fetch_and_the_abandoned_fetch() -> None:
    async def scenario() -> None:
        follower = await Follower(2).start(0)
        await follower.asked(1)
        follower.fetcher.add(follower.partitions[1])
        await follower.asked(2)
        await follower.fetcher.close()
        await asyncio.sleep(0)
        assert [answer.cancelled() for _, _, answer in follower.leader.fetches] == [True, True]
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert len(follower.fetcher) == 0

    run(scenario())


def test_abandoned_fetch_that_fails_leaves_no_unhandled_error() -> None:
    async def scenario() -> None:
        follower = await Follower(2).start(0)
        await follower.asked(1)
        follower.fetcher.add(follower.partitions[1])
        await follower.asked(2)
        follower.leader.fetches[0][2].set_exception(KafkaError(ErrorCode.NETWORK_EXCEPTION, "The link is cut."))
        await asyncio.sleep(0.1)
        assert (len(follower.leader.fetches), follower.counts.errors) == (2, 0)
        await follower.fetcher.close()

    run(scenario())


def test_fetcher_whose_partitions_all_pause_sleeps_until_a_pause_ends_or_a_partition_is_added(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rounds: list[float] = []
    resume = ReplicaFetcher._resume

    def counted(self: ReplicaFetcher, at: float) -> float | None:
        rounds.append(at)
        return resume(self, at)

    monkeypatch.setattr(ReplicaFetcher, "_resume", counted)

    async def scenario() -> None:
        follower = await Follower(3).start(0, 1)
        await follower.asked(1)
        began = now()
        follower.fetcher._pause(follower.entry(0), began + 50)
        follower.fetcher._pause(follower.entry(1), began + 20)
        follower.answer()
        rounds.clear()
        await asyncio.sleep(10)
        assert len(rounds) <= 2
        follower.fetcher.add(follower.partitions[2])
        assert named(await follower.asked(2)) == {2: 0}
        assert now() - began < 10.1
        follower.fetcher._pause(follower.entry(2), began + 100)
        follower.answer()
        rounds.clear()
        assert named(await follower.asked(3)) == {1: 0}
        assert now() - began == pytest.approx(20, abs=0.01)
        assert len(rounds) <= 3
        await follower.fetcher.close()

    run(scenario())


def test_leader_parks_a_fetch_no_longer_than_the_next_pause_lasts() -> None:
    async def scenario() -> None:
        follower = await Follower(3, replica_fetch_wait_max_ms="500").start()
        await follower.asked(1)
        for index, pause, waits in ((1, 30.0, 500), (2, 0.25, 250)):
            follower.fetcher._pause(follower.entry(index), now() + pause)
            follower.answer()
            request = await follower.asked(1 + index)
            assert (request.max_wait_ms, forgotten(request)) == (waits, [index])
        await follower.fetcher.close()

    run(scenario())


def test_partitions_of_a_failed_disk_are_no_longer_followed_and_no_empty_fetch_is_sent() -> None:
    async def scenario() -> None:
        follower = await Follower(2).start()
        await follower.asked(1)
        follower.answer(data(0, records(0)))
        await follower.asked(2)
        follower.logs.take_offline(follower.logs.dirs[0], OSError(errno.EIO, "broken"))
        follower.answer(data(0, records(1)), data(1, records(0)))
        await asyncio.sleep(5)
        assert (len(follower.fetcher), len(follower.leader.fetches)) == (0, 2)
        assert (follower.end(0), follower.end(1)) == (1, 0)
        await follower.fetcher.close()

    run(scenario())


@pytest.mark.parametrize("failed", [(0,), (0, 1)])
def test_first_fetch_leaves_out_partitions_whose_disk_has_failed(failed: tuple[int, ...]) -> None:
    async def scenario() -> None:
        follower = await Follower(2).start()
        for index in failed:
            follower.partitions[index].log.health.take_offline(OSError(errno.EIO, "broken"))
        await asyncio.sleep(5)
        assert [named(request) for request, _, _ in follower.leader.fetches] == ([{1: 0}] if len(failed) == 1 else [])
        assert len(follower.fetcher) == 2 - len(failed)
        await follower.fetcher.close()

    run(scenario())


# Records that need fsync.


class Syncs:
    """Holds every fsync of a follower until the test ends it, as done or as failed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.waiting: list[tuple[Log, asyncio.Future[None]]] = []
        monkeypatch.setattr(replica_fetcher, "make_countable", self._sync)

    async def _sync(self, log: Log) -> None:
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiting.append((log, ended))
        await ended
        await make_countable(log)


def synced(count: int, *indexes: int) -> Follower:
    """Returns a follower some of whose partitions need fsync before acknowledgements."""
    follower = Follower(count)
    follower.configs = dict.fromkeys(indexes, LogConfig(flush_messages=1))
    return follower


def test_follower_syncs_every_fetched_partition_that_needs_it_before_the_next_fetch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario() -> None:
        follower = await synced(3, 0, 2).start()
        syncs = Syncs(monkeypatch)
        await follower.asked(1)
        follower.answer(*(data(index, records(0)) for index in range(3)))
        for number, index in enumerate((0, 2), 1):
            await until(lambda number=number: len(syncs.waiting) == number)
            assert syncs.waiting[-1][0] is follower.partitions[index].log
            await asyncio.sleep(0.1)
            assert len(follower.leader.fetches) == 1
            syncs.waiting[-1][1].set_result(None)
        assert named(await follower.asked(2)) == {0: 1, 1: 1, 2: 1}
        assert [follower.partitions[index].log.flushed_offset for index in range(3)] == [1, 0, 1]
        await follower.fetcher.close()

    run(scenario())


@pytest.mark.parametrize(
    ("code", "followed"), [(ErrorCode.KAFKA_STORAGE_ERROR, False), (ErrorCode.UNKNOWN_SERVER_ERROR, True)]
)
def test_failed_sync_of_one_partition_does_not_stop_the_others(
    code: ErrorCode, followed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        follower = await synced(2, 0, 1).start()
        syncs = Syncs(monkeypatch)
        await follower.asked(1)
        follower.answer(data(0, records(0)), data(1, records(0)))
        await until(lambda: bool(syncs.waiting))
        syncs.waiting[0][1].set_exception(KafkaError(code, "The disk failed."))
        await until(lambda: len(syncs.waiting) == 2)
        syncs.waiting[1][1].set_result(None)
        second = await follower.asked(2)
        assert (named(second), forgotten(second)) == ({1: 1}, [0])
        assert (len(follower.fetcher), follower.is_paused(0)) == (1 + followed, followed)
        await follower.fetcher.close()

    run(scenario())


def test_partition_that_leaves_while_its_sync_fails_does_not_disturb_the_fetcher(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario() -> None:
        follower = await synced(2, 0).start()
        syncs = Syncs(monkeypatch)
        await follower.asked(1)
        follower.answer(data(0, records(0)), data(1, records(0)))
        await until(lambda: bool(syncs.waiting))
        follower.fetcher.remove(follower.partitions[0])
        began = now()
        syncs.waiting[0][1].set_exception(KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "The disk failed."))
        second = await follower.asked(2)
        assert (named(second), forgotten(second), second.session_epoch) == ({1: 1}, [0], 1)
        assert now() - began < 0.01
        await follower.fetcher.close()

    run(scenario())


def test_partition_of_the_next_leader_epoch_is_followed_although_its_sync_failed_in_the_last_epoch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario() -> None:
        follower = await synced(1, 0).start()
        syncs = Syncs(monkeypatch)
        await follower.asked(1)
        follower.answer(data(0, records(0)))
        await until(lambda: bool(syncs.waiting))
        follower.partitions[0].follow_image(replace(LED, leader_epoch=2, partition_epoch=2))
        follower.fetcher.add(follower.partitions[0])
        syncs.waiting[0][1].set_exception(KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "The disk failed."))
        await until(lambda: len(syncs.waiting) == 2)
        syncs.waiting[1][1].set_result(None)
        assert named(await follower.asked(3)) == {0: 1}, "the partition was added while the second was built"
        await follower.fetcher.close()

    run(scenario())
