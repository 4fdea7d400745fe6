"""Work that is no query, done by Spark's tasks: one for each item, wherever there is room."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

T = TypeVar("T")
R = TypeVar("R")


#: Where a session can't tell, being somewhere else.
MANY = 8


def cores_of(spark: Any) -> int:
    """How many tasks run at once."""
    context = getattr(spark, "_sc", None)
    return MANY if context is None else max(1, int(context.defaultParallelism))


def spread(spark: Any, items: Sequence[T], work: Callable[[T], R]) -> list[R]:
    """What `work` makes of each item, in their order. Items, work and results go between processes."""
    if not items:
        return []

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        for batch in batches:
            for at in batch.column(0).to_pylist():
                yield pa.RecordBatch.from_pydict({"at": [at], "found": [pickle.dumps(work(items[at]))]})

    numbers = spark.range(0, len(items), 1, len(items))
    rows = numbers.mapInArrow(run, "at bigint, found binary").collect()
    found = {row["at"]: row["found"] for row in rows}
    return [pickle.loads(found[at]) for at in range(len(items))]  # noqa: S301 (what our own tasks made)
