"""Tests one replica of a partition: which requests its role allows, and what followers and consumers see of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from one_replica import ME, Replica
from replica_cluster import NOW_MS, TOPIC, TOPIC_ID, Cluster, batch, run, until

from penstock.broker.replicas.partition import Partition
from penstock.metadata.image import PartitionImage
from penstock.protocol.errors import ErrorCode, KafkaError


def led_by_1(*replicas: int, isr: tuple[int, ...] | None = None) -> PartitionImage:
    return PartitionImage(replicas=replicas, isr=isr or replicas, leader=1, leader_epoch=1)


def code_of(request: Callable[[], object]) -> ErrorCode:
    """Returns the error of a request; NONE if it succeeds."""
    try:
        request()
    except KafkaError as error:
        return error.code
    return ErrorCode.NONE


async def committed_on_both(cluster: Cluster) -> Partition:
    """Commits two records on the nodes 1 and 2, and returns the leader's partition."""
    leader = cluster[1].partition
    await leader.committed(cluster[1].append(b"a", b"b"))
    await until(lambda: cluster[2].partition.log.high_watermark == 2)
    assert leader.leading is not None
    follower = leader.leading.followers[2]
    await until(lambda: follower.log_end == 2)
    return leader


def test_request_with_another_leader_epoch_is_refused_by_leader_and_follower() -> None:
    async def scenario() -> None:
        cluster = Cluster(1, 2)
        await cluster.start(replace(led_by_1(1, 2), leader_epoch=5))
        leader, follower = cluster[1].partition, cluster[2].partition
        refusals = {4: ErrorCode.FENCED_LEADER_EPOCH, 5: ErrorCode.NONE, 6: ErrorCode.UNKNOWN_LEADER_EPOCH}
        assert {epoch: code_of(partial(leader.leader_log, epoch)) for epoch in refusals} == refusals
        assert {epoch: code_of(partial(follower.replica_log, epoch)) for epoch in refusals} == refusals
        assert code_of(follower.leader_log) is ErrorCode.NOT_LEADER_OR_FOLLOWER
        await cluster.close()

    run(scenario())


@pytest.mark.parametrize(
    ("change", "quiet"),
    [
        pytest.param({}, True, id="nothing is new"),
        pytest.param({"replica_id": 3}, False, id="not in sync"),
        pytest.param({"replica_id": 4}, False, id="not a replica"),
        pytest.param({"broker_epoch": 7}, False, id="another incarnation"),
        pytest.param({"offset": 1}, False, id="another offset"),
        pytest.param({"log_start": 1}, False, id="another log start"),
    ],
)
def test_fetch_of_a_follower_is_quiet_only_if_leader_and_follower_agree_in_everything(
    change: dict[str, int], quiet: bool
) -> None:
    async def scenario() -> None:
        cluster = Cluster(1, 2, 3)
        cluster.cut = {(3, 1)}
        await cluster.start(led_by_1(1, 2, 3, isr=(1, 2)))
        leader = await committed_on_both(cluster)
        fields = {"replica_id": 2, "broker_epoch": 102, "offset": 2, "log_start": 0} | change
        assert leader.is_quiet(**fields, now_ms=None) is quiet
        await cluster.close()

    run(scenario())


def test_follower_fetch_is_not_quiet_while_a_record_is_uncommitted_or_after_the_leader_changes() -> None:
    def quiet(partition: Partition, offset: int) -> bool:
        return partition.is_quiet(2, 102, offset, 0, None)

    async def scenario() -> None:
        cluster = Cluster(1, 2)
        await cluster.start(led_by_1(1, 2))
        leader = await committed_on_both(cluster)
        assert quiet(leader, 2)
        cluster.cut = {(2, 1)}
        cluster[1].append(b"c")
        assert leader.leading is not None
        leader.leading.followers[2].log_end = 3  # it has the record, but the high watermark has not moved yet
        assert not quiet(leader, 3)
        cluster.change(leader=2)
        assert not quiet(leader, 3)
        await cluster.close()

    run(scenario())


@pytest.mark.parametrize(("isr", "quiet"), [((1, 2, 3), True), ((1, 2), False)])
def test_fetch_of_a_follower_at_the_log_end_is_quiet_only_if_the_follower_is_in_sync(
    isr: tuple[int, ...], quiet: bool
) -> None:
    async def scenario() -> None:
        cluster = Cluster(1, 2, 3)
        cluster.cut = {(3, 1)}
        await cluster.start(led_by_1(1, 2, 3, isr=(1, 2)))
        leader = await committed_on_both(cluster)
        assert leader.leading is not None
        follower = leader.leading.followers[3]
        follower.log_end, follower.broker_epoch = 2, 103
        leader.leading.isr = isr
        assert leader.is_quiet(3, 103, 2, 0, None) is quiet
        await cluster.close()

    run(scenario())


def test_quiet_fetch_keeps_an_idle_follower_in_sync() -> None:
    async def scenario() -> None:
        cluster = Cluster(1, 2)
        await cluster.start(led_by_1(1, 2))
        leader = await committed_on_both(cluster)
        assert leader.leading is not None
        follower = leader.leading.followers[2]
        follower.leader_end = 0
        now = int(asyncio.get_running_loop().time() * 1000) + 500
        assert leader.is_quiet(2, 102, 2, 0, now)
        assert (follower.caught_up_ms, follower.fetch_ms, follower.leader_end) == (now, now, 2)
        await cluster.close()

    run(scenario())


def test_leader_returns_its_current_epoch_for_the_log_end_even_if_no_record_has_this_epoch() -> None:
    async def scenario() -> None:
        cluster = Cluster(1, 2)
        await cluster.start(led_by_1(1, 2))
        leader = await committed_on_both(cluster)
        cluster.change(leader=1)  # epoch 2, without a record
        assert [leader.epoch_at(offset) for offset in (0, 1, 2)] == [1, 1, 2]
        assert [leader.epoch_end(epoch) for epoch in (1, 2)] == [(1, 2), (2, 2)]
        await cluster.close()

    run(scenario())


def test_waiting_records_are_committed_when_the_leader_becomes_the_only_replica() -> None:
    async def scenario() -> None:
        cluster = Cluster(1, 2)
        await cluster.start(led_by_1(1, 2))
        leader = await committed_on_both(cluster)
        cluster.cut = {(2, 1)}
        end = cluster[1].append(b"c")
        waiting = leader.when_committed(end)
        assert waiting is not None
        cluster.change(replicas=(1,), isr=(1,))
        await asyncio.wait_for(waiting, 1)
        assert leader.leading is None
        assert cluster[1].append(b"d") == leader.log.high_watermark == 4
        cluster.change(replicas=(1, 2), isr=(1,))
        assert leader.has_follower(2)
        cluster.cut = set()
        await until(lambda: cluster.isr() == (1, 2))
        await cluster.close()

    run(scenario())


def test_leader_that_stops_leading_fails_waiting_commits_and_forgets_its_followers() -> None:
    async def scenario() -> None:
        cluster = Cluster(1, 2)
        await cluster.start(led_by_1(1, 2))
        leader = await committed_on_both(cluster)
        cluster.cut = {(2, 1), (1, 2)}
        waiting = leader.when_committed(cluster[1].append(b"c"))
        assert waiting is not None
        cluster.change(leader=2)
        assert code_of(waiting.result) is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert leader.leading is None
        assert not leader.has_follower(2)
        assert code_of(lambda: leader.on_replica_fetch(2, 102, 3, 0)) is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert code_of(lambda: leader.when_committed(3)) is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert leader.log.high_watermark == 2
        await cluster.close()

    run(scenario())


def test_delete_records_request_waits_for_a_live_follower_whose_log_starts_one_offset_earlier() -> None:
    async def scenario() -> None:
        cluster = Cluster(1, 2)
        await cluster.start(led_by_1(1, 2))
        leader = await committed_on_both(cluster)
        cluster.cut = {(2, 1)}
        assert leader.delete_before(0) is None
        waiting = leader.delete_before(1)
        assert waiting is not None
        assert (leader.log.log_start_offset, leader.low_watermark()) == (1, 0)
        assert not waiting.done()
        cluster.cut = set()
        await asyncio.wait_for(waiting, 5)
        assert cluster[2].partition.log.log_start_offset == 1
        await cluster.close()

    run(scenario())


def test_error_for_a_partition_without_a_local_replica_depends_on_whether_the_partition_exists() -> None:
    async def scenario() -> None:
        cluster = Cluster(1, 2, 3)
        await cluster.start(led_by_1(1, 2))
        partitions = cluster[3].partitions
        assert code_of(lambda: partitions.get(TOPIC, 0)) is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert code_of(lambda: partitions.get(TOPIC, 1)) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert code_of(lambda: partitions.get("u", 0)) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert code_of(lambda: partitions.get_by_id(bytes(16), 0)) is ErrorCode.UNKNOWN_TOPIC_ID
        await cluster.close()

    run(scenario())


class Parked:
    """Stands for a parked fetch, and counts how often the partition ends its wait."""

    def __init__(self) -> None:
        self.abandoned = 0

    def notify(self, appended_bytes: int) -> None:
        pass

    def abandon(self) -> None:
        self.abandoned += 1


@pytest.mark.parametrize(
    ("fields", "ends"),
    [
        pytest.param({"isr": (1,)}, False, id="another ISR"),
        pytest.param({"leader": 2}, True, id="another leader"),
        pytest.param({"leader": -1}, True, id="no leader"),
        pytest.param({"leader": 2, "leader_epoch": 1}, True, id="another leader in the same epoch"),
    ],
)
def test_parked_fetches_are_answered_if_the_leader_changes(fields: dict[str, Any], ends: bool) -> None:
    async def scenario() -> None:
        cluster = Cluster(1, 2)
        await cluster.start(led_by_1(1, 2))
        partition = cluster[1].partition
        parked = [Parked() for _ in range(4)]
        for number, each in enumerate(parked):
            partition.waiters.park(each, from_follower=number < 2)
        cluster.cut = {(1, 2), (2, 1)}
        cluster.change(**fields)
        assert [each.abandoned for each in parked] == [int(ends)] * 4
        if ends:
            cluster.change(isr=(2,))
            assert [each.abandoned for each in parked] == [1] * 4, "the leader did not change again"
        await cluster.close()

    run(scenario())


@pytest.mark.parametrize(("replicas", "code"), [((1, 2), ErrorCode.NOT_LEADER_OR_FOLLOWER), ((1,), ErrorCode.NONE)])
def test_stopped_leader_appends_only_if_it_is_the_only_replica(replicas: tuple[int, ...], code: ErrorCode) -> None:
    async def scenario() -> None:
        cluster = Cluster(1, 2)
        await cluster.start(led_by_1(*replicas))
        partition = cluster[1].partition
        assert partition.log.log_end_offset == 0
        partition.stop()
        for acks in (1, -1):
            assert code_of(partial(cluster[1].append, b"a", acks=acks)) is code
        assert partition.log.log_end_offset == (2 if code is ErrorCode.NONE else 0)
        await cluster.close()

    run(scenario())


def test_stopped_leader_stays_stopped_when_its_in_sync_set_changes() -> None:
    async def scenario() -> None:
        cluster = Cluster(1, 2)
        cluster.cut = {(2, 1)}
        await cluster.start(led_by_1(1, 2))
        partition = cluster[1].partition
        assert partition.log.log_end_offset == 0
        partition.stop()
        cluster.change(isr=(1,))
        assert code_of(partial(cluster[1].append, b"a", acks=1)) is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert partition.log.log_end_offset == 0
        await cluster.close()

    run(scenario())


@pytest.mark.parametrize(("epoch", "start"), [(1, 2), (2, 3)])
def test_leader_lets_a_follower_join_that_has_reached_the_first_record_of_the_leaders_epoch(
    epoch: int, start: int
) -> None:
    """The leader may have records of this epoch already when it opens its log."""

    async def scenario() -> None:
        replica = Replica(PartitionImage((1, 2, 3), (1, 3), ME, epoch))
        await replica.logs.open(node_id=ME, cluster_id="c")
        log = replica.logs.create(TOPIC, TOPIC_ID, 0, replica.config)
        for value, written_in in ((b"a", 0), (b"b", 0), (b"c", 1)):
            log.append_as_leader(batch(value), leader_epoch=written_in, now_ms=NOW_MS)
        replica.host.open_log = lambda _: log
        assert replica.partition.log.high_watermark == 0
        for offset in range(start):
            replica.fetch(2, offset)
            assert replica.proposals == [], offset
        replica.fetch(2, start)
        assert [each and each.isr for each in replica.proposals] == [(1, 3, 2)]

    run(scenario())
