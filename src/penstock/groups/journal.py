"""Encodes and decodes records of `__consumer_offsets`.

A key starts with its type and a value with its version, both int16.
"""

from __future__ import annotations

from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.groups.turn import JournalRecord
from penstock.protocol.codec import DecodeError, decode, encode

if TYPE_CHECKING:
    from penstock.protocol.persisted.group.offset_commit import OffsetCommitValue

NO_EXPIRY = -1
_OFFSET_COMMIT = 1


class OffsetKey(NamedTuple):
    """Holds the key of an offset commit in little memory, because a load may read a million keys."""

    group: str
    topic: str
    partition: int


class _Kind(NamedTuple):
    module: str
    name: str
    value_version: int  # the version to write; all of Kafka's versions can be read


_KINDS: dict[int, _Kind] = {
    1: _Kind("offset_commit", "OffsetCommit", 4),
    2: _Kind("group_metadata", "GroupMetadata", 3),
    3: _Kind("consumer_group_metadata", "ConsumerGroupMetadata", 0),
    4: _Kind("consumer_group_partition_metadata", "ConsumerGroupPartitionMetadata", 0),
    5: _Kind("consumer_group_member_metadata", "ConsumerGroupMemberMetadata", 0),
    6: _Kind("consumer_group_target_assignment_metadata", "ConsumerGroupTargetAssignmentMetadata", 0),
    7: _Kind("consumer_group_target_assignment_member", "ConsumerGroupTargetAssignmentMember", 0),
    8: _Kind("consumer_group_current_member_assignment", "ConsumerGroupCurrentMemberAssignment", 0),
    10: _Kind("share_group_member_metadata", "ShareGroupMemberMetadata", 0),
    11: _Kind("share_group_metadata", "ShareGroupMetadata", 0),
    12: _Kind("share_group_target_assignment_metadata", "ShareGroupTargetAssignmentMetadata", 0),
    13: _Kind("share_group_target_assignment_member", "ShareGroupTargetAssignmentMember", 0),
    14: _Kind("share_group_current_member_assignment", "ShareGroupCurrentMemberAssignment", 0),
    15: _Kind("share_group_state_partition_metadata", "ShareGroupStatePartitionMetadata", 0),
    16: _Kind("consumer_group_regular_expression", "ConsumerGroupRegularExpression", 0),
    17: _Kind("streams_group_metadata", "StreamsGroupMetadata", 0),
    19: _Kind("streams_group_member_metadata", "StreamsGroupMemberMetadata", 0),
    20: _Kind("streams_group_target_assignment_metadata", "StreamsGroupTargetAssignmentMetadata", 0),
    21: _Kind("streams_group_target_assignment_member", "StreamsGroupTargetAssignmentMember", 0),
    22: _Kind("streams_group_current_member_assignment", "StreamsGroupCurrentMemberAssignment", 0),
    23: _Kind("streams_group_topology", "StreamsGroupTopology", 0),
}
_LEGACY_OFFSET_COMMIT = 0  # the same fields, written by brokers before 0.9
_classes: dict[int, tuple[type[Any], type[Any]]] = {}


def _classes_of(number: int) -> tuple[type[Any], type[Any]]:
    classes = _classes.get(number)
    if classes is None:
        kind = _KINDS[number]
        module = import_module(f"penstock.protocol.persisted.group.{kind.module}")
        classes = _classes[number] = (getattr(module, f"{kind.name}Key"), getattr(module, f"{kind.name}Value"))
    return classes


def encode_record(record: JournalRecord) -> tuple[bytes, bytes | None]:
    number: int = record.key.API_KEY
    key = number.to_bytes(2, "big") + encode(record.key, 0)
    if record.value is None:
        return key, None
    version = _offset_version(record.value) if number == _OFFSET_COMMIT else _KINDS[number].value_version
    return key, version.to_bytes(2, "big") + encode(record.value, version)


def _offset_version(value: OffsetCommitValue) -> int:
    """Returns the record version in which to write an offset commit.

    A commit with its own retention is written in version 1, because only this version has an expiry time.
    """
    return 1 if value.expire_timestamp != NO_EXPIRY else _KINDS[1].value_version


def decode_offset_key(key: bytes) -> OffsetKey:
    group, topic = _group_and_topic(key[2:-4])
    return OffsetKey(group, topic, int.from_bytes(key[-4:], "big", signed=True))


@lru_cache(maxsize=1024)
def _group_and_topic(names: bytes) -> tuple[str, str]:
    """Decodes the group and the topic of a key.

    The result is cached, because a group often commits many partitions of one topic in a row.
    """
    group_end = 2 + int.from_bytes(names[:2], "big")
    topic_end = group_end + 2 + int.from_bytes(names[group_end : group_end + 2], "big")
    if len(names) != topic_end:
        raise DecodeError("an offset commit's key has a wrong length")
    try:
        return str(names[2:group_end], "utf-8"), str(names[group_end + 2 :], "utf-8")
    except UnicodeDecodeError:
        raise DecodeError("an offset commit's key is not UTF-8") from None


def decode_offset_value(value: bytes) -> OffsetCommitValue:
    decoded: OffsetCommitValue = decode(_classes_of(_OFFSET_COMMIT)[1], int.from_bytes(value[:2], "big"), value, 2)
    return decoded


def decode_record(key: bytes | None, value: bytes | None) -> JournalRecord | None:
    """Decodes a record. Returns None for an unknown type.

    A newer version may have written such a record: it is not applied, but it stays in the log.
    """
    if key is None or len(key) < 2:
        return None
    number = int.from_bytes(key[:2], "big")
    if number in (_OFFSET_COMMIT, _LEGACY_OFFSET_COMMIT):
        return JournalRecord(decode_offset_key(key), value)  # the value is decoded on first use
    if number not in _KINDS:
        return None
    key_class, value_class = _classes_of(number)
    decoded_key = decode(key_class, 0, key, 2)
    if value is None:
        return JournalRecord(decoded_key, None)
    return JournalRecord(decoded_key, decode(value_class, int.from_bytes(value[:2], "big"), value, 2))
