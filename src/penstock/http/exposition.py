"""Renders metrics in Prometheus' text format, version 0.0.4. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Labels = tuple[tuple[str, str], ...]


class Kind(Enum):
    COUNTER = "counter"
    GAUGE = "gauge"


@dataclass(slots=True)
class Family:
    """Holds all series of one metric name. A counter's name ends in `_total`."""

    name: str
    kind: Kind
    help: str
    samples: list[tuple[Labels, float]] = field(default_factory=list)

    def add(self, value: float, **labels: object) -> None:
        self.samples.append((tuple((name, str(label)) for name, label in labels.items()), value))


def counter(name: str, text: str, value: float | None = None) -> Family:
    return _family(name, Kind.COUNTER, text, value)


def gauge(name: str, text: str, value: float | None = None) -> Family:
    return _family(name, Kind.GAUGE, text, value)


def _family(name: str, kind: Kind, text: str, value: float | None) -> Family:
    family = Family(name, kind, text)
    if value is not None:
        family.add(value)
    return family


def render(families: Iterable[Family]) -> bytes:
    """Returns the metric families as text, in the given order. Leaves out families without series."""
    return "".join(line for family in families if family.samples for line in _lines(family)).encode(errors="replace")


def _lines(family: Family) -> Iterator[str]:
    yield f"# HELP {family.name} {_escaped_help(family.help)}\n"
    yield f"# TYPE {family.name} {family.kind.value}\n"
    for labels, value in family.samples:
        named = ",".join(f'{name}="{_escaped(label)}"' for name, label in labels)
        yield f"{family.name}{{{named}}} {_number(value)}\n" if named else f"{family.name} {_number(value)}\n"


def _escaped(label: str) -> str:
    return label.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _escaped_help(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n")


def _number(value: float) -> str:
    if isinstance(value, int):
        return str(int(value))
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(value)
