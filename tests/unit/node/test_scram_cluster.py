"""Tests three nodes that log in to each other with SCRAM users that `storage format` created."""

from __future__ import annotations

import asyncio
import random
import secrets

import pytest

from penstock.client.connection import BrokerConnection, ConnectionSettings
from penstock.client.login import Login
from penstock.disk.memory import MemoryDisk
from penstock.metadata.configs.settings import Settings
from penstock.metadata.names import random_uuid
from penstock.net.network import RealNetwork
from penstock.net.ports import free_ports
from penstock.node.local import make_node
from penstock.node.local_cluster import local_nodes
from penstock.node.node import Node
from penstock.node.storage import FormatPlan, StorageError, format_storage
from penstock.protocol.errors import KafkaError
from penstock.protocol.messages.api_03_metadata import MetadataRequest
from penstock.protocol.messages.api_51_alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialUpsertion,
)
from penstock.raft.voters import Voter
from penstock.security.scram import ScramMechanism, salted_password
from penstock.security.scram_arguments import parse_scram_user

SHA_256 = "SCRAM-SHA-256"
JAAS = 'x.ScramLoginModule required username="node" password="node-secret";'
SECURED = {
    "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:SASL_PLAINTEXT",
    "sasl.enabled.mechanisms": SHA_256,
    "sasl.mechanism.inter.broker.protocol": SHA_256,
    "sasl.mechanism.controller.protocol": SHA_256,
    "sasl.jaas.config": JAAS,
    "connection.failed.authentication.delay.ms": "0",
    "controller.quorum.election.timeout.ms": "300",
    "controller.quorum.fetch.timeout.ms": "1000",
    "broker.heartbeat.interval.ms": "200",
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:node",
}


def user(name: str, password: str) -> str:
    return f"{SHA_256}=[name={name},password={password}]"


class Three:
    """Runs three combined nodes. Their bootstrap files have the SCRAM users `node` and `ann`."""

    def __init__(self) -> None:
        ports, self.controllers = free_ports("127.0.0.1", 3), free_ports("127.0.0.1", 3)
        self.disks = [MemoryDisk() for _ in range(3)]
        self.plans = local_nodes(
            ["/1", "/2", "/3"],
            host="127.0.0.1",
            ports=ports,
            controller_ports=self.controllers,
            overrides=SECURED,
        )
        dice = random.Random(1)
        voters = tuple(
            Voter(each.node_id, random_uuid(dice), (("CONTROLLER", "127.0.0.1", port),))
            for each, port in zip(self.plans, self.controllers)
        )
        users = [user("node", "node-secret"), user("ann", "ann-secret")]
        for disk, each in zip(self.disks, self.plans):
            plan = FormatPlan(
                (each.directory,),
                each.node_id,
                cluster_id="MkU3OEVBNTcwNTJENDM2Qg",
                initial_controllers=voters,
                users=tuple(parse_scram_user(text, secrets.token_bytes) for text in users),
            )
            format_storage(disk, plan, random=dice, now_ms=1)

    async def start(self) -> list[Node]:
        nodes = [make_node(Settings(dict(each.properties)), disk) for each, disk in zip(self.plans, self.disks)]
        await asyncio.gather(*(node.start() for node in nodes))
        return nodes


async def brokers_seen(port: int, name: str, password: str) -> int:
    login = Login(SHA_256, name, password)
    peer = await BrokerConnection.open(RealNetwork(), "127.0.0.1", port, ConnectionSettings(login=login))
    try:
        return len((await peer.request(MetadataRequest(topics=[]))).brokers)
    finally:
        peer.close()


async def set_password(port: int, name: str, password: str) -> None:
    login = Login(SHA_256, "node", "node-secret")
    peer = await BrokerConnection.open(RealNetwork(), "127.0.0.1", port, ConnectionSettings(login=login))
    change = ScramCredentialUpsertion(
        name=name,
        mechanism=ScramMechanism.SHA_256,
        iterations=4096,
        salt=b"salt",
        salted_password=salted_password(ScramMechanism.SHA_256, password, b"salt", 4096),
    )
    answer = await peer.request(AlterUserScramCredentialsRequest(upsertions=[change]))
    assert answer.results[0].error_code == 0
    peer.close()


def test_cluster_starts_with_scram_as_its_only_mechanism_and_restarts_after_password_changes() -> None:
    async def main() -> None:
        three = Three()
        port = three.plans[0].port
        nodes = await three.start()
        assert await brokers_seen(port, "ann", "ann-secret") == 3
        with pytest.raises(KafkaError, match="Invalid credentials"):
            await brokers_seen(port, "ann", "wrong")
        await set_password(port, "ann", "new-secret")
        await asyncio.gather(*(node.stop(1.0) for node in nodes))
        nodes = await three.start()  # no node has a committed image before the controllers have logged in
        assert await brokers_seen(port, "ann", "new-secret") == 3
        for at in (three.plans[1].port, three.controllers[0]):
            with pytest.raises(KafkaError, match="Invalid credentials"):
                await brokers_seen(at, "ann", "ann-secret")
        await asyncio.gather(*(node.stop(1.0) for node in nodes))

    asyncio.run(asyncio.wait_for(main(), 120))


def test_format_with_scram_users_is_refused_for_a_metadata_version_without_scram() -> None:
    users = (parse_scram_user(user("ann", "x"), secrets.token_bytes),)
    plan = FormatPlan(("/1",), 1, release_version="3.4", users=users)
    with pytest.raises(StorageError, match=r"3\.5-IV2"):
        format_storage(MemoryDisk(), plan, random=random.Random(1), now_ms=1)
