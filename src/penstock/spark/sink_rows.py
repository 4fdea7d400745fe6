"""Turns Arrow batches with the sink's columns into records by topic and partition. Pure code.

Column `value` is required. Columns `key`, `headers`, `topic`, `partition` and `timestamp` are optional; Spark's Kafka
sink has all of these columns except `timestamp`. Option topic overrides column `topic`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.spark.errors import SourceError
from penstock.spark.sink_encode import Rows
from penstock.spark.sink_options import SinkOptions
from penstock.spark.sink_partition import partitions_of

Array = Any

#: Arrow batches are combined up to this size in bytes, so that record batches are fuller and cost less work.
CHUNK_BYTES = 4 * 1024 * 1024

_TEXT = ("binary", "string")
COLUMNS: dict[str, tuple[str, ...]] = {
    "value": _TEXT,
    "key": _TEXT,
    "topic": ("string",),
    "partition": ("int",),
    "timestamp": ("timestamp", "timestamp_ntz"),
    "headers": ("array<struct<key:string,value:binary>>",),
}


def check_columns(types: dict[str, str], options: SinkOptions) -> list[str]:
    """Checks the columns, and returns the columns that extraColumns=ignore leaves out. Raises SourceError.

    `types` maps each column to the name of its Spark type.
    """
    if "value" not in types:
        raise SourceError(f"Column `value` is missing: add it to the columns ({', '.join(types) or 'none'}).")
    if options.topic is None and "topic" not in types:
        raise SourceError("The topic to write to is missing: give option topic, or add a column `topic`.")
    places = places_of(options)
    extra = [name for name in types if name not in places]
    if extra and not options.ignore_extra:
        raise SourceError(
            f"Column {extra[0]!r} is not a field of a record: select {', '.join(COLUMNS)}, and put other columns into "
            "value, for example with to_json(struct(*)). With extraColumns=ignore it is left out."
        )
    for name in places:
        if name in types and types[name] not in COLUMNS[name]:
            raise SourceError(f"Column {name!r} is {types[name]}: cast it to {' or '.join(COLUMNS[name])}.")
    return extra


def places_of(options: SinkOptions) -> list[str]:
    """Returns the names of the columns that become fields of records."""
    return [name for name in COLUMNS if name != "timestamp" or options.keep_timestamps]


def chunks(batches: Iterator[Any]) -> Iterator[Any]:
    """Combines small batches into batches of CHUNK_BYTES or more; the last may be smaller. Drops empty batches."""
    waiting: list[Any] = []
    size = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        waiting.append(batch)
        size += batch.nbytes
        if size >= CHUNK_BYTES:
            yield _together(waiting)
            waiting, size = [], 0
    if waiting:
        yield _together(waiting)


def _together(batches: list[Any]) -> Any:
    if len(batches) == 1:
        return batches[0]
    [whole] = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return whole


class Router:
    """Assigns rows to partitions.

    All rows of a batch that have neither a key nor a partition go to one partition. Such rows of the next batch go to
    another partition, as with Kafka's sticky partitioner.
    """

    def __init__(
        self, options: SinkOptions, partitions: Callable[[str], int], now_ms: Callable[[], int], slot: int
    ) -> None:
        self._topic = options.topic
        self._places = frozenset(places_of(options))
        self._partitions = partitions
        self._now_ms = now_ms
        self._sticky = slot

    def route(self, batch: Any) -> Iterator[tuple[str, int, Rows]]:
        """Yields the rows of a batch, grouped by topic and partition.

        Raises SourceError for a row without a topic or with a wrong partition.
        """
        self._sticky += 1
        columns = {name: batch.column(index) for index, name in enumerate(batch.schema.names) if name in self._places}
        if self._topic is not None:
            yield from self._route_to(self._topic, columns)
            return
        topics = columns["topic"]
        if topics.null_count:
            raise SourceError("A row has no topic: fill the column `topic`, or give option topic.")
        for topic in pc.unique(topics).to_pylist():
            rows = pc.equal(topics, topic)
            yield from self._route_to(topic, {name: column.filter(rows) for name, column in columns.items()})

    def _route_to(self, topic: str, columns: dict[str, Array]) -> Iterator[tuple[str, int, Rows]]:
        count = self._partitions(topic)
        values = _binary(columns["value"])
        keys = _binary(columns["key"]) if "key" in columns else pa.nulls(len(values), pa.binary())
        chosen = partitions_of(keys, count, self._sticky % count)
        if "partition" in columns:
            chosen = _override(chosen, columns["partition"], topic, count)
        rows = Rows(keys, values, self._timestamps(columns, len(values)), _headers(columns))
        if (chosen == chosen[0]).all():
            yield topic, int(chosen[0]), rows
            return
        order = np.argsort(chosen, kind="stable")
        starts = np.searchsorted(chosen[order], np.arange(count + 1))
        taken = _take(rows, order)
        for partition in range(count):
            start, end = int(starts[partition]), int(starts[partition + 1])
            if end > start:
                yield topic, partition, taken.slice(start, end)

    def _timestamps(self, columns: dict[str, Array], count: int) -> Array:
        now = self._now_ms()
        if "timestamp" not in columns:
            return np.full(count, now, np.int64)
        stamps = columns["timestamp"].cast(pa.timestamp("ms"), safe=False).cast(pa.int64()).fill_null(now)
        return stamps.to_numpy(zero_copy_only=False)


def _binary(column: Array) -> Array:
    return column if column.type == pa.binary() else column.cast(pa.binary())


def _override(chosen: Array, column: Array, topic: str, count: int) -> Array:
    told = column.is_valid().to_numpy(zero_copy_only=False)
    wanted = column.fill_null(0).to_numpy(zero_copy_only=False)
    wrong = np.flatnonzero(told & ((wanted < 0) | (wanted >= count)))
    if len(wrong):
        raise SourceError(
            f"A row has partition {wanted[wrong[0]]}, but topic {topic!r} has {count} partition(s): correct "
            "column `partition`."
        )
    return np.where(told, wanted, chosen)


def _headers(columns: dict[str, Array]) -> Array | None:
    headers = columns.get("headers")
    if headers is None or not len(headers.flatten()):
        return None
    if headers.flatten().field("key").null_count:
        raise SourceError("A row has a header without a key: give the header a key, or remove it.")
    return headers


def _take(rows: Rows, order: Array) -> Rows:
    index = pa.array(order)
    headers = None if rows.headers is None else rows.headers.take(index)
    return Rows(rows.keys.take(index), rows.values.take(index), rows.timestamps[order], headers)
