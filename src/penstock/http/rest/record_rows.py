"""Converts records to JSON, and limits the size of an answer.

A key, a value or a header is `{"text": …}` if it is UTF-8, otherwise `{"base64": …}`; null stays null. Keys and values
may have a view besides (`formats/views.py`).
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from penstock.formats.schemas import Schemas
from penstock.formats.views import ANSWER_LIMITS, AUTO, KEY, VALUE, VIEWS, AnswerLimits, Viewing, shown
from penstock.http.rest.fields import Field

if TYPE_CHECKING:
    from penstock.records.record import Record

#: Bytes of keys, values and headers in one answer. A longer record is shown without its value.
ANSWER_MAX_BYTES = 2 * 1024 * 1024
#: Bytes of an empty header in an answer.
HEADER_BYTES = 32
#: Limits of the views of a search, which may take minutes: only the views themselves are limited.
SEARCH_LIMITS = replace(ANSWER_LIMITS, seconds=math.inf)


def record_size(record: Record) -> int:
    """Returns the number of bytes of the record's key, value and headers (with their names)."""
    headers = sum(len(name) + len(value or b"") for name, value in record.headers)
    return len(record.key or b"") + len(record.value or b"") + headers


def answer_size(record: Record) -> int:
    """Returns how many bytes the record adds to an answer. Does not read the headers if they are too many anyway."""
    headers = HEADER_BYTES * len(record.headers)
    return headers if headers > ANSWER_MAX_BYTES else headers + record_size(record)


def _row(partition: int, record: Record, max_bytes: int, viewing: Viewing) -> dict[str, Any]:
    too_long = answer_size(record) > max_bytes
    return {
        "partition": partition,
        "offset": record.offset,
        "timestamp_ms": record.timestamp,
        "size": record_size(record),
        "left_out": too_long,
        "key": None if too_long else viewing.show(KEY, record.key),
        "value": None if too_long else viewing.show(VALUE, record.value),
        "headers": [] if too_long else [{"name": name, "value": shown(value)} for name, value in record.headers],
    }


def _rows(partition: int, records: Sequence[Record], max_bytes: int, viewing: Viewing) -> list[dict[str, Any]]:
    return [_row(partition, each, max_bytes, viewing) for each in records]


class RecordViews:
    """Makes the rows of records in a thread of its own, because views are computed, and may wait for a registry."""

    def __init__(self, schemas: Schemas) -> None:
        self._schemas = schemas
        # One thread: however many clients ask, one thread competes with the broker's loop, and schemas are read by one.
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="penstock-views")

    def viewing(self, topic: str, fields: Mapping[str, Any], limits: AnswerLimits = ANSWER_LIMITS) -> Viewing:
        """Returns the views of one answer, as the caller's `key_view` and `value_view` ask for."""
        return Viewing(self._schemas, topic, {part: fields.get(f"{part}_view", AUTO) for part in (KEY, VALUE)}, limits)

    async def rows(
        self, partition: int, records: Sequence[Record], viewing: Viewing, max_bytes: int = ANSWER_MAX_BYTES
    ) -> list[dict[str, Any]]:
        """Returns the records for JSON. Leaves out the contents of records that are longer than `max_bytes`."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, _rows, partition, records, max_bytes, viewing)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


#: Fields of a request that choose the views of its answer.
VIEW_FIELDS = {
    f"{part}_view": Field("string", f"how the answer shows the {part}; default: {AUTO}", choices=VIEWS)
    for part in (KEY, VALUE)
}
