"""Queries that are published: what Spark says of them is in a file for others to read. Needs PySpark, and no Java."""

from __future__ import annotations

import atexit
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock import runs
from penstock.spark.progress import QueryState, watch


@pytest.fixture(autouse=True)
def _apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(atexit, "register", lambda *_, **__: None)  # the end of the tests is not that of a job


def progress(batch: int, rows: int) -> Any:
    source = {"endOffset": {"orders": {"0": 40}}, "latestOffset": {"orders": {"0": 45}}}
    told = {"id": "11111111-2222", "name": "orders", "batchId": batch, "numInputRows": rows, "sources": [source]}
    told.update({"processedRowsPerSecond": 12.5, "batchDuration": 800})
    return SimpleNamespace(progress=SimpleNamespace(json=json.dumps(told)))


def test_a_published_query_can_be_seen_from_outside() -> None:
    seen: list[QueryState] = []
    spark = SimpleNamespace(streams=SimpleNamespace(addListener=lambda _: None))
    watcher = watch(spark, seen.append, publish="my-job")
    watcher.onQueryProgress(progress(0, 30))
    watcher.onQueryProgress(progress(1, 10))
    found = runs.load("my-job")
    assert found is not None
    assert found.shown == "running"
    assert found.queries == {"11111111-2222": runs.Query("orders", True, 1, 10, 40, 12.5, 800, 5)}
    assert [state.batch_id for state in seen] == [0, 1]


def test_a_name_that_is_no_file_is_refused() -> None:
    with pytest.raises(ValueError, match="can't be published under"):
        watch(SimpleNamespace(), publish="../elsewhere")
