"""Tests how a follower goes on after errors, and what its metrics count meanwhile."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest
from replica_cluster import NOW_MS, TOPIC, TOPIC_ID, Cluster, batch, run, until

from penstock.broker.replicas.followed_partition import Counts, FollowerLag
from penstock.broker.replicas.replica_fetcher import ReplicaFetcher
from penstock.broker.replicas.replica_figures import figures_of
from penstock.metadata.image import PartitionImage
from penstock.protocol.errors import ErrorCode
from penstock.protocol.messages.api_01_fetch import FetchableTopicResponse, FetchResponse, PartitionData


def led_by_1(*replicas: int) -> PartitionImage:
    return PartitionImage(replicas=replicas, isr=replicas, leader=1, leader_epoch=1)


def fetcher_of(cluster: Cluster) -> ReplicaFetcher:
    return cluster[2].replicas._fetchers[1, 0]


class Refusals:
    """Makes a leader refuse fetches, of all partitions or of partition 0, and notes when each fetch arrived."""

    def __init__(self, cluster: Cluster) -> None:
        self._serve = cluster[1].serve
        self.whole: ErrorCode = ErrorCode.NONE
        self.partition: ErrorCode = ErrorCode.NONE
        self.times: list[float] = []
        cluster[1].serve = self._answer  # type: ignore[method-assign]

    async def _answer(self, request: Any) -> Any:
        self.times.append(asyncio.get_running_loop().time())
        if self.whole:
            return FetchResponse(error_code=self.whole)
        if not self.partition:
            return await self._serve(request)
        data = PartitionData(partition_index=0, error_code=self.partition, records=None)
        return FetchResponse(responses=[FetchableTopicResponse(topic_id=TOPIC_ID, partitions=[data])])

    async def pauses(self, count: int) -> list[float]:
        """Returns the times between the next fetches, rounded to milliseconds."""
        self.times.clear()
        await until(lambda: len(self.times) > count)
        return [round(after - before, 3) for before, after in pairwise(self.times)]


@pytest.mark.parametrize("whole", [True, False], ids=["the whole fetch", "one partition"])
def test_follower_waits_longer_after_each_refused_fetch_until_a_fetch_succeeds(whole: bool) -> None:
    async def scenario() -> None:
        cluster = Cluster(1, 2, replica_fetch_backoff_ms="1000")
        refusals = Refusals(cluster)
        await cluster.start(led_by_1(1, 2))
        await cluster[1].partition.committed(cluster[1].append(b"a"))
        seen: list[list[float]] = []
        for value in (b"b", b"c"):
            if whole:
                refusals.whole = ErrorCode.NOT_LEADER_OR_FOLLOWER
            else:
                refusals.partition = ErrorCode.NOT_LEADER_OR_FOLLOWER
            end = cluster[1].append(value, acks=1)  # ends the parked fetch
            seen.append((await refusals.pauses(6))[1:])
            refusals.whole = refusals.partition = ErrorCode.NONE
            await cluster[1].partition.committed(end)
            await until(lambda end=end: cluster[2].partition.log.high_watermark == end)
        for pauses in seen:
            assert all(later > 1.5 * earlier for earlier, later in pairwise(pauses)), seen
        assert seen[1][0] < 2 * seen[0][0], seen
        await cluster.close()

    run(scenario())


def test_follower_counts_its_fetch_requests_and_received_bytes_and_errors() -> None:
    async def scenario() -> None:
        cluster = Cluster(1, 2)
        refusals = Refusals(cluster)
        await cluster.start(led_by_1(1, 2))
        await cluster[1].partition.committed(cluster[1].append(b"a"))
        counts = cluster[2].replicas.counts
        assert counts.requests == len(refusals.times) > 0
        assert (counts.bytes_in, counts.errors) == (cluster[2].partition.log.size, 0)
        refusals.whole = ErrorCode.BROKER_NOT_AVAILABLE
        cluster[1].append(b"b", acks=1)
        await until(lambda: counts.errors == 3)
        refusals.whole, refusals.partition = ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER
        await until(lambda: counts.errors == 6)
        refusals.partition = ErrorCode.NONE
        await until(lambda: counts.bytes_in == cluster[1].partition.log.size)
        assert counts == Counts(counts.bytes_in, counts.requests, counts.errors)
        await cluster.close()

    run(scenario())


def test_follower_counts_the_records_that_it_truncates_and_its_resets() -> None:
    async def scenario() -> None:
        cluster = Cluster(1, 2)
        await cluster.start(led_by_1(1, 2))
        await cluster[1].partition.committed(cluster[1].append(b"a"))
        await until(lambda: cluster[2].partition.log.high_watermark == 1)
        cluster.cut = {(2, 1), (1, 2)}
        cluster[1].append(b"lost", b"lost too", acks=1)
        cluster.change(leader=2, isr=(2,))
        cluster[2].append(b"b", acks=1)
        cluster.cut = set()
        await until(lambda: cluster[1].values() == cluster[2].values())
        counts = cluster[1].replicas.counts
        assert (counts.truncations, counts.truncated_records, counts.resets) == (1, 2, 0)
        await until(lambda: set(cluster.isr()) == {1, 2})
        cluster.cut = {(1, 2)}
        end = cluster[2].append(b"c", acks=1)
        await cluster[2].partition.committed(end)
        cluster[2].partition.log.advance_log_start_offset(end)
        cluster.cut = set()
        await until(lambda: cluster[1].partition.log.log_start_offset == end)
        assert (counts.truncations, counts.resets) == (1, 1)
        await cluster.close()

    run(scenario())


def test_follower_ignores_fetched_data_of_a_paused_or_unknown_partition() -> None:
    async def scenario() -> None:
        cluster = Cluster(1, 2)
        await cluster.start(led_by_1(1, 2))
        await cluster[1].partition.committed(cluster[1].append(b"a"))
        fetcher = fetcher_of(cluster)
        entry = fetcher._followed[TOPIC_ID, 0]
        await until(lambda: entry.asked == 1)
        fetcher._pause(entry, asyncio.get_running_loop().time() + 3600)
        records = cluster[1].values()[0]
        for topic_id, index in ((TOPIC_ID, 0), (TOPIC_ID, 7), (bytes(16), 0)):
            data = PartitionData(partition_index=index, high_watermark=9, records=records)
            await fetcher._take(FetchResponse(responses=[FetchableTopicResponse(topic_id=topic_id, partitions=[data])]))
        assert (cluster[2].partition.log.log_end_offset, entry.lag) == (1, 0)
        await cluster.close()

    run(scenario())


def test_partition_that_follows_again_in_the_next_epoch_does_not_keep_its_old_pause() -> None:
    async def scenario() -> None:
        cluster = Cluster(1, 2)
        await cluster.start(led_by_1(1, 2))
        await cluster[1].partition.committed(cluster[1].append(b"a"))
        fetcher = fetcher_of(cluster)
        fetcher._pause(fetcher._followed[TOPIC_ID, 0], asyncio.get_running_loop().time() + 3600)
        cluster.change(leader=1)
        await asyncio.wait_for(cluster[1].partition.committed(cluster[1].append(b"b")), 5)
        await cluster.close()

    run(scenario())


def test_all_partitions_whose_pause_is_over_are_fetched_again() -> None:
    async def scenario() -> None:
        cluster = Cluster(1, 2)
        await cluster.start(led_by_1(1, 2))
        cluster.widen(led_by_1(1, 2), led_by_1(1, 2))
        fetcher = fetcher_of(cluster)
        await until(lambda: not fetcher._paused and len(fetcher) == 3)
        until_s = asyncio.get_running_loop().time() + 0.05
        for entry in list(fetcher._followed.values()):
            fetcher._pause(entry, until_s)
        waits = []
        for index in range(3):
            partition = cluster[1].partitions.get(TOPIC, index)
            end = partition.append(batch(b"x"), now_ms=NOW_MS, required_acks=-1).last_offset + 1
            waits.append(partition.committed(end))
        await asyncio.wait_for(asyncio.gather(*waits), 0.9)  # before the leader removes a laggard
        assert not fetcher._paused
        await cluster.close()

    run(scenario())


def test_merged_lag_of_two_replica_fetchers_has_their_largest_lag_and_their_total_lag() -> None:
    one, other = FollowerLag(), FollowerLag(answered_ms_ago=40)
    one.add(5, 100)
    one.add(3, 700)
    other.add(7, 200)
    other.add(1, 50)
    one.merge(other)
    assert one == FollowerLag(largest=7, total=16, longest_ms=700, answered_ms_ago=40)


def test_partition_metrics_show_the_lag_of_each_follower_and_whether_replicas_are_out_of_sync() -> None:
    async def scenario() -> None:
        cluster = Cluster(1, 2, 3)
        cluster.cut = {(3, 1)}
        await cluster.start(led_by_1(1, 2, 3), min_insync_replicas="2")
        await until(lambda: cluster.isr() == (1, 2))
        await until(lambda: cluster[1].partition.isr == (1, 2))
        await cluster[1].partition.committed(cluster[1].append(b"a", b"b"))
        figures = figures_of(cluster[1].partition)
        assert figures.lag_records == {2: 0, 3: 2}
        assert (figures.under_replicated, figures.under_min_isr, figures.isr_change_pending) == (True, False, False)
        cluster.cut = set()
        await until(lambda: figures_of(cluster[1].partition).lag_records == {2: 0, 3: 0})
        await until(lambda: cluster[1].partition.isr == (1, 2, 3))
        assert not figures_of(cluster[1].partition).under_replicated
        assert [each.topic for each in cluster[1].replicas.figures()] == [TOPIC]
        assert list(cluster[2].replicas.figures()) == []
        await cluster.close()

    run(scenario())
