"""Tests when a follower reports a diverging epoch to a consumer (KIP-392): only if records are certainly lost.

A follower that lags, or does not know the start of its leader's epoch yet, has fewer records than the consumer has
read. No record is lost in this case: as in Kafka the error is OFFSET_OUT_OF_RANGE, and the consumer returns to the
leader.
"""

from __future__ import annotations

from typing import Any

from replica_cluster import TOPIC_ID, Cluster, run, until
from test_replication import led_by_1

from penstock.protocol.errors import ErrorCode
from penstock.protocol.messages.api_01_fetch import FetchPartition, FetchRequest, FetchTopic

RACK_AWARE = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
NONE = (-1, -1)


async def fetched(cluster: Cluster, node: int, offset: int, last_epoch: int) -> tuple[ErrorCode, tuple[int, int]]:
    """Returns the error code and the diverging epoch in the response."""
    asked = FetchPartition(partition=0, fetch_offset=offset, last_fetched_epoch=last_epoch, partition_max_bytes=1 << 20)
    topics = [FetchTopic(topic_id=TOPIC_ID, partitions=[asked])]
    request = FetchRequest(max_wait_ms=0, min_bytes=1, topics=topics, rack_id=f"rack{node}")
    found: Any = (await cluster[node].serve(request)).responses[0].partitions[0]
    return ErrorCode(found.error_code), (found.diverging_epoch.epoch, found.diverging_epoch.end_offset)


async def follower_behind(*, isr: tuple[int, ...] = (1, 3)) -> Cluster:
    """Returns a cluster in which nodes 1 and 3 have three records. Node 2 stopped fetching and has one record."""
    cluster = Cluster(1, 2, 3, replica_selector_class=RACK_AWARE)
    await cluster.start(led_by_1(1, 2, 3))
    await cluster[1].partition.committed(cluster[1].append(b"a"))
    await until(lambda: cluster[2].partition.log.high_watermark == 1)
    cluster.cut = {(2, 1), (2, 3)}
    cluster.change(isr=isr)
    await cluster[1].partition.committed(cluster[1].append(b"b", b"c"))
    return cluster


def test_lagging_follower_reports_no_diverging_epoch_to_a_consumer() -> None:
    async def scenario() -> None:
        cluster = await follower_behind()
        assert await fetched(cluster, 2, 3, 1) == (ErrorCode.OFFSET_OUT_OF_RANGE, NONE)
        assert await fetched(cluster, 2, 1, 1) == (ErrorCode.NONE, NONE)
        await cluster.close()

    run(scenario())


def test_follower_without_the_newest_epoch_reports_no_diverging_epoch_to_a_consumer() -> None:
    async def scenario() -> None:
        cluster = await follower_behind()
        cluster.change(leader=3)
        epoch = cluster.partition.leader_epoch
        await cluster[3].partition.committed(cluster[3].append(b"d"))
        assert cluster[2].partition.log.epochs.latest_epoch != epoch
        assert await fetched(cluster, 2, 4, epoch) == (ErrorCode.OFFSET_OUT_OF_RANGE, NONE)
        assert await fetched(cluster, 2, 3, epoch - 1) == (ErrorCode.OFFSET_OUT_OF_RANGE, NONE)
        assert await fetched(cluster, 3, 4, epoch) == (ErrorCode.NONE, NONE)
        await cluster.close()

    run(scenario())


def test_empty_follower_reports_no_diverging_epoch_to_a_consumer() -> None:
    async def scenario() -> None:
        cluster = await follower_behind()
        cluster.change(leader=3)
        cluster[2].partition.log.truncate_fully_and_start_at(0)
        for epoch in range(1, cluster.partition.leader_epoch + 1):
            assert await fetched(cluster, 2, 3, epoch) == (ErrorCode.OFFSET_OUT_OF_RANGE, NONE)
        await cluster.close()

    run(scenario())


def test_follower_reports_no_divergence_above_its_high_watermark_to_a_consumer() -> None:
    """Reads from a former leader that follows now and has not truncated its own records yet."""

    async def scenario() -> None:
        cluster = await follower_behind()
        log = cluster[2].partition.log
        cluster.change(leader=3, leader_epoch=9)
        log.assign_epoch(5, 1)
        assert await fetched(cluster, 2, 2, 3) == (ErrorCode.OFFSET_OUT_OF_RANGE, NONE)
        await cluster.close()

    run(scenario())


def test_follower_reports_a_divergence_below_its_high_watermark_to_a_consumer() -> None:
    """The divergence is below the high watermark of the follower, where its records are committed.

    A consumer with other records there has read records that an unclean election removed later.
    """

    async def scenario() -> None:
        cluster = Cluster(1, 2, 3, replica_selector_class=RACK_AWARE)
        await cluster.start(led_by_1(1, 2, 3))
        await cluster[1].partition.committed(cluster[1].append(b"a"))
        cluster.change(leader=1, leader_epoch=7)
        await cluster[1].partition.committed(cluster[1].append(b"b", b"c"))
        await until(lambda: cluster[2].partition.log.high_watermark == 3)
        assert await fetched(cluster, 2, 3, 4) == (ErrorCode.NONE, (1, 1))
        assert await fetched(cluster, 1, 3, 4) == (ErrorCode.NONE, (1, 1))
        await cluster.close()

    run(scenario())
