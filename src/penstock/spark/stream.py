"""The stream reader: lives in one Python process on the driver for as long as the query, and plans each micro-batch.

Offsets are {"topic": {"partition": next offset}}, as in Spark's own Kafka source. The start of a batch is the end of
the one before it; a partition that only the end has is new, and is read from its beginning.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from penstock.client.sync import Client
from penstock.spark.brokers import connect
from penstock.spark.commits import commit_offsets
from penstock.spark.options import LATEST, Position, SourceOptions, parse_options
from penstock.spark.planner import Planner, ReadTask
from penstock.spark.ranges import OffsetRange, Offsets, from_json, limited, split, to_json
from penstock.spark.schema import check_schema
from penstock.spark.workers import settle

Json = dict[str, dict[str, int]]


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options = parse_options(options, streaming=True)
        check_schema(schema, self._options)
        self._schema = schema
        self._driver: _Driver | None = None

    @property
    def _plan(self) -> _Driver:
        # Made on first use: executors get a copy of this reader and plan nothing.
        if self._driver is None:
            self._driver = _Driver(self._options)
        return self._driver

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_driver": None}

    def initialOffset(self) -> Json:
        return to_json(self._plan.initial())

    def latestOffset(self, start: Json, limit: ReadLimit) -> Json:
        return to_json(self._plan.latest(from_json(start), limit))

    def getDefaultReadLimit(self) -> ReadLimit:
        options = self._options
        if options.min_offsets is not None:
            return ReadMinRows(options.min_offsets)  # a maximum beside it is applied here too: Spark knows only one
        return ReadMaxRows(options.max_offsets) if options.max_offsets is not None else ReadAllAvailable()

    def reportLatestOffset(self) -> Json | None:
        return to_json(self._plan.newest) if self._plan.newest else None

    def prepareForTriggerAvailableNow(self) -> None:
        self._plan.pin()

    def partitions(self, start: Json, end: Json) -> list[ReadTask]:
        return self._plan.tasks(from_json(start), from_json(end))

    def read(self, partition: Any) -> Iterator[Any]:
        from penstock.spark.tasks import read_task  # what plans has no use for it

        settle()
        yield from read_task(self._options, to_arrow_schema(self._schema, timezone="UTC"), partition)

    def commit(self, end: Json) -> None:
        self._plan.commit(from_json(end))

    def stop(self) -> None:
        if self._driver is not None:
            self._driver.close()
            self._driver = None


class _Driver:
    """What stays on the driver: the connection, what AvailableNow runs up to, and when a batch was last let through."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._client: Client = connect(options)
        self._planner = Planner(self._client, options)
        self._pinned: Offsets | None = None
        self._last_batch_s = time.monotonic()
        self.newest: Offsets = {}

    def close(self) -> None:
        self._client.close()

    def initial(self) -> Offsets:
        partitions = self._planner.partitions()
        position = self._options.starting or Position(everywhere=LATEST)
        start = self._planner.start(position, partitions)
        # Offsets that aren't there are told now, with the range that is, rather than by the first task.
        return {each.key: each.start for each in self._planner.ranges(start, dict(start))}

    def pin(self) -> None:
        self._pinned = self._planner.latest(self._planner.partitions())

    def latest(self, start: Offsets, limit: ReadLimit) -> Offsets:
        if self._pinned is not None:
            newest = dict(self._pinned)
        else:
            newest = self._planner.latest(self._planner.partitions())
        self.newest = newest
        end = self._without_loss(start, newest)
        return self._admitted(self._with_new(start, end), end, limit)

    def _without_loss(self, start: Offsets, newest: Offsets) -> Offsets:
        """Partitions that are gone or shorter than they were: data was lost that this query had or would have read."""
        end = dict(newest)
        for each, offset in start.items():
            topic, partition = each
            if each not in newest:
                if self._pinned is not None:
                    end[each] = offset
                    continue
                self._planner.data_loss(f"{topic}-{partition} is gone, and was read up to {offset}")
            elif newest[each] < offset:
                if self._pinned is not None:
                    end[each] = offset  # this query was ahead of what was pinned: nothing to do, nothing lost
                    continue
                self._planner.data_loss(f"{topic}-{partition} ends at {newest[each]}, and was read up to {offset}")
        return end

    def _with_new(self, start: Offsets, end: Offsets) -> Offsets:
        new = [each for each in end if each not in start]
        first = self._planner.earliest(new)
        for each in new:
            if first[each] > 0:
                topic, partition = each
                self._planner.data_loss(f"{topic}-{partition} is new here, and begins at {first[each]} already")
        return {each: start.get(each, first.get(each, 0)) for each in end}

    def _admitted(self, start: Offsets, end: Offsets, limit: ReadLimit) -> Offsets:
        options = self._options
        if isinstance(limit, ReadMinRows) and self._pinned is None:
            ready = sum(max(0, end[each] - start[each]) for each in end)
            waited_ms = (time.monotonic() - self._last_batch_s) * 1000
            if ready < limit.min_rows and waited_ms < options.max_trigger_delay_ms:
                # Only partitions that have nothing new may move in: they bring no rows.
                return start
        if not isinstance(limit, ReadAllAvailable):
            rows = limit.max_rows if isinstance(limit, ReadMaxRows) else options.max_offsets
            if rows is not None:
                end = limited(start, end, rows)
        if end != start:
            self._last_batch_s = time.monotonic()
        return end

    def tasks(self, start: Offsets, end: Offsets) -> list[ReadTask]:
        options = self._options
        start = self._with_new(start, end)
        wanted = [each for each in sorted(end) if start[each] < end[each]]
        first = self._planner.earliest(wanted)
        for each in wanted:
            if start[each] < first[each]:
                topic, partition = each
                there = f"{topic}-{partition} begins at {first[each]} now"
                self._planner.data_loss(f"{there}, and {start[each]} is the next offset to read")
        ranges = [OffsetRange(*each, max(start[each], first[each]), end[each]) for each in wanted]
        pieces = split(ranges, min_partitions=options.min_partitions, max_records=options.max_records_per_partition)
        hints = self._planner.file_hints(each.key for each in pieces)
        return [ReadTask(each.topic, each.partition, each.start, each.end, hints.get(each.key)) for each in pieces]

    def commit(self, end: Offsets) -> None:
        if self._options.commit_group is not None:
            commit_offsets(self._client, self._options.commit_group, end)
