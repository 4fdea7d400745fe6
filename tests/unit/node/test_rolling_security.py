"""Tests the steps of docs/operations.md that secure a plaintext cluster with SASL_SSL and ACLs by rolling restarts.

Three nodes run in this process, each as broker and controller. A client writes all the time with acks=all, first over
the plaintext listener and then over the secured listener. At the end, every acknowledged record is read once and in
order.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from penstock.client.client import AsyncClient
from penstock.client.client_security import credentials_of
from penstock.client.connection import ConnectionSettings
from penstock.client.producer import Producer, ProducerSettings
from penstock.disk.memory import MemoryDisk
from penstock.metadata.configs.settings import Settings
from penstock.metadata.image import AclImage
from penstock.metadata.names import random_uuid
from penstock.net.ports import free_ports
from penstock.node.clock import SystemClock
from penstock.node.local import make_node
from penstock.node.local_security import ADMIN, APP, LocalSecurity, app_acls, client_properties, local_security
from penstock.node.node import Node
from penstock.node.storage import FormatPlan, format_storage
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_01_fetch import FetchPartition, FetchRequest, FetchTopic
from penstock.protocol.messages.api_19_create_topics import CreatableTopic, CreateTopicsRequest
from penstock.protocol.messages.api_30_create_acls import AclCreation, CreateAclsRequest
from penstock.protocol.messages.api_51_alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialUpsertion,
)
from penstock.raft.voters import Voter
from penstock.records.batches import iter_batches
from penstock.records.record import read_records
from penstock.security.scram import ScramMechanism, salted_password
from tools.rolling_security import BEFORE, BOTH, NODES_SECURED, SECURED, NodePorts, step_properties

TOPIC = "orders"
PLAIN = {
    "process.roles": "broker,controller",
    "log.dirs": "/data",
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "controller.quorum.election.timeout.ms": "300",
    "controller.quorum.fetch.timeout.ms": "1000",
    "broker.heartbeat.interval.ms": "200",
    "connection.failed.authentication.delay.ms": "0",
}


class Rolling:
    """Runs three nodes. Each has a plaintext and a secured listener, both for clients and for controllers."""

    def __init__(self, security: LocalSecurity) -> None:
        self.security = security
        ports = free_ports("127.0.0.1", 12)
        self.ports = {one: NodePorts(*ports[4 * one - 4 : 4 * one]) for one in (1, 2, 3)}
        self.disks = {one: MemoryDisk() for one in self.ports}
        self.nodes: dict[int, Node] = {}
        dice = random.Random(1)
        voters = tuple(
            Voter(one, random_uuid(dice), (("CONTROLLER", "127.0.0.1", self.ports[one].clear_quorum),))
            for one in self.ports
        )
        for one, disk in self.disks.items():
            plan = FormatPlan(("/data",), one, cluster_id="MkU3OEVBNTcwNTJENDM2Qg", initial_controllers=voters)
            format_storage(disk, plan, random=dice, now_ms=1)

    @property
    def clear(self) -> str:
        return ",".join(f"127.0.0.1:{ports.clear}" for ports in self.ports.values())

    @property
    def secured(self) -> str:
        return ",".join(f"127.0.0.1:{ports.secured}" for ports in self.ports.values())

    async def start(self, one: int, step: int) -> None:
        properties = {**PLAIN, "node.id": str(one), **step_properties(self.ports, one, step, self.security)}
        node = make_node(Settings(properties), self.disks[one], seed=10 * one + step)
        await node.start()
        self.nodes[one] = node

    async def roll(self, step: int) -> None:
        for one in self.ports:
            await self.nodes[one].stop(1.0)
            await self.start(one, step)
            await self._in_sync()

    async def _in_sync(self) -> None:
        """Waits until all replicas are in sync, as an operator does between two restarts."""
        while True:
            images = [node.broker.metadata.image for node in self.nodes.values()]
            topics = [image.topics.get(TOPIC) for image in images]
            if all(topic is not None and all(len(p.isr) == 3 for p in topic.partitions.values()) for topic in topics):
                return
            await asyncio.sleep(0.05)


class Load:
    """Writes numbered records to one partition, one after the other, until the test stops it."""

    def __init__(self, bootstrap: str, settings: ConnectionSettings) -> None:
        self._bootstrap, self._settings = bootstrap, settings
        self._stopped = False
        self.acknowledged: list[int] = []

    async def run(self, first: int) -> int:
        async with AsyncClient(self._bootstrap, settings=self._settings) as client:
            settings = ProducerSettings(acks=-1, idempotent=True, delivery_timeout_s=60)
            async with Producer(client, SystemClock(), settings) as producer:
                number = first
                while not self._stopped:
                    future = await producer.send(TOPIC, str(number).encode(), partition=0)
                    await future
                    self.acknowledged.append(number)
                    number += 1
        return number

    def stop(self) -> None:
        self._stopped = True


async def set_users(client: AsyncClient, security: LocalSecurity) -> None:
    for name, password in security.passwords.items():
        for mechanism in ScramMechanism:
            change = ScramCredentialUpsertion(
                name=name,
                mechanism=mechanism,
                iterations=4096,
                salt=b"salt",
                salted_password=salted_password(mechanism, password, b"salt", 4096),
            )
            answer = await client.request(AlterUserScramCredentialsRequest(upsertions=[change]))
            assert answer.results[0].error_code == 0


async def create_acls(client: AsyncClient, acls: tuple[AclImage, ...]) -> None:
    creations = [
        AclCreation(
            resource_type=acl.resource_type,
            resource_name=acl.resource_name,
            resource_pattern_type=acl.pattern_type,
            principal=acl.principal,
            host=acl.host,
            operation=acl.operation,
            permission_type=acl.permission_type,
        )
        for acl in acls
    ]
    answer = await client.request(CreateAclsRequest(creations=creations))
    assert {each.error_code for each in answer.results} == {0}


async def read_all(node: Node, client: AsyncClient) -> list[int]:
    """Returns the numbers of all records, in order."""
    found: list[int] = []
    topic = node.broker.metadata.image.topics[TOPIC]
    offset = 0
    while True:
        part = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
        request = FetchRequest(
            max_bytes=1 << 20, max_wait_ms=0, topics=[FetchTopic(topic_id=topic.topic_id, partitions=[part])]
        )
        answer: Any = await client.request(request, node=topic.partitions[0].leader)
        data = answer.responses[0].partitions[0] if answer.responses else None
        if data is None or not data.records:
            return found
        assert data.error_code == 0
        for header, batch in iter_batches(data.records, allow_partial=True):
            found += [int(bytes(record.value or b"")) for record in read_records(batch)]
            offset = header.next_offset


def secured_settings(security: LocalSecurity, user: str) -> ConnectionSettings:
    properties = client_properties(security, "", user)
    del properties["bootstrap.servers"]
    credentials = credentials_of(properties)
    return ConnectionSettings(tls=credentials.tls, login=credentials.login)


@pytest.mark.timeout(600)
def test_cluster_becomes_secured_by_rolling_restarts_without_losing_a_record(tmp_path: Path) -> None:
    async def main() -> None:
        security = local_security(str(tmp_path), "127.0.0.1")
        rolling = Rolling(security)
        await asyncio.gather(*(rolling.start(one, BEFORE) for one in rolling.ports))
        clear, secured = rolling.clear, rolling.secured
        async with AsyncClient(clear) as client:
            topics = [CreatableTopic(name=TOPIC, num_partitions=1, replication_factor=3)]
            await client.request(CreateTopicsRequest(topics=topics, timeout_ms=10_000))
            await set_users(client, security)
        load = Load(clear, ConnectionSettings())
        writing = asyncio.ensure_future(load.run(0))
        await rolling.roll(BOTH)
        async with AsyncClient(secured, settings=secured_settings(security, ADMIN)) as client:
            await create_acls(client, app_acls())
        load.stop()
        following = Load(secured, secured_settings(security, APP))
        writing_on = asyncio.ensure_future(following.run(await writing))
        await rolling.roll(NODES_SECURED)
        await rolling.roll(SECURED)
        following.stop()
        await writing_on
        assert len(load.acknowledged) > 10
        assert len(following.acknowledged) > 10
        with pytest.raises(KafkaError) as refused:
            await AsyncClient(clear).connection()
        assert refused.value.code is ErrorCode.NETWORK_EXCEPTION
        async with AsyncClient(secured, settings=secured_settings(security, APP)) as client:
            found = await read_all(rolling.nodes[1], client)
            assert found == [*load.acknowledged, *following.acknowledged]
            answer = await client.request(CreateAclsRequest(creations=[AclCreation(resource_type=2)]))
            assert {each.error_code for each in answer.results} == {ErrorCode.CLUSTER_AUTHORIZATION_FAILED}
        for node in rolling.nodes.values():
            assert {name for name, _, _ in node.broker.metadata.quorum().voters[0].endpoints} == {"CONTROLLER_SSL"}
        await asyncio.gather(*(node.stop(1.0) for node in rolling.nodes.values()))

    asyncio.run(asyncio.wait_for(main(), 300))
