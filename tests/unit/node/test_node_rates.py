"""Tests that a running node enforces quotas on topic changes and on new connections."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest

from penstock.broker.limits.connection_rates import LONGEST_WAIT_MS, ConnectionRates
from penstock.broker.limits.quotas import Quotas
from penstock.client.client import AsyncClient
from penstock.client.connection import BrokerConnection
from penstock.disk.memory import MemoryDisk
from penstock.metadata.configs.settings import Settings
from penstock.metadata.image import MetadataImage
from penstock.net.connection import Connection
from penstock.net.limits import AT_ONCE, Arrival
from penstock.net.network import RealNetwork
from penstock.net.server import Listener
from penstock.node.local import format_if_new, local_settings, make_node
from penstock.node.node import Node
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages import api_03_metadata as metadata
from penstock.protocol.messages import api_19_create_topics as create
from penstock.protocol.messages import api_20_delete_topics as delete
from penstock.protocol.messages import api_37_create_partitions as grow
from penstock.protocol.messages import api_49_alter_client_quotas as alter
from penstock.testing import Cluster

EXCEEDED = ErrorCode.THROTTLING_QUOTA_EXCEEDED
START = 1_700_000_000_000


def with_node(scenario: Callable[[Node, BrokerConnection], Awaitable[None]], **overrides: str) -> None:
    async def main() -> None:
        named = {name.replace("_", "."): value for name, value in overrides.items()}
        node = make_node(local_settings("/data", port=0, overrides=named), MemoryDisk(), seed=1)
        format_if_new(node)
        await node.start()
        port = int(node.bootstrap.rpartition(":")[2])
        peer = await BrokerConnection.open(RealNetwork(), "127.0.0.1", port)
        try:
            await scenario(node, peer)
        finally:
            peer.close()
            await node.stop()

    asyncio.run(asyncio.wait_for(main(), 120))


async def set_quota(peer: BrokerConnection, entity: tuple[str, str | None], key: str, value: float) -> None:
    entry = alter.EntryData(
        entity=[alter.EntityData(entity_type=entity[0], entity_name=entity[1])],
        ops=[alter.OpData(key=key, value=value)],
    )
    answer = await peer.request(alter.AlterClientQuotasRequest(entries=[entry]))
    assert answer.entries[0].error_code == 0


def creation(*names: str, partitions: int) -> create.CreateTopicsRequest:
    topics = [create.CreatableTopic(name=name, num_partitions=partitions, replication_factor=1) for name in names]
    return create.CreateTopicsRequest(topics=topics, timeout_ms=1000)


#: A window of one second and a rate of 0.001 per second: a bucket of 0.011 partitions, which refills in hours.
SLOW = 0.001


def test_request_above_the_mutation_quota_is_refused_but_in_old_versions_accepted_and_throttled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    muted: list[float] = []
    monkeypatch.setattr(Connection, "mute_for", lambda _, seconds: muted.append(seconds))

    async def scenario(node: Node, peer: BrokerConnection) -> None:
        await set_quota(peer, ("user", "ANONYMOUS"), "controller_mutation_rate", SLOW)
        answer = await peer.request(creation("a", "b", partitions=2), version=7)
        assert {topic.name: topic.error_code for topic in answer.topics} == {"a": 0, "b": EXCEEDED}
        assert answer.throttle_time_ms > 1_000_000
        assert muted[-1] * 1000 == answer.throttle_time_ms
        answer = await peer.request(creation("c", partitions=1), version=5)
        assert [topic.error_code for topic in answer.topics] == [0]
        assert answer.throttle_time_ms > 1_000_000
        growth = grow.CreatePartitionsRequest(
            topics=[grow.CreatePartitionsTopic(name="a", count=3, assignments=None)], timeout_ms=1000
        )
        answer = await peer.request(growth, version=3)
        assert answer.results[0].error_code == EXCEEDED
        answer = await peer.request(growth, version=2)
        assert answer.results[0].error_code == 0
        deletion = delete.DeleteTopicsRequest(topics=[delete.DeleteTopicState(name="a")], timeout_ms=1000)
        answer = await peer.request(deletion, version=6)
        assert answer.responses[0].error_code == EXCEEDED
        answer = await peer.request(delete.DeleteTopicsRequest(topic_names=["a"], timeout_ms=1000), version=4)
        assert answer.responses[0].error_code == 0
        asked = metadata.MetadataRequest(
            topics=[metadata.MetadataRequestTopic(name="new")], allow_auto_topic_creation=True
        )
        assert (await peer.request(asked)).topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        await set_quota(peer, ("user", "ANONYMOUS"), "controller_mutation_rate", 1e6)

    with_node(scenario)


def test_mutation_quota_counts_topics_created_by_metadata_requests_to_different_brokers() -> None:
    with Cluster(nodes=3, config={"num.partitions": 2}) as cluster:

        async def ask_all_brokers() -> None:
            async with AsyncClient(cluster.bootstrap) as client:
                await set_quota(await client.connection(), ("user", "ANONYMOUS"), "controller_mutation_rate", SLOW)
                for node in cluster.nodes:
                    wanted = metadata.MetadataRequestTopic(name=f"of-{node}")
                    asked = metadata.MetadataRequest(topics=[wanted], allow_auto_topic_creation=True)
                    await client.request(asked, node=node)

        cluster.run(cluster.controller, ask_all_brokers())
        topics = cluster.node(cluster.controller).broker.metadata.image.topics
        assert len([name for name in topics if name.startswith("of-")]) == 1


def test_internal_topics_are_created_regardless_of_client_quotas() -> None:
    async def scenario(node: Node, peer: BrokerConnection) -> None:
        await set_quota(peer, ("user", None), "controller_mutation_rate", SLOW)
        for name in ("__consumer_offsets", "__transaction_state"):
            assert (await node.broker.topic_creator.ensure(name)).name == name

    with_node(scenario)


@dataclass
class Clock:
    now_ms: int = START

    def wall_ms(self) -> int:
        return self.now_ms

    def nanoseconds(self) -> int:
        return 0


def rates(
    properties: dict[str, str], quotas: dict[Any, dict[str, float]] | None = None
) -> tuple[ConnectionRates, Clock]:
    settings = Settings(properties)
    limits, clock = Quotas(settings), Clock()
    limits.apply_image(MetadataImage(client_quotas=quotas or {}))
    return ConnectionRates(settings, limits, clock), clock


def test_connections_above_the_rate_limit_of_the_node_are_delayed() -> None:
    limited, clock = rates({"max.connection.creation.rate": "2"})
    listener = Listener("CLIENTS")
    burst = [limited.arrive("10.0.0.1", listener) for _ in range(22)]
    assert burst == [AT_ONCE] * 22  # a window of 11 s
    assert [limited.arrive("10.0.0.2", listener).wait_s for _ in range(3)] == [0.5, 1.0, 1.5]
    assert limited.arrive("10.0.0.1", Listener("BROKERS", protected=True)) == AT_ONCE
    clock.now_ms += 2000
    assert limited.arrive("10.0.0.3", listener) == AT_ONCE


def test_burst_of_connections_delays_later_connections_by_a_limited_time_only() -> None:
    limited, clock = rates({"max.connection.creation.rate": "10"})
    listener = Listener("CLIENTS")
    burst = [limited.arrive("10.0.0.1", listener) for _ in range(400)]
    assert max(arrival.wait_s for arrival in burst) == LONGEST_WAIT_MS / 1000
    served = [arrival for arrival in burst if arrival.refused is None]
    assert len(served) == 10 * 11 + 50  # the quota of a window, and the connections that wait
    assert "max.connection.creation.rate is exceeded" in str(burst[-1].refused)
    clock.now_ms += 500
    assert limited.arrive("10.0.0.2", listener) == Arrival(4.6)
    clock.now_ms += LONGEST_WAIT_MS
    assert limited.arrive("10.0.0.3", listener) == AT_ONCE


def test_listener_can_have_its_own_connection_rate_and_connection_limit() -> None:
    limited, _ = rates(
        {"listener.name.clients.max.connection.creation.rate": "1", "listener.name.clients.max.connections": "3"}
    )
    clients, others = Listener("CLIENTS"), Listener("OTHERS")
    assert [limited.arrive("10.0.0.1", clients).wait_s for _ in range(13)] == [0.0] * 11 + [1.0, 2.0]
    assert limited.arrive("10.0.0.1", others) == AT_ONCE
    clients.connections = 3
    assert "max.connections=3" in str(limited.arrive("10.0.0.1", clients).refused)


def test_connections_above_the_quota_of_an_ip_address_are_closed_after_the_throttle_time() -> None:
    limited, _ = rates({}, {(("ip", "10.0.0.1"),): {"connection_creation_rate": 1.0}})
    listener = Listener("CLIENTS")
    arrivals = [limited.arrive("10.0.0.1", listener) for _ in range(11)]
    assert arrivals[:10] == [AT_ONCE] * 10
    assert arrivals[10].wait_s > 0
    assert "connection_creation_rate of address 10.0.0.1" in str(arrivals[10].refused)
    assert limited.arrive("10.0.0.2", listener) == AT_ONCE


def test_connection_rate_of_zero_delays_every_connection() -> None:
    limited, _ = rates({"max.connection.creation.rate": "0"})
    assert limited.arrive("10.0.0.1", Listener("CLIENTS")) == Arrival(1.0)


def test_connection_above_the_quota_of_its_ip_address_is_closed_without_an_answer() -> None:
    async def scenario(node: Node, peer: BrokerConnection) -> None:
        await set_quota(peer, ("ip", "127.0.0.1"), "connection_creation_rate", 1)
        port = int(node.bootstrap.rpartition(":")[2])
        opened = 0
        with contextlib.suppress(KafkaError):
            while opened < 1000:
                (await BrokerConnection.open(RealNetwork(), "127.0.0.1", port)).close()
                opened += 1
        assert 10 <= opened < 1000

    with_node(scenario)
