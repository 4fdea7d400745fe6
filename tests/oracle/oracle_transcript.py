"""Renders answers as text, without values that differ from run to run.

A struct is a line of its non-default fields; its arrays of structs follow, indented. Values that two brokers never
share (ids, ports, times of day, wording of messages) are masked: the transcript shows their presence, not their value.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from typing import Any

from penstock.protocol.errors import ErrorCode
from penstock.protocol.schema import Field, Message, Struct
from penstock.protocol.uuid import ZERO_UUID, uuid_to_str
from penstock.records.batches import split_batches

HIDDEN = {"throttle_time_ms", "finalized_features_epoch", "broker_epoch", "total_bytes", "usable_bytes"}
WORDING = {"error_message", "batch_index_error_message", "documentation"}
ALWAYS_MASKED = {"cluster_id", "host", "port", "log_dir"}
NUMBERED_FROM_0 = {"producer_id"}
NUMBERED = {"session_id", "member_id", "leader", "client_instance_id", "subscription_id"}
WIDTH = 100
LONG = 60
RECENT_MS = 1_600_000_000_000  # timestamps given by tests are far below this
UNIQUE = re.compile(r"-x[0-9a-f]{8}x")


class Masks:
    """Replaces values chosen by the broker by names, in the order of their appearance."""

    def __init__(self) -> None:
        self.topic_ids: dict[bytes, str] = {}
        self._numbers: dict[tuple[str, Any], str] = {}
        self._sent: set[Any] = set()

    def number(self, kind: str, value: Any) -> str:
        known = self._numbers.get((kind, value))
        if known is None:
            count = sum(1 for other, _ in self._numbers if other == kind) + 1
            known = self._numbers[kind, value] = f"<{kind} {count}>"
        return known


def render(answer: Message, version: int, masks: Masks) -> str:
    name = type(answer).__name__.removesuffix("Response")
    return "\n".join(_lines(f"{name} v{version}", answer, masks, ""))


def render_part(label: str, part: Struct, masks: Masks) -> str:
    return "\n".join(_lines(label, part, masks, ""))


def _lines(label: str, value: Struct, masks: Masks, indent: str) -> Iterator[str]:
    scalars = [label]
    nested: list[str] = []
    failed = getattr(value, "error_code", 0) != 0
    for field in value.FIELDS:
        content = getattr(value, field.name)
        if field.name in HIDDEN or (failed and field.name == "error_message"):
            continue  # a refusal may have a message even where Kafka has none
        if _is_default(field, content) and field.name not in NUMBERED_FROM_0:
            continue
        if isinstance(content, Struct):
            nested += _lines(f"{field.name}:", content, masks, indent + "  ")
        elif isinstance(content, list) and content and isinstance(content[0], Struct):
            for item in content:
                nested += _lines(f"{field.name}:", item, masks, indent + "  ")
        else:
            scalars.append(f"{field.name}={_scalar(field.name, content, masks)}")
    yield textwrap.fill(
        " ".join(scalars), WIDTH, initial_indent=indent, subsequent_indent=indent + "      ", break_long_words=False
    )
    yield from nested


def _is_default(field: Field, content: Any) -> bool:
    default = field.scalar_default()
    if default is ...:
        return bool(content == [] if isinstance(content, list) else content is not None and content == type(content)())
    return bool(content == default)


def _scalar(name: str, content: Any, masks: Masks) -> str:
    if content is None:
        return "null"
    if name in WORDING:
        return "…"
    if name in ALWAYS_MASKED:
        return f"<{name}>"
    if name.endswith("error_code"):
        return ErrorCode(content).name
    if isinstance(content, memoryview):
        return _records(content, masks)
    if isinstance(content, bytes):
        return _binary(content, masks)
    if name in NUMBERED_FROM_0 and content >= 0:
        return masks.number("producer", content)
    if name in NUMBERED and content not in (-1, 0, ""):
        return masks.number(name.removesuffix("_id"), content)
    if isinstance(content, int) and not isinstance(content, bool) and content > RECENT_MS and content < 1 << 43:
        return "<now>"
    if isinstance(content, list):
        return "[" + " ".join(_scalar(name, item, masks) for item in content) + "]"
    if isinstance(content, str):
        content = UNIQUE.sub("", content) or "''"
        return content if len(content) <= LONG else f"{content[:8]}…({len(content)})"
    return str(content)


def _binary(content: bytes, masks: Masks) -> str:
    if len(content) != len(ZERO_UUID):
        return repr(content)
    if content in masks.topic_ids:
        return f"<id of {masks.topic_ids[content]}>"
    if content[:12] == bytes(12):  # an id chosen by the test
        return uuid_to_str(content)
    return masks.number("uuid", content)


def _records(content: memoryview, masks: Masks) -> str:
    said = []
    cut_off = len(content)
    for header, batch in split_batches(content, allow_partial=True):
        cut_off -= len(batch)
        text = f"{header.base_offset}-{header.last_offset}"
        if header.producer_id >= 0:
            text += f" by {masks.number('producer', header.producer_id)}"
        said.append(text)
    if cut_off:
        said.append(f"{cut_off} bytes of the next")
    return f"[{', '.join(said)}]"
