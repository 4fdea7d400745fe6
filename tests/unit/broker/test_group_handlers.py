"""Tests group requests over a connection, in every version, to a node with a disk in memory."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from penstock.client.connection import BrokerConnection
from penstock.net.network import RealNetwork
from penstock.protocol.apis import APIS
from penstock.protocol.errors import ErrorCode
from penstock.protocol.messages import (
    api_08_offset_commit as commit_api,
)
from penstock.protocol.messages import (
    api_09_offset_fetch as fetch_api,
)
from penstock.protocol.messages.api_10_find_coordinator import FindCoordinatorRequest
from penstock.protocol.messages.api_11_join_group import JoinGroupRequest, JoinGroupRequestProtocol
from penstock.protocol.messages.api_12_heartbeat import HeartbeatRequest
from penstock.protocol.messages.api_13_leave_group import LeaveGroupRequest, MemberIdentity
from penstock.protocol.messages.api_14_sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from penstock.protocol.messages.api_15_describe_groups import DescribeGroupsRequest
from penstock.protocol.messages.api_16_list_groups import ListGroupsRequest
from penstock.protocol.messages.api_20_delete_topics import DeleteTopicsRequest, DeleteTopicState
from penstock.protocol.messages.api_42_delete_groups import DeleteGroupsRequest
from penstock.testing import Broker
from penstock.testing.broker import START_LIMIT_S


@pytest.fixture(scope="module")
def node() -> Iterator[Broker]:
    with Broker(topics={"t": 2}) as broker:
        yield broker


@asynccontextmanager
async def connected(broker: Broker) -> AsyncIterator[BrokerConnection]:
    connection = await BrokerConnection.open(RealNetwork(), broker.host, broker.port)
    try:
        yield connection
    finally:
        connection.close()
        await connection.wait_closed()


def talk(broker: Broker, scenario: Callable[[BrokerConnection], Awaitable[None]]) -> None:
    async def run() -> None:
        async with connected(broker) as connection, asyncio.timeout(120):
            await connection.request(FindCoordinatorRequest(coordinator_keys=["any"]), version=4)
            await scenario(connection)

    asyncio.run(run())


def versions(api_key: int) -> range:
    return range(APIS[api_key].min_version, APIS[api_key].max_version + 1)


def join_request(group: str, member_id: str = "", **fields: Any) -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id=group,
        session_timeout_ms=30_000,
        rebalance_timeout_ms=30_000,
        member_id=member_id,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"m")],
        **fields,
    )


def sync_request(group: str, member_id: str, generation: int) -> SyncGroupRequest:
    return SyncGroupRequest(
        group_id=group,
        generation_id=generation,
        member_id=member_id,
        protocol_type="consumer",
        protocol_name="range",
        assignments=[SyncGroupRequestAssignment(member_id=member_id, assignment=b"mine")],
    )


@pytest.mark.parametrize("version", versions(10))
def test_find_coordinator_finds_a_group_coordinator_in_every_version(node: Broker, version: int) -> None:
    async def scenario(connection: BrokerConnection) -> None:
        request = (
            FindCoordinatorRequest(key="g") if version < 4 else FindCoordinatorRequest(coordinator_keys=["g", "h"])
        )
        answer = await connection.request(request, version=version)
        for found in [answer] if version < 4 else answer.coordinators:
            assert (found.error_code, found.host, found.port) == (ErrorCode.NONE, node.host, node.port)

    talk(node, scenario)


@pytest.mark.parametrize("version", versions(11))
def test_group_member_joins_syncs_sends_heartbeats_and_leaves_in_every_version(node: Broker, version: int) -> None:
    group = f"cycle-{version}"

    async def scenario(connection: BrokerConnection) -> None:
        joined = await connection.request(join_request(group), version=version)
        if version >= 4:
            assert joined.error_code == ErrorCode.MEMBER_ID_REQUIRED
            joined = await connection.request(join_request(group, joined.member_id), version=version)
        assert (joined.error_code, joined.generation_id, joined.protocol_name) == (ErrorCode.NONE, 1, "range")
        synced = await connection.request(sync_request(group, joined.member_id, 1), version=min(version, 5))
        assert (synced.error_code, synced.assignment) == (ErrorCode.NONE, b"mine")
        beat = HeartbeatRequest(group_id=group, generation_id=1, member_id=joined.member_id)
        assert (await connection.request(beat, version=min(version, 4))).error_code == ErrorCode.NONE
        [described] = (await connection.request(DescribeGroupsRequest(groups=[group]), version=min(version, 6))).groups
        assert (described.group_state, described.members[0].member_assignment) == ("Stable", b"mine")
        leave = min(version, 5)
        goodbye = (
            LeaveGroupRequest(group_id=group, member_id=joined.member_id)
            if leave < 3
            else LeaveGroupRequest(group_id=group, members=[MemberIdentity(member_id=joined.member_id)])
        )
        assert (await connection.request(goodbye, version=leave)).error_code == ErrorCode.NONE
        listed = await connection.request(ListGroupsRequest(), version=min(version, 5))
        assert group in [each.group_id for each in listed.groups]
        deleted = await connection.request(DeleteGroupsRequest(groups_names=[group]), version=min(version, 2))
        assert [each.error_code for each in deleted.results] == [ErrorCode.NONE]

    talk(node, scenario)


def commit_request(broker: Broker, group: str, topic: str = "t", partitions: tuple[int, ...] = (0,)) -> Any:
    known = broker.node.broker.metadata.image.topics.get(topic)
    return commit_api.OffsetCommitRequest(
        group_id=group,
        topics=[
            commit_api.OffsetCommitRequestTopic(
                name=topic,
                topic_id=known.topic_id if known else b"?" * 16,
                partitions=[
                    commit_api.OffsetCommitRequestPartition(
                        partition_index=index, committed_offset=7, committed_metadata="note"
                    )
                    for index in partitions
                ],
            )
        ],
    )


@pytest.mark.parametrize("version", versions(8))
def test_offset_commit_in_every_version_refuses_only_unknown_partitions(node: Broker, version: int) -> None:
    async def scenario(connection: BrokerConnection) -> None:
        answer = await connection.request(commit_request(node, f"commit-{version}", partitions=(0, 5)), version=version)
        [topic] = answer.topics
        assert {each.partition_index: each.error_code for each in topic.partitions} == {
            0: ErrorCode.NONE,
            5: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        }
        answer = await connection.request(commit_request(node, f"commit-{version}", "nope"), version=version)
        expected = ErrorCode.UNKNOWN_TOPIC_ID if version >= 10 else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert answer.topics[0].partitions[0].error_code == expected

    talk(node, scenario)


def fetch_request(broker: Broker, version: int, group: str, everything: bool = False) -> Any:
    if version < 8:
        return fetch_api.OffsetFetchRequest(
            group_id=group,
            topics=None if everything else [fetch_api.OffsetFetchRequestTopic(name="t", partition_indexes=[0, 1])],
        )
    identity = broker.node.broker.metadata.image.topics["t"].topic_id
    topics = [fetch_api.OffsetFetchRequestTopics(name="t", topic_id=identity, partition_indexes=[0, 1])]
    return fetch_api.OffsetFetchRequest(
        groups=[fetch_api.OffsetFetchRequestGroup(group_id=group, topics=None if everything else topics)]
    )


@pytest.mark.parametrize("version", versions(9))
def test_committed_offsets_are_fetched_in_every_version(node: Broker, version: int) -> None:
    async def scenario(connection: BrokerConnection) -> None:
        await connection.request(commit_request(node, "fetch"), version=9)
        answer = await connection.request(fetch_request(node, version, "fetch"), version=version)
        group = answer if version < 8 else answer.groups[0]
        found = {each.partition_index: (each.committed_offset, each.metadata) for each in group.topics[0].partitions}
        assert found == {0: (7, "note"), 1: (-1, "")}
        if version >= 2:
            answer = await connection.request(fetch_request(node, version, "fetch", everything=True), version=version)
            [topic] = (answer if version < 8 else answer.groups[0]).topics
            assert [each.partition_index for each in topic.partitions] == [0]
            if version >= 10:
                assert topic.topic_id == node.node.broker.metadata.image.topics["t"].topic_id

    talk(node, scenario)


def test_groups_and_offsets_survive_a_kill_of_the_node() -> None:
    with Broker(topics={"t": 1}) as broker:
        member: list[str] = []

        async def before(connection: BrokerConnection) -> None:
            joined = await connection.request(join_request("g"), version=3)
            member.append(joined.member_id)
            await connection.request(sync_request("g", joined.member_id, 1), version=5)
            await connection.request(commit_request(broker, "simple"), version=9)

        async def after(connection: BrokerConnection) -> None:
            beat = HeartbeatRequest(group_id="g", generation_id=1, member_id=member[0])
            assert (await connection.request(beat, version=4)).error_code == ErrorCode.NONE
            answer = await connection.request(fetch_request(broker, 9, "simple"), version=9)
            assert answer.groups[0].topics[0].partitions[0].committed_offset == 7

        talk(broker, before)
        broker.kill()
        broker.start()
        talk(broker, after)


def test_committed_offsets_of_a_deleted_topic_are_erased() -> None:
    with Broker(topics={"t": 1}) as broker:

        async def scenario(connection: BrokerConnection) -> None:
            await connection.request(commit_request(broker, "g"), version=9)
            deletion = DeleteTopicsRequest(topics=[DeleteTopicState(name="t")], timeout_ms=5000)
            await connection.request(deletion, version=6)
            group = fetch_api.OffsetFetchRequestGroup(group_id="g", topics=None)
            request = fetch_api.OffsetFetchRequest(groups=[group])
            assert (await connection.request(request, version=8)).groups[0].topics == []

        talk(broker, scenario)


def test_parked_join_group_request_does_not_delay_the_stop_of_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    # a parked join would make the stop wait for its whole grace period, which is longer than `stop` may take
    monkeypatch.setattr("penstock.testing.broker.STOP_GRACE_S", 2 * START_LIMIT_S)
    broker = Broker()
    broker.start()

    async def scenario(connection: BrokerConnection) -> None:
        first = await connection.request(join_request("g"), version=3)
        async with connected(broker) as other:
            waiting = asyncio.create_task(other.request(join_request("g"), version=3))
            beat = HeartbeatRequest(group_id="g", generation_id=1, member_id=first.member_id)
            while (await connection.request(beat, version=4)).error_code != ErrorCode.REBALANCE_IN_PROGRESS:
                pass
            await asyncio.to_thread(broker.stop)
            assert (await waiting).error_code == ErrorCode.NOT_COORDINATOR

    async def run() -> None:
        async with connected(broker) as connection, asyncio.timeout(120):
            await connection.request(FindCoordinatorRequest(coordinator_keys=["any"]), version=4)
            await scenario(connection)

    asyncio.run(run())


def test_one_run_of_offset_expiry_visits_every_group_of_a_coordinator() -> None:
    with Broker(topics={"t": 1}, config={"offsets.topic.num.partitions": "1"}) as broker:

        async def commit(connection: BrokerConnection) -> None:
            for group in ("g1", "g2", "g3"):
                partition = commit_api.OffsetCommitRequestPartition(partition_index=0, committed_offset=1)
                topic = commit_api.OffsetCommitRequestTopic(name="t", partitions=[partition])
                request = commit_api.OffsetCommitRequest(group_id=group, retention_time_ms=0, topics=[topic])
                answer = await connection.request(request, version=4)
                assert answer.topics[0].partitions[0].error_code == ErrorCode.NONE

        async def expire() -> list[str]:
            groups = broker.node.broker.groups
            (coordinator,) = groups.coordinators()
            await groups._expire(coordinator)
            return sorted(coordinator.machine.groups)

        talk(broker, commit)
        assert broker.run(expire()) == []
