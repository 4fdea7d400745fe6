"""Tests the metadata log with several controllers: one controller is active, and any other can take over."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest
from quorum_nodes import Group, Replica

from penstock.broker.controlplane.metadata_log import MetadataLog, SnapshotPolicy
from penstock.broker.handlers.api_55_describe_quorum import handle
from penstock.metadata.controller.broker_states import unfence_broker
from penstock.metadata.controller.brokers import Registration, register_broker
from penstock.metadata.controller.topics import TopicDefaults, create_topics
from penstock.metadata.image import KRAFT_VERSION, METADATA_VERSION, Endpoint
from penstock.node.clock import SystemClock
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_19_create_topics import CreatableTopic, CreateTopicsRequest
from penstock.protocol.messages.api_55_describe_quorum import DescribeQuorumRequest, PartitionData, TopicData
from penstock.raft.voters import VoterSet

DEFAULTS = TopicDefaults(1, 1)
NEVER = SnapshotPolicy(1 << 40, 1 << 40, 1 << 40)


class Controllers:
    def __init__(self, group: Group) -> None:
        self.group = group
        self.logs: dict[int, MetadataLog] = {}

    async def start(self, replica: Replica, voters: VoterSet) -> MetadataLog:
        quorum = replica.make(voters)
        log = MetadataLog(replica.log, replica.disk, SystemClock(), replica.voter, quorum, policy=NEVER)
        log.subscribe(lambda old, new: self.group.news.set())
        self.logs[replica.node_id] = log
        await log.start()
        return log

    async def kill(self, node_id: int) -> None:
        del self.logs[node_id]
        await next(one for one in self.group.replicas if one.node_id == node_id).kill()

    async def active(self) -> tuple[int, MetadataLog]:
        """Waits until the first records of the cluster are committed. Returns the active controller."""

        def found() -> list[int]:
            return [
                replica.node_id
                for replica in self.group.replicas
                if replica.quorum is not None
                and replica.running.is_leader
                and METADATA_VERSION in self.logs[replica.node_id].image.features
                and self.logs[replica.node_id].image.epoch == replica.running.epoch
            ]

        await self.group.until(lambda: len(found()) == 1)
        node_id = found()[0]
        return node_id, self.logs[node_id]

    async def agree(self, log: MetadataLog) -> None:
        await self.group.until(lambda: all(one.image == log.image for one in self.logs.values()))


def with_controllers(test: Callable[[Controllers], Awaitable[None]]) -> None:
    async def run() -> None:
        group = Group()
        controllers = Controllers(group)
        for node_id in (1, 2, 3):
            await group.add(node_id)
        voters = VoterSet.of(replica.voter for replica in group.replicas)
        for replica in group.replicas:
            await controllers.start(replica, voters)
        try:
            await test(controllers)
        finally:
            await group.kill()

    asyncio.run(run())


async def register(log: MetadataLog) -> None:
    endpoints = {"PLAINTEXT": Endpoint("localhost", 9092, 0)}
    registration = Registration(1, bytes(15) + b"\x09", endpoints, [bytes(14) + b"\x01\x05"])
    epoch = await log.submit(lambda image: register_broker(image, registration))
    await log.submit(lambda image: unfence_broker(image, 1, epoch))


async def create(log: MetadataLog, name: str) -> None:
    topic = CreatableTopic(name=name, num_partitions=2, replication_factor=1)
    request = CreateTopicsRequest(topics=[topic])
    response = await log.submit(lambda image: create_topics(image, request, DEFAULTS, Random(name)))
    assert response.topics[0].error_code == ErrorCode.NONE


def test_decisions_of_the_active_controller_reach_all_controllers() -> None:
    async def run(controllers: Controllers) -> None:
        _, log = await controllers.active()
        await register(log)
        await create(log, "orders")
        assert "orders" in log.image.topics
        await controllers.agree(log)
        assert log.image.features[KRAFT_VERSION] == 1
        view = log.quorum()
        assert [voter.node_id for voter in view.voters] == [1, 2, 3]
        assert view.high_watermark == view.log_end_offset

    with_controllers(run)


def test_only_the_quorum_leader_describes_the_progress_of_the_voters() -> None:
    async def run(controllers: Controllers) -> None:
        node_id, log = await controllers.active()
        await register(log)
        request = DescribeQuorumRequest(
            topics=[TopicData(topic_name="__cluster_metadata", partitions=[PartitionData(partition_index=0)])]
        )
        ctx: Any = SimpleNamespace(api_version=2, now_ms=SystemClock().wall_ms())
        for number, one in controllers.logs.items():
            response = handle(cast(Any, SimpleNamespace(metadata=one)), ctx, request)
            described = response.topics[0].partitions[0]
            if number != node_id:
                assert described.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
                continue
            assert (described.leader_id, described.error_code) == (node_id, ErrorCode.NONE)
            assert [replica.replica_id for replica in described.current_voters] == [1, 2, 3]
            ages = [abs(ctx.now_ms - replica.last_fetch_timestamp) for replica in described.current_voters]
            assert (
                len([age for age in ages if age < 60_000]) >= 2
            )  # a majority has fetched, because a record is committed

    with_controllers(run)


def test_inactive_controllers_refuse_changes_and_name_the_active_controller() -> None:
    async def run(controllers: Controllers) -> None:
        node_id, log = await controllers.active()
        await controllers.agree(log)
        other = next(one for number, one in controllers.logs.items() if number != node_id)
        with pytest.raises(KafkaError, match=f"to node {node_id}") as refused:
            await create(other, "nowhere")
        assert refused.value.code is ErrorCode.NOT_CONTROLLER

    with_controllers(run)


def test_committed_metadata_survives_the_death_of_the_active_controller() -> None:
    async def run(controllers: Controllers) -> None:
        first_id, first = await controllers.active()
        await register(first)
        await create(first, "before")
        await controllers.kill(first_id)
        second_id, second = await controllers.active()
        assert second_id != first_id
        assert "before" in second.image.topics
        await create(second, "after")
        back = next(one for one in controllers.group.replicas if one.node_id == first_id)
        await back.listen()
        await controllers.start(back, VoterSet.of(second.quorum().voters))
        await controllers.agree(second)
        assert sorted(controllers.logs[first_id].image.topics) == ["after", "before"]

    with_controllers(run)


def test_a_deposed_leader_does_not_confirm_a_change_that_no_other_replica_has() -> None:
    async def run(controllers: Controllers) -> None:
        first_id, first = await controllers.active()
        await register(first)
        await controllers.agree(first)
        for node_id in [one for one in controllers.logs if one != first_id]:
            await controllers.kill(node_id)
        with pytest.raises(KafkaError) as refused:
            await create(first, "lost")
        assert refused.value.code is ErrorCode.NOT_CONTROLLER
        assert "lost" not in first.image.topics

    with_controllers(run)


def test_controller_that_starts_late_loads_a_snapshot_and_then_follows_the_log() -> None:
    async def run(controllers: Controllers) -> None:
        _, log = await controllers.active()
        await register(log)
        await create(log, "old")
        await log.snapshot()
        await create(log, "new")
        fourth = await controllers.group.add(4)
        late = await controllers.start(fourth, VoterSet.of(log.quorum().voters))
        changed: set[str] = set()
        late.subscribe(lambda old, new: changed.update(new.changes.topics))
        await controllers.agree(log)
        assert changed == {"old", "new"}
        assert fourth.log.log_start_offset > 0

    with_controllers(run)
