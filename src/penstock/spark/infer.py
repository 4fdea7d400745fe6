"""A few values from the beginning of what is read, to infer their schema from."""

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
    """At most `value.infer.records` values, from every partition some."""
    with connect(options) as client:
        planner = Planner(client, options)
        partitions = planner.partitions()
        start = planner.start(options.starting or Position(everywhere=EARLIEST), partitions)
        first, end = planner.earliest(partitions), planner.latest(partitions)
    share = max(1, options.value.infer_records // max(1, len(partitions)))
    plain = replace(options, value=ValueOptions(), read_mode="wire")
    found = []
    for each in partitions:
        # A stream may start where there is nothing yet: what was there before is as good an example.
        low = max(first[each], min(start[each], end[each] - share))
        task = ReadTask(each[0], each[1], low, min(low + share, end[each]))
        found += [batch.column("value") for batch in read_task(plain, _SCHEMA, task)]
    return pa.chunked_array(found, pa.binary()).combine_chunks().drop_null()
