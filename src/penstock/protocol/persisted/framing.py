"""Encodes and decodes the records of a coordinator's topic.

A key is the record type (two bytes) and a message of the key class, version 0. A value is a version (two bytes) and a
message of the value class in that version.
"""

from collections.abc import Callable

from penstock.protocol.codec import Buffer, DecodeError, decode, encode
from penstock.protocol.schema import Message

Lookup = Callable[[int], tuple[type[Message], type[Message]]]
"""The type of `index.group_record`, `index.transaction_record` and `index.share_record`, which find the classes of a
record type."""

PREFIX_BYTES = 2


def encode_key(key: Message) -> bytes:
    return key.API_KEY.to_bytes(PREFIX_BYTES, "big") + encode(key, 0)


def encode_value(value: Message, version: int) -> bytes:
    return version.to_bytes(PREFIX_BYTES, "big") + encode(value, version)


def decode_record(lookup: Lookup, key: Buffer, value: Buffer | None) -> tuple[Message, Message | None]:
    """Decodes the key and the value of a record, and returns both; the value is None for a tombstone.

    Raises DecodeError for an unknown type or version.
    """
    number = _prefix(key)
    try:
        key_class, value_class = lookup(number)
    except KeyError:
        raise DecodeError(f"record type {number} is unknown") from None
    return decode(key_class, 0, key, PREFIX_BYTES), None if value is None else decode(
        value_class, _prefix(value), value, PREFIX_BYTES
    )


def _prefix(data: Buffer) -> int:
    if len(data) < PREFIX_BYTES:
        raise DecodeError("a record is too short for its type or version")
    return int.from_bytes(data[:PREFIX_BYTES], "big", signed=True)
