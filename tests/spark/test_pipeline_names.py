"""Names of the queries that pipelines start: Spark refuses two with the same name, and the console shows only one."""

from __future__ import annotations

from unittest.mock import MagicMock

import pytest

pytest.importorskip("pyspark")

from penstock.pipelines import table
from penstock.pipelines.archive import start_archive
from penstock.pipelines.table import TableJob, start_table
from penstock.pipelines.topics import Topic

ORDERS = Topic("127.0.0.1:1", "orders")


def names(spark: MagicMock) -> list[str]:
    return [call.args[0] for call in spark.mock_calls if call[0].endswith(".queryName")]


def test_two_tables_of_one_topic_have_different_run_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "check_place", lambda spark, job: None)
    spark = MagicMock()
    for path in ("/a", "/b"):
        start_table(spark, TableJob(ORDERS, path))
    assert names(spark) == ["table orders to /a", "table orders to /b"]


def test_two_archives_of_one_topic_have_different_run_names() -> None:
    spark = MagicMock()
    for path in ("/a", "/b"):
        start_archive(spark, ORDERS, path)
    assert names(spark) == ["archive orders to /a", "archive orders to /b"]
