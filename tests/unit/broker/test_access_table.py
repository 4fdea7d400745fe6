"""Tests every API with users who have all, some or none of the ACLs that Kafka requires, or a DENY.

`ROWS` lists, independently of the table in `access.py`, which ACLs Kafka requires. Each row is checked on a node with
one user for each case: a user without one of the ACLs, with all operations except the needed operation, with a DENY in
addition to all needed ACLs, and with exactly the needed ACLs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from access_clients import ADMIN, Clients, acl, with_clients

from penstock.broker.handlers.registry import HANDLERS
from penstock.net.reply import Close
from penstock.protocol.apis import APIS, request_class
from penstock.protocol.errors import ErrorCode
from penstock.protocol.messages.api_03_metadata import MetadataRequest
from penstock.protocol.messages.api_30_create_acls import AclCreation, CreateAclsRequest
from penstock.protocol.schema import Message, Struct
from penstock.protocol.vocabulary import SHARE_OPERATOR
from penstock.records.build import build_batch
from penstock.security.vocabulary import AclResource, Operation

pytestmark = pytest.mark.exhaustive

Fields = dict[str, Any]
CLUSTER, TOPIC, GROUP, TRANSACTION = (
    AclResource.CLUSTER,
    AclResource.TOPIC,
    AclResource.GROUP,
    AclResource.TRANSACTIONAL_ID,
)
CODES = {
    TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    TRANSACTION: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}
NAMES = {CLUSTER: "kafka-cluster", TOPIC: "open", GROUP: "g", TRANSACTION: "t"}
IMPLIED_BY = {
    Operation.DESCRIBE: {Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER},
    Operation.DESCRIBE_CONFIGS: {Operation.ALTER_CONFIGS},
}
READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE, ACTION, DESCRIBE_CONFIGS, ALTER_CONFIGS = (
    Operation.READ,
    Operation.WRITE,
    Operation.CREATE,
    Operation.DELETE,
    Operation.ALTER,
    Operation.DESCRIBE,
    Operation.CLUSTER_ACTION,
    Operation.DESCRIBE_CONFIGS,
    Operation.ALTER_CONFIGS,
)
#: Stands for the id of the topic `open`, which differs from run to run.
OPEN_ID = object()
#: APIs without a rule, and those whose rules the tests of filters cover: they never refuse a request.
NEVER_REFUSED = {16, 17, 18, 36, 66, 71, 72}
#: APIs of delegation tokens, which test_delegation_tokens.py covers.
TOKENS = {38, 39, 40, 41}

Need = tuple[Operation, AclResource]


@dataclass(frozen=True)
class Row:
    key: int
    fields: Fields
    needs: tuple[Need, ...]
    version: int | None = None
    #: Operations that Kafka takes in place of the needed ones.
    instead: tuple[Need, ...] = ()
    role: str = "BROKER"
    #: Requests (API key and fields) that the super user sends before each request of the row.
    before: tuple[tuple[int, Fields], ...] = ()
    settings: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        return f"{self.key}-{APIS[self.key].name}-{'-'.join(f'{one.name}.{of.name}' for one, of in self.needs)}"


BATCH = build_batch([(1000, b"k", b"v", ())])
PARTITIONS = [{"partition_index": 0}]
NAMED = {"name": "open", "partitions": PARTITIONS}
STATE = {"group_id": "g", "topics": [{"topic_id": OPEN_ID, "partitions": [{"partition": 0}]}]}
ACKNOWLEDGED = {"first_offset": 0, "last_offset": 0, "acknowledge_types": [1]}
RESOURCE = {"configs": [{"name": "retention.ms", "value": "9000"}]}
COORDINATOR = (10, {"coordinator_keys": ["g"]})
SHARE_MEMBER = (76, {"group_id": "g", "member_id": "A" * 22, "member_epoch": 0, "subscribed_topic_names": ["open"]})
SHARE_SESSION = (78, {"group_id": "g", "member_id": "A" * 22})
IN_TXN = {"transactional_id": "t", "producer_id": 9, "producer_epoch": 0}


def config(kind: int, name: str, **more: Any) -> Fields:
    return {"resources": [{"resource_type": kind, "resource_name": name, **more}]}


def cluster(key: int, needed: Operation, /, *instead: Operation, role: str = "BROKER", **fields: Any) -> Row:
    return Row(key, fields, ((needed, CLUSTER),), instead=tuple((one, CLUSTER) for one in instead), role=role)


def broker_api(key: int, **fields: Any) -> Row:
    return cluster(key, ACTION, role="BROKER" if "BROKER" in APIS[key].listeners else "CONTROLLER", **fields)


ROWS = [
    Row(0, {"acks": -1, "topic_data": [{"name": "open", "partition_data": [{"index": 0, "records": BATCH}]}]},
        ((WRITE, TOPIC),), version=12),
    Row(0, {"acks": -1, "transactional_id": "t", "topic_data": [{"name": "open", "partition_data": [{"index": 0}]}]},
        ((WRITE, TRANSACTION), (WRITE, TOPIC)), version=12),
    Row(1, {"max_bytes": 1000, "topics": [{"topic": "open", "partitions": [{"partition": 0}]}]},
        ((READ, TOPIC),), version=12),
    cluster(1, ACTION, role="CONTROLLER", topics=[{"topic": "__cluster_metadata", "partitions": [{"partition": 0}]}]),
    Row(2, {"replica_id": -1, "topics": [NAMED]}, ((DESCRIBE, TOPIC),)),
    Row(3, {"topics": [{"name": "open"}]}, ((DESCRIBE, TOPIC),)),
    Row(8, {"group_id": "g", "generation_id_or_member_epoch": -1, "topics": [NAMED]},
        ((READ, GROUP), (READ, TOPIC)), version=9),
    Row(9, {"group_id": "g", "topics": [{"name": "open", "partition_indexes": [0]}]},
        ((DESCRIBE, GROUP), (DESCRIBE, TOPIC)), version=7, before=(COORDINATOR,)),
    Row(9, {"groups": [{"group_id": "g", "topics": [{"name": "open", "partition_indexes": [0]}]}]},
        ((DESCRIBE, GROUP), (DESCRIBE, TOPIC)), version=9, before=(COORDINATOR,)),
    Row(10, {"coordinator_keys": ["g"]}, ((DESCRIBE, GROUP),)),
    Row(10, {"key": "g"}, ((DESCRIBE, GROUP),), version=3),
    Row(10, {"coordinator_keys": ["t"], "key_type": 1}, ((DESCRIBE, TRANSACTION),)),
    Row(10, {"coordinator_keys": ["g:AAAAAAAAAAAAAAAAAAAAAQ:0"], "key_type": 2}, ((ACTION, CLUSTER),)),
    Row(11, {"group_id": "g", "protocol_type": "consumer", "protocols": [{"name": "range"}]}, ((READ, GROUP),)),
    Row(12, {"group_id": "g", "member_id": "m"}, ((READ, GROUP),)),
    Row(13, {"group_id": "g", "members": [{"member_id": "m"}]}, ((READ, GROUP),)),
    Row(14, {"group_id": "g", "member_id": "m"}, ((READ, GROUP),)),
    Row(15, {"groups": ["g"]}, ((DESCRIBE, GROUP),)),
    Row(19, {"topics": [{"name": "open", "num_partitions": 1, "replication_factor": 1}], "validate_only": True},
        ((CREATE, TOPIC),)),
    Row(19, {"topics": [{"name": "open", "num_partitions": 1, "replication_factor": 1}], "validate_only": True},
        ((CREATE, CLUSTER),)),
    Row(20, {"topics": [{"name": "nowhere"}]}, ((DELETE, TOPIC),)),
    Row(20, {"topic_names": ["nowhere"]}, ((DELETE, TOPIC),), version=5),
    Row(21, {"topics": [NAMED]}, ((DELETE, TOPIC),)),
    Row(22, {"transactional_id": "t", "transaction_timeout_ms": 1000}, ((WRITE, TRANSACTION),)),
    Row(22, {"transactional_id": "t", "transaction_timeout_ms": 1000, "enable_2pc": True},
        ((WRITE, TRANSACTION), (Operation.TWO_PHASE_COMMIT, TRANSACTION)), version=6,
        settings=(("transaction.two.phase.commit.enable", "true"),)),
    Row(22, {"transactional_id": None, "transaction_timeout_ms": 1000}, ((Operation.IDEMPOTENT_WRITE, CLUSTER),)),
    Row(23, {"replica_id": -1, "topics": [{"topic": "open", "partitions": [{"partition": 0}]}]}, ((DESCRIBE, TOPIC),)),
    Row(24, {"v3_and_below_transactional_id": "t", "v3_and_below_topics": [{"name": "open", "partitions": [0]}]},
        ((WRITE, TRANSACTION), (WRITE, TOPIC)), version=3),
    Row(24, {"transactions": [{"transactional_id": "t", "topics": [{"name": "open", "partitions": [0]}]}]},
        ((ACTION, CLUSTER),)),
    Row(25, {**IN_TXN, "group_id": "g"}, ((WRITE, TRANSACTION), (READ, GROUP))),
    Row(26, IN_TXN, ((WRITE, TRANSACTION),)),
    cluster(27, ALTER, ACTION, markers=[{"producer_id": 9, "topics": [{"name": "open", "partition_indexes": [0]}]}]),
    Row(28, {**IN_TXN, "group_id": "g", "topics": [NAMED]},
        ((WRITE, TRANSACTION), (READ, GROUP), (READ, TOPIC))),
    cluster(29, DESCRIBE, resource_type_filter=2, pattern_type_filter=3, operation=1, permission_type=1),
    cluster(30, ALTER, creations=[{"resource_type": 1}]),
    cluster(31, ALTER, filters=[{"resource_type_filter": 2, "resource_name_filter": "nowhere", "operation": 1,
                                 "pattern_type_filter": 3, "permission_type": 1}]),
    Row(32, config(2, "open"), ((DESCRIBE_CONFIGS, TOPIC),)),
    Row(32, config(32, "g"), ((DESCRIBE_CONFIGS, GROUP),)),
    Row(32, config(4, "1"), ((DESCRIBE_CONFIGS, CLUSTER),)),
    Row(33, config(2, "open", **RESOURCE) | {"validate_only": True}, ((ALTER_CONFIGS, TOPIC),)),
    Row(33, config(32, "g", configs=[]) | {"validate_only": True}, ((ALTER_CONFIGS, GROUP),)),
    Row(33, config(4, "1", configs=[]) | {"validate_only": True}, ((ALTER_CONFIGS, CLUSTER),)),
    cluster(34, ALTER, dirs=[{"path": "/nowhere", "topics": [{"name": "open", "partitions": [0]}]}]),
    cluster(35, DESCRIBE, topics=None),
    Row(37, {"topics": [{"name": "open", "count": 3}], "validate_only": True}, ((ALTER, TOPIC),)),
    Row(42, {"groups_names": ["g"]}, ((DELETE, GROUP),)),
    cluster(43, ALTER, topic_partitions=[{"topic": "open", "partitions": [0]}]),
    Row(44, config(2, "open", **RESOURCE) | {"validate_only": True}, ((ALTER_CONFIGS, TOPIC),)),
    Row(44, config(32, "g", configs=[]) | {"validate_only": True}, ((ALTER_CONFIGS, GROUP),)),
    Row(44, config(4, "1", configs=[]) | {"validate_only": True}, ((ALTER_CONFIGS, CLUSTER),)),
    cluster(45, ALTER, topics=[{"name": "open", "partitions": [{"partition_index": 0, "replicas": None}]}]),
    cluster(46, DESCRIBE, topics=None),
    Row(47, {"group_id": "g", "topics": [NAMED]}, ((DELETE, GROUP), (READ, TOPIC))),
    cluster(48, DESCRIBE_CONFIGS),
    cluster(49, ALTER_CONFIGS, validate_only=True, entries=[
        {"entity": [{"entity_type": "user", "entity_name": "u"}], "ops": [{"key": "producer_byte_rate", "value": 9.0}]}
    ]),
    cluster(50, DESCRIBE, users=[{"name": "nobody"}]),
    cluster(51, ALTER, deletions=[{"name": "nobody", "mechanism": 1}]),
    broker_api(52, topics=[{"topic_name": "x", "partitions": [{"partition_index": 0}]}]),
    broker_api(53),
    broker_api(54),
    cluster(55, DESCRIBE, topics=[{"topic_name": "__cluster_metadata", "partitions": PARTITIONS}]),
    broker_api(56, broker_id=77),
    cluster(57, ALTER, feature_updates=[{"feature": "no.such", "max_version_level": 1}], validate_only=True),
    broker_api(58, request_data=b"", client_host_address=b"1234"),
    broker_api(59),
    cluster(60, ALTER, role="CONTROLLER", endpoint_type=2),
    Row(61, {"topics": [{"name": "open", "partition_indexes": [0]}]}, ((READ, TOPIC),)),
    broker_api(62, broker_id=77, cluster_id="another"),
    broker_api(63, broker_id=77),
    cluster(64, ALTER, broker_id=77),
    Row(65, {"transactional_ids": ["t"]}, ((DESCRIBE, TRANSACTION),)),
    broker_api(67, broker_id=77),
    Row(68, {"group_id": "g", "member_id": "m", "member_epoch": 0, "rebalance_timeout_ms": 1000,
             "subscribed_topic_names": ["open"], "topic_partitions": []}, ((READ, GROUP), (DESCRIBE, TOPIC))),
    Row(69, {"group_ids": ["g"]}, ((DESCRIBE, GROUP),)),
    broker_api(70, controller_id=77),
    broker_api(73, broker_id=77),
    cluster(74, DESCRIBE_CONFIGS),
    Row(75, {"topics": [{"name": "open"}]}, ((DESCRIBE, TOPIC),)),
    Row(76, {"group_id": "g", "member_id": "m", "member_epoch": 0, "subscribed_topic_names": ["open"]},
        ((READ, GROUP), (DESCRIBE, TOPIC))),
    Row(77, {"group_ids": ["g"]}, ((DESCRIBE, GROUP),)),
    Row(78, {"group_id": "g", "member_id": "A" * 22, "max_records": 1, "topics": [
        {"topic_id": OPEN_ID, "partitions": PARTITIONS}]}, ((READ, GROUP), (READ, TOPIC))),
    Row(79, {"group_id": "g", "member_id": "A" * 22, "share_session_epoch": 1, "topics": [
        {"topic_id": OPEN_ID, "partitions": [{"partition_index": 0, "acknowledgement_batches": [ACKNOWLEDGED]}]}]},
        ((READ, GROUP), (READ, TOPIC)), before=(SHARE_SESSION,)),
    *(Row(79, {"group_id": "g", "member_id": SHARE_OPERATOR, "share_session_epoch": -1, "topics": [
        {"topic_id": OPEN_ID, "partitions": partitions}]}, ((READ, GROUP), (READ, TOPIC)))
      for partitions in (PARTITIONS, [{"partition_index": 0, "acknowledgement_batches": [ACKNOWLEDGED]}])),
    cluster(80, ALTER, voter_id=77),
    cluster(81, ALTER, voter_id=77),
    broker_api(82, voter_id=77),
    *(broker_api(key, **STATE) for key in (83, 84, 85, 86, 87)),
    Row(88, {"group_id": "g", "member_id": "m", "member_epoch": 0, "rebalance_timeout_ms": 1000, "active_tasks": [],
             "standby_tasks": [], "warmup_tasks": [],
             "topology": {"subtopologies": [{"subtopology_id": "0", "source_topics": ["open"]}]}},
        ((READ, GROUP), (DESCRIBE, TOPIC))),
    Row(89, {"group_ids": ["g"]}, ((DESCRIBE, GROUP),)),
    Row(90, {"groups": [{"group_id": "g", "topics": [{"topic_name": "open", "partitions": [0]}]}]},
        ((DESCRIBE, GROUP), (DESCRIBE, TOPIC)), before=(COORDINATOR, SHARE_MEMBER)),
    Row(91, {"group_id": "g", "topics": [{"topic_name": "open", "partitions": PARTITIONS}]},
        ((READ, GROUP), (READ, TOPIC))),
    Row(92, {"group_id": "g", "topics": [{"topic_name": "open"}]}, ((DELETE, GROUP), (READ, TOPIC))),
]  # fmt: skip


def made(kind: type[Struct], fields: Fields, ids: dict[object, bytes]) -> Struct:
    """Returns a message from nested dicts."""
    known: Fields = {}
    for field in kind.FIELDS:
        if field.name not in fields:
            continue
        value = fields[field.name]
        if isinstance(value, list) and isinstance(field.item, type):
            value = [made(field.item, item, ids) for item in value]
        if isinstance(value, dict) and isinstance(field.item, type):
            value = made(field.item, value, ids)
        known[field.name] = ids[value] if value is OPEN_ID else value
    assert known.keys() == fields.keys(), f"{kind.__name__} has no field {fields.keys() - known.keys()}"
    return kind(**known)


def codes(answer: Any) -> Iterator[int]:
    """Yields all error codes of a response, at every depth."""
    for field in type(answer).FIELDS:
        value = getattr(answer, field.name)
        if field.name.endswith("error_code") and value:
            yield value
        if isinstance(value, Struct):
            yield from codes(value)
        elif isinstance(value, list) and isinstance(field.item, type):
            for item in value:
                yield from codes(item)


DENIED = frozenset(CODES.values())


async def refusals(clients: Clients, row: Row, principal: str | None, request: Message) -> set[int]:
    answer = await clients.ask(principal, request, version=row.version, role=row.role)
    if isinstance(answer, Close):  # the API's response has no error code for a request without items
        return {ErrorCode.CLUSTER_AUTHORIZATION_FAILED} if "authorized" in answer.reason else set()
    return set(codes(answer)) & DENIED


def name_of(row: Row, resource: AclResource) -> str:
    return "nowhere" if row.key == 20 else NAMES[resource]


def acls_of(row: Row) -> list[AclCreation]:
    """Returns the ACLs of each user in a row.

    The user `all` has every ACL of the row. The users `no0`, `other0` and `deny0` test its first ACL, `no1`, `other1`
    and `deny1` its second ACL, and so on.
    """

    def allow(user: str, need: Need, *, deny: bool = False) -> AclCreation:
        operation, resource = need
        return acl(f"User:{user}", operation, resource, name_of(row, resource), deny=deny)

    found = [allow("all", need) for need in row.needs]
    for number, missing in enumerate(row.needs):
        rest = [need for need in row.needs if need is not missing]
        found += [allow(f"{case}{number}", need) for case in ("no", "other") for need in rest]
        found += [allow(f"deny{number}", need) for need in row.needs]
        found.append(allow(f"deny{number}", missing, deny=True))
        enough = {missing[0], *IMPLIED_BY.get(missing[0], ()), *(one for one, _ in (*row.instead, *rest))}
        others = [each for each in Operation if each > Operation.ALL and each not in enough]
        found += [allow(f"other{number}", (each, missing[1])) for each in others]
    return found + [allow(f"instead{number}", need) for number, need in enumerate(row.instead)]


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_every_api_requires_the_same_acls_and_returns_the_same_error_codes_as_kafka(row: Row) -> None:
    async def scenario(clients: Clients) -> None:
        named = await clients.ask(ADMIN, MetadataRequest(topics=None))
        ids: dict[object, bytes] = {OPEN_ID: next(each.topic_id for each in named.topics if each.name == "open")}
        created = await clients.ask(ADMIN, CreateAclsRequest(creations=acls_of(row)))
        assert {each.error_code for each in created.results} == {0}
        request = made(request_class(row.key), row.fields, ids)
        assert isinstance(request, Message)

        async def refused(principal: str | None) -> set[int]:
            for key, fields in row.before:
                prepared = made(request_class(key), fields, ids)
                assert isinstance(prepared, Message)
                await clients.ask(ADMIN, prepared)
            return await refusals(clients, row, principal, request)

        first = {CODES[row.needs[0][1]]}
        if row.key == 19:  # the topic's own code, also where CREATE on the cluster would do
            first = {CODES[TOPIC]}
        assert await refused(None) >= first
        assert await refused("User:nobody") >= first
        for number, (_, resource) in enumerate(row.needs):
            code = first if number == 0 else {CODES[resource]}
            for case in ("no", "other", "deny"):
                assert await refused(f"User:{case}{number}") == code, f"{case}{number}"
        for number in range(len(row.instead)):
            assert await refused(f"User:instead{number}") == set()
        assert await refused("User:all") == set()

    with_clients(scenario, **{"super.users": ADMIN, **dict(row.settings)})


def test_every_served_api_has_a_row_in_the_table_of_required_acls() -> None:
    assert {row.key for row in ROWS} == HANDLERS.keys() - NEVER_REFUSED - TOKENS
