"""Tests which fetches count as fetches of a follower: the broker epoch and the listener must be right."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from replica_cluster import TOPIC, TOPIC_ID, Cluster, run, until

from penstock.broker.fetch.fetch_policy import FetchPolicy
from penstock.broker.handlers import api_01_fetch
from penstock.broker.requests.access_control import AccessControl
from penstock.broker.requests.context import RequestContext
from penstock.broker.requests.local_connection import LocalConnection
from penstock.metadata.configs.settings import Settings
from penstock.metadata.image import AclImage, MetadataImage, PartitionImage
from penstock.protocol.errors import ErrorCode
from penstock.protocol.messages.api_01_fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
    ReplicaState,
)
from penstock.replication.leader import Progress
from penstock.security.vocabulary import CLUSTER_NAME, AclResource, Operation, PatternType, Permission

NAMES_ONLY, REPLICA_EPOCHS = 12, 18


def claims_to_have_everything(cluster: Cluster, version: int, **fields: Any) -> FetchRequest:
    asked = FetchPartition(partition=0, fetch_offset=cluster[1].partition.log.log_end_offset, current_leader_epoch=1)
    topic = FetchTopic(topic=TOPIC) if version == NAMES_ONLY else FetchTopic(topic_id=TOPIC_ID)
    topic.partitions.append(asked)
    return FetchRequest(max_wait_ms=0, max_bytes=1 << 20, session_epoch=-1, topics=[topic], **fields)


def sent(cluster: Cluster, request: FetchRequest, version: int, listener: str = "PLAINTEXT") -> PartitionData:
    ctx: Any = SimpleNamespace(api_version=version, now_ms=0, listener_name=listener, large=False)
    answer = api_01_fetch.handle(cluster[1].broker, ctx, request)
    assert isinstance(answer, FetchResponse)
    return answer.responses[0].partitions[0]


def ends_of_followers(cluster: Cluster) -> list[int]:
    leading = cluster[1].partition.leading
    if leading is None:
        return []  # its log is not open yet
    return [each.log_end for each in leading.followers.values()]


async def with_silent_followers() -> Cluster:
    """Returns a cluster led by node 1. Nodes 2 and 3 are in sync but do not fetch, so no append is committed."""
    cluster = Cluster(1, 2, 3, 4)
    await cluster.start(PartitionImage(replicas=(1, 2, 3), isr=(1, 2, 3), leader=1, leader_epoch=1))
    await until(lambda: ends_of_followers(cluster) == [0, 0])
    for each in (2, 3):
        await cluster.crash(each)
    cluster[1].append(b"a")
    return cluster


@pytest.mark.parametrize(
    ("version", "fields"),
    [
        pytest.param(NAMES_ONLY, {"replica_id": 2}, id="no epoch"),
        pytest.param(REPLICA_EPOCHS, {"replica_state": ReplicaState(replica_id=2, replica_epoch=-1)}, id="epoch -1"),
        pytest.param(
            REPLICA_EPOCHS, {"replica_state": ReplicaState(replica_id=2, replica_epoch=101)}, id="older epoch"
        ),
        pytest.param(
            REPLICA_EPOCHS, {"replica_state": ReplicaState(replica_id=2, replica_epoch=103)}, id="later epoch"
        ),
        pytest.param(REPLICA_EPOCHS, {"replica_state": ReplicaState(replica_id=9, replica_epoch=109)}, id="no broker"),
    ],
)
def test_follower_fetch_with_an_unregistered_broker_epoch_does_not_advance_the_high_watermark(
    version: int, fields: dict[str, Any]
) -> None:
    async def scenario() -> None:
        cluster = await with_silent_followers()
        answer = sent(cluster, claims_to_have_everything(cluster, version, **fields), version)
        assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert ends_of_followers(cluster) == [0, 0]
        assert cluster[1].partition.log.high_watermark == 0
        await cluster.close()

    run(scenario())


def test_a_broker_without_a_replica_does_not_count_as_a_follower() -> None:
    async def scenario() -> None:
        cluster = await with_silent_followers()
        state = ReplicaState(replica_id=4, replica_epoch=cluster[4].epoch)
        request = claims_to_have_everything(cluster, REPLICA_EPOCHS, replica_state=state)
        assert sent(cluster, request, REPLICA_EPOCHS).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
        await cluster.close()

    run(scenario())


def test_a_fetch_with_a_replica_id_gets_no_records_on_a_client_listener() -> None:
    async def scenario() -> None:
        cluster = await with_silent_followers()
        leader = cluster[1]
        leader.broker.fetch_policy = FetchPolicy(leader.partitions.host, leader.settings, "INTERNAL")
        for replica_id in (2, 3):
            state = ReplicaState(replica_id=replica_id, replica_epoch=cluster[replica_id].epoch)
            request = claims_to_have_everything(cluster, REPLICA_EPOCHS, replica_state=state)
            answer = sent(cluster, request, REPLICA_EPOCHS, "EXTERNAL")
            assert answer.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
            request.topics[0].partitions[0].fetch_offset = 0
            assert not sent(cluster, request, REPLICA_EPOCHS, "EXTERNAL").records
        assert cluster[1].partition.log.high_watermark == 0
        for replica_id in (2, 3):  # the same fetches on the inter-broker listener
            state = ReplicaState(replica_id=replica_id, replica_epoch=cluster[replica_id].epoch)
            request = claims_to_have_everything(cluster, REPLICA_EPOCHS, replica_state=state)
            assert sent(cluster, request, REPLICA_EPOCHS, "INTERNAL").error_code == 0
        assert cluster[1].partition.log.high_watermark == 1
        await cluster.close()

    run(scenario())


def test_idle_fetch_session_from_before_a_broker_restart_does_not_keep_its_replica_in_the_isr() -> None:
    async def scenario() -> None:
        cluster = Cluster(1, 2)
        await cluster.start(PartitionImage(replicas=(1, 2), isr=(1, 2), leader=1, leader_epoch=1))
        await cluster[1].partition.committed(cluster[1].append(b"a"))
        leading = cluster[1].partition.leading
        assert leading is not None
        await asyncio.sleep(2)  # repeated parked fetches without partitions
        cluster.change_broker(2, epoch=202)
        await asyncio.sleep(1)  # the fetch that was parked before has ended
        heard_ms, requests = leading.followers[2].fetch_ms, cluster[2].replicas.counts.requests
        await asyncio.sleep(5)
        assert cluster[2].replicas.counts.requests > requests
        assert leading.followers[2].fetch_ms == heard_ms
        cluster[2].epoch = 202
        await until(lambda: leading.followers[2].fetch_ms > heard_ms)
        await cluster.close()

    run(scenario())


@pytest.mark.parametrize(
    ("principal", "client_id", "reads"),
    [
        ("User:node", "broker-2", True),
        ("User:node", "console", False),
        ("User:node", None, False),
        ("User:ann", "broker-2", False),
        (None, "broker-2", False),
    ],
)
def test_consumer_with_the_cluster_action_permission_and_a_brokers_client_id_reads_every_topic(
    principal: str | None, client_id: str | None, reads: bool
) -> None:
    acl = AclImage(
        AclResource.CLUSTER,
        CLUSTER_NAME,
        PatternType.LITERAL,
        "User:node",
        "*",
        Operation.CLUSTER_ACTION,
        Permission.ALLOW,
    )
    access = AccessControl(super_users=frozenset(), allow_without_acls=False)
    access.apply_image(None, MetadataImage(acls={b"1": acl}))
    host: Any = SimpleNamespace(node_id=1)
    policy = FetchPolicy(host, Settings(), "PLAINTEXT", access)
    connection: Any = LocalConnection("PLAINTEXT", principal)
    ctx = RequestContext(1, REPLICA_EPOCHS, 0, client_id, connection, 0)
    denies = policy.consumer("", ctx).denies
    assert (denies is None or not denies("t")) == reads
    assert policy.is_node(ctx) == reads
    assert not FetchPolicy(host, Settings(), "PLAINTEXT").is_node(ctx)


@pytest.mark.parametrize("max_wait_ms", [0, 500])
@pytest.mark.parametrize(
    ("offset", "last_fetched_epoch", "current_epoch", "code", "diverging"),
    [
        pytest.param(3, 1, 7, ErrorCode.NONE, (1, 2), id="older epoch that ended before"),
        pytest.param(4, 1, 7, ErrorCode.NONE, (1, 2), id="at the log end, older epoch that ended before"),
        pytest.param(4, 4, 7, ErrorCode.NONE, (1, 2), id="at the log end, epoch of another leader"),
        pytest.param(2, 4, 7, ErrorCode.NONE, (1, 2), id="at an epoch's start, epoch of another leader"),
        pytest.param(9, 7, 7, ErrorCode.NONE, (7, 4), id="above the log end in the same epoch"),
        pytest.param(4, 9, 7, ErrorCode.OFFSET_OUT_OF_RANGE, (-1, -1), id="epoch that is unknown"),
        pytest.param(5, -1, 7, ErrorCode.OFFSET_OUT_OF_RANGE, (-1, -1), id="above the log end"),
        pytest.param(-1, -1, 7, ErrorCode.OFFSET_OUT_OF_RANGE, (-1, -1), id="below the log start"),
        pytest.param(4, 7, 6, ErrorCode.FENCED_LEADER_EPOCH, (-1, -1), id="older leader epoch"),
        pytest.param(4, 7, 8, ErrorCode.UNKNOWN_LEADER_EPOCH, (-1, -1), id="later leader epoch"),
        pytest.param(4, 1, 6, ErrorCode.FENCED_LEADER_EPOCH, (-1, -1), id="older leader epoch and other records"),
    ],
)
def test_fetch_of_a_follower_without_the_leaders_records_leaves_its_position_and_the_high_watermark(
    offset: int,
    last_fetched_epoch: int,
    current_epoch: int,
    code: ErrorCode,
    diverging: tuple[int, int],
    max_wait_ms: int,
) -> None:
    def fetch(replica_id: int, *asked: int) -> FetchRequest:
        state = ReplicaState(replica_id=replica_id, replica_epoch=100 + replica_id)
        position: dict[str, Any] = dict(zip(("fetch_offset", "last_fetched_epoch", "current_leader_epoch"), asked))
        partition = FetchPartition(partition=0, partition_max_bytes=1 << 20, **position)
        topics = [FetchTopic(topic_id=TOPIC_ID, partitions=[partition])]
        return FetchRequest(
            max_wait_ms=max_wait_ms,
            min_bytes=1,
            max_bytes=1 << 20,
            session_epoch=-1,
            topics=topics,
            replica_state=state,
        )

    async def scenario() -> None:
        cluster = await with_silent_followers()
        leader = cluster[1]
        leader.append(b"b")
        cluster.change(leader_epoch=7)
        leader.append(b"c", b"d")
        for each in (2, 3):
            await leader.serve(fetch(each, 1, 1, 7))
        leading, log = leader.partition.leading, leader.partition.log
        assert leading is not None
        assert (ends_of_followers(cluster), log.high_watermark) == ([1, 1], 1)

        def progress() -> list[dict[str, Any]]:
            return [{name: getattr(each, name) for name in Progress.__slots__} for each in leading.followers.values()]

        for replica_id in (2, 3):
            known = progress()
            answer = (await leader.serve(fetch(replica_id, offset, last_fetched_epoch, current_epoch))).responses
            [part] = answer[0].partitions
            assert (part.error_code, bytes(part.records or b"")) == (code, b"")
            assert (part.diverging_epoch.epoch, part.diverging_epoch.end_offset) == diverging
            assert (progress(), log.high_watermark) == (known, 1)
        for each in (2, 3):  # the same followers after the truncation
            await leader.serve(fetch(each, 2, 1, 7))
        assert (ends_of_followers(cluster), log.high_watermark) == ([2, 2], 2)
        await cluster.close()

    run(scenario())
