"""Converts records to JSON, and limits the size of a response.

A key, a value or a header is `{"text": …}` if it is UTF-8, otherwise `{"base64": …}`; null stays null. Keys and values
can also be shown decoded, for example with an Avro schema (`formats/views.py`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from penstock.formats.schemas import Schemas
from penstock.formats.views import ANSWER_LIMITS, AUTO, KEY, VALUE, VIEWS, AnswerLimits, Viewing, shown
from penstock.http.messages import Encoded, encoded
from penstock.http.rest.fields import Field
from penstock.http.rest.paced_thread import PacedThread

if TYPE_CHECKING:
    from penstock.records.excerpts import Excerpt

#: Bytes of keys, values and headers in one answer. A longer record is shown without its key, value and headers.
ANSWER_MAX_BYTES = 2 * 1024 * 1024
#: Bytes that a row and a header count for besides their contents: an answer has at most 10,000 headers.
ROW_BYTES = HEADER_BYTES = 200
#: Records whose rows are made in one piece of work, and their bytes.
PIECE_RECORDS = 50
PIECE_BYTES = 64 * 1024
#: Limits of the views of a search, which may take minutes: only the views themselves are limited.
SEARCH_LIMITS = replace(ANSWER_LIMITS, seconds=math.inf)


def answer_size(record: Excerpt) -> int:
    """Estimates how many bytes the record adds to a response."""
    headers = sum(HEADER_BYTES + len(name) + len(value or b"") for name, value in record.headers)
    return ROW_BYTES + len(record.key or b"") + len(record.value or b"") + headers


def _row(partition: int, record: Excerpt, viewing: Viewing) -> Encoded:
    return encoded(
        {
            "partition": partition,
            "offset": record.offset,
            "timestamp_ms": record.timestamp,
            "size": record.size,
            "left_out": record.left_out,
            "key": viewing.show(KEY, record.key),
            "value": viewing.show(VALUE, record.value),
            "headers": [{"name": name, "value": shown(value)} for name, value in record.headers],
            "headers_left_out": record.headers_left_out,
        }
    )


def _rows(partition: int, records: Sequence[Excerpt], viewing: Viewing) -> list[Encoded]:
    return [_row(partition, each, viewing) for each in records]


def _piece(records: Sequence[Excerpt], start: int) -> int:
    """Returns the end index of the next piece: the records, from index `start` on, that are converted together."""
    room = PIECE_BYTES
    for end in range(start, min(start + PIECE_RECORDS, len(records))):
        room -= answer_size(records[end])
        if room < 0:
            return max(end, start + 1)
    return min(start + PIECE_RECORDS, len(records))


class RecordViews:
    """Converts records to JSON in its own thread, because the conversion may have to wait for a schema registry.

    The thread of `RecordDecoder` is not delayed by this.
    """

    def __init__(self, schemas: Schemas) -> None:
        self._schemas = schemas
        # One thread, also because schemas are read by one.
        self._thread = PacedThread("penstock-views")

    def viewing(self, topic: str, fields: Mapping[str, Any], limits: AnswerLimits = ANSWER_LIMITS) -> Viewing:
        """Returns a converter for one response. `key_view` and `value_view` in `fields` choose the formats."""
        return Viewing(self._schemas, topic, {part: fields.get(f"{part}_view", AUTO) for part in (KEY, VALUE)}, limits)

    async def rows(self, partition: int, records: Sequence[Excerpt], viewing: Viewing) -> list[Encoded]:
        """Returns the records as JSON."""
        rows: list[Encoded] = []
        while len(rows) < len(records):
            piece = records[len(rows) : _piece(records, len(rows))]
            rows += await self._thread.run(_rows, partition, piece, viewing)
        return rows

    def close(self) -> None:
        self._thread.close()


#: Fields of a request that choose the views of its answer.
VIEW_FIELDS = {
    f"{part}_view": Field("string", f"how the answer shows the {part}; default: {AUTO}", choices=VIEWS)
    for part in (KEY, VALUE)
}
