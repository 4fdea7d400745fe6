"""JSON values as rows, and rows as changes of a table, on a Spark session; test_pipeline_delta.py tests the tables."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import functions as f

from penstock.pipelines.table import TableJob, check_place, start_table
from penstock.pipelines.topics import Topic
from penstock.pipelines.upsert import changes_of
from penstock.pipelines.values import evolving, spark_type
from penstock.spark.errors import SourceError

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

FIRST = [
    b'{"n":1,"price":1.5,"a":{"x":1},"l":[{"x":1}],"id":1,"_id":1}',
    b'"no object"',
]
#: A value of each kind that once made every rerun fail, or was dropped.
SECOND = [
    b'{"n":2.5,"price":12.75}',
    b'{"n":99999999999999999999}',
    b'{"a":{"x":2,"y":{"z":[true]}},"l":[{"x":2,"y":3}]}',
    b'{"id":1,"ID":2}',
    b'{"a b":1,"c.d":{"e,f":"g"},"_key":"x","":null}',
    b'{"_id":"abc"}',
    b'{"e":{}}',
    b"\xff\xfe",
    b"",
    b"null",
]


def rows_of(records: Any) -> list[Any]:
    """Returns, for each record, the fields of its value as JSON, and its `_bad`."""
    found = records.selectExpr("value IS NULL", "to_json(value)", "value._bad").collect()
    return [None if none else (json.loads(text, parse_float=Decimal), bad) for none, text, bad in found]


def test_json_value_with_a_field_that_does_not_fit_its_column_is_kept_whole_in_column_bad(spark: Any) -> None:
    first = evolving(spark.createDataFrame([(value,) for value in FIRST], "value BINARY").coalesce(1), None)
    batch = spark.createDataFrame([(value,) for value in [*SECOND, None]], "value BINARY").coalesce(1)
    second = evolving(batch, spark_type(first.after))
    rows = rows_of(second.records)
    first.records.unpersist()
    second.records.unpersist()
    assert rows[-1] is None
    for value, (row, bad) in zip(SECOND, rows[:-1]):
        row.pop("_bad", None)
        if bad is None:
            text = value.decode().replace(',"":null', "")
            for name, column in {"a b": "a%20b", "c.d": "c%2Ed", "_key": "%5Fkey", "e,f": "e%2Cf"}.items():
                text = text.replace(json.dumps(name), json.dumps(column))
            assert row == json.loads(text, parse_float=Decimal)
        else:
            assert bad.encode() == value or bad == "\\xff\\xfe"
    assert [bad is not None for _, bad in rows[:-1]] == [*[False] * 3, True, False, *[True] * 5]
    assert rows[3][0]["id"] == 1, "fields that fit are there beside the whole value"
    types = dict(second.after.columns)
    assert spark_type(types["n"]).simpleString() == "decimal(38,18)"
    assert spark_type(types["a"]).simpleString() == "struct<x:bigint,y:struct<z:array<boolean>>>"
    assert spark_type(types["l"]).simpleString() == "array<struct<x:bigint,y:bigint>>"


TABLE = (
    "_key STRING, id BIGINT, n BIGINT, _bad STRING, _topic STRING, _partition INT, _offset BIGINT, _timestamp LONG, "
    "_gone BOOLEAN"
)


def changed(spark: Any, rows: list[tuple[Any, ...]], *fields: str) -> tuple[list[Any], list[Any], list[Any]]:
    """Returns kept rows as (key, id, n), deleted keys, and deleted record keys with their offset."""
    made = [(key, id_, n, bad, "t", 0, offset, offset, gone) for offset, (key, id_, n, bad, gone) in enumerate(rows)]
    changes = changes_of(spark.createDataFrame(made, TABLE).coalesce(1), fields)
    deleted = changes.deleted.select("_key", "_offset").collect() if changes.deleted is not None else []
    return (
        sorted((tuple(row) for row in changes.kept.select("_key", "id", "n").collect()), key=str),
        sorted(tuple(row) for row in changes.ended.select("_key", "id").collect()),
        sorted(tuple(row) for row in deleted),
    )


def test_upsert_of_a_record_without_a_key_adds_a_row_that_no_later_record_replaces(spark: Any) -> None:
    rows = [
        (None, 1, 1, None, False),
        (None, 1, 2, None, False),
        (None, None, None, None, True),  # no key: deletes no row
        ("a", 1, 3, None, False),
        ("a", 1, 4, None, False),
        ("b", 2, 5, None, False),
        ("b", None, None, None, True),
        ("c", None, None, "", False),  # an empty value does not delete
    ]
    kept, ended, deleted = changed(spark, rows)
    assert kept == sorted([(None, 1, 1), (None, 1, 2), ("a", 1, 4), ("c", None, None)], key=str)
    assert (ended, deleted) == ([("b", None)], [])


def test_null_value_deletes_the_rows_of_its_record_key_in_a_table_whose_key_is_a_value_field(
    spark: Any,
) -> None:
    rows = [
        ("a", 1, 1, None, False),
        ("a", None, None, None, True),
        ("b", 2, 2, None, False),
        ("b", None, None, None, True),
        ("b", 2, 3, None, False),
        ("c", None, None, "x", False),  # without the field
        (None, None, None, "y", False),
        (None, None, None, None, True),
    ]
    kept, ended, deleted = changed(spark, rows, "id")
    assert kept == sorted([("b", 2, 3), ("c", None, None), (None, None, None)], key=str)
    assert (ended, deleted) == ([("a", 1)], [("a", 1), ("b", 3)])


def test_upsert_by_a_missing_field_is_refused_if_the_batch_has_json_objects_and_accepted_otherwise(spark: Any) -> None:
    with pytest.raises(SourceError, match="Values have no field nothing to upsert by: choose from id, n"):
        changed(spark, [("a", 1, 1, None, False)], "nothing")
    kept, ended, deleted = changed(spark, [("a", None, None, "x", False), ("b", None, None, None, True)], "nothing")
    assert (len(kept), ended, deleted) == (1, [], [("b", 1)])


def test_record_with_a_bad_value_and_without_a_key_field_becomes_a_separate_row(spark: Any) -> None:
    rows = [
        ("a", 1, None, "x", False),
        ("a", 1, None, "y", False),
        ("a", 1, None, None, False),
        ("a", 1, 2, "z", False),
    ]
    made = [(key, id_, n, bad, "t", 0, offset, offset, gone) for offset, (key, id_, n, bad, gone) in enumerate(rows)]
    frame = spark.createDataFrame(made, TABLE).coalesce(1)
    changes = changes_of(frame, ["id", "n"])
    assert sorted(row["_offset"] for row in changes.kept.collect()) == [0, 1, 2, 3]
    later = frame.withColumn("_offset", f.col("_offset") + 10)
    replaced = frame.alias("old").join(later.alias("new"), f.expr(changes.same)).select("old._offset").collect()
    assert sorted(row["_offset"] for row in replaced) == [2, 3], "and nothing replaces the others"


def test_upsert_accepts_json_fields_with_the_names_of_its_own_temporary_columns(spark: Any) -> None:
    fields = "row BIGINT, _until BIGINT, _lone BIGINT, new BIGINT, old BIGINT"
    rows = [("a", 1, 1, 1, 1, 1, None, "t", 0, 0, 0, False), ("b", 1, 2, 2, 2, 2, None, "t", 0, 1, 1, False)]
    table = spark.createDataFrame(rows, TABLE.replace("id BIGINT, n BIGINT", fields))
    [row] = changes_of(table, ["row"]).kept.collect()
    assert (row["_key"], row["row"], row["_until"]) == ("b", 1, 2)


def test_table_job_with_option_value_bad_but_without_a_schema_is_refused() -> None:
    topic = Topic("localhost:1", "t", {"value.bad": "topic:dead"})
    with pytest.raises(SourceError, match=r"Option value\.bad needs --value-schema"):
        TableJob(topic, "/t").check()
    TableJob(topic, "/t", value_schema="n BIGINT").check()


@pytest.mark.parametrize(("there", "wanted"), [("_spark_metadata", "delta"), ("_delta_log", "parquet")])
def test_table_job_refuses_a_directory_that_has_a_table_of_another_format(
    spark: Any, tmp_path: Path, there: str, wanted: str
) -> None:
    job = TableJob(Topic("localhost:1", "t"), str(tmp_path / "table"), format=wanted)
    check_place(spark, job)
    (tmp_path / "table" / there).mkdir(parents=True)
    (tmp_path / "table" / there / "0").write_text("v1")
    with pytest.raises(SourceError, match=f"is a {'Parquet' if wanted == 'delta' else 'Delta'} table: use --format"):
        start_table(spark, job)
