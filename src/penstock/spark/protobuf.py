"""Decodes Protobuf messages with a descriptor file, which `protoc --include_imports --descriptor_set_out` writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from penstock.formats.descriptors import find_message, is_map, is_repeated, link, parse_set
from penstock.formats.limits import FormatError
from penstock.spark.errors import SourceError
from penstock.spark.options import ValueOptions

MAX_DEPTH = 32
_MESSAGE = 10
_ENUM = 8
#: Column types by the number of the C++ type in a descriptor. Unsigned types are widened, because columns are signed.
_TYPES: dict[int, DataType] = {
    1: IntegerType(),
    2: LongType(),
    3: LongType(),
    4: DecimalType(20, 0),
    5: DoubleType(),
    6: FloatType(),
    7: BooleanType(),
    _ENUM: StringType(),
    9: StringType(),
}
_BYTES = 12


def protobuf_type(value: ValueOptions) -> DataType:
    return _struct(_descriptor(value), 0)


def _descriptor(value: ValueOptions) -> Any:
    try:
        with open(value.descriptor or "", "rb") as file:
            data = file.read()
    except OSError as error:
        raise SourceError(f"The file that value.descriptor names can't be read: {error}.") from None
    try:
        return find_message(link(parse_set(data)), value.message or "")
    except FormatError as error:
        raise SourceError(f"The file of value.descriptor can't be used: {error}.") from None


def _struct(descriptor: Any, depth: int) -> StructType:
    if depth > MAX_DEPTH:
        raise SourceError(
            f"Message {descriptor.full_name} is recursive, but table columns can't be recursive: use another message."
        )
    return StructType([StructField(field.name, _type(field, depth)) for field in descriptor.fields])


def _type(field: Any, depth: int) -> DataType:
    if is_map(field):
        key, value = field.message_type.fields_by_name["key"], field.message_type.fields_by_name["value"]
        return MapType(_single(key, depth), _single(value, depth))
    single = _single(field, depth)
    return ArrayType(single) if is_repeated(field) else single


def _single(field: Any, depth: int) -> DataType:
    if field.cpp_type == _MESSAGE:
        return _struct(field.message_type, depth + 1)
    return BinaryType() if field.type == _BYTES else _TYPES[field.cpp_type]


def protobuf_decoder(value: ValueOptions, wanted: Any) -> Callable[[Any], Any]:
    from google.protobuf import message_factory

    make = message_factory.GetMessageClass(_descriptor(value))

    def decode(values: Any) -> Any:
        return pa.array([_row(make.FromString(each)) for each in values.to_pylist()], wanted)

    return decode


def _row(message: Any) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        if field.has_presence and not message.HasField(field.name):
            row[field.name] = None
            continue
        found = getattr(message, field.name)
        if is_map(field):
            inner = field.message_type.fields_by_name["value"]
            row[field.name] = [(key, _plain(inner, found[key])) for key in found]
        elif is_repeated(field):
            row[field.name] = [_plain(field, each) for each in found]
        else:
            row[field.name] = _plain(field, found)
    return row


def _plain(field: Any, found: Any) -> Any:
    if field.cpp_type == _MESSAGE:
        return _row(found)
    if field.cpp_type == _ENUM:
        known = field.enum_type.values_by_number.get(found)
        return known.name if known is not None else str(found)
    return found
