"""Lists every declared message class, and generates messages of any class and version."""

import importlib
import pkgutil
from collections.abc import Iterator
from functools import cache
from typing import Any

from hypothesis import strategies as st

import penstock.protocol.messages
import penstock.protocol.persisted
from penstock.protocol.compile import is_flexible
from penstock.protocol.schema import Field, Message, Struct

UNKNOWN_TAGS = st.none() | st.dictionaries(st.integers(64, 2**31), st.binary(max_size=4), min_size=1, max_size=2)

_BOUNDS = {
    "int8": (-(2**7), 2**7 - 1),
    "int16": (-(2**15), 2**15 - 1),
    "int32": (-(2**31), 2**31 - 1),
    "int64": (-(2**63), 2**63 - 1),
    "uint16": (0, 2**16 - 1),
    "uint32": (0, 2**32 - 1),
}
_SCALARS: dict[str, st.SearchStrategy[Any]] = {
    **{kind: st.integers(low, high) for kind, (low, high) in _BOUNDS.items()},
    "boolean": st.booleans(),
    "float64": st.floats(allow_nan=False, allow_infinity=False),
    "string": st.text(max_size=6) | st.just("x" * 130),
    "binary": st.binary(max_size=6) | st.just(b"y" * 130),
    "records": st.binary(max_size=6) | st.just(b"z" * 130),
    "uuid": st.binary(min_size=16, max_size=16),
}


def message_classes() -> Iterator[type[Message]]:
    for package in (penstock.protocol.messages, penstock.protocol.persisted):
        for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
            for value in vars(importlib.import_module(module.name)).values():
                if isinstance(value, type) and issubclass(value, Message) and value.__module__ == module.name:
                    yield value


def version_id(value: object) -> str:
    return value.__name__ if isinstance(value, type) else f"v{value}"


def field_values(field: Field, version: int, flexible: bool, unknown_tags: bool) -> st.SearchStrategy[Any]:
    if field.kind == "array":
        item = field.item
        values: st.SearchStrategy[Any] = st.lists(
            struct_values(item, version, flexible, unknown_tags) if isinstance(item, type) else _SCALARS[item],
            max_size=2,
        )
    elif field.kind == "struct":
        assert isinstance(field.item, type)
        values = struct_values(field.item, version, flexible, unknown_tags)
    else:
        values = _SCALARS[field.kind]
    return st.none() | values if field.nullable_in(version) else values


@cache
def struct_values(cls: type[Struct], version: int, flexible: bool, unknown_tags: bool) -> st.SearchStrategy[Struct]:
    values = {
        field.name: field_values(field, version, flexible, unknown_tags)
        for field in cls.FIELDS
        if field.exists_in(version)
    }
    if flexible and unknown_tags:
        values["unknown_tagged_fields"] = UNKNOWN_TAGS
    return st.builds(cls, **values)


def messages(cls: type[Message], version: int, *, unknown_tags: bool = True) -> st.SearchStrategy[Any]:
    return struct_values(cls, version, is_flexible(cls, version), unknown_tags)
