"""Compares the error codes of a client without permission with Kafka's StandardAuthorizer.

Both brokers allow everyone if there are no ACLs. The topic, the group and the transactional id of a test have an ACL
for another user only, so each request of this client is denied.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from oracle_peer import Peer
from oracle_typical import request, typical
from oracle_wire import Closed

from penstock.protocol.apis import APIS
from penstock.protocol.errors import ErrorCode
from penstock.protocol.messages.api_29_describe_acls import DescribeAclsRequest
from penstock.protocol.messages.api_30_create_acls import AclCreation, CreateAclsRequest
from penstock.protocol.messages.api_31_delete_acls import DeleteAclsFilter, DeleteAclsRequest
from penstock.protocol.schema import Struct
from penstock.security.vocabulary import AclResource, Operation, PatternType, Permission
from penstock.testing import Broker
from tools import kafka
from tools.java_tests import require_jars

pytestmark = [pytest.mark.java, pytest.mark.slow]

SETTINGS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
    "group.initial.rebalance.delay.ms": "0",
}
LIST_OFFSETS = 2
#: APIs whose typical request names a topic, a group or a transactional id.
DENIED = (0, 1, 2, 3, 8, 9, 10, 12, 13, 14, 15, 21, 23, 24, 25, 26, 32, 33, 37, 42, 44, 47, 61, 65, 69, 75)


class Both(NamedTuple):
    penstock: Peer
    kafka: Peer


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    require_jars()
    where = tmp_path_factory.mktemp("kafka")
    with (
        Broker(config=SETTINGS) as broker,
        kafka.KafkaCluster(data=where, heap=("-Xmx512M", "-Xms256M"), overrides=SETTINGS) as cluster,
    ):
        peers = []
        for name, bootstrap in (("penstock", broker.bootstrap), ("kafka", cluster.bootstrap)):
            host, _, port = bootstrap.rpartition(":")
            peers.append(Peer(name, (host, int(port))))
        yield Both(*peers)
        for peer in peers:
            peer.close()


def closed_to_others(peer: Peer) -> tuple[str, str]:
    """Returns a topic, and a name for a group and a transactional id. Only another user may use them."""
    topic, group = peer.topic("secret"), peer.unique("closed")
    creations = [
        AclCreation(
            resource_type=kind,
            resource_name=name,
            resource_pattern_type=PatternType.LITERAL,
            principal="User:bob",
            host="*",
            operation=Operation.ALL,
            permission_type=Permission.ALLOW,
        )
        for kind, name in (
            (AclResource.TOPIC, topic),
            (AclResource.GROUP, group),
            (AclResource.TRANSACTIONAL_ID, group),
        )
    ]
    answer = peer.quietly(CreateAclsRequest(creations=creations))
    assert [each.error_code for each in answer.results] == [0, 0, 0]
    while told(peer, LIST_OFFSETS, 6, topic, group) != [("error_code", ErrorCode.TOPIC_AUTHORIZATION_FAILED)]:
        continue  # Kafka answers before its brokers have the ACLs
    return topic, group


def codes(answer: Any) -> list[tuple[str, int]]:
    """Returns every error code of an answer, with the name of its struct."""
    found = []
    for field in type(answer).FIELDS:
        value = getattr(answer, field.name)
        if field.kind == "int16" and field.name.endswith("error_code"):
            found.append((field.name, value))
        elif field.kind == "array":
            for item in value or ():
                if isinstance(item, Struct):
                    found += codes(item)
    return sorted(found)


def told(peer: Peer, key: int, version: int, topic: str, group: str) -> Any:
    fields = typical(peer, key, topic, group)
    changes: dict[int, dict[str, Any]] = {
        1: {"max_wait_ms": 0, "min_bytes": 0, "session_epoch": -1},
        14: {"protocol_type": "consumer", "protocol_name": "range"},
        42: {"groups_names": [group]},
        65: {"transactional_ids": [group]},
    }
    fields.update(changes.get(key, {}))
    try:
        return codes(peer.quietly(request(key, version, fields), version))
    except Closed:
        return "closed"


@pytest.mark.parametrize("key", DENIED)
def test_client_without_permission_gets_the_same_error_codes_from_penstock_and_kafka(both: Both, key: int) -> None:
    api = APIS[key]
    for version in sorted({api.min_version, api.latest_stable, (api.min_version + api.latest_stable) // 2}):
        answers = [told(peer, key, version, *closed_to_others(peer)) for peer in both]
        assert answers[0] == answers[1], f"{api.name} v{version}"


def acls(peer: Peer, name: str | None, pattern: PatternType) -> list[tuple[Any, ...]]:
    answer = peer.quietly(
        DescribeAclsRequest(
            resource_type_filter=AclResource.TOPIC,
            resource_name_filter=name,
            pattern_type_filter=pattern,
            principal_filter="User:match",
            host_filter=None,
            operation=Operation.ANY,
            permission_type=Permission.ANY,
        )
    )
    assert answer.error_code == 0
    return sorted((one.resource_name, one.pattern_type, acl.operation) for one in answer.resources for acl in one.acls)


def test_describe_and_delete_acls_select_the_same_acls_as_in_kafka(both: Both) -> None:
    creations = [
        AclCreation(
            resource_type=AclResource.TOPIC,
            resource_name=name,
            resource_pattern_type=pattern,
            principal="User:match",
            host="*",
            operation=Operation.READ,
            permission_type=Permission.ALLOW,
        )
        for name, pattern in (
            ("zz-one", PatternType.LITERAL),
            ("zz", PatternType.PREFIXED),
            ("z", PatternType.PREFIXED),
            ("*", PatternType.LITERAL),
        )
    ]
    for peer in both:
        peer.quietly(CreateAclsRequest(creations=creations))
    for name in ("zz-one", "zz", "other", "*", None):
        for pattern in (PatternType.ANY, PatternType.MATCH, PatternType.LITERAL, PatternType.PREFIXED):
            one, two = (acls(peer, name, pattern) for peer in both)
            assert one == two, (name, pattern)
    selected = DeleteAclsFilter(
        resource_type_filter=AclResource.TOPIC,
        resource_name_filter=None,
        pattern_type_filter=PatternType.ANY,
        principal_filter="User:match",
        host_filter=None,
        operation=Operation.ANY,
        permission_type=Permission.ANY,
    )
    removed = [
        len(peer.quietly(DeleteAclsRequest(filters=[selected])).filter_results[0].matching_acls) for peer in both
    ]
    assert removed == [4, 4]


@pytest.mark.parametrize(
    ("change", "kafkas"),
    [
        ({"resource_type": 4, "resource_name": "other"}, ErrorCode.INVALID_REQUEST),
        ({"resource_name": ""}, ErrorCode.INVALID_REQUEST),
        ({"resource_pattern_type": 2}, ErrorCode.UNKNOWN_SERVER_ERROR),
        ({"operation": 1}, ErrorCode.UNKNOWN_SERVER_ERROR),
        ({"permission_type": 1}, ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
def test_create_acls_with_an_invalid_acl_gets_invalid_request_from_penstock(
    both: Both, change: dict[str, Any], kafkas: ErrorCode
) -> None:
    fields: dict[str, Any] = {
        "resource_type": 2,
        "resource_name": "t",
        "resource_pattern_type": 3,
        "principal": "User:a",
        "host": "*",
        "operation": 3,
        "permission_type": 3,
        **change,
    }
    answers = [codes(peer.quietly(CreateAclsRequest(creations=[AclCreation(**fields)]))) for peer in both]
    assert answers == [[("error_code", ErrorCode.INVALID_REQUEST)], [("error_code", kafkas)]]
