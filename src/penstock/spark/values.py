"""Decodes the value column (`value.format`) in the reader, and separates values that can't be decoded.

Arrow decodes JSON and CSV, a whole column at once; a column with a bad value is halved until the bad rows are found.
Avro and Protobuf are decoded record by record. A null value stays null and does not count as bad.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.spark.dead_letters import DeadLetters
from penstock.spark.decode import Decoded
from penstock.spark.errors import SourceError
from penstock.spark.options import BAD_REASON, BAD_VALUE, VALUE_FORMATS, SourceOptions, ValueOptions

DEAD_LETTER_PREFIX = "topic:"
#: Most bytes of a block that Arrow reads. A block holds a whole column, because types inferred from a part of it may be
#: wrong.
_BLOCK_BYTES = 1 << 30

Column = Any
DecodeAll = Callable[[Column], Column]
"""Decodes values without nulls into a column of the same length. Raises Exception with the reason if a value is bad."""


class ValueDecoder:
    """Decodes the value column of a task. Reports bad records in extra columns, as an error, or in another topic."""

    def __init__(self, options: SourceOptions, schema: Any) -> None:
        self._value = options.value
        self._wanted = "value" in schema.names
        self._type = schema.field("value").type if self._wanted else pa.binary()
        self._decode_all = _decoder(options.value, self._type)
        bad = options.value.bad
        self._letters = (
            DeadLetters(options, bad.removeprefix(DEAD_LETTER_PREFIX)) if bad.startswith(DEAD_LETTER_PREFIX) else None
        )
        self.needs_headers = self._letters is not None

    def close(self) -> None:
        if self._letters is not None:
            self._letters.close()

    def decode(self, columns: dict[str, Column], decoded: Decoded) -> dict[str, Column]:
        raw = columns["value"]
        null = np.asarray(raw.is_null())
        rows = np.flatnonzero(~null)
        values, reasons = self._decoded(raw.take(pa.array(rows)))
        found = columns | {"value": _spread(values, rows, len(raw))}
        bad = rows[sorted(reasons)] if reasons else rows[:0]
        if self._letters is not None and len(bad):
            self._letters.send(columns, decoded, bad, _by_row(reasons))
            keep = np.ones(len(raw), dtype=bool)
            keep[bad] = False
            mask = pa.array(keep)
            return {name: column.filter(mask) for name, column in found.items() if column is not None}
        if self._value.bad == "fail" and len(bad):
            offset = columns["offset"][int(bad[0])].as_py()
            reason = _by_row(reasons)[0]
            raise SourceError(
                f"The value at offset {offset} is not valid {self._value.format} for this schema: {reason}"
            )
        if not len(bad):
            found |= {BAD_VALUE: pa.nulls(len(raw), pa.binary()), BAD_REASON: pa.nulls(len(raw), pa.string())}
            return found
        places = pa.array(bad)
        found[BAD_VALUE] = _spread(raw.take(places), bad, len(raw))
        found[BAD_REASON] = _spread(pa.array(_by_row(reasons), pa.string()), bad, len(raw))
        return found

    def _decoded(self, values: Column) -> tuple[Column, dict[int, str]]:
        """Returns the decoded column, and a dict from the row of each bad value to the reason why it is bad.

        The decoded column has null in the rows of bad values.
        """
        reasons: dict[int, str] = {}
        if not len(values):
            return pa.nulls(0, self._type), reasons
        pieces: list[Column] = []
        # A stack instead of recursion; the right half is pushed first, so pieces come in order.
        work = [(0, len(values))]
        while work:
            start, count = work.pop()
            try:
                pieces.append(self._decode_all(values.slice(start, count)))
            except Exception as error:
                if count == 1:
                    reasons[start] = (str(error).splitlines() or [type(error).__name__])[0]
                    pieces.append(pa.nulls(1, self._type))
                    continue
                half = count // 2
                work += [(start + half, count - half), (start, half)]
        combined = pa.chunked_array(pieces, type=self._type).combine_chunks()
        return combined, reasons


def _by_row(reasons: dict[int, str]) -> list[str]:
    return [reasons[row] for row in sorted(reasons)]


def _spread(values: Column, rows: Any, count: int) -> Column:
    """Returns a column of `count` rows with `values[i]` in row `rows[i]`. All other rows are null."""
    if len(values) == count:
        return values
    places = np.full(count, -1, dtype=np.int64)
    places[rows] = np.arange(len(rows))
    return values.take(pa.array(places, mask=places < 0))


def _decoder(value: ValueOptions, wanted: Any) -> DecodeAll:
    match value.format:
        case "string":
            return lambda values: values.cast(pa.string())
        case "json":
            return lambda values: _struct(read_json(values, wanted), wanted, len(values))
        case "csv":
            return lambda values: _struct(read_csv(values, wanted, value.delimiter), wanted, len(values))
        case "avro":
            from penstock.spark.avro import avro_decoder

            return avro_decoder(value, wanted)
        case "protobuf":
            from penstock.spark.protobuf import protobuf_decoder

            return protobuf_decoder(value, wanted)
        case other:
            raise SourceError(f"Option value.format is {other!r}: it takes {', '.join(VALUE_FORMATS)}.")


def _struct(table: Any, wanted: Any, count: int) -> Column:
    if table.num_rows != count:
        raise ValueError("the value does not contain exactly one record")
    columns = []
    for field in wanted:
        column = table[field.name].combine_chunks() if field.name in table.column_names else pa.nulls(count, field.type)
        columns.append(column if column.type == field.type else column.cast(field.type))
    return pa.StructArray.from_arrays(columns, fields=list(wanted))


def _joined(values: Column) -> Any:
    """Returns a buffer with all values, each followed by a line end."""
    line = pc.binary_join_element_wise(values, pa.scalar(b"", pa.binary()), pa.scalar(b"\n", pa.binary()))
    first, last = line.offset, line.offset + len(line)
    offsets = np.frombuffer(line.buffers()[1], dtype=np.int32)
    return line.buffers()[2].slice(int(offsets[first]), int(offsets[last] - offsets[first]))


def read_json(values: Column, wanted: Any) -> Any:
    """Parses JSON values and returns a table with a row for each object. Raises ValueError for any other value.

    A value with two objects gives two rows, so the caller has to compare the numbers of rows and values.
    """
    from pyarrow import json as arrow_json

    text = values.cast(pa.string())
    if not pc.all(pc.match_substring_regex(text, r"(?s)^\s*\{.*\}\s*$")).as_py():
        raise ValueError("the value is not a JSON object")
    parse = arrow_json.ParseOptions(
        explicit_schema=pa.schema(list(wanted)) if wanted is not None else None,
        newlines_in_values=True,
        unexpected_field_behavior="ignore" if wanted is not None else "infer",
    )
    read = arrow_json.ReadOptions(use_threads=False, block_size=_block(values))
    return arrow_json.read_json(pa.BufferReader(_joined(values)), read_options=read, parse_options=parse)


def read_csv(values: Column, wanted: Any, delimiter: str) -> Any:
    """Parses CSV values and returns a table with a row per value.

    Raises ValueError for a value that would not become exactly one row.
    """
    from pyarrow import csv

    text = values.cast(pa.string())
    if pc.any(pc.match_substring_regex(text, r"[\r\n]|^$")).as_py():
        raise ValueError("the value is empty or has several lines")
    if pc.any(pc.equal(pc.bit_wise_and(pc.count_substring(text, '"'), 1), 1)).as_py():
        raise ValueError("the value has a quote that is not closed")
    names = [field.name for field in wanted] if wanted is not None else None
    return csv.read_csv(
        pa.BufferReader(_joined(values)),
        read_options=csv.ReadOptions(
            use_threads=False,
            column_names=names,
            autogenerate_column_names=names is None,
            block_size=_block(values),
        ),
        parse_options=csv.ParseOptions(delimiter=delimiter, ignore_empty_lines=False),
        convert_options=csv.ConvertOptions(
            column_types={field.name: field.type for field in wanted} if wanted is not None else None,
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )


def _block(values: Column) -> int:
    return int(min(_BLOCK_BYTES, values.nbytes + 2 * len(values) + 1024))
