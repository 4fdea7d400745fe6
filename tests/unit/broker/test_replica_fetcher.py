"""Tests rare cases of a follower: late responses, unsynced records, a partition that cannot continue."""

from __future__ import annotations

import asyncio
import errno
import logging
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from replica_cluster import NOW_MS, TOPIC, TOPIC_ID, Cluster, batch, run, until

from penstock.broker.replicas.followed_partition import FollowedPartition
from penstock.broker.replicas.replica_fetcher import ReplicaFetcher
from penstock.log.flush import make_countable
from penstock.log.log import Log
from penstock.metadata.image import ImageChanges, PartitionImage
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_01_fetch import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)


def led_by_1(*replicas: int) -> PartitionImage:
    return PartitionImage(replicas=replicas, isr=replicas, leader=1, leader_epoch=1)


def fetcher_of(cluster: Cluster, node_id: int) -> ReplicaFetcher:
    return cluster[node_id].replicas._fetchers[1, 0]


def test_divergence_reported_for_an_earlier_leader_epoch_does_not_truncate_the_log() -> None:
    async def scenario() -> None:
        cluster = Cluster(1, 2)
        await cluster.start(led_by_1(1, 2))
        await cluster[1].partition.committed(cluster[1].append(b"a", b"b"))
        await until(lambda: cluster[2].partition.log.high_watermark == 2)
        data = PartitionData(partition_index=0, diverging_epoch=EpochEndOffset(epoch=1, end_offset=0), records=None)
        late = FetchResponse(responses=[FetchableTopicResponse(topic_id=TOPIC_ID, partitions=[data])])
        cluster.change(leader=1)  # it leads again: no fetch was sent in this epoch yet
        await fetcher_of(cluster, 2)._take(late)
        assert cluster[2].partition.log.log_end_offset == 2
        await cluster.close()

    run(scenario())


def test_a_follower_fetches_only_from_its_synced_offset_if_the_topic_requires_fsync() -> None:
    async def scenario() -> None:
        cluster = Cluster(1, 2)
        await cluster.start(led_by_1(1, 2))
        await cluster[1].partition.committed(cluster[1].append(b"a"))
        await cluster.crash(2)  # its process: what it wrote is in the page cache
        cluster._change(cluster.partition, {"flush.messages": "1"})
        cluster.publish()
        named: list[tuple[int, int]] = []
        serve = cluster[1].serve

        async def watched(request: Any) -> Any:
            synced = cluster[2].partition.log.flushed_offset
            named.extend((each.fetch_offset, synced) for topic in request.topics for each in topic.partitions)
            return await serve(request)

        cluster[1].serve = watched  # type: ignore[method-assign]
        await cluster.restart(2)
        assert cluster[2].partition.log.flushed_offset < cluster[2].partition.log.log_end_offset == 1
        await until(lambda: bool(named))
        await cluster[1].partition.committed(cluster[1].append(b"b"))
        assert all(offset <= synced for offset, synced in named)
        await cluster.close()

    run(scenario())


def test_partition_that_fails_to_follow_its_leader_does_not_stop_other_partitions(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    append = FollowedPartition.append

    def broken(self: FollowedPartition, *arguments: Any) -> tuple[int, bool]:
        if self.partition.index == 0:
            raise ValueError("an unexpected error")
        return append(self, *arguments)

    monkeypatch.setattr(FollowedPartition, "append", broken)

    async def scenario() -> None:
        cluster = Cluster(1, 2)
        await cluster.start(led_by_1(1, 2))
        cluster.widen(led_by_1(1, 2))
        cluster[1].append(b"a", acks=1)
        healthy = cluster[1].partitions.get(TOPIC, 1)
        info = healthy.append(batch(b"b"), now_ms=NOW_MS, required_acks=1)
        await healthy.committed(info.last_offset + 1)
        await cluster.close()

    run(scenario())


def test_follower_without_a_fetch_session_lists_last_the_partitions_that_returned_records() -> None:
    async def scenario() -> None:
        cluster = Cluster(1, 2)
        orders: list[list[int]] = []
        serve = cluster[1].serve

        async def without_sessions(request: Any) -> Any:
            orders.append([each.partition for topic in request.topics for each in topic.partitions])
            answer = await serve(request)
            answer.session_id = 0
            return answer

        cluster[1].serve = without_sessions  # type: ignore[method-assign]
        await cluster.start(led_by_1(1, 2))
        cluster.widen(led_by_1(1, 2))
        for index in (1, 0, 0, 1):
            partition = cluster[1].partitions.get(TOPIC, index)
            await partition.committed(partition.append(batch(b"x"), now_ms=NOW_MS, required_acks=-1).last_offset + 1)
            assert orders[-1] == [1 - index, index]
        await cluster.close()

    run(scenario())


def test_replica_fetcher_opens_only_a_few_logs_of_new_partitions_before_each_fetch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("penstock.broker.replicas.replica_fetcher.OPEN_SLICE_SECONDS", 0.0)
    monkeypatch.setattr("penstock.broker.replicas.partitions.Partitions._open_one", lambda self, partition: None)
    resume, opened = ReplicaFetcher._resume, []

    def counted(self: ReplicaFetcher, now: float) -> float | None:
        closed = [each.partition for each in self._followed.values() if not each.partition.is_open]
        next_at = resume(self, now)
        opened.append(sum(partition.is_open for partition in closed))
        return next_at

    monkeypatch.setattr(ReplicaFetcher, "_resume", counted)

    async def scenario() -> None:
        cluster = Cluster(1, 2)
        await cluster.start(led_by_1(1, 2))
        cluster.widen(*(led_by_1(1, 2) for _ in range(19)))
        for index in range(20):
            partition = cluster[1].partitions.get(TOPIC, index)
            await partition.committed(partition.append(batch(b"x"), now_ms=NOW_MS, required_acks=-1).last_offset + 1)
        await cluster.close()

    run(scenario())
    assert (max(opened), sum(opened)) == (1, 20)


def test_follower_pauses_if_the_leader_reports_the_same_divergence_again() -> None:
    async def scenario() -> None:
        cluster = Cluster(1, 2)
        await cluster.start(led_by_1(1, 2))
        await cluster[1].partition.committed(cluster[1].append(b"a"))
        fetcher = fetcher_of(cluster, 2)
        entry = fetcher._followed[TOPIC_ID, 0]
        await until(lambda: entry.asked == 1)
        fetcher._truncate(entry, 1, 5)  # nothing to truncate
        assert entry.key in fetcher._paused
        await until(lambda: entry.key not in fetcher._paused)
        await cluster.close()

    run(scenario())


def test_follower_pauses_if_the_leader_loses_its_fetch_session_again_and_again() -> None:
    times: list[float] = []

    async def forgetful(request: Any) -> FetchResponse:
        times.append(asyncio.get_running_loop().time())
        return FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)

    async def scenario() -> None:
        cluster = Cluster(1, 2, replica_fetch_backoff_ms="100")
        cluster[1].serve = forgetful  # type: ignore[method-assign]
        await cluster.start(led_by_1(1, 2))
        await until(lambda: len(times) == 6)
        await cluster.close()

    run(scenario())
    pauses = [after - before for before, after in pairwise(times)]
    assert pauses[0] < 0.1, "the first time, a new session is asked for at once"
    assert min(pauses[1:]) >= 0.1


def test_follower_no_longer_fetches_a_partition_that_it_leads_now() -> None:
    def named(cluster: Cluster) -> set[int]:
        return {each.partition for fetch in cluster[1].fetches for topic in fetch.topics for each in topic.partitions}

    async def scenario() -> None:
        cluster = Cluster(1, 2)
        await cluster.start(led_by_1(1, 2))
        cluster.widen(led_by_1(1, 2))
        fetcher = fetcher_of(cluster, 2)
        await until(lambda: len(fetcher) == 2 and bool(cluster[1].fetches))
        cluster._change(replace(cluster.partition, leader=2, leader_epoch=2), None, led_by_1(1, 2))
        cluster.publish()
        cluster.cut.add((2, 1))
        await until(lambda: fetcher._failures > 0)
        cluster[1].fetches.clear()
        cluster.cut.clear()
        await until(lambda: 1 in named(cluster))  # the first fetch of a session names all partitions
        assert named(cluster) == {1}
        await cluster.close()

    run(scenario())


def test_follower_no_longer_fetches_the_partitions_of_a_deleted_topic() -> None:
    async def scenario() -> None:
        cluster = Cluster(1, 2)
        await cluster.start(led_by_1(1, 2))
        assert len(fetcher_of(cluster, 2)) == 1
        old = cluster.image
        changes = ImageChanges(old.version, frozenset({TOPIC}))
        cluster.image = replace(old, version=old.version + 1, topics={}, topics_by_id={}, changes=changes)
        cluster.publish()
        await until(lambda: not cluster[2].replicas._fetchers)
        await cluster.close()

    run(scenario())


def test_new_replica_is_not_created_in_the_requested_directory_if_the_directory_has_failed() -> None:
    async def scenario() -> None:
        cluster = Cluster(1)
        moves, directory = cluster[1].partitions._moves, cluster[1].logs.dirs[0]
        for failure, expected in ((None, directory), (OSError(errno.EIO, "input/output error"), None)):
            assert moves.request("new", 0, directory, None) is ErrorCode.REPLICA_NOT_AVAILABLE
            directory.failure = failure
            assert moves.remembered("new", 0) is expected
        assert moves.remembered("new", 0) is None

    run(scenario())


def test_leader_with_a_slow_disk_commits_records_at_the_end_of_its_own_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = asyncio.Event()

    async def slow(log: Log) -> None:
        await gate.wait()
        await make_countable(log)

    monkeypatch.setattr("penstock.broker.replicas.partition.make_countable", slow)

    async def scenario() -> None:
        cluster = Cluster(1, 2, replica_fetch_wait_max_ms="60000", replica_lag_time_max_ms="300000")
        await cluster.start(led_by_1(1, 2), flush_messages="1")
        end = cluster[1].append(b"a")
        await until(
            lambda: cluster[1].partition.log.log_end_offset == fetcher_of(cluster, 2)._followed[TOPIC_ID, 0].asked
        )
        assert cluster[1].partition.log.high_watermark == 0
        gate.set()
        began = asyncio.get_running_loop().time()
        await cluster[1].partition.committed(end)
        assert asyncio.get_running_loop().time() - began < 1, "the follower's parked fetch does not end before"
        await cluster.close()

    run(scenario())


def test_an_isr_change_is_requested_again_after_an_unexpected_error() -> None:
    async def scenario() -> None:
        cluster = Cluster(1, 2)
        await cluster.start(led_by_1(1, 2))
        alter, tries = cluster.alter_partition, []

        async def broken(request: Any) -> Any:
            tries.append(request)
            if len(tries) == 1:
                raise ValueError("an unexpected error")
            return await alter(request)

        cluster.alter_partition = broken  # type: ignore[method-assign]
        cluster.cut = {(2, 1)}
        await cluster[1].partition.committed(cluster[1].append(b"a"))
        assert cluster.isr() == (1,)
        assert len(tries) == 2
        await cluster.close()

    run(scenario())


def test_a_leader_with_a_failed_disk_removes_no_replica_from_the_isr() -> None:
    async def scenario() -> None:
        cluster = Cluster(1, 2)
        await cluster.start(led_by_1(1, 2))
        cluster.cut = {(2, 1)}
        cluster[1].append(b"a")
        cluster[1].partition.log.health.take_offline(OSError(errno.EIO, "broken"))
        assert not cluster[1].partition.check_laggards(1 << 40)
        await asyncio.sleep(5)
        assert cluster.isr() == (1, 2)
        await cluster.close()

    run(scenario())


def test_cancelled_waits_for_a_commit_are_dropped_while_the_high_watermark_does_not_advance() -> None:
    async def scenario() -> None:
        cluster = Cluster(1, 2)
        await cluster.start(led_by_1(1, 2))
        cluster.cut = {(2, 1)}
        end = cluster[1].append(b"a")
        partition = cluster[1].partition
        for _ in range(100):
            future = partition.when_committed(end)
            assert future is not None
            future.set_exception(KafkaError(ErrorCode.REQUEST_TIMED_OUT, "Retry."))
            future.exception()
        assert len(partition.waiters.commits or ()) < 3
        await cluster.close()

    run(scenario())


def test_truncated_append_does_not_count_as_committed_when_newer_records_pass_its_offset() -> None:
    async def scenario() -> None:
        cluster = Cluster(1, 2)
        await cluster.start(led_by_1(1, 2))
        partition = cluster[1].partition
        await partition.committed(cluster[1].append(b"a"))
        cluster.cut = {(2, 1)}
        end = cluster[1].append(b"lost")
        cluster.change(leader=2)
        cluster.cut = set()
        await cluster[2].partition.committed(cluster[2].append(b"b", b"c"))
        await until(lambda: partition.log.high_watermark >= end)
        for _ in range(2):  # as a follower, and when it leads again
            with pytest.raises(KafkaError) as error:
                await partition.committed(end, leader_epoch=1)
            assert error.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
            cluster.change(leader=1)
        await partition.committed(end, leader_epoch=cluster.partition.leader_epoch)
        await cluster.close()

    run(scenario())


def test_parked_fetch_that_fails_ends_without_affecting_other_parked_fetches(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        cluster = Cluster(1)
        await cluster.start(led_by_1(1))
        topic = FetchTopic(topic_id=TOPIC_ID, partitions=[FetchPartition(partition=0, partition_max_bytes=100)])
        request = FetchRequest(max_wait_ms=60_000, min_bytes=1, max_bytes=100, session_epoch=-1, topics=[topic])
        asking = asyncio.ensure_future(cluster[1].serve(request))
        await asyncio.sleep(1)

        def broken(*_: Any, **__: Any) -> None:
            raise ValueError("an unexpected error")

        monkeypatch.setattr(Log, "read", broken)
        cluster.change(leader=-1)  # wakes the fetch while the image is being applied
        with pytest.raises(ValueError, match="unexpected"):
            await asyncio.wait_for(asking, 1)
        assert cluster[1].image is cluster.image
        await cluster.close()

    run(scenario())


def test_lowering_min_insync_replicas_commits_waiting_records_at_once() -> None:
    async def scenario() -> None:
        cluster = Cluster(1, 2)
        cluster.cut = {(2, 1)}
        await cluster.start(replace(led_by_1(1, 2), isr=(1,)), min_insync_replicas="2")
        end = cluster[1].append(b"a", acks=1)
        assert cluster[1].partition.log.high_watermark == 0
        cluster._change(cluster.partition, {"min.insync.replicas": "1"})
        cluster.publish()
        assert cluster[1].partition.log.high_watermark == end
        await cluster.close()

    run(scenario())


def test_leader_commits_no_records_with_a_shrunk_isr_until_it_knows_the_current_min_insync_replicas() -> None:
    async def scenario() -> None:
        cluster = Cluster(1, 2)
        await cluster.start(led_by_1(1, 2), min_insync_replicas="1")
        await cluster[1].partition.committed(cluster[1].append(b"a"))
        cluster.cut = {(2, 1)}
        cluster[1].append(b"b")
        publish = cluster.publish
        cluster.publish = lambda *_: None  # type: ignore[method-assign]
        cluster._change(
            cluster.partition, {"min.insync.replicas": "2"}
        )  # the controller has the change, the leader not yet
        await until(lambda: cluster.isr() == (1,))
        await asyncio.sleep(0.5)
        assert cluster[1].partition.log.high_watermark == 1
        publish()
        await asyncio.sleep(0.5)
        assert cluster[1].partition.isr == (1,)
        assert cluster[1].partition.log.high_watermark == 1
        await cluster.close()

    run(scenario())


def test_follower_measures_its_lag_behind_the_leader() -> None:
    async def scenario() -> None:
        cluster = Cluster(1, 2)
        await cluster.start(led_by_1(1, 2))
        await cluster[1].partition.committed(cluster[1].append(b"a", b"b"))
        await until(lambda: cluster[2].partition.log.high_watermark == 2)
        manager, fetcher = cluster[2].replicas, fetcher_of(cluster, 2)
        assert (manager.lags()[1].largest, manager.lags()[1].longest_ms) == (0, 0)

        def answer(high_watermark: int) -> FetchResponse:
            data = PartitionData(partition_index=0, high_watermark=high_watermark, records=None)
            return FetchResponse(responses=[FetchableTopicResponse(topic_id=TOPIC_ID, partitions=[data])])

        await fetcher._take(answer(7))
        await asyncio.sleep(0)
        lag = manager.lags()[1]
        assert (lag.largest, lag.total) == (5, 5)
        assert lag.longest_ms >= 0
        await fetcher._take(answer(2))
        assert manager.lags()[1].total == 0
        await cluster.close()

    run(scenario())
