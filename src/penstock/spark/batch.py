"""Defines the reader of batch queries. It plans tasks on the driver; the tasks read the records."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pyspark.sql.datasource import DataSourceReader
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from penstock.protocol.vocabulary import EARLIEST
from penstock.spark.brokers import connect
from penstock.spark.errors import warn_of_options
from penstock.spark.filters import Narrowed, narrow
from penstock.spark.options import Position, SourceOptions, parse_options
from penstock.spark.planner import Planner, ReadTask
from penstock.spark.ranges import OffsetRange, split
from penstock.spark.schema import check_schema
from penstock.spark.shipping import Shipped
from penstock.spark.workers import settle

#: The worker program in which Spark pushes filters down.
_PUSHDOWN_WORKER = "pyspark.sql.worker.data_source_pushdown_filters"


def batch_reader(options: Mapping[str, str], schema: StructType) -> DataSourceReader:
    """Returns a reader. It accepts filters only if the user set `push.filters` and Spark's filter push-down is on.

    `push.filters` is for DataFrames that are used once: Spark plans a read once per DataFrame, so a second query would
    get only the rows that pass the filters of the first query.

    If push-down is off, which is Spark's default, Spark refuses a reader that accepts filters. Spark does not tell this
    function about the setting. But with push-down on, Spark calls this function in a special worker program, so the
    function checks whether it runs in that program.
    """
    parsed = parse_options(options)
    check_schema(schema, parsed)
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    pushing = _PUSHDOWN_WORKER in sys.modules or (main is not None and main.name == _PUSHDOWN_WORKER)
    return FilteringReader(parsed, schema) if pushing and parsed.push_filters else BatchReader(parsed, schema)


class BatchReader(Shipped, DataSourceReader):
    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._narrowed = Narrowed()

    def partitions(self) -> list[ReadTask]:
        options = self._options
        narrowed = self._narrowed
        warn_of_options(options.without_effect)
        with connect(options) as client:
            planner = Planner(client, options)
            wanted = planner.partitions()
            start = planner.start(options.starting or Position(everywhere=EARLIEST), wanted)
            end = planner.end(options.ending, wanted)
            ranges = planner.ranges(start, end)
            if narrowed.min_timestamp_ms is not None:
                since = planner.since(narrowed.min_timestamp_ms, wanted)
                ranges = [
                    OffsetRange(each.topic, each.partition, max(each.start, since[each.key]), each.end)
                    for each in ranges
                ]
            ranges = [piece for each in ranges if (piece := narrowed.cut(each)).size > 0]
            pieces = split(ranges, min_partitions=options.min_partitions, max_records=options.max_records_per_partition)
            hints = planner.file_hints(each.key for each in pieces)
        return [
            ReadTask(each.topic, each.partition, each.start, each.end, hints.get(each.key), narrowed.min_timestamp_ms)
            for each in pieces
        ]

    def read(self, partition: Any) -> Iterator[Any]:
        if not isinstance(partition, ReadTask):  # Spark's placeholder for a plan without tasks
            return
        from penstock.spark.tasks import read_task  # only tasks need it, the planner does not

        settle()
        yield from read_task(self._options, to_arrow_schema(self._schema, timezone="UTC"), partition)


class FilteringReader(BatchReader):
    def pushFilters(self, filters: list[Any]) -> Iterable[Any]:
        self._narrowed, rest = narrow(filters)
        return rest
