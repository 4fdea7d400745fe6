"""Builds the error response of any API from the schemas of its request and response.

If a Kafka request names several partitions, topics, resources or groups, the response has an error code for each of
them; otherwise the error code is at the top level. This module pairs each array of a request with the array of the
response that has its results. So `error_response` can report an error for every requested partition, and fault rules
can use `split`, `merge` and `overwrite` to fail only some partitions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from penstock.net.reply import CLOSE, Close
from penstock.protocol.apis import OFFSET_FETCH, PRODUCE, response_class
from penstock.protocol.errors import ErrorCode
from penstock.protocol.messages.api_51_alter_user_scram_credentials import AlterUserScramCredentialsResult
from penstock.protocol.schema import Field, Struct

TOPIC_NAMES = ("name", "topic", "topic_name")
PARTITION_NUMBERS = ("partition_index", "partition", "index", "partition_id")
#: Kinds of fields that identify an item if request and response have a field of the same name.
IDENTITY_KINDS = ("string", "uuid")
NOT_IDENTITIES = ("error_message", "metadata", "protocol_type", "protocol_name", "rack_id")
IDENTITY_NUMBERS = ("resource_type", "producer_id")
# Numbers that are set to -1 beside an error, because their declared default is a valid value.
UNKNOWN_NUMBERS = ("base_offset", "high_watermark", "committed_offset", "low_watermark", "node_id", "port")
DESCRIBE_USER_SCRAM_CREDENTIALS = 50  # has the error at the top level and for each user
ALTER_USER_SCRAM_CREDENTIALS = 51  # its request has two arrays of users, its response one
ALTER_REPLICA_LOG_DIRS = 34  # its request groups partitions by directory, its response by topic
# An error of the whole request is reported at the top level only, not for each item: LeaveGroup, DescribeLogDirs,
# OffsetDelete.
TOP_LEVEL_APIS = frozenset({13, 35, 47})
OFFSET_FETCH_AT_TOP = range(2, 8)  # versions of OffsetFetch that do so, too
# Errors of a Fetch as a whole, never of a partition.
SESSION_ERRORS = frozenset({ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH})


class Target(NamedTuple):
    """Names the topic and partition of one item of a request; a field is None if the item doesn't name it."""

    topic: str | None
    topic_id: bytes | None
    partition: int | None


Matches = Callable[[Target], bool]


def error_response(
    api_key: int, version: int, request: Any, code: ErrorCode, message: str | None = None
) -> Struct | Close:
    """Returns a response with the error `code` for every item of the request.

    Returns CLOSE if the client can get the error only as a closed connection: the response has no field for an error
    code, or the request is a Produce with acks=0.
    """
    if api_key == PRODUCE and request.acks == 0:
        return CLOSE
    response_type: type[Struct] = response_class(api_key)
    response: Any = response_type()
    if api_key == ALTER_USER_SCRAM_CREDENTIALS:
        names = sorted({each.name for each in (*request.deletions, *request.upsertions)})
        response.results = [
            AlterUserScramCredentialsResult(user=name, error_code=code, error_message=message) for name in names
        ]
        return response  # type: ignore[no-any-return]
    at_top = api_key in TOP_LEVEL_APIS or (api_key == OFFSET_FETCH and version in OFFSET_FETCH_AT_TOP)
    items = None if at_top or code in SESSION_ERRORS else pair(type(request), response_type, version)
    asked = getattr(request, items.request.name) if items is not None else None
    if api_key == ALTER_REPLICA_LOG_DIRS:
        asked = [topic for directory in request.dirs for topic in directory.topics]
    if items is not None and asked:
        deepest = api_key != OFFSET_FETCH  # since v8 each group of OffsetFetch has its own error code
        reported = [_report(items.response.item, item, version, code, message, deepest=deepest) for item in asked]
        setattr(response, items.response.name, reported)
        if api_key == DESCRIBE_USER_SCRAM_CREDENTIALS:
            _set_error(response, version, code, message)
        return response  # type: ignore[no-any-return]
    return response if _set_error(response, version, code, message) else CLOSE


def targets(request: Any, version: int) -> list[Target]:
    """Returns all topics and partitions that the request names; an empty list if its list of topics is null."""
    return list(_targets(request, version, Target(None, None, None)))


def split(request: Any, version: int, matches: Matches) -> tuple[Any, Any]:
    """Splits a request in two: the first has the items that don't match, the second has the matching items.

    Returns None instead of a request that would have no items.
    """
    kept, hit = _split(request, version, matches, Target(None, None, None))
    return kept, hit


def merge(response: Any, extra: Any, version: int) -> Any:
    """Adds the items of `extra` to `response`. If both contain the same topic, its partitions are merged."""
    for field in _struct_arrays(type(response), version):
        mine, theirs = getattr(response, field.name), getattr(extra, field.name)
        if not theirs:
            continue
        if not mine:
            setattr(response, field.name, theirs)
            continue
        known = {identity(item): item for item in mine}
        for item in theirs:
            same = known.get(identity(item))
            if same is None:
                mine.append(item)
            else:
                merge(same, item, version)
    return response


def overwrite(response: Any, version: int, code: ErrorCode, matches: Matches) -> bool:
    """Replaces every matching item of a response with an error. Returns True if at least one item matched."""
    return _overwrite(response, version, code, matches, Target(None, None, None))


# --- pairing request and response ---------------------------------------------------------------------------------


class Pair(NamedTuple):
    request: Field
    response: Field


def pair(request_type: type[Struct], response_type: type[Struct], version: int) -> Pair | None:
    reports = next((field for field in _struct_arrays(response_type, version) if _reports(field.item, version)), None)
    asks = next((field for field in request_type.FIELDS if field.kind == "array" and field.exists_in(version)), None)
    if reports is None or asks is None:
        return None
    return Pair(asks, reports)


def _struct_arrays(struct_type: type[Struct], version: int) -> Iterator[Field]:
    for field in struct_type.FIELDS:
        if field.kind == "array" and isinstance(field.item, type) and field.exists_in(version):
            yield field


def _reports(struct_type: Any, version: int) -> bool:
    """Returns True if a response item of this type, or an item nested in it, has an error code."""
    return _error_field(struct_type, version) is not None or any(
        _reports(field.item, version) for field in _struct_arrays(struct_type, version)
    )


def _error_field(struct_type: Any, version: int) -> str | None:
    for field in struct_type.FIELDS:
        if field.kind == "int16" and field.name.endswith("error_code") and field.exists_in(version):
            return str(field.name)
    return None


def _set_error(item: Any, version: int, code: ErrorCode, message: str | None) -> bool:
    name = _error_field(type(item), version)
    if name is None:
        return False
    setattr(item, name, int(code))
    for field in type(item).FIELDS:
        if field.name in UNKNOWN_NUMBERS and field.exists_in(version):
            setattr(item, field.name, -1)
    if message is not None and any(f.name == "error_message" and f.exists_in(version) for f in type(item).FIELDS):
        item.error_message = message
    return True


def _report(
    response_type: Any, asked: Any, version: int, code: ErrorCode, message: str | None, *, deepest: bool = True
) -> Any:
    """Returns the response item for one item of the request, with the item's id or name and the error code.

    The error code is set on the innermost items or, without `deepest`, at the first level that has an error code.
    """
    item = response_type()
    if not isinstance(asked, Struct):  # a bare name or number
        _name(item, asked)
    else:
        _copy_identity(item, asked, version)
        has_code = _error_field(response_type, version) is not None
        below = pair(type(asked), response_type, version) if deepest or not has_code else None
        inner = getattr(asked, below.request.name) if below is not None else None
        if below is not None and inner:
            reported = [_report(below.response.item, each, version, code, message) for each in inner]
            setattr(item, below.response.name, reported)
            return item
    _set_error(item, version, code, message)
    return item


def _name(item: Any, value: Any) -> None:
    kinds = (
        ("string",)
        if isinstance(value, str)
        else ("uuid",)
        if isinstance(value, bytes)
        else ("int32", "int16", "int64")
    )
    for field in type(item).FIELDS:
        if field.kind in kinds and not field.name.startswith("error_"):
            setattr(item, field.name, value)
            return


def _copy_identity(item: Any, asked: Any, version: int) -> None:
    theirs = {field.name for field in type(asked).FIELDS}
    for field in type(item).FIELDS:
        if field.name in PARTITION_NUMBERS:
            source = next((name for name in PARTITION_NUMBERS if name in theirs), None)
        elif field.name in TOPIC_NAMES:
            source = next((name for name in TOPIC_NAMES if name in theirs), None)
        elif field.name in theirs and field.name not in NOT_IDENTITIES:
            source = field.name if field.kind in IDENTITY_KINDS or field.name in IDENTITY_NUMBERS else None
        else:
            source = None
        if source is not None and field.exists_in(version):
            value = getattr(asked, source)
            if value is not None or field.nullable_in(version):
                setattr(item, field.name, value)
        elif field.name == "entity":  # a quota's entity is a list of (type, name)
            item.entity = [_report(field.item, part, version, ErrorCode.NONE, None) for part in asked.entity]


def identity(item: Any) -> tuple[Any, ...]:
    names = [
        field.name
        for field in type(item).FIELDS
        if (field.kind in IDENTITY_KINDS and field.name not in NOT_IDENTITIES) or field.name in PARTITION_NUMBERS
    ]
    return tuple(getattr(item, name) for name in names)


# --- topics and partitions of a request ---------------------------------------------------------------------------


def _narrow(item: Any, outer: Target) -> Target:
    topic, topic_id, partition = outer
    for field in type(item).FIELDS:
        value = getattr(item, field.name)
        if field.name in TOPIC_NAMES and field.kind == "string":
            topic = value or topic
        elif field.name == "topic_id":
            topic_id = value if any(value) else topic_id
        elif field.name in PARTITION_NUMBERS and field.kind == "int32":
            partition = value
    return Target(topic, topic_id, partition)


def _item_target(field: Field, item: Any, outer: Target) -> Target:
    """Returns the target of an item.

    An item is a struct, a bare topic name (DeleteTopics before v6) or a partition number.
    """
    if isinstance(item, Struct):
        return _narrow(item, outer)
    if isinstance(item, str) and "topic" in field.name:
        return outer._replace(topic=item)
    if isinstance(item, int) and "partition" in field.name:
        return outer._replace(partition=item)
    return outer


def _topic_arrays(struct_type: type[Struct], version: int) -> Iterator[Field]:
    for field in struct_type.FIELDS:
        if field.kind == "array" and field.exists_in(version) and "forgotten" not in field.name:
            yield field


def _targets(struct: Any, version: int, outer: Target) -> Iterator[Target]:
    for field in _topic_arrays(type(struct), version):
        for item in getattr(struct, field.name) or ():
            target = _item_target(field, item, outer)
            below = list(_targets(item, version, target)) if isinstance(item, Struct) else []
            if below:
                yield from below
            elif target != outer:
                yield target


def _split(struct: Any, version: int, matches: Matches, outer: Target) -> tuple[Any, Any]:
    kept, hit = clone(struct), clone(struct)
    any_kept = any_hit = False
    for field in _topic_arrays(type(struct), version):
        items = getattr(struct, field.name)
        if not items:
            continue
        kept_items, hit_items = [], []
        for item in items:
            target = _item_target(field, item, outer)
            if isinstance(item, Struct) and any(_targets(item, version, target)):
                kept_item, hit_item = _split(item, version, matches, target)
            else:
                kept_item, hit_item = (None, item) if matches(target) else (item, None)
            if kept_item is not None:
                kept_items.append(kept_item)
            if hit_item is not None:
                hit_items.append(hit_item)
        setattr(kept, field.name, kept_items)
        setattr(hit, field.name, hit_items)
        any_kept |= bool(kept_items)
        any_hit |= bool(hit_items)
    return (kept if any_kept else None), (hit if any_hit else None)


def clone(struct: Any) -> Any:
    new = type(struct)()
    for field in type(struct).FIELDS:
        setattr(new, field.name, getattr(struct, field.name))
    return new


def _overwrite(struct: Any, version: int, code: ErrorCode, matches: Matches, outer: Target) -> bool:
    found = False
    for field in _struct_arrays(type(struct), version):
        items = getattr(struct, field.name)
        for at, item in enumerate(items or ()):
            target = _narrow(item, outer)
            if target != outer and matches(target) and _error_field(type(item), version) is not None:
                fresh = type(item)()
                _copy_identity(fresh, item, version)
                _set_error(fresh, version, code, None)
                items[at] = fresh
                found = True
            else:
                found |= _overwrite(item, version, code, matches, target)
    return found
