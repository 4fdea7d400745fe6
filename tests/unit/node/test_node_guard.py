"""Tests the guard, which compares replicas, on three nodes with real disks and sockets."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.broker.events.kinds import GuardFinding, NodeQuarantined, ReplicaRefilled
from penstock.client.connection import ConnectionSettings
from penstock.client.login import Login
from penstock.client.sync import Client
from penstock.metadata.quarantine import quarantined
from penstock.protocol.messages import api_30_create_acls as create_acls
from penstock.protocol.messages import api_49_alter_client_quotas as alter_quotas
from penstock.protocol.vocabulary import ConfigOperation, ResourceType
from penstock.records.header import HEADER_SIZE
from penstock.security.vocabulary import CLUSTER_NAME, AclResource, Operation, PatternType, Permission
from penstock.testing import Cluster
from waiting import until

LIMIT_S = 120.0
CONFIG = {
    "penstock.guard.enable": "true",
    "penstock.guard.scrub.interval.ms": "100",
    "penstock.guard.check.interval.ms": "100",
}


def rot(path: Path) -> bytes:
    """Flips a bit in the first batch of a segment file. Returns the file's content before the change."""
    good = path.read_bytes()
    with path.open("r+b") as file:
        file.seek(HEADER_SIZE + 8)
        file.write(bytes((good[HEADER_SIZE + 8] ^ 1,)))
    return good


def test_flipped_bit_in_a_replica_is_found_and_repaired_with_records_of_another_node(tmp_path: Path) -> None:
    with Cluster(data=tmp_path, topics={"t": 1}, config=CONFIG) as cluster:
        cluster.wait_in_sync("t", timeout_s=LIMIT_S)
        with cluster.client() as client, client.producer() as producer:
            for value in (b"a", b"b", b"c"):
                producer.send("t", value)
                producer.flush()
        rotten = cluster.leader("t")
        until(lambda: cluster.node(rotten).broker.partitions.get("t", 0).log.high_watermark == 3)
        path = next(tmp_path.glob(f"{rotten}/**/t-0/00000000000000000000.log"))
        good = rot(path)
        until(lambda: cluster.node(rotten).broker.events.counts[ReplicaRefilled.KIND] > 0)
        assert path.read_bytes() == good
        assert [record.value for record in cluster.records("t")] == [b"a", b"b", b"c"]
        events = [entry.event for each in (1, 2, 3) for entry in cluster.node(each).broker.events.entries]
        findings = [event for event in events if isinstance(event, GuardFinding)]
        assert {event.accused for event in findings} == {rotten}
        assert "checksum fails" in {event.finding for event in findings}


# --- with an authorizer

JAAS = 'x.PlainLoginModule required username="node" password="n" user_node="n" user_admin="a";'
#: The quorum elects its first leader before it has any ACL, so its principal is a super user.
OF_CONTROLLERS = 'x.PlainLoginModule required username="controller" password="c" user_controller="c";'
SECURED = {
    **CONFIG,
    "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:SASL_PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN",
    "sasl.mechanism.inter.broker.protocol": "PLAIN",
    "sasl.mechanism.controller.protocol": "PLAIN",
    "listener.name.plaintext.plain.sasl.jaas.config": JAAS,
    "listener.name.controller.plain.sasl.jaas.config": OF_CONTROLLERS,
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "penstock.guard.quarantine.threshold": "0",
}
#: Brokers are super users, or have CLUSTER_ACTION alone: until the first ACL for a resource, everybody may use it.
AS_SUPER_USERS = {"super.users": "User:admin;User:controller;User:node"}
WITH_CLUSTER_ACTION = {"super.users": "User:admin;User:controller", "allow.everyone.if.no.acl.found": "true"}


def acl(resource: AclResource, name: str, principal: str, operation: Operation) -> create_acls.AclCreation:
    return create_acls.AclCreation(
        resource_type=resource,
        resource_name=name,
        resource_pattern_type=PatternType.LITERAL,
        principal=principal,
        host="*",
        operation=operation,
        permission_type=Permission.ALLOW,
    )


def set_rules(client: Client) -> None:
    """Allows brokers CLUSTER_ACTION but no operation on topic t, and limits every user to one byte per second."""
    acls = [
        acl(AclResource.CLUSTER, CLUSTER_NAME, "User:node", Operation.CLUSTER_ACTION),
        acl(AclResource.TOPIC, "t", "User:ann", Operation.READ),
    ]
    made = client.request(create_acls.CreateAclsRequest(creations=acls))
    assert [each.error_code for each in made.results] == [0, 0]
    everyone = alter_quotas.EntityData(entity_type="user", entity_name=None)
    entry = alter_quotas.EntryData(entity=[everyone], ops=[alter_quotas.OpData(key="consumer_byte_rate", value=1.0)])
    assert client.request(alter_quotas.AlterClientQuotasRequest(entries=[entry])).entries[0].error_code == 0


@pytest.mark.parametrize("rights", [AS_SUPER_USERS, WITH_CLUSTER_ACTION], ids=["super users", "CLUSTER_ACTION"])
def test_repair_of_a_replica_and_quarantine_of_a_node_work_despite_acls_and_quotas(
    tmp_path: Path, rights: dict[str, str]
) -> None:
    login = ConnectionSettings(login=Login("PLAIN", "admin", "a"))
    with (
        Cluster(data=tmp_path, config={**SECURED, **rights}) as cluster,
        Client(cluster.bootstrap, settings=login, retry_first=True) as client,
    ):
        client.create_topic("t", 1, 3)
        set_rules(client)
        with client.producer() as producer:
            producer.send("t", b"a value that rots")
        nodes = [cluster.node(each).broker for each in cluster.nodes]
        until(lambda: all(each.partitions.find("t", 0) is not None for each in nodes))
        replicas = [each.partitions.get("t", 0) for each in nodes]
        until(lambda: all(each.log.high_watermark == 1 and len(each.image.isr) == 3 for each in replicas))
        rotten = next(each for each in nodes if each.node_id != client.leader("t", 0))
        path = next(tmp_path.glob(f"{rotten.node_id}/**/t-0/00000000000000000000.log"))
        good = rot(path)
        until(lambda: rotten.events.counts[ReplicaRefilled.KIND] > 0)
        assert path.read_bytes() == good

        changes = [("penstock.guard.repair.enable", "false"), ("penstock.guard.quarantine.threshold", "1")]
        client.alter_configs(ResourceType.BROKER, "", [(name, ConfigOperation.SET, value) for name, value in changes])
        until(lambda: all(each.settings.int("penstock.guard.quarantine.threshold") == 1 for each in nodes))
        rot(path)
        until(lambda: all(list(quarantined(each.metadata.image)) == [rotten.node_id] for each in nodes))
        assert any(each.events.counts[NodeQuarantined.KIND] > 0 for each in nodes)
