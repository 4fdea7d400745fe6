"""Defines the stream reader, which plans each micro-batch in a Python process on the driver.

Offsets are {"topic": {"partition": next offset}}, as in Spark's own Kafka source, with each topic's id beside them
(`continuity`). A batch starts at the end of the previous batch. A partition that is in a batch's end offsets, but not
in its start offsets, is new and is read from its beginning. A topic that was deleted and created again is read from its
beginning too.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from functools import cached_property
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
from penstock.protocol.vocabulary import LATEST
from penstock.spark.brokers import connect
from penstock.spark.commits import commit_offsets
from penstock.spark.continuity import Json, StreamOffset, changes, made_again
from penstock.spark.errors import warn_of_options
from penstock.spark.options import Position, SourceOptions, parse_options
from penstock.spark.planner import Planner, ReadTask
from penstock.spark.ranges import OffsetRange, Offsets, from_json, limited, split, to_json
from penstock.spark.schema import check_schema
from penstock.spark.shipping import Shipped
from penstock.spark.workers import settle


class StreamReader(Shipped, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads topics as a stream.

    The first method that is called checks the options. The constructor does not check them, because Spark would drop
    the error message.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._given = dict(options)
        self._schema = schema
        self._driver: _Driver | None = None

    @cached_property
    def _options(self) -> SourceOptions:
        """Returns the options. Parses them on first use. Raises SourceError."""
        options = parse_options(self._given, streaming=True)
        check_schema(self._schema, options)
        return options

    @property
    def _plan(self) -> _Driver:
        # Made on first use: executors get a copy of this reader and plan nothing.
        if self._driver is None:
            self._driver = _Driver(self._options)
        return self._driver

    def state(self) -> dict[str, Any]:
        return self.__dict__ | {"_driver": None}

    def initialOffset(self) -> Json:
        return self._plan.initial().to_json()

    def latestOffset(self, start: Json, limit: ReadLimit) -> Json:
        return self._plan.latest(StreamOffset.from_json(start), limit).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        options = self._options
        if options.min_offsets is not None:
            return ReadMinRows(options.min_offsets)  # Spark takes one limit; `_admitted` applies a maximum beside it
        return ReadMaxRows(options.max_offsets) if options.max_offsets is not None else ReadAllAvailable()

    def reportLatestOffset(self) -> Json | None:
        return to_json(self._plan.newest.offsets) if self._plan.newest.offsets else None

    def prepareForTriggerAvailableNow(self) -> None:
        self._plan.pin()

    def partitions(self, start: Json, end: Json) -> list[ReadTask]:
        return self._plan.tasks(StreamOffset.from_json(start), StreamOffset.from_json(end))

    def read(self, partition: Any) -> Iterator[Any]:
        from penstock.spark.tasks import read_task  # only tasks need it, the planner does not

        settle()
        yield from read_task(self._options, to_arrow_schema(self._schema, timezone="UTC"), partition)

    def commit(self, end: Json) -> None:
        self._plan.commit(from_json(end))

    def stop(self) -> None:
        if self._driver is not None:
            self._driver.close()
            self._driver = None


class _Driver:
    """Holds the reader's state on the driver: the connection, the end offsets, and the time of the last batch."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        warn_of_options(options.without_effect)
        self._client: Client = connect(options)
        self._planner = Planner(self._client, options)
        self._pinned: StreamOffset | None = None
        self._last_batch_s = time.monotonic()
        self.newest = StreamOffset()

    def close(self) -> None:
        self._client.close()

    def initial(self) -> StreamOffset:
        partitions = self._planner.partitions()
        position = self._options.starting or Position(everywhere=LATEST)
        start = self._planner.start(position, partitions)
        # Missing offsets are reported here, with the range that exists, rather than by the first task.
        found = {each.key: each.start for each in self._planner.ranges(start, dict(start))}
        return StreamOffset(found, self._planner.topic_ids(found))

    def pin(self) -> None:
        self._pinned = self._latest_offsets()

    def _latest_offsets(self) -> StreamOffset:
        newest = self._planner.latest(self._planner.partitions())
        return StreamOffset(newest, self._planner.topic_ids(newest))

    def latest(self, start: StreamOffset, limit: ReadLimit) -> StreamOffset:
        self.newest = self._pinned or self._latest_offsets()
        begin, end = self._without_loss(start, self.newest)
        ids = {**start.topic_ids, **self.newest.topic_ids}
        return StreamOffset(self._admitted(self._with_new(begin, end), end, limit), ids)

    def _without_loss(self, start: StreamOffset, newest: StreamOffset) -> tuple[Offsets, Offsets]:
        """Returns the start offsets of the next batch, and the highest end offsets that it may have.

        Reports data loss if a topic was created again, or if a partition was deleted or became shorter.
        """
        found = changes(start, newest)
        for topic in found.made_again:
            self._planner.data_loss(f"Topic {topic} was deleted and created again since this query read it")
        # A partition that the query no longer subscribes to keeps its offset.
        left_out = self._planner.existing(found.gone)
        end = dict(newest.offsets) | {each: start.offsets[each] for each in left_out}
        for each in set(found.gone) - left_out:
            self._planner.data_loss(f"{each[0]}-{each[1]} no longer exists; it was read up to {start.offsets[each]}")
        # A query that read uncommitted records before may be ahead of the last stable offset.
        there = self._planner.high_watermarks(found.behind)
        for each in found.behind:
            offset = start.offsets[each]
            if there[each] >= offset:
                end[each] = offset
                continue
            self._planner.data_loss(f"{each[0]}-{each[1]} ends at {there[each]}, but was read up to {offset}")
        return start.without(set(found.made_again)).offsets, end

    def _with_new(self, start: Offsets, end: Offsets) -> Offsets:
        new = [each for each in end if each not in start]
        first = self._planner.earliest(new)
        for each in new:
            if first[each] > 0:
                topic, partition = each
                self._planner.data_loss(f"{topic}-{partition} is new to this query, but begins at offset {first[each]}")
        return {each: start.get(each, first.get(each, 0)) for each in end}

    def _admitted(self, start: Offsets, end: Offsets, limit: ReadLimit) -> Offsets:
        options = self._options
        if isinstance(limit, ReadMinRows) and self._pinned is None:
            ready = sum(max(0, end[each] - start[each]) for each in end)
            waited_ms = (time.monotonic() - self._last_batch_s) * 1000
            if ready < limit.min_rows and waited_ms < options.max_trigger_delay_ms:
                # The batch stays empty: `start` only adds new partitions, at their beginning, so it has no rows.
                return start
        if not isinstance(limit, ReadAllAvailable):
            rows = limit.max_rows if isinstance(limit, ReadMaxRows) else options.max_offsets
            if rows is not None:
                end = limited(start, end, rows)
        if end != start:
            self._last_batch_s = time.monotonic()
        return end

    def tasks(self, since: StreamOffset, until: StreamOffset) -> list[ReadTask]:
        options = self._options
        until = self._without_deleted_topics(until)
        end = until.offsets
        start = self._with_new(since.without(made_again(since, until)).offsets, end)
        wanted = [each for each in sorted(end) if start[each] < end[each]]
        first = self._planner.earliest(wanted)
        for each in wanted:
            if start[each] < first[each]:
                topic, partition = each
                there = f"{topic}-{partition} begins at {first[each]} now"
                self._planner.data_loss(f"{there}, but {start[each]} is the next offset to read")
        ranges = [OffsetRange(*each, max(start[each], first[each]), end[each]) for each in wanted]
        pieces = split(ranges, min_partitions=options.min_partitions, max_records=options.max_records_per_partition)
        hints = self._planner.file_hints(each.key for each in pieces)
        ids = until.topic_ids
        return [
            ReadTask(
                each.topic, each.partition, each.start, each.end, hints.get(each.key), topic_id=ids.get(each.topic)
            )
            for each in pieces
        ]

    def _without_deleted_topics(self, until: StreamOffset) -> StreamOffset:
        """Returns the end offsets of a batch, without topics that were deleted after the batch was planned.

        Each deleted topic is reported as data loss. If it was created again, the next batch reads the new topic from
        the beginning.
        """
        gone = set(until.offsets) - self._planner.existing(until.offsets)
        ids = self._planner.topic_ids(until.offsets)
        lost = made_again(until, StreamOffset(topic_ids=ids)) | {topic for topic, _ in gone}
        for topic in sorted(lost):
            self._planner.data_loss(f"Topic {topic} was deleted after a batch of this query was planned")
        return StreamOffset(until.without(lost).offsets, {**ids, **until.topic_ids})

    def commit(self, end: Offsets) -> None:
        if self._options.commit_group is not None:
            commit_offsets(self._client, self._options.commit_group, end)
