"""A typical request of every API that a client uses, in any of its versions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from oracle_peer import Peer

from penstock.protocol.apis import request_class
from penstock.protocol.schema import Message, Struct
from penstock.records.build import build_batch

Fields = dict[str, Any]

ONE = build_batch([(1000, b"k", b"v", ())])
PROTOCOL = {"name": "range", "metadata": b"\x00\x01"}


def typical(peer: Peer, key: int, topic: str, group: str) -> Fields:
    """Returns the fields of all versions together; `request` leaves out the fields that a version lacks."""
    topic_id = peer.topic_id(topic)
    named: Fields = {"name": topic, "topic": topic, "topic_id": topic_id, "topic_name": topic}
    makers: dict[int, Callable[[], Fields]] = {
        0: lambda: {
            "acks": -1,
            "timeout_ms": 1000,
            "topic_data": [{**named, "partition_data": [{"index": 0, "records": ONE}]}],
        },
        1: lambda: {
            "max_bytes": 1 << 20,
            "topics": [{**named, "partitions": [{"partition": 0, "partition_max_bytes": 1 << 20}]}],
        },
        2: lambda: {
            "replica_id": -1,
            "timeout_ms": 1000,
            "topics": [{**named, "partitions": [{"partition_index": 0, "timestamp": -1}]}],
        },
        3: lambda: {"topics": [{"name": topic}]},
        8: lambda: {
            "group_id": group,
            "generation_id_or_member_epoch": -1,
            "topics": [{**named, "partitions": [{"partition_index": 0, "committed_offset": 3}]}],
        },
        9: lambda: {
            "group_id": group,
            "topics": [{**named, "partition_indexes": [0]}],
            "groups": [{"group_id": group, "topics": [{**named, "partition_indexes": [0]}]}],
        },
        10: lambda: {"key": group, "coordinator_keys": [group]},
        11: lambda: {
            "group_id": peer.unique("joined"),
            "session_timeout_ms": 30_000,
            "rebalance_timeout_ms": 30_000,
            "protocol_type": "consumer",
            "protocols": [PROTOCOL],
        },
        12: lambda: {"group_id": group, "generation_id": 1, "member_id": "nobody"},
        13: lambda: {"group_id": group, "member_id": "nobody", "members": [{"member_id": "nobody"}]},
        14: lambda: {"group_id": group, "generation_id": 1, "member_id": "nobody"},
        15: lambda: {"groups": [group]},
        18: lambda: {"client_software_name": "oracle", "client_software_version": "1"},
        19: lambda: {
            "topics": [{"name": peer.unique("new"), "num_partitions": 2, "replication_factor": 1}],
            "validate_only": True,
        },
        20: lambda: {
            "topic_names": [peer.unique("nope")],
            "topics": [{"name": peer.unique("nope")}],
            "timeout_ms": 1000,
        },
        21: lambda: {"topics": [{**named, "partitions": [{"partition_index": 0, "offset": 0}]}]},
        22: lambda: {"transactional_id": None, "transaction_timeout_ms": 1000},
        23: lambda: {
            "replica_id": -1,
            "topics": [{**named, "partitions": [{"partition": 0, "leader_epoch": 0}]}],
        },
        24: lambda: {
            "v3_and_below_transactional_id": group,
            "v3_and_below_topics": [{**named, "partitions": [0]}],
            "transactions": [{"transactional_id": group, "topics": [{**named, "partitions": [0]}]}],
        },
        25: lambda: {"transactional_id": group, "producer_id": 9, "producer_epoch": 0, "group_id": group},
        26: lambda: {"transactional_id": group, "producer_id": 9, "producer_epoch": 0, "committed": True},
        32: lambda: {
            "resources": [{"resource_type": 2, "resource_name": topic, "configuration_keys": ["retention.ms"]}],
            "include_synonyms": True,
        },
        33: lambda: {
            "resources": [
                {"resource_type": 2, "resource_name": topic, "configs": [{"name": "retention.ms", "value": "9"}]}
            ],
            "validate_only": True,
        },
        35: lambda: {"topics": [{**named, "partitions": [0]}]},
        37: lambda: {
            "topics": [{"name": topic, "count": 4, "assignments": None}],
            "timeout_ms": 1000,
            "validate_only": True,
        },
        42: lambda: {"groups_names": [peer.unique("nope")]},
        43: lambda: {"topic_partitions": [{**named, "partitions": [0]}], "timeout_ms": 1000},
        44: lambda: {
            "resources": [
                {"resource_type": 2, "resource_name": topic, "configs": [{"name": "retention.ms", "value": "9"}]}
            ],
            "validate_only": True,
        },
        45: lambda: {"topics": [{**named, "partitions": [{"partition_index": 0, "replicas": [1]}]}]},
        46: lambda: {"topics": [{**named, "partition_indexes": [0]}]},
        47: lambda: {"group_id": group, "topics": [{**named, "partitions": [{"partition_index": 0}]}]},
        48: lambda: {"components": [{"entity_type": "user", "match": "nobody"}]},
        49: lambda: {
            "entries": [
                {
                    "entity": [{"entity_type": "user", "entity_name": "nobody"}],
                    "ops": [{"key": "producer_byte_rate", "value": 9.0}],
                }
            ],
            "validate_only": True,
        },
        57: lambda: {"feature_updates": [{"feature": "no.such", "max_version_level": 1}], "validate_only": True},
        60: lambda: {"include_cluster_authorized_operations": True},
        61: lambda: {"topics": [{**named, "partition_indexes": [1]}]},
        65: lambda: {"transactional_ids": [peer.unique("nobody")]},
        68: lambda: {"group_id": group, "member_id": "nobody", "member_epoch": 5},
        69: lambda: {"group_ids": [group]},
        74: lambda: {"resource_types": [8]},
        75: lambda: {"topics": [{"name": topic}]},
    }
    return makers[key]()


KEYS = [
    *(0, 1, 2, 3, 8, 9, 10, 11, 12, 13, 14, 15, 18, 19, 20, 21, 22, 23, 24, 25, 26),
    *(32, 33, 35, 37, 42, 43, 44, 45, 46, 47, 48, 49, 57, 60, 61, 65, 68, 69, 74, 75),
]


def request(key: int, version: int, fields: Fields) -> Message:
    made = _made(request_class(key), version, fields)
    assert isinstance(made, Message)
    return made


def _made(kind: type[Struct], version: int, fields: Fields) -> Struct:
    known: Fields = {}
    for field in kind.FIELDS:
        if field.name not in fields or not field.exists_in(version):
            continue
        value = fields[field.name]
        if isinstance(value, list) and isinstance(field.item, type):
            value = [_made(field.item, version, item) for item in value]
        known[field.name] = value
    return kind(**known)
