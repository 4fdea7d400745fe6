"""Shows keys and values in a chosen view: text, JSON, Avro, Protobuf or bytes.

The result is a JSON object with the data itself, as `text` if it is UTF-8 or else as `base64`. A decoded view adds
`view`, `decoded` and `schema`. If the data can't be decoded, `problem` says why, and the data is still there.
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
    """Limits all views of one answer together. Keys and values beyond them are shown without a view."""

    values: int = 5 * VALUES_MAX
    text: int = 2 * 1024 * 1024
    seconds: float = 3.0
    ids: int = 20
    """Different schema ids."""


ANSWER_LIMITS = AnswerLimits()
#: For programs that decode one record after the other. The limits of one value are still there.
NO_LIMITS = AnswerLimits(sys.maxsize, sys.maxsize, math.inf, sys.maxsize)


def shown(data: bytes | None) -> Shown | None:
    """Returns data for JSON: as text if it is UTF-8, otherwise as base64; null stays null."""
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
    """Shows the keys and values of one answer, within the limits of an answer."""

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
        """Returns a key or value in its view. It may read files and ask the registry: call it in a thread."""
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
        """Returns the decoded view; None if AUTO finds no schema. Raises FormatError."""
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
            raise FormatError(f"there is no schema for it: add {where}, or set penstock.schema.registry.url")
        return {"view": PROTOBUF, "decoded": self._within(lambda room: _raw_message(data, room)), "schema": None}

    def _check(self, data: bytes) -> None:
        now_s = self.now_s()
        if self._stop_s is None:
            self._stop_s = now_s + self.limits.seconds
        if now_s > self._stop_s:
            seconds = self.limits.seconds
            raise FormatError(f"the views of this answer took longer than {seconds:g} s; ask for fewer records")
        if len(data) > DATA_MAX_BYTES:
            raise FormatError(f"it has {len(data)} bytes, and views are limited to {DATA_MAX_BYTES}")

    def _within(self, decode: Callable[[Room], Any]) -> Any:
        room = self._room.part()
        before = Room(room.values, room.text)
        try:
            return decode(room)
        finally:
            self._room.spend(before, room)

    def _by(self, schema: Schema, framings: Sequence[bool], data: bytes) -> Any:
        """Returns the data decoded with a registry's prefix (True) or without it (False), in the order of `framings`.

        Raises the FormatError of the first one if all of them fail.
        """
        problems = []
        for framed in framings:
            try:
                return self._within(partial(schema.decode, data, framed))
            except FormatError as error:
                problems.append(error)
        raise problems[0]

    def _schema(self, part: str, view: str, data: bytes) -> tuple[Schema | None, Sequence[bool]]:
        """Returns the schema for the data, and how the data may be framed.

        The id in a registry's prefix decides first. If its schema can't be had, the topic's own schema is taken; then
        the first bytes may also be data that only looks like a prefix.
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
    """Returns JSON without a registry's prefix: no JSON begins with a zero byte."""
    return data if schema_id(data) is None else data[REGISTRY_PREFIX:]


def _raw_message(data: bytes, room: Room) -> dict[str, Any]:
    """Returns a message without a schema. No message begins with a zero byte, so this must be a registry's prefix."""
    return decode_raw(data, 0 if schema_id(data) is None else message_path(data)[1], room)
