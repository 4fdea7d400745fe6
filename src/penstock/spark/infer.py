"""Reads a few values from the beginning of the topics, to infer their schema."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa

from penstock.protocol.vocabulary import EARLIEST
from penstock.spark.brokers import connect
from penstock.spark.options import Position, SourceOptions, ValueOptions
from penstock.spark.planner import Planner, ReadTask
from penstock.spark.tasks import read_task

_SCHEMA = pa.schema([pa.field("value", pa.binary()), pa.field("offset", pa.int64())])


def sample_values(options: SourceOptions) -> Any:
    """Returns about `value.infer.records` values, some from every partition."""
    with connect(options) as client:
        planner = Planner(client, options)
        partitions = planner.partitions()
        start = planner.start(options.starting or Position(everywhere=EARLIEST), partitions)
        first, end = planner.earliest(partitions), planner.latest(partitions)
    share = max(1, options.value.infer_records // max(1, len(partitions)))
    plain = replace(options, value=ValueOptions(), read_mode="wire")
    found = []
    for each in partitions:
        # A stream may start at the end of a partition: the records before its start are as good a sample.
        low = max(first[each], min(start[each], end[each] - share))
        task = ReadTask(each[0], each[1], low, min(low + share, end[each]))
        found += [batch.column("value") for batch in read_task(plain, _SCHEMA, task)]
    return pa.chunked_array(found, pa.binary()).combine_chunks().drop_null()
