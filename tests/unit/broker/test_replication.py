"""Tests replicas of a partition on two or three brokers, with a simulated network, disk and controller."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from typing import Any

import pytest
from replica_cluster import TOPIC, TOPIC_ID, Cluster, run, until

from penstock.broker.events.kinds import ReplicaTruncated
from penstock.broker.replicas.replica_figures import figures_of
from penstock.metadata.image import PartitionImage
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_01_fetch import FetchPartition, FetchRequest, FetchTopic
from penstock.protocol.vocabulary import NO_REPLICA, ResourceType


def led_by_1(*replicas: int, isr: tuple[int, ...] | None = None) -> PartitionImage:
    return PartitionImage(replicas=replicas, isr=replicas if isr is None else isr, leader=1, leader_epoch=1)


def caught_up(cluster: Cluster, *node_ids: int) -> bool:
    ends = {cluster[each].partition.log.log_end_offset for each in node_ids}
    return len(ends) == 1


def refused(error: pytest.ExceptionInfo[KafkaError], code: ErrorCode) -> bool:
    return error.value.code is code


def test_record_is_committed_when_the_last_in_sync_replica_fetches_the_offset_after_it() -> None:
    async def scenario() -> None:
        cluster = Cluster(1, 2, 3)
        await cluster.start(led_by_1(1, 2, 3))
        end = cluster[1].append(b"a", b"b")
        leader = cluster[1].partition
        assert leader.log.high_watermark == 0
        started = asyncio.get_running_loop().time()
        await leader.committed(end)
        assert leader.log.high_watermark == 2
        assert asyncio.get_running_loop().time() - started < 0.1
        await until(lambda: cluster[2].partition.log.high_watermark == cluster[3].partition.log.high_watermark == 2)
        assert cluster[1].values() == cluster[2].values() == cluster[3].values()
        await cluster.close()

    run(scenario())


def test_leader_that_is_the_only_replica_commits_a_record_at_once() -> None:
    async def scenario() -> None:
        cluster = Cluster(1)
        await cluster.start(led_by_1(1))
        end = cluster[1].append(b"a")
        assert cluster[1].partition.log.high_watermark == end == 1
        assert cluster[1].partition.when_committed(end) is None
        await cluster.close()

    run(scenario())


@pytest.mark.parametrize("publish_first", [False, True])
def test_a_follower_that_stops_fetching_leaves_the_isr_and_rejoins(publish_first: bool) -> None:
    async def scenario() -> None:
        cluster = Cluster(1, 2, 3)
        cluster.publish_first = publish_first
        await cluster.start(led_by_1(1, 2, 3))
        await cluster[1].partition.committed(cluster[1].append(b"a"))
        cluster.cut = {(3, 1)}
        end = cluster[1].append(b"b")
        await cluster[1].partition.committed(end)
        assert cluster.isr() == (1, 2)
        assert cluster[1].replicas.isr_changes.shrinks == 1
        figures = figures_of(cluster[1].partition)
        assert figures.under_replicated
        assert not figures.under_min_isr
        assert figures.lag_records[3] == 1
        assert figures.lag_ms[3] > 0 == figures.lag_ms[2]
        cluster.cut = set()
        await until(lambda: cluster.isr() == (1, 2, 3))
        await until(lambda: cluster[1].replicas.isr_changes.expands == 1)
        assert cluster[3].values() == cluster[1].values()
        await cluster.close()

    run(scenario())


def test_produce_error_says_whether_replicas_were_too_few_before_or_after_the_append() -> None:
    async def scenario() -> None:
        cluster = Cluster(1, 2)
        await cluster.start(led_by_1(1, 2), min_insync_replicas="2")
        cluster.cut = {(2, 1)}
        end = cluster[1].append(b"a")
        with pytest.raises(KafkaError) as error:
            await cluster[1].partition.committed(end)
        assert refused(error, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
        assert cluster[1].partition.log.high_watermark == 0
        with pytest.raises(KafkaError) as error:
            cluster[1].append(b"b")
        assert refused(error, ErrorCode.NOT_ENOUGH_REPLICAS)
        cluster[1].append(b"b", acks=1)
        assert cluster[1].partition.log.high_watermark == 0
        cluster.cut = set()
        await cluster[1].partition.committed(2)
        assert cluster.isr() == (1, 2)
        await cluster.close()

    run(scenario())


def test_min_insync_replicas_is_limited_to_the_number_of_replicas() -> None:
    async def scenario() -> None:
        cluster = Cluster(1)
        await cluster.start(led_by_1(1), min_insync_replicas="2")
        assert cluster[1].append(b"a") == 1
        await cluster.close()

    run(scenario())


def test_requests_that_wait_for_a_commit_fail_when_the_leader_loses_its_leadership() -> None:
    async def scenario() -> None:
        cluster = Cluster(1, 2)
        await cluster.start(led_by_1(1, 2))
        cluster.cut = {(2, 1)}
        waiting = asyncio.ensure_future(cluster[1].partition.committed(cluster[1].append(b"a")))
        await asyncio.sleep(0.01)
        cluster.change(leader=2)
        with pytest.raises(KafkaError) as error:
            await waiting
        assert refused(error, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        with pytest.raises(KafkaError) as error:
            await cluster[1].partition.committed(1)
        assert refused(error, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        await cluster.close()

    run(scenario())


def test_a_former_leader_truncates_records_that_no_follower_has() -> None:
    async def scenario() -> None:
        cluster = Cluster(1, 2, 3)
        await cluster.start(led_by_1(1, 2, 3))
        await cluster[1].partition.committed(cluster[1].append(b"kept"))
        cluster.cut = {(2, 1), (3, 1)}
        cluster[1].append(b"lost-1", acks=1)
        cluster[1].append(b"lost-2", acks=1)
        cluster.change(leader=2, isr=(2, 3), publish=False)
        cluster.publish(2, 3)
        await cluster[2].partition.committed(cluster[2].append(b"new"))
        assert cluster[1].partition.log.log_end_offset == 3
        cluster.cut = set()
        cluster.publish()
        await until(lambda: cluster.isr() == (2, 3, 1))
        assert cluster[1].values() == cluster[2].values() == cluster[3].values()
        assert cluster[1].replicas.counts.truncated_records == 2
        (cut,) = [each for each in cluster[1].events if isinstance(each, ReplicaTruncated)]
        assert (cut.partition, cut.old_end, cut.new_end, cut.lost_committed) == (f"{TOPIC}-0", 3, 1, False)
        await cluster.close()

    run(scenario())


def test_a_failover_does_not_wait_for_a_parked_fetch() -> None:
    async def scenario() -> None:
        cluster = Cluster(1, 2, 3)
        await cluster.start(led_by_1(1, 2, 3))
        await cluster[1].partition.committed(cluster[1].append(b"a"))
        await cluster.crash(1)
        started = asyncio.get_running_loop().time()
        cluster.change(leader=2, isr=(2, 3), publish=False)
        cluster.publish(3)  # it fetches from a leader that is not notified of its leadership yet
        await asyncio.sleep(0.02)
        cluster.publish(2)
        await cluster[2].partition.committed(cluster[2].append(b"b"))
        assert asyncio.get_running_loop().time() - started < 0.2
        await cluster.restart(1)
        await until(lambda: set(cluster.isr()) == {1, 2, 3})
        assert cluster[1].values() == cluster[2].values()
        await cluster.close()

    run(scenario())


def test_follower_continues_to_fetch_after_its_abandoned_fetch_failed() -> None:
    async def scenario() -> None:
        cluster = Cluster(1, 2)
        await cluster.start(led_by_1(1, 2))
        await asyncio.sleep(0.1)
        cluster.change(leader=1)  # another epoch: the follower does not wait for the end of its parked fetch
        await asyncio.sleep(0.01)
        await cluster.crash(1)
        await asyncio.sleep(1)
        await cluster.restart(1)
        cluster.change(leader=1)
        await cluster[1].partition.committed(cluster[1].append(b"a"))
        await cluster.close()

    run(scenario())


def test_follower_whose_log_ends_below_the_leaders_log_start_truncates_fully_and_starts_there() -> None:
    async def scenario() -> None:
        cluster = Cluster(1, 2)
        await cluster.start(led_by_1(1, 2))
        await cluster[1].partition.committed(cluster[1].append(b"a", b"b"))
        cluster.cut = {(2, 1)}
        end = cluster[1].append(*[b"x"] * 10, acks=1)
        await until(lambda: cluster.isr() == (1,))
        leader = cluster[1].partition
        await until(lambda: leader.log.high_watermark == end)
        cluster.change_broker(2, fenced=True)
        assert leader.delete_before(10) is None  # the only live replica has deleted them
        leader.log.roll()
        cluster.cut = set()
        cluster.change_broker(2, fenced=False)
        await until(lambda: cluster.isr() == (1, 2))
        assert cluster[2].partition.log.log_start_offset == 10
        assert cluster[2].replicas.counts.resets == 1
        await cluster.close()

    run(scenario())


def test_delete_records_request_completes_when_every_live_replica_has_deleted_the_records() -> None:
    async def scenario() -> None:
        cluster = Cluster(1, 2, 3)
        await cluster.start(led_by_1(1, 2, 3))
        await cluster[1].partition.committed(cluster[1].append(*[b"x"] * 10))
        await until(lambda: cluster[2].partition.log.high_watermark == cluster[3].partition.log.high_watermark == 10)
        await asyncio.sleep(0.1)  # the followers' next fetches are parked
        moved = cluster[1].partition.delete_before(4)
        assert moved is not None
        began = asyncio.get_running_loop().time()
        await moved
        assert asyncio.get_running_loop().time() - began < 0.1, "not with a timer"
        assert [cluster[each].partition.log.log_start_offset for each in (1, 2, 3)] == [4, 4, 4]
        assert cluster[1].partition.low_watermark() == 4
        cluster.cut = {(3, 1)}
        moved = cluster[1].partition.delete_before(6)
        assert moved is not None
        await asyncio.sleep(0.1)
        assert not moved.done()
        cluster.change_broker(3, fenced=True)
        await moved
        await cluster.close()

    run(scenario())


def test_only_the_registered_incarnation_of_a_broker_joins_the_isr() -> None:
    async def scenario() -> None:
        cluster = Cluster(1, 2)
        cluster[2].epoch = 7  # not the one in the image
        await cluster.start(led_by_1(1, 2, isr=(1,)))
        await cluster[1].partition.committed(cluster[1].append(b"a"))
        await asyncio.sleep(3)
        assert cluster.isr() == (1,)
        assert cluster[2].values() == []
        cluster[2].epoch = 102
        await until(lambda: cluster.isr() == (1, 2))
        await cluster.close()

    run(scenario())


@pytest.mark.parametrize("fields", [{"fenced": True}, {"in_controlled_shutdown": True}])
def test_a_fenced_or_stopping_broker_does_not_join_the_isr(fields: dict[str, bool]) -> None:
    async def scenario() -> None:
        cluster = Cluster(1, 2)
        await cluster.start(led_by_1(1, 2, isr=(1,)))
        cluster.change_broker(2, **fields)
        cluster[1].append(b"a")
        await until(lambda: caught_up(cluster, 1, 2))
        await asyncio.sleep(2)
        assert cluster.isr() == (1,)
        cluster.change_broker(2, **dict.fromkeys(fields, False))
        await until(lambda: cluster.isr() == (1, 2))
        await cluster.close()

    run(scenario())


@pytest.mark.parametrize(
    "code", [ErrorCode.INELIGIBLE_REPLICA, ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.OPERATION_NOT_ATTEMPTED]
)
def test_a_refused_isr_change_is_requested_again_while_it_is_needed(code: ErrorCode) -> None:
    async def scenario() -> None:
        cluster = Cluster(1, 2)
        cluster.refuse_isr = [code] * 3
        await cluster.start(led_by_1(1, 2, isr=(1,)))
        await until(lambda: cluster.isr() == (1, 2))
        assert not cluster.refuse_isr
        await cluster.close()

    run(scenario())


def test_newer_metadata_image_ends_a_pending_isr_change() -> None:
    async def scenario() -> None:
        cluster = Cluster(1, 2, 3)
        cluster.refuse_isr = [ErrorCode.INVALID_UPDATE_VERSION]
        await cluster.start(led_by_1(1, 2, 3, isr=(1, 2)))
        await until(lambda: not cluster.refuse_isr)
        leading = cluster[1].partition.leading
        assert leading is not None
        await asyncio.sleep(1)
        assert leading.proposal is not None
        assert leading.maximal_isr == {1, 2, 3}
        cluster.change(removing_replicas=())
        await until(lambda: cluster.isr() == (1, 2, 3))
        await cluster.close()

    run(scenario())


def test_adding_a_replica_copies_its_log_and_removing_a_replica_deletes_it() -> None:
    async def scenario() -> None:
        cluster = Cluster(1, 2, 3)
        await cluster.start(led_by_1(1))
        for number in range(5):
            cluster[1].append(b"%d" % number)
        cluster.change(replicas=(1, 2), adding_replicas=(2,))
        await until(lambda: cluster.isr() == (1, 2))
        assert cluster[2].values() == cluster[1].values()
        cluster.change(replicas=(2,), isr=(2,), leader=2)
        with pytest.raises(KafkaError) as error:
            _ = cluster[1].partition
        assert refused(error, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        assert cluster[1].logs.get(TOPIC, 0) is None
        assert any(name.endswith("-delete") for name in cluster[1].disk.listdir("/logs"))
        assert cluster[2].append(b"after") == cluster[2].partition.log.high_watermark
        await cluster.close()

    run(scenario())


def test_a_follower_of_a_topic_with_fsync_reports_only_its_synced_offset() -> None:
    async def scenario() -> None:
        cluster = Cluster(1, 2)
        await cluster.start(led_by_1(1, 2), flush_messages="1")
        end = cluster[1].append(b"a")
        await cluster[1].partition.committed(end)
        assert cluster[1].partition.log.flushed_offset == end
        assert cluster[2].partition.log.flushed_offset == end
        await cluster.close()

    run(scenario())


def test_consumers_read_from_a_follower_in_their_rack_up_to_its_high_watermark() -> None:
    def request(rack: str) -> FetchRequest:
        asked = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
        topics = [FetchTopic(topic_id=TOPIC_ID, partitions=[asked])]
        return FetchRequest(max_wait_ms=0, min_bytes=1, topics=topics, rack_id=rack)

    async def scenario() -> None:
        cluster = Cluster(1, 2, 3, replica_selector_class="org.apache.kafka.common.replica.RackAwareReplicaSelector")
        await cluster.start(led_by_1(1, 2, 3))
        await cluster[1].partition.committed(cluster[1].append(b"a"))
        await until(lambda: cluster[2].partition.log.high_watermark == 1)

        async def fetched(node: int, rack: str) -> Any:
            return (await cluster[node].serve(request(rack))).responses[0].partitions[0]

        found = await fetched(1, "rack2")
        assert (found.preferred_read_replica, len(found.records)) == (2, 0)
        found = await fetched(2, "rack2")
        assert found.preferred_read_replica == NO_REPLICA
        assert bytes(found.records) == b"".join(cluster[1].values())
        for rack in ("rack1", "rack9", ""):
            found = await fetched(1, rack)
            assert (found.preferred_read_replica, bool(found.records)) == (NO_REPLICA, True)
        await cluster.close()

    run(scenario())


@pytest.mark.parametrize("configs", [{}, {"flush_messages": "1"}])
def test_a_stopping_leader_acknowledges_no_record_that_its_follower_lacks(configs: dict[str, str]) -> None:
    async def scenario() -> None:
        cluster = Cluster(1, 2)
        await cluster.start(led_by_1(1, 2), **configs)
        cluster.cut = {(2, 1)}
        end = cluster[1].append(b"a")
        waiting = asyncio.ensure_future(cluster[1].partition.committed(end))
        await asyncio.sleep(0)
        cluster[1].partitions.release_waiters()
        with pytest.raises(KafkaError) as error:
            await waiting
        assert refused(error, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        with pytest.raises(KafkaError) as error:
            cluster[1].append(b"b")
        assert refused(error, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        await asyncio.sleep(1)
        assert cluster[1].partition.log.high_watermark == 0
        await cluster.close()

    run(scenario())


def test_followers_that_serve_consumers_get_the_high_watermark_at_once() -> None:
    async def scenario(**settings: str) -> float:
        cluster = Cluster(1, 2, **settings)
        await cluster.start(led_by_1(1, 2))
        await until(lambda: len(cluster[1].fetches) > 1)
        started = asyncio.get_running_loop().time()
        await cluster[1].partition.committed(cluster[1].append(b"a"))
        await until(lambda: cluster[2].partition.log.high_watermark == 1)
        await cluster.close()
        return asyncio.get_running_loop().time() - started

    assert run(scenario()) > 0.3  # with the next record, or at the end of the parked fetch
    assert run(scenario(replica_selector_class="RackAwareReplicaSelector")) < 0.1


def test_fetch_from_a_node_without_a_replica_gets_a_response_that_names_the_leader() -> None:
    async def scenario() -> None:
        cluster = Cluster(1, 2, 3)
        await cluster.start(led_by_1(1, 2))
        asked = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
        topics = [FetchTopic(topic_id=TOPIC_ID, partitions=[asked])]
        answer = await cluster[3].serve(FetchRequest(max_wait_ms=0, min_bytes=1, topics=topics))
        found = answer.responses[0].partitions[0]
        assert found.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert (found.current_leader.leader_id, found.current_leader.leader_epoch) == (1, 1)
        await cluster.close()

    run(scenario())


def test_follower_fetch_in_a_session_lists_only_partitions_whose_position_changed() -> None:
    async def scenario() -> None:
        cluster = Cluster(1, 2)
        await cluster.start(led_by_1(1, 2))
        await cluster[1].partition.committed(cluster[1].append(b"a"))
        await asyncio.sleep(2)
        fetches = cluster[1].fetches
        assert fetches[0].session_epoch == 0
        assert [bool(each.topics) for each in fetches[:3]] == [True, True, False]
        assert len({each.session_id for each in fetches[1:]}) == 1
        assert len(fetches) < 10
        await cluster.close()

    run(scenario())


@pytest.mark.parametrize("side", ["leader", "follower"])
def test_throttled_follower_fetches_no_faster_than_its_limit(side: str) -> None:
    async def scenario(rate: int | None) -> float:
        cluster = Cluster(1, 2, replica_fetch_max_bytes="4000", replica_lag_time_max_ms="1000000")
        if rate is not None:
            cluster.image = replace(
                cluster.image,
                configs={(int(ResourceType.BROKER), ""): {f"{side}.replication.throttled.rate": str(rate)}},
            )
        await cluster.start(led_by_1(1, 2, isr=(1,)), **{f"{side}_replication_throttled_replicas": "0:1,0:2"})
        for _ in range(20):
            cluster[1].append(b"x" * 2000)
        started = asyncio.get_running_loop().time()
        await until(lambda: caught_up(cluster, 1, 2), 100)
        await cluster.close()
        return asyncio.get_running_loop().time() - started

    assert run(scenario(None)) < 1
    assert 5 < run(scenario(1000)) < 90  # 40 kB, of which a burst of ten seconds' worth passes


class Chaos:
    """Kills processes and breaks links at random. The controller elects leaders from the in-sync set."""

    def __init__(self, cluster: Cluster, rng: random.Random) -> None:
        self.cluster = cluster
        self.rng = rng
        self.acknowledged: list[bytes] = []

    async def write(self, value: bytes) -> None:
        leader = self.cluster.partition.leader
        if leader == -1 or not self.cluster[leader].alive:
            return
        try:
            end = self.cluster[leader].append(value)
            async with asyncio.timeout(self.rng.choice([0.01, 3])):
                await self.cluster[leader].partition.committed(end)
        except (KafkaError, TimeoutError):
            return
        self.acknowledged.append(value)

    async def disturb(self) -> None:
        what = self.rng.random()
        if what < 0.2 and all(each.alive for each in self.cluster.members.values()):
            await self.kill(self.rng.choice([1, 2, 3]))
        elif what < 0.5:
            await self.mend()
        elif what < 0.6:
            self.cluster.cut = {(self.rng.choice([1, 2, 3]), self.rng.choice([1, 2, 3]))}
        elif what < 0.8:
            self.cluster.cut = set()

    async def kill(self, victim: int) -> None:
        cluster = self.cluster
        await cluster.crash(victim)
        cluster.change_broker(victim, fenced=True)
        left = tuple(each for each in cluster.isr() if each != victim)
        isr = left or cluster.isr()
        if cluster.partition.leader == victim:
            cluster.change(isr=isr, leader=left[0] if left else -1)
        elif isr != cluster.isr():
            cluster.change(isr=isr)

    async def mend(self) -> None:
        cluster = self.cluster
        for node_id, member in list(cluster.members.items()):
            if not member.alive:
                await cluster.restart(node_id)
                cluster.change_broker(node_id, fenced=False)
        if cluster.partition.leader == -1:
            cluster.change(leader=cluster.isr()[0])


@pytest.mark.parametrize("seed", range(10))
def test_no_acknowledged_record_is_lost_when_partition_leaders_die(seed: int) -> None:
    async def scenario() -> None:
        cluster = Cluster(1, 2, 3)
        await cluster.start(led_by_1(1, 2, 3), min_insync_replicas="2")
        chaos = Chaos(cluster, random.Random(seed))
        for step in range(30):
            await chaos.write(b"value-%d." % step)
            await chaos.disturb()
            await asyncio.sleep(chaos.rng.choice([0, 0.1, 1]))
        cluster.cut = set()
        await chaos.mend()
        await until(lambda: set(cluster.isr()) == {1, 2, 3} and caught_up(cluster, 1, 2, 3), 60)
        assert cluster[1].values() == cluster[2].values() == cluster[3].values()
        stored = b"".join(cluster[1].values())
        assert not [value for value in chaos.acknowledged if value not in stored]
        assert len(chaos.acknowledged) > 3
        await cluster.close()

    run(scenario(), seed)
