"""Renders metrics in Prometheus' text format, version 0.0.4. Pure code."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from penstock.histogram import Histogram

#: Series that are rendered in one step: about a millisecond.
PART_SERIES = 500
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Labels = tuple[tuple[str, str], ...]


class Kind(Enum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Distribution(NamedTuple):
    """Holds the values of one histogram: the number of measurements in each bucket, and the sum of all measurements."""

    bounds: Sequence[float]
    """The upper bounds of the buckets, in rising order; the last bucket has no bound."""
    counts: Sequence[int]
    """The measurements in each bucket, one more than there are bounds."""
    total: float

    @classmethod
    def in_seconds(cls, found: Histogram, units_per_s: int) -> Distribution:
        """Converts a histogram to seconds. `units_per_s` is the number of the histogram's units in a second."""
        bounds = tuple(bound / units_per_s for bound in found.bounds)
        return cls(bounds, tuple(found.counts), found.total / units_per_s)


@dataclass(slots=True)
class Family:
    """Holds all series of one metric name. The name of a counter ends in `_total`."""

    name: str
    kind: Kind
    help: str
    samples: list[tuple[Labels, float | Distribution]] = field(default_factory=list)

    def add(self, value: float | Distribution, **labels: object) -> None:
        self.samples.append((tuple((name, str(label)) for name, label in labels.items()), value))


def counter(name: str, text: str, value: float | None = None) -> Family:
    return _family(name, Kind.COUNTER, text, value)


def gauge(name: str, text: str, value: float | None = None) -> Family:
    return _family(name, Kind.GAUGE, text, value)


def histogram(name: str, text: str) -> Family:
    return _family(name, Kind.HISTOGRAM, text, None)


def _family(name: str, kind: Kind, text: str, value: float | None) -> Family:
    family = Family(name, kind, text)
    if value is not None:
        family.add(value)
    return family


def render(families: Iterable[Family]) -> bytes:
    """Returns the metric families as text, in the given order. Leaves out families without series."""
    return b"".join(part for family in families for part in rendered(family))


def rendered(family: Family) -> Iterator[bytes]:
    """Yields a metric family as text, in parts of at most PART_SERIES series. Yields nothing for a family without
    series."""
    for start in range(0, len(family.samples), PART_SERIES):
        lines = _lines(family, start, start + PART_SERIES)
        yield "".join(lines).encode(errors="replace")


def _lines(family: Family, start: int, end: int) -> Iterator[str]:
    if start == 0:
        yield f"# HELP {family.name} {_escaped_help(family.help)}\n"
        yield f"# TYPE {family.name} {family.kind.value}\n"
    for labels, value in family.samples[start:end]:
        named = ",".join(f'{name}="{_escaped(label)}"' for name, label in labels)
        if isinstance(value, Distribution):
            yield from _distribution(family.name, named, value)
        else:
            yield _line(family.name, named, value)


def _distribution(name: str, named: str, value: Distribution) -> Iterator[str]:
    upper = (*value.bounds, math.inf)
    before = f"{named}," if named else ""
    for bound, count in zip(upper, accumulate(value.counts)):
        yield _line(f"{name}_bucket", f'{before}le="{_number(bound)}"', count)
    yield _line(f"{name}_sum", named, value.total)
    yield _line(f"{name}_count", named, sum(value.counts))


def _line(name: str, named: str, value: float) -> str:
    return f"{name}{{{named}}} {_number(value)}\n" if named else f"{name} {_number(value)}\n"


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
