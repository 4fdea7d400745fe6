"""Converts records to kcat's JSON objects, one per line, and back: `consume -J` prints them, `produce -J` reads them.

JSON contains text, but records contain bytes. Bytes that are valid UTF-8 are written as text, as in kcat. Other bytes
are written in base64, and the field `base64` lists these fields: `"base64": ["key", "payload", "headers"]`. `headers`
in the list means that every header value is in base64. Any record can be read back byte for byte.
"""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

from penstock.cli.exit import Exit, Failure
from penstock.cli.format import Headers, Place
from penstock.cli.output import escaped

if TYPE_CHECKING:
    from penstock.client.accumulator import BulkRecord
    from penstock.records.record import Record

_quoted = json.encoder.encode_basestring
FIELDS = ("key", "payload", "headers")
#: The fields of a line; kcat also writes `broker` and schema ids.
KNOWN = frozenset(
    {*FIELDS, "topic", "partition", "offset", "broker", "tstype", "ts", "base64", "key_schema_id", "value_schema_id"}
)
SHOWN_OF_A_LINE = 60
MIN_TIMESTAMP, MAX_TIMESTAMP = -1, 2**63 - 1


def envelopes(place: Place, records: list[Record]) -> bytes:
    """Returns the records as JSON, one line for each record."""
    kind = "logappend" if place.log_append_time else "create"
    where = f'{{"topic":{_quoted(place.topic)},"partition":{place.partition},"offset":'
    lines = []
    for offset, timestamp, key, value, headers in records:
        packed: list[str] = []
        shown = _headers_json(headers, packed) if headers else ""
        shown += f',"key":{_json("key", key, packed)},"payload":{_json("payload", value, packed)}'
        if packed:
            shown += f',"base64":[{",".join(map(_quoted, packed))}]'
        lines.append(f'{where}{offset},"tstype":"{kind}","ts":{timestamp}{shown}}}\n')
    return escaped("".join(lines)).encode()


def _headers_json(headers: Headers, packed: list[str]) -> str:
    """Returns the headers as JSON. If any value is not UTF-8, all values are in base64."""
    try:
        values = [None if value is None else value.decode() for _, value in headers]
    except UnicodeDecodeError:
        packed.append("headers")
        values = [None if value is None else base64.b64encode(value).decode() for _, value in headers]
    pairs = (f"{_quoted(name)},{'null' if text is None else _quoted(text)}" for (name, _), text in zip(headers, values))
    return f',"headers":[{",".join(pairs)}]'


def _json(field: str, value: bytes | None, packed: list[str]) -> str:
    """Returns the bytes as a JSON string. Bytes that are not UTF-8 become base64, and `field` is added to `packed`."""
    if value is None:
        return "null"
    try:
        return _quoted(value.decode())
    except UnicodeDecodeError:
        packed.append(field)
        return f'"{base64.b64encode(value).decode()}"'


def read_envelope(line: bytes) -> BulkRecord:
    """Returns the record in a line of JSON.

    Ignores the line's topic, partition and offset, which tell where the record was read from.
    """
    try:
        return _read(json.loads(line))
    except (ValueError, RecursionError) as wrong:
        shown = line[:SHOWN_OF_A_LINE].decode(errors="replace")
        reason = (
            "it is not JSON" if isinstance(wrong, json.JSONDecodeError | UnicodeDecodeError | RecursionError) else wrong
        )
        raise Failure(f"-J can't read the record {shown!r}: {reason}", Exit.USAGE) from None


def _read(told: Any) -> BulkRecord:
    if not isinstance(told, dict):
        raise ValueError("the line is not a JSON object")
    if "payload" not in told:
        raise ValueError('the record has no "payload" (for a tombstone write "payload": null)')
    unknown = next((name for name in told if name not in KNOWN), None)
    if unknown is not None:
        meant = ': "ts" has the time' if unknown == "timestamp" else ""
        raise ValueError(f"{json.dumps(unknown)[:SHOWN_OF_A_LINE]} is not a field of a record{meant}")
    if "partition" in told and "offset" not in told:
        raise ValueError('"partition" is valid only with "offset", as `consume` writes it: choose a partition with -p')
    packed = told.get("base64", [])
    if not isinstance(packed, list) or not all(field in FIELDS for field in packed):
        raise ValueError(f'"base64" must be a list with any of {", ".join(FIELDS)}')
    key = _bytes(told.get("key"), "key", packed)
    return key, _bytes(told["payload"], "payload", packed), _headers(told, packed), _timestamp(told)


def _bytes(value: Any, field: str, packed: list[str]) -> bytes | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise ValueError(f'"{field}" holds {json.dumps(value)[:SHOWN_OF_A_LINE]}, which is not text')
    if field not in packed:
        return _encoded(value, field)
    try:
        return base64.b64decode(value, validate=True)
    except ValueError:
        raise ValueError(f'"{field}" is not valid base64') from None


def _headers(told: dict[str, Any], packed: list[str]) -> Headers:
    found = told.get("headers") or []
    if not isinstance(found, list) or len(found) % 2 or not all(isinstance(name, str) for name in found[::2]):
        raise ValueError('"headers" must be a list that alternates names and values')
    for name in found[::2]:
        _encoded(name, "headers")
    return tuple((name, _bytes(value, "headers", packed)) for name, value in zip(found[::2], found[1::2]))


def _encoded(text: str, field: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise ValueError(f'"{field}" holds half of a surrogate pair, which is not a character') from None


def _timestamp(told: dict[str, Any]) -> int | None:
    found = told.get("ts")
    if found is None:
        return None
    if type(found) is not int or not MIN_TIMESTAMP <= found <= MAX_TIMESTAMP:
        raise ValueError('"ts" must be a number of milliseconds')
    return found
