"""How a coordinator's records stand in its topic.

A key is two bytes of record type and the key class at version 0; a value is two bytes of version and the value class.
"""

from collections.abc import Callable

from penstock.protocol.codec import Buffer, DecodeError, decode, encode
from penstock.protocol.schema import Message

Lookup = Callable[[int], tuple[type[Message], type[Message]]]
"""One of `index.group_record`, `index.transaction_record`, `index.share_record`."""

PREFIX_BYTES = 2


def encode_key(key: Message) -> bytes:
    return key.API_KEY.to_bytes(PREFIX_BYTES, "big") + encode(key, 0)


def encode_value(value: Message, version: int) -> bytes:
    return version.to_bytes(PREFIX_BYTES, "big") + encode(value, version)


def decode_record(lookup: Lookup, key: Buffer, value: Buffer | None) -> tuple[Message, Message | None]:
    """The key and the value of a record; no value for a tombstone. DecodeError for a type or version unknown here."""
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
        raise DecodeError("a record without its type or version")
    return int.from_bytes(data[:PREFIX_BYTES], "big", signed=True)
