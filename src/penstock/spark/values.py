"""Decodes the value column (`value.format`) in the reader, and separates values that can't be decoded.

Arrow decodes JSON and CSV, a whole column at once; a column with a bad value is halved until the bad rows are found.
Avro and Protobuf are decoded record by record. A null value stays null, and is not bad.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from difflib import get_close_matches
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import DataType, StringType, StructType

from penstock.spark.dead_letters import DeadLetters
from penstock.spark.decode import Decoded
from penstock.spark.errors import SourceError
from penstock.spark.options import VALUE_FORMATS, SourceOptions, ValueOptions
from penstock.spark.schema import BAD_REASON, BAD_VALUE

DEAD_LETTER_PREFIX = "topic:"
#: Most bytes of a block that Arrow reads. A block holds a whole column, because types inferred from a part of it may be
#: wrong.
_BLOCK_BYTES = 1 << 30

#: Types that a column may have in a `value.schema` in DDL, apart from nested types.
_DDL_TYPES = (
    *("BOOLEAN", "TINYINT", "BYTE", "SMALLINT", "SHORT", "INT", "INTEGER", "BIGINT", "LONG", "FLOAT", "REAL", "DOUBLE"),
    *("DECIMAL", "DEC", "NUMERIC", "DATE", "TIME", "TIMESTAMP", "TIMESTAMP_NTZ", "TIMESTAMP_LTZ", "INTERVAL"),
    *("STRING", "BINARY", "VARIANT", "VOID"),
)

Column = Any
DecodeAll = Callable[[Column], Column]
"""Decodes values without nulls into a column of the same length. Raises Exception with the reason if a value is bad."""


def value_type(options: SourceOptions) -> DataType | str:
    """Returns the type of the value column, as Spark's type or in DDL.

    This is the type that the user gave, or else a type inferred from the first records.
    """
    value = options.value
    _check(value)
    if value.format == "string":
        return StringType()
    if value.format == "avro":
        from penstock.spark.avro import avro_type

        return avro_type(value)
    if value.format == "protobuf":
        from penstock.spark.protobuf import protobuf_type

        return protobuf_type(value)
    if value.schema is not None:
        return _spark_type(value.schema)
    from penstock.spark.infer import sample_values

    sample = sample_values(options)
    if not len(sample):
        raise SourceError(f"No schema can be inferred from {options.wanted}, which has no records: give value.schema.")
    try:
        read = _read_json(sample, None) if value.format == "json" else _read_csv(sample, None, value.delimiter)
    except pa.ArrowInvalid as error:
        raise SourceError(f"No schema can be inferred from {options.wanted} ({error}): give value.schema.") from None
    return from_arrow_schema(read.schema)


def _check(value: ValueOptions) -> None:
    if value.bad not in ("column", "fail") and not value.bad.removeprefix(DEAD_LETTER_PREFIX):
        raise SourceError("Option value.bad names no topic: it takes column, fail or topic:NAME.")
    if value.bad not in ("column", "fail") and not value.bad.startswith(DEAD_LETTER_PREFIX):
        raise SourceError(f"Option value.bad is {value.bad!r}: it takes column, fail or topic:NAME.")
    if value.format == "avro" and value.schema is None:
        raise SourceError("Avro needs value.schema: the Avro schema as JSON.")
    if value.format == "protobuf" and (value.descriptor is None or value.message is None):
        raise SourceError(
            "Protobuf needs value.descriptor (a file that protoc --descriptor_set_out wrote) and value.message."
        )


def _spark_type(text: str) -> DataType | str:
    """Parses a schema in Spark's JSON. Returns a schema in DDL as it is, because only Spark's JVM can parse DDL."""
    if not text.lstrip().startswith("{"):
        _check_ddl(text)
        return f"STRUCT<{text}>"
    try:
        return StructType.fromJson(json.loads(text))
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise SourceError(f"Option value.schema is not a schema in Spark's JSON: {reason}.") from None


def _check_ddl(text: str) -> None:
    """Checks the types in DDL, except nested types, which Spark checks. Raises SourceError.

    Spark's own message about an unknown type names the wrong column.
    """
    if any(sign in text for sign in "<(`"):
        return
    for column in text.split(","):
        name, *kind = column.replace(":", " ").split() or [""]
        if not kind:
            raise SourceError(f"Option value.schema has no type for {name!r}: write it as `id LONG, name STRING`.")
        if kind[0].upper() not in _DDL_TYPES:
            close = get_close_matches(kind[0].upper(), _DDL_TYPES, n=1)
            hint = f" (is {close[0]} meant?)" if close else ""
            raise SourceError(f"Option value.schema gives {name!r} the type {kind[0]}, which Spark doesn't know{hint}.")


class ValueDecoder:
    """Decodes the value column of a task, and reports bad records in columns, in an error, or in another topic."""

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
            raise SourceError(f"The value at offset {offset} is not {self._value.format} of this schema: {reason}")
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
    """Returns a column of `count` rows: `values[i]` is in row `rows[i]`, and the other rows are null."""
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
            return lambda values: _struct(_read_json(values, wanted), wanted, len(values))
        case "csv":
            return lambda values: _struct(_read_csv(values, wanted, value.delimiter), wanted, len(values))
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
        raise ValueError("the value is not exactly one record")
    columns = []
    for field in wanted:
        column = table[field.name].combine_chunks() if field.name in table.column_names else pa.nulls(count, field.type)
        columns.append(column if column.type == field.type else column.cast(field.type))
    return pa.StructArray.from_arrays(columns, fields=list(wanted))


def _joined(values: Column) -> Any:
    """Returns a buffer with all values, one line per value."""
    line = pc.binary_join_element_wise(values, pa.scalar(b"", pa.binary()), pa.scalar(b"\n", pa.binary()))
    first, last = line.offset, line.offset + len(line)
    offsets = np.frombuffer(line.buffers()[1], dtype=np.int32)
    return line.buffers()[2].slice(int(offsets[first]), int(offsets[last] - offsets[first]))


def _read_json(values: Column, wanted: Any) -> Any:
    """Returns a table with a row for each JSON object. Raises ValueError if a value does not look like one object.

    The caller compares the number of rows with the number of values. If they are equal, each value is exactly one
    object: an object that is cut off would need its rest at the start of the next value, but that begins with a new
    object; a value with two objects makes a row too many; and no value makes zero rows.
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


def _read_csv(values: Column, wanted: Any, delimiter: str) -> Any:
    """Returns a table with a row per value.

    Raises ValueError for a value with a line end, which would make two rows.
    """
    from pyarrow import csv

    text = values.cast(pa.string())
    if pc.any(pc.match_substring_regex(text, r"[\r\n]|^$")).as_py():
        raise ValueError("the value is not one line")
    if pc.any(pc.equal(pc.bit_wise_and(pc.count_substring(text, '"'), 1), 1)).as_py():
        raise ValueError("a quote is not closed")
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
