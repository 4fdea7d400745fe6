"""kcat's JSON object of a record, one per line: what `consume -J` prints and `produce -J` reads back.

JSON holds text, records hold bytes. Bytes that are UTF-8 stand as text, as kcat writes them. Other bytes stand in
base64, and the field `base64` lists the fields that do: `"base64": ["key", "payload", "headers"]`. With `headers` it
means every value of a header. Any record comes back byte for byte.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from typing import Any

from penstock.cli import output
from penstock.cli.exit import Exit, Failure
from penstock.cli.format import Consumed, Headers, Outgoing

FIELDS = ("key", "payload", "headers")
SHOWN_OF_A_LINE = 60
MIN_TIMESTAMP, MAX_TIMESTAMP = -1, 2**63 - 1


def envelopes(records: Iterable[Consumed]) -> bytes:
    return b"".join(map(envelope, records))


def envelope(record: Consumed) -> bytes:
    """The record as one line of JSON."""
    packed: list[str] = []
    shown: dict[str, Any] = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "tstype": "logappend" if record.log_append_time else "create",
        "ts": record.timestamp,
    }
    if record.headers:
        values = _texts("headers", [value for _, value in record.headers], packed)
        shown["headers"] = [each for pair in zip((name for name, _ in record.headers), values) for each in pair]
    [shown["key"]] = _texts("key", [record.key], packed)
    [shown["payload"]] = _texts("payload", [record.value], packed)
    if packed:
        shown["base64"] = packed
    return output.json_text(shown).encode() + b"\n"


def _texts(field: str, values: list[bytes | None], packed: list[str]) -> list[str | None]:
    """The values as text; in base64, and `field` added to `packed`, if one of them is not UTF-8."""
    try:
        return [None if value is None else value.decode() for value in values]
    except UnicodeDecodeError:
        packed.append(field)
        return [None if value is None else base64.b64encode(value).decode() for value in values]


def read_envelope(line: bytes) -> Outgoing:
    """The record of one line. The topic, partition and offset it names are where it was, not where it goes."""
    try:
        return _read(json.loads(line))
    except (ValueError, RecursionError) as wrong:
        shown = line[:SHOWN_OF_A_LINE].decode(errors="replace")
        reason = (
            "it is no JSON" if isinstance(wrong, json.JSONDecodeError | UnicodeDecodeError | RecursionError) else wrong
        )
        raise Failure(f"-J can't read the record {shown!r}: {reason}", Exit.USAGE) from None


def _read(told: Any) -> Outgoing:
    if not isinstance(told, dict):
        raise ValueError("it is no JSON object")
    if "payload" not in told:
        raise ValueError('it has no "payload" (for a tombstone write "payload": null)')
    packed = told.get("base64", [])
    if not isinstance(packed, list) or not all(field in FIELDS for field in packed):
        raise ValueError(f'"base64" is a list of {", ".join(FIELDS)}')
    key = _bytes(told.get("key"), "key", packed)
    return Outgoing(key, _bytes(told["payload"], "payload", packed), _headers(told, packed), _timestamp(told))


def _bytes(value: Any, field: str, packed: list[str]) -> bytes | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise ValueError(f'"{field}" holds {json.dumps(value)[:SHOWN_OF_A_LINE]}, which is no text')
    if field not in packed:
        return _encoded(value, field)
    try:
        return base64.b64decode(value, validate=True)
    except ValueError:
        raise ValueError(f'"{field}" is no base64') from None


def _headers(told: dict[str, Any], packed: list[str]) -> Headers:
    found = told.get("headers") or []
    if not isinstance(found, list) or len(found) % 2 or not all(isinstance(name, str) for name in found[::2]):
        raise ValueError('"headers" is a list of names, each with its value behind it')
    for name in found[::2]:
        _encoded(name, "headers")
    return tuple((name, _bytes(value, "headers", packed)) for name, value in zip(found[::2], found[1::2]))


def _encoded(text: str, field: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise ValueError(f'"{field}" holds half of a surrogate pair, which is no character') from None


def _timestamp(told: dict[str, Any]) -> int | None:
    found = told.get("ts")
    if found is None:
        return None
    if type(found) is not int or not MIN_TIMESTAMP <= found <= MAX_TIMESTAMP:
        raise ValueError('"ts" is a number of milliseconds')
    return found
