"""Shows keys and values in a chosen view: text, JSON, Avro, Protobuf or bytes.

The result is a JSON object. It always has the original data: as `text` if the data is UTF-8, otherwise as `base64`. A
decoded view adds `view`, `decoded` and `schema`. If the data can't be decoded, `problem` has the reason.
"""

from __future__ import annotations

import base64
import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from penstock.formats.framing import REGISTRY_PREFIX, message_path, schema_id
from penstock.formats.limits import DATA_MAX_BYTES, VALUES_MAX, FormatError, Room, schema_errors
from penstock.formats.protobuf_wire import decode_raw
from penstock.formats.schema import Schema, decode_json
from penstock.formats.schemas import LookUp, Schemas

AUTO, TEXT, JSON, AVRO, PROTOBUF, BYTES = VIEWS = ("auto", "text", "json", "avro", "protobuf", "bytes")
KEY, VALUE = "key", "value"
NAMES = {JSON: "JSON", AVRO: "Avro", PROTOBUF: "Protobuf"}

Shown = dict[str, Any]


@dataclass(frozen=True, slots=True)
class AnswerLimits:
    """Holds the limits for decoding all keys and values of one response. Beyond a limit, data is shown undecoded."""

    values: int = 5 * VALUES_MAX
    text: int = 2 * 1024 * 1024
    seconds: float = 3.0
    ids: int = 20
    """Different schema ids."""


ANSWER_LIMITS = AnswerLimits()
#: For programs that decode one record after the other. The limits of one value are still there.
NO_LIMITS = AnswerLimits(sys.maxsize, sys.maxsize, math.inf, sys.maxsize)


def shown(data: bytes | None) -> Shown | None:
    """Returns the data as a JSON object with `text` if it is UTF-8, otherwise with `base64`; None for null."""
    if data is None:
        return None
    try:
        return {"text": data.decode()}
    except UnicodeDecodeError:
        return _as_base64(data)


def _as_base64(data: bytes) -> Shown:
    return {"base64": base64.b64encode(data).decode()}


@dataclass(slots=True)
class Viewing:
    """Converts the keys and values of one response to JSON, within the limits of a response."""

    schemas: Schemas
    topic: str
    views: dict[str, str]
    """The view of KEY and of VALUE; AUTO by default."""
    limits: AnswerLimits = ANSWER_LIMITS
    now_s: Callable[[], float] = time.monotonic
    _look_up: LookUp = field(init=False)
    _room: Room = field(init=False)
    _stop_s: float | None = None

    def __post_init__(self) -> None:
        self._look_up = LookUp(self.schemas, self.limits.ids)
        self._room = Room(self.limits.values, self.limits.text)

    def show(self, part: str, data: bytes | None) -> Shown | None:
        """Returns a key or value in its view. Call it in a thread, because it may block on files and the network."""
        view = self.views.get(part, AUTO)
        if data is None:
            return None
        if view == BYTES:
            return _as_base64(data)
        found = shown(data)
        assert found is not None
        if view == TEXT:
            return found if "text" in found else {**found, "view": view, "problem": "The data is not UTF-8."}
        if view == AUTO and not self.schemas:
            return found
        try:
            with schema_errors():
                decoded = self._decoded(part, view, data)
        except FormatError as error:
            name = f"as {NAMES[view]}" if view in NAMES else "by its schema"
            return {**found, "view": view, "problem": f"The {part} can't be shown {name}: {error}."}
        return found | (decoded or {})

    def _decoded(self, part: str, view: str, data: bytes) -> Shown | None:
        """Returns the decoded data; None if the view is AUTO and there is no schema. Raises FormatError."""
        self._check(data)
        if view == JSON:
            return {"view": JSON, "decoded": self._within(lambda room: decode_json(_without_prefix(data), room))}
        schema, framings = self._schema(part, view, data)
        if schema is not None:
            return {"view": schema.kind, "decoded": self._by(schema, framings, data), "schema": schema.origin}
        if view == AUTO:
            return None
        if view == AVRO:
            where = f"{self.topic}-{part}.avsc in penstock.schemas.dir"
            raise FormatError(f"there is no Avro schema: add {where}, or set penstock.schema.registry.url")
        return {"view": PROTOBUF, "decoded": self._within(lambda room: _raw_message(data, room)), "schema": None}

    def _check(self, data: bytes) -> None:
        now_s = self.now_s()
        if self._stop_s is None:
            self._stop_s = now_s + self.limits.seconds
        if now_s > self._stop_s:
            seconds = self.limits.seconds
            raise FormatError(f"the views of this response took longer than {seconds:g} s: request fewer records")
        if len(data) > DATA_MAX_BYTES:
            raise FormatError(f"the data has {len(data)} bytes, and views are limited to {DATA_MAX_BYTES}")

    def _within(self, decode: Callable[[Room], Any]) -> Any:
        room = self._room.part()
        before = Room(room.values, room.text)
        try:
            return decode(room)
        finally:
            self._room.spend(before, room)

    def _by(self, schema: Schema, framings: Sequence[bool], data: bytes) -> Any:
        """Decodes the data with the schema. Tries each of `framings`: True expects a registry prefix, False no prefix.

        Returns the first result. If every attempt fails, raises the error of the first attempt.
        """
        problems = []
        for framed in framings:
            try:
                return self._within(partial(schema.decode, data, framed))
            except FormatError as error:
                problems.append(error)
        raise problems[0]

    def _schema(self, part: str, view: str, data: bytes) -> tuple[Schema | None, Sequence[bool]]:
        """Returns the schema of the data, and a bool for each way to decode it: True expects a registry prefix.

        Uses the schema that the prefix names, otherwise the topic's own schema. Data that seems to have a prefix is
        then decoded with and without it, because any data may begin with the same bytes as a prefix.
        """
        number, problem = schema_id(data), None
        if number is not None:
            try:
                schema = self._look_up.by_id(number)
                if schema is not None and view in (AUTO, schema.kind):
                    return schema, (True,)
            except FormatError as error:
                problem = error
        schema = self._look_up.by_subject(f"{self.topic}-{part}")
        if schema is not None and view in (AUTO, schema.kind):
            return schema, (False,) if number is None else (True, False)
        if problem is not None:
            raise problem
        return None, ()


def _without_prefix(data: bytes) -> bytes:
    """Removes the registry prefix from JSON, if there is one: it begins with a zero byte, and JSON never does."""
    return data if schema_id(data) is None else data[REGISTRY_PREFIX:]


def _raw_message(data: bytes, room: Room) -> dict[str, Any]:
    """Decodes a Protobuf message without a schema, after its registry prefix if there is one.

    The prefix begins with a zero byte, a message never does.
    """
    return decode_raw(data, 0 if schema_id(data) is None else message_path(data)[1], room)
