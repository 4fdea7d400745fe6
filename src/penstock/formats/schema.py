"""Defines Avro, Protobuf and JSON schemas. Each schema decodes data with or without a registry prefix. Pure code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from penstock.formats import avro, protobuf
from penstock.formats.avro import Reader
from penstock.formats.descriptors import find_message, link, message_at
from penstock.formats.framing import REGISTRY_PREFIX, message_path
from penstock.formats.gradual_json import loads
from penstock.formats.limits import FormatError, Room, check_depth, exact, finite


@dataclass(frozen=True, slots=True)
class AvroSchema:
    origin: str
    """The name under which a person finds the schema: a file, or an id of the registry."""
    reader: Reader
    kind: ClassVar[str] = "avro"

    @staticmethod
    def compile(origin: str, text: str, references: Sequence[str] = ()) -> AvroSchema:
        return AvroSchema(origin, avro.compile_schema(text, references))

    def decode(self, data: bytes, framed: bool, room: Room) -> Any:
        return avro.decode(self.reader, data, REGISTRY_PREFIX if framed else 0, room)


@dataclass(frozen=True, slots=True)
class ProtobufSchema:
    origin: str
    file: Any
    """The linked descriptor of the file with the message type."""
    message: str = ""
    """The message type of data without a prefix; empty for the first type of the file."""
    kind: ClassVar[str] = "protobuf"

    @staticmethod
    def link(origin: str, files: Sequence[bytes], message: str = "") -> ProtobufSchema:
        file = link(files)
        if message:
            find_message(file, message)
        return ProtobufSchema(origin, file, message)

    def decode(self, data: bytes, framed: bool, room: Room) -> Any:
        path, start = message_path(data) if framed else ((0,), 0)
        by_name = self.message and not framed
        message_type = find_message(self.file, self.message) if by_name else message_at(self.file, path)
        return protobuf.decode(message_type, data, start, room)


@dataclass(frozen=True, slots=True)
class JsonSchema:
    """Represents a JSON schema. Its content is not kept, because JSON can be decoded without a schema."""

    origin: str
    kind: ClassVar[str] = "json"

    def decode(self, data: bytes, framed: bool, room: Room) -> Any:
        return decode_json(data[REGISTRY_PREFIX:] if framed else data, room)


Schema = AvroSchema | ProtobufSchema | JsonSchema


def decode_json(data: bytes, room: Room) -> Any:
    """Parses JSON. Integers that JavaScript would round, NaN and infinities become text. Raises FormatError."""
    try:
        return _bounded(loads(data), room, 0)
    except RecursionError:
        raise FormatError("the data is nested too deeply") from None
    except FormatError:
        raise
    except ValueError as error:
        raise FormatError(f"the data is not JSON: {error}") from None


def _bounded(value: Any, room: Room, depth: int) -> Any:
    check_depth(depth)
    room.take(len(value) if isinstance(value, str) else 0)
    match value:
        case bool() | None:
            return value
        case str():
            return value.encode(errors="replace").decode()  # a lone surrogate is no text
        case int():
            return exact(value)
        case float():
            return finite(value)
        case list():
            return [_bounded(each, room, depth + 1) for each in value]
    found = {}
    for name, each in value.items():
        room.take(len(name))
        found[name.encode(errors="replace").decode()] = _bounded(each, room, depth + 1)
    return found
