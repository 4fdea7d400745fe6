"""Tests that an independent codec (kio) reads Penstock's bytes and writes the same bytes."""

import dataclasses
import io
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from kio.index import load_payload_module
from kio.schema.errors import ErrorCode as KioErrorCode
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType
from wire_strategies import field_values

from penstock.protocol.apis import APIS, request_class, response_class
from penstock.protocol.codec import decode, encode
from penstock.protocol.compile import is_flexible
from penstock.protocol.schema import FIRST_OWN_TAG, Field, Message, Struct
from penstock.protocol.uuid import ZERO_UUID

pytestmark = pytest.mark.exhaustive

QUICK = settings(
    deadline=None,
    database=None,
    phases=(Phase.generate, Phase.shrink),
    suppress_health_check=list(HealthCheck),
)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LAST_DATE_MS = 4_000_000_000_000

NARROWED: dict[str, st.SearchStrategy[Any]] = {
    "error_code": st.sampled_from([code.value for code in KioErrorCode]),
    "datetime_i64": st.integers(0, LAST_DATE_MS),
    "timedelta_i32": st.integers(0, 2**31 - 1),
    "timedelta_i64": st.integers(0, LAST_DATE_MS),
}
"""Kafka types that kio makes richer objects of: only values that such an object can hold are generated."""


def kio_class(cls: type[Message], version: int) -> Any:
    entity_type = EntityType.request if cls.__name__.endswith("Request") else EntityType.response
    return getattr(load_payload_module(cls.API_KEY, version, entity_type), cls.__name__)


def pairs_of_fields(cls: type[Struct], version: int, theirs: Any) -> list[tuple[Field, Any]]:
    """Returns pairs of corresponding fields of kio and Penstock, by position, because some field names differ."""
    ours = [field for field in cls.FIELDS if field.exists_in(version) and (field.tag or 0) < FIRST_OWN_TAG]
    return list(zip(ours, dataclasses.fields(theirs), strict=True))


def nested_class(their_field: Any) -> Any:
    """Returns the dataclass inside `X`, `X | None`, `tuple[X, ...]` or `tuple[X, ...] | None`."""
    pending = [their_field.type]
    while pending:
        candidate = pending.pop()
        if dataclasses.is_dataclass(candidate):
            return candidate
        pending.extend(getattr(candidate, "__args__", ()))
    raise AssertionError(f"kio's annotation has no struct: {their_field}")


@cache
def values_for_both(cls: type[Struct], version: int, flexible: bool, theirs: Any) -> st.SearchStrategy[Any]:
    values = {}
    for field, their_field in pairs_of_fields(cls, version, theirs):
        narrowed = NARROWED.get(their_field.metadata.get("kafka_type", ""))
        if isinstance(field.item, type):
            inner = values_for_both(field.item, version, flexible, nested_class(their_field))
            value = st.lists(inner, max_size=2) if field.kind == "array" else inner
            values[field.name] = st.none() | value if field.nullable_in(version) else value
        elif narrowed is None:
            values[field.name] = field_values(field, version, flexible, False)
        else:
            values[field.name] = st.lists(narrowed, max_size=2) if field.kind == "array" else narrowed
    return st.builds(cls, **values)


def plain(value: Any) -> Any:
    """Converts a value of kio to the form that Penstock uses."""
    match value:
        case timedelta():
            return value // timedelta(milliseconds=1)
        case datetime():
            return (value - EPOCH) // timedelta(milliseconds=1)
        case KioErrorCode():
            return value.value
        case UUID():
            return value.bytes
        case tuple():
            return [plain(element) for element in value]
        case _:
            return value


def without_none(ids: Any, field: Field) -> Any:
    """Replaces None by the zero id, because kio reads the zero id as None."""
    if isinstance(ids, list):
        return [one or ZERO_UUID for one in ids]
    return ids or ZERO_UUID if field.kind == "uuid" else ids


def assert_same(ours: Struct, theirs: Any, version: int) -> None:
    for field, their_field in pairs_of_fields(type(ours), version, type(theirs)):
        mine, other = getattr(ours, field.name), getattr(theirs, their_field.name)
        if isinstance(mine, Struct):
            assert_same(mine, other, version)
        elif isinstance(mine, list) and mine and isinstance(mine[0], Struct):
            assert len(mine) == len(other)
            for one, two in zip(mine, other, strict=True):
                assert_same(one, two, version)
        elif "uuid" in (field.kind, field.item):
            assert mine == without_none(plain(other), field), field.name
        else:
            assert mine == plain(other), field.name


def agree(message: Message, version: int, theirs: Any) -> None:
    wire = encode(message, version)
    entity, size = entity_reader(theirs)(wire, 0)
    assert size == len(wire)
    assert_same(message, entity, version)
    with io.BytesIO() as buffer:
        entity_writer(theirs)(buffer, entity)
        assert buffer.getvalue() == wire
    assert decode(type(message), version, wire) == message


def check_version(cls: type[Message], version: int, examples: int) -> None:
    theirs = kio_class(cls, version)

    @settings(QUICK, max_examples=examples)
    @given(message=values_for_both(cls, version, is_flexible(cls, version), theirs))
    def run(message: Message) -> None:
        agree(message, version, theirs)

    run()


@pytest.mark.parametrize("key", APIS, ids=lambda key: APIS[key].name)
def test_kio_and_penstock_encode_every_version_to_the_same_bytes(key: int) -> None:
    for cls in (request_class(key), response_class(key)):
        for version in range(cls.MIN_VERSION, cls.MAX_VERSION + 1):
            check_version(cls, version, examples=3)


@pytest.mark.slow
@pytest.mark.parametrize("key", APIS, ids=lambda key: APIS[key].name)
def test_kio_and_penstock_encode_many_messages_to_the_same_bytes(key: int) -> None:
    for cls in (request_class(key), response_class(key)):
        for version in range(cls.MIN_VERSION, cls.MAX_VERSION + 1):
            check_version(cls, version, examples=30)
