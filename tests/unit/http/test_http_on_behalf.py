"""Tests that the caller's ACLs, not the node's ACLs, apply to Kafka requests that a node sends for an HTTP caller."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from penstock.broker.handlers.access import ACCESS, ON_BEHALF, OPEN
from penstock.broker.handlers.forwarding import CONTROLLER_APIS
from penstock.client.admin import Admin, NewTopic
from penstock.client.client import AsyncClient
from penstock.client.cluster_admin import ClusterAdmin
from penstock.client.consumer import Consumer
from penstock.client.group_admin import GroupAdmin
from penstock.client.producer import Producer
from penstock.http.guard import Caller
from penstock.http.on_behalf import ANSWERED_HERE, NEVER_SENT, CallerClient
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages import api_30_create_acls as create_acls
from penstock.protocol.messages.api_68_consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from penstock.protocol.vocabulary import EARLIEST, ResourceType
from penstock.security.vocabulary import AclResource, Operation, PatternType, Permission
from penstock.testing import Broker, Cluster

T = TypeVar("T")

ANN, NODE = "User:ann", "User:ANONYMOUS"
CONFIG = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": NODE,
}
#: Requests of the connection itself.
OF_CONNECTIONS = {17, 18, 36}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    path = tmp_path_factory.mktemp("audit") / "audit.log"
    config = {**CONFIG, "penstock.audit.file": str(path)}
    with Broker(topics={"open": 1, "closed": 1}, config=config) as running:
        allow(running, AclResource.TOPIC, "open", Operation.READ)
        allow(running, AclResource.TOPIC, "open", Operation.WRITE)
        allow(running, AclResource.GROUP, "mine", Operation.READ)
        running.run(commit_as_node(running))
        yield running


async def commit_as_node(broker: Broker) -> None:
    async with AsyncClient(broker.bootstrap) as client:
        for group in ("mine", "other"):
            assert await GroupAdmin(client).commit(group, {("open", 0): 0}) == {}


def allow(broker: Broker, resource: AclResource, name: str, operation: Operation) -> None:
    acl = create_acls.AclCreation(
        resource_type=resource,
        resource_name=name,
        resource_pattern_type=PatternType.LITERAL,
        principal=ANN,
        host="*",
        operation=operation,
        permission_type=Permission.ALLOW,
    )
    with broker.client() as client:
        answer = client.request(create_acls.CreateAclsRequest(creations=[acl]))
        assert [each.error_code for each in answer.results] == [0]


def as_ann(broker: Broker, work: Callable[[AsyncClient], Awaitable[T]]) -> T:
    async def run() -> T:
        async with AsyncClient(broker.bootstrap) as shared:
            caller = Caller(ANN, "10.0.0.7", client_id="http POST /v1/x")
            return await work(CallerClient(shared, broker.node.broker, caller))

    return broker.run(run())


def refused(broker: Broker, work: Callable[[AsyncClient], Awaitable[Any]]) -> ErrorCode:
    with pytest.raises(KafkaError) as error:
        as_ann(broker, work)
    return error.value.code


def test_http_caller_needs_acls_to_create_change_or_delete_a_topic(broker: Broker) -> None:
    denied = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert refused(broker, lambda client: Admin(client).create_topics([NewTopic("new", 1, 1)])) is denied
    assert refused(broker, lambda client: Admin(client).delete_topics(["closed"])) is denied
    assert refused(broker, lambda client: Admin(client).create_partitions("closed", 3)) is denied
    assert refused(broker, lambda client: Admin(client).delete_records({("closed", 0): 0})) is denied
    change = [("retention.ms", 0, "1000")]
    assert refused(broker, lambda client: Admin(client).alter_configs(ResourceType.TOPIC, "closed", change)) is denied
    assert refused(broker, lambda client: Admin(client).describe_configs(ResourceType.TOPIC, "closed")) is denied
    assert sorted(broker.node.broker.metadata.image.topics)[-2:] == ["closed", "open"]


def test_http_caller_needs_acls_to_change_or_describe_the_cluster(broker: Broker) -> None:
    denied = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert refused(broker, lambda client: ClusterAdmin(client).reassign({("open", 0): [1]})) is denied
    assert refused(broker, lambda client: ClusterAdmin(client).reassignments()) is denied
    assert refused(broker, lambda client: ClusterAdmin(client).holdings(1)) is denied
    change = [("log.retention.ms", 0, "1000")]
    assert refused(broker, lambda client: Admin(client).alter_configs(ResourceType.BROKER, "1", change)) is denied


def test_http_caller_needs_acls_to_write_or_read_records(broker: Broker) -> None:
    async def write(client: AsyncClient, topic: str) -> int:
        async with Producer(client, broker.node.broker.clock) as producer:
            return (await (await producer.send(topic, b"x", None))).offset

    async def read(client: AsyncClient, topic: str) -> int:
        async with Consumer(client) as consumer:
            await consumer.assign({(topic, 0): EARLIEST})
            return sum(len(fetched.batches) for fetched in await consumer.poll())

    assert as_ann(broker, lambda client: write(client, "open")) == 0
    assert as_ann(broker, lambda client: read(client, "open")) == 1
    assert refused(broker, lambda client: write(client, "closed")) is ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert refused(broker, lambda client: read(client, "closed")) is ErrorCode.TOPIC_AUTHORIZATION_FAILED


def test_http_caller_needs_acls_to_list_or_delete_groups_and_to_read_their_offsets(broker: Broker) -> None:
    assert [row["group"] for row in as_ann(broker, lambda client: GroupAdmin(client).list())] == ["mine"]
    denied = ErrorCode.GROUP_AUTHORIZATION_FAILED
    assert refused(broker, lambda client: GroupAdmin(client).committed("other")) is denied
    assert refused(broker, lambda client: GroupAdmin(client).delete("other")) is denied
    assert as_ann(broker, lambda client: GroupAdmin(client).committed("mine")) == {("open", 0): 0}


def test_list_of_topics_omits_topics_for_which_the_http_caller_has_no_acl(broker: Broker) -> None:
    answer = as_ann(broker, lambda client: client.metadata())
    assert [topic.name for topic in answer.topics] == ["open"]


def test_kafka_request_that_needs_a_group_member_is_not_sent_for_an_http_caller(broker: Broker) -> None:
    async def ask(client: AsyncClient) -> Any:
        return await client.request(ConsumerGroupHeartbeatRequest(group_id="mine"))

    assert refused(broker, ask) is ErrorCode.INVALID_REQUEST


def test_every_kafka_api_without_an_acl_rule_has_its_own_check_or_is_never_sent_for_http_callers() -> None:
    unchecked = {key for key, access in ACCESS.items() if access is OPEN} - OF_CONNECTIONS
    assert unchecked <= ON_BEHALF.keys() | NEVER_SENT | ANSWERED_HERE | CONTROLLER_APIS


def _shown(result: str | dict[str, str]) -> str:
    return result if isinstance(result, str) else ", ".join(f"{name}: {code}" for name, code in result.items())


def test_audit_lines_about_changes_and_denials_name_the_http_caller(broker: Broker) -> None:
    refused(broker, lambda client: Admin(client).delete_topics(["closed"]))
    path = Path(broker.node.settings.str("penstock.audit.file"))
    broker.run(broker.node._audit_file.close())  # type: ignore[union-attr]
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    mine = [line for line in lines if line.get("principal") == ANN and line["api"] == "DeleteTopics"]
    assert {(line["host"], line["listener"], line["operation"], _shown(line["result"])) for line in mine} == {
        ("10.0.0.7", "HTTP", "DELETE", "DENIED"),
        ("10.0.0.7", "HTTP", "DELETE", "closed: TOPIC_AUTHORIZATION_FAILED"),
    }
    assert mine[0]["client_id"] == "http POST /v1/x"


def test_request_that_is_forwarded_to_the_controller_has_the_principal_of_the_http_caller() -> None:
    with Cluster(nodes=2, topics={"t": 1}, config=CONFIG) as cluster:
        other = next(node for node in cluster.nodes if node != cluster.controller)

        async def ask() -> ErrorCode:
            node = cluster.node(other)
            async with AsyncClient(cluster.bootstrap) as shared:
                client = CallerClient(shared, node.broker, Caller(ANN, "10.0.0.7"))
                with pytest.raises(KafkaError) as error:
                    await Admin(client).delete_topics(["t"])
                return error.value.code

        assert cluster.run(other, ask()) is ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert "t" in cluster.node(other).broker.metadata.image.topics
