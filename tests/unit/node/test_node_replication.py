"""Tests replication between three whole nodes over real sockets, each in its own thread, when a node fails."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.client.sync import SyncProducer
from penstock.node.node import Node
from penstock.protocol.errors import KafkaError
from penstock.records.batches import split_batches
from penstock.records.build import build_batch
from penstock.testing.cluster import Cluster

TOPIC = "orders"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=3, topics={TOPIC: 1}, config={"replica.lag.time.max.ms": "2000"}) as started:
        started.wait_in_sync(TOPIC)
        yield started


def write(producer: SyncProducer, *values: bytes) -> None:
    for value in values:
        producer.send(TOPIC, value=value, partition=0)
    producer.flush()


async def stored(node: Node) -> list[bytes]:
    """Returns the batches in the log of this node's replica."""
    log = node.broker.partitions.get(TOPIC, 0).log
    found: list[bytes] = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        for header, view in split_batches(
            log.read(offset, 1 << 20, upper_bound=log.log_end_offset).read_now(), allow_partial=True
        ):
            found.append(bytes(view))
            offset = header.next_offset
    return found


async def append_alone(node: Node, value: bytes) -> int:
    """Appends to a leader's log without replication, as an isolated leader would."""
    batch = build_batch([(node.clock.wall_ms(), None, value, ())])
    partition = node.broker.partitions.get(TOPIC, 0)
    return partition.append(batch, now_ms=node.clock.wall_ms(), required_acks=1).last_offset + 1


def replicas(cluster: Cluster) -> list[list[bytes]]:
    return [cluster.run(each, stored(cluster.node(each))) for each in cluster.running]


def test_no_acknowledged_record_is_lost_when_a_leader_is_killed_and_rejoins(cluster: Cluster) -> None:
    with cluster.client() as client, client.producer() as producer:
        write(producer, b"before")
        leader = cluster.leader(TOPIC)
        cluster.kill(leader)
        write(producer, b"during")
        assert cluster.leader(TOPIC) != leader
        cluster.start(leader)
        cluster.wait_in_sync(TOPIC)
        write(producer, b"after")
    values = [record.value for record in cluster.records(TOPIC)]
    assert values[-3:] == [b"before", b"during", b"after"]
    first, second, third = replicas(cluster)
    assert first == second == third


def test_unreplicated_records_of_a_killed_leader_are_truncated_when_it_returns(cluster: Cluster) -> None:
    with cluster.client() as client, client.producer() as producer:
        write(producer, b"committed")
        leader = cluster.leader(TOPIC)
        others = [each for each in cluster.running if each != leader]
        for each in others:
            cluster.pause(each)
        try:
            for number in range(3):
                cluster.run(leader, append_alone(cluster.node(leader), b"alone-%d" % number))
            cluster.kill(leader)
        finally:
            for each in others:
                cluster.resume(each)
        write(producer, b"new")
        cluster.start(leader)
        cluster.wait_in_sync(TOPIC)
        write(producer, b"newer")
    values = [record.value for record in cluster.records(TOPIC)]
    assert b"committed" in values
    assert values[-2:] == [b"new", b"newer"]
    # the first batch may have been on its way as the answer of a parked fetch
    assert not {b"alone-1", b"alone-2"} & set(values)
    first, second, third = replicas(cluster)
    assert first == second == third


def test_delete_records_deletes_records_on_every_node(cluster: Cluster) -> None:
    with cluster.client() as client, client.producer() as producer:
        write(producer, *[b"%d" % number for number in range(10)])
        end = cluster.run(1, _end(cluster.node(1)))
        low = client.delete_records({(TOPIC, 0): end - 2})
    assert low == {(TOPIC, 0): end - 2}
    assert {cluster.run(each, _start(cluster.node(each))) for each in (1, 2, 3)} == {end - 2}


async def _end(node: Node) -> int:
    return node.broker.partitions.get(TOPIC, 0).log.log_end_offset


async def _start(node: Node) -> int:
    return node.broker.partitions.get(TOPIC, 0).log.log_start_offset


def test_a_deleted_topic_is_deleted_on_every_node(cluster: Cluster) -> None:
    cluster.create_topic("passing", 2)
    cluster.wait_in_sync("passing")
    with cluster.client() as client:
        client.delete_topics(["passing"])

    async def hosts(node: Node) -> bool:
        try:
            node.broker.partitions.get("passing", 0)
        except KafkaError:
            return node.broker.logs.get("passing", 0) is not None
        return True

    for each in cluster.running:
        for _ in range(1000):
            if not cluster.run(each, hosts(cluster.node(each))):
                break
        else:
            raise AssertionError(f"node {each} still has the deleted topic's log")
