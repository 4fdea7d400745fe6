"""Turns filters on topic, partition, offset and timestamp into limits on the ranges to read. Pure code."""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql.datasource import (
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from penstock.spark.ranges import OffsetRange

_NEVER_NULL = ("topic", "partition", "offset", "timestamp", "timestampType")
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


@dataclass(frozen=True, slots=True)
class Narrowed:
    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    min_partition: int = 0
    max_partition: int = 1 << 31
    min_offset: int = 0
    end_offset: int = 1 << 63
    min_timestamp_ms: int | None = None

    def cut(self, whole: OffsetRange) -> OffsetRange:
        """Returns the part of the range `whole` that satisfies the filters; it may be empty."""
        wanted = (
            (self.topics is None or whole.topic in self.topics)
            and (self.partitions is None or whole.partition in self.partitions)
            and self.min_partition <= whole.partition <= self.max_partition
        )
        start = max(whole.start, self.min_offset)
        return replace(whole, start=start, end=max(start, min(whole.end, self.end_offset)) if wanted else start)


def narrow(filters: Iterable[Any]) -> tuple[Narrowed, list[Any]]:
    """Returns the limits that the filters set, and the filters that Spark still has to apply.

    Spark still applies a filter on `timestamp`, because the source skips only whole batches by time.
    """
    found = Narrowed()
    rest: list[Any] = []
    for each in filters:
        column = each.attribute[0] if hasattr(each, "attribute") and len(each.attribute) == 1 else None
        if isinstance(each, IsNotNull) and column in _NEVER_NULL:
            continue
        taken = _taken(found, column, each)
        if taken is None:
            rest.append(each)
            continue
        found = taken
        if column == "timestamp":
            rest.append(each)  # the limit skips whole batches and ranges, not single records
    return found, rest


def _taken(found: Narrowed, column: str | None, each: Any) -> Narrowed | None:
    match column:
        case "topic":
            names = _values(each)
            return replace(found, topics=_meet(found.topics, names)) if names is not None else None
        case "partition":
            numbers = _values(each)
            if numbers is not None:
                return replace(found, partitions=_meet(found.partitions, numbers))
            low, end = _bounds(each)
            if low is None and end is None:
                return None
            return replace(
                found,
                min_partition=max(found.min_partition, low or 0),
                max_partition=min(found.max_partition, end - 1) if end is not None else found.max_partition,
            )
        case "offset":
            low, end = _bounds(each)
            if low is None and end is None:
                return None
            return replace(
                found,
                min_offset=max(found.min_offset, low or 0),
                end_offset=min(found.end_offset, end) if end is not None else found.end_offset,
            )
        case "timestamp":
            since = _since(each)
            return (
                replace(found, min_timestamp_ms=max(found.min_timestamp_ms or 0, since)) if since is not None else None
            )
        case _:
            return None


def _meet(known: frozenset[Any] | None, more: frozenset[Any]) -> frozenset[Any]:
    return more if known is None else known & more


def _values(each: Any) -> frozenset[Any] | None:
    if isinstance(each, EqualTo):
        return frozenset((each.value,))
    if isinstance(each, In):
        return frozenset(each.value)
    return None


def _bounds(each: Any) -> tuple[int | None, int | None]:
    """Returns the lower bound (inclusive) and the upper bound (exclusive) that a filter sets.

    A bound that the filter does not set is None.
    """
    match each:
        case EqualTo():
            return each.value, each.value + 1
        case GreaterThan():
            return each.value + 1, None
        case GreaterThanOrEqual():
            return each.value, None
        case LessThan():
            return None, each.value
        case LessThanOrEqual():
            return None, each.value + 1
        case _:
            return None, None


def _since(each: Any) -> int | None:
    """Returns the earliest time, in ms, that a filter on `timestamp` accepts; None if the filter has no earliest time.

    A latest time is not used, because a record at a higher offset may have an earlier timestamp.
    """
    if not isinstance(each, EqualTo | GreaterThan | GreaterThanOrEqual) or not isinstance(
        each.value, datetime.datetime
    ):
        return None
    value = each.value if each.value.tzinfo is not None else None
    if value is None:
        return None
    return max(0, int((value - _EPOCH) / datetime.timedelta(milliseconds=1)))
