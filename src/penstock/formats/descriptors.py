"""Links Protobuf's file descriptors with package protobuf, and finds message types in them.

The descriptors come from `protoc --include_imports --descriptor_set_out`, or one by one from a schema registry.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

from penstock.formats.limits import FormatError

#: Files that registries leave out, because every Protobuf compiler has them.
WELL_KNOWN = frozenset(
    f"google/protobuf/{name}.proto"
    for name in (
        *("any", "api", "descriptor", "duration", "empty", "field_mask", "source_context", "struct", "timestamp"),
        *("type", "wrappers"),
    )
)
MISSING = "package protobuf is missing: run `pip install 'penstock[formats]'`"


def parse_set(data: bytes) -> list[bytes]:
    """Returns the encoded file descriptors of a descriptor set. Raises FormatError."""
    messages, errors = _library("descriptor_pb2"), _library("message")
    try:
        files = messages.FileDescriptorSet.FromString(data).file
    except errors.DecodeError:
        raise FormatError("the file is not a descriptor set of `protoc --descriptor_set_out`") from None
    if not files:
        raise FormatError("the file is a descriptor set without files")
    return [each.SerializeToString() for each in files]


def named_file(data: bytes, name: str) -> bytes:
    """Returns the file descriptor, still encoded, with its name changed to `name`. Raises FormatError.

    Other files import the file by this name.
    """
    messages, errors = _library("descriptor_pb2"), _library("message")
    try:
        file = messages.FileDescriptorProto.FromString(data)
    except errors.DecodeError:
        raise FormatError(f"{name} is not a file descriptor of Protobuf") from None
    file.name = name
    encoded: bytes = file.SerializeToString()
    return encoded


def link(files: Sequence[bytes]) -> Any:
    """Returns the descriptor of the last file, linked with the files that it imports. Raises FormatError.

    The imported files come before the files that import them.
    """
    messages, errors = _library("descriptor_pb2"), _library("message")
    pool = _library("descriptor_pool").DescriptorPool()
    added: dict[str, bytes] = {}
    name = ""
    try:
        for each in files:
            file = messages.FileDescriptorProto.FromString(each)
            for needed in file.dependency:
                if needed in WELL_KNOWN and needed not in added:
                    _add_well_known(pool, needed, added)
            name = file.name
            if added.setdefault(name, each) is each:
                pool.AddSerializedFile(each)
        return pool.FindFileByName(name)
    except (KeyError, TypeError, ValueError, errors.DecodeError) as error:
        raise FormatError(f"the descriptors can't be linked: {str(error)[:300]}") from None


def _add_well_known(pool: Any, name: str, added: dict[str, bytes]) -> None:
    file = import_module(name.removesuffix(".proto").replace("/", ".") + "_pb2").DESCRIPTOR
    for each in file.dependencies:
        if each.name not in added:
            _add_well_known(pool, each.name, added)
    added[name] = file.serialized_pb
    pool.AddSerializedFile(file.serialized_pb)


def find_message(file: Any, name: str) -> Any:
    """Returns the message type with this full name, from the file or from the files that it imports.

    Raises FormatError.
    """
    try:
        return file.pool.FindMessageTypeByName(name)
    except KeyError:
        raise FormatError(f"there is no message type {name[:200]!r} in {file.name}") from None


def message_at(file: Any, path: Sequence[int]) -> Any:
    """Returns the message type at a path of indexes. Raises FormatError.

    The path (1, 0) means: the first type that is nested in the file's second type.
    """
    types = list(file.message_types_by_name.values())
    found = None
    for index in path:
        if not 0 <= index < len(types):
            raise FormatError(f"{file.name} has no message type at {'.'.join(map(str, path))}")
        found = types[index]
        types = found.nested_types
    if found is None:
        raise FormatError(f"{file.name} has no message types")
    return found


def is_repeated(field: Any) -> bool:
    known = getattr(field, "is_repeated", None)  # since protobuf 6.31, where `label` is deprecated
    return bool(known) if known is not None else field.label == field.LABEL_REPEATED


def is_map(field: Any) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _library(name: str) -> Any:
    try:
        return import_module(f"google.protobuf.{name}")
    except ImportError:
        raise FormatError(MISSING) from None
