"""Published queries: their progress is in a file for other processes. Needs PySpark, but no Java."""

from __future__ import annotations

import atexit
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock import runs
from penstock.spark.progress import QueryState, watch, with_metrics


@pytest.fixture(autouse=True)
def _apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(atexit, "register", lambda *_, **__: None)  # the tests' exit is not a job's exit


def progress(batch: int, rows: int) -> Any:
    source = {"endOffset": {"orders": {"0": 40}}, "latestOffset": {"orders": {"0": 45}}}
    told = {"id": "11111111-2222", "name": "orders", "batchId": batch, "numInputRows": rows, "sources": [source]}
    told.update({"processedRowsPerSecond": 12.5, "batchDuration": 800})
    return SimpleNamespace(progress=SimpleNamespace(json=json.dumps(told)))


def test_query_that_is_published_under_a_name_is_visible_to_other_processes() -> None:
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


def test_query_cannot_be_published_under_a_name_that_is_not_a_file_name() -> None:
    with pytest.raises(ValueError, match="is not a valid name to publish"):
        watch(SimpleNamespace(), publish="../elsewhere")


def test_progress_of_a_query_has_the_metrics_of_sparks_own_source_and_a_description() -> None:
    end, latest = {"orders": {"0": 40, "1": 7}}, {"orders": {"0": 45, "1": 7}, "payments": {"0": 4}}
    other = {"description": "RateStream", "endOffset": 4, "latestOffset": 5, "metrics": {"a": "b"}}
    told = {"id": "1", "sources": [{"endOffset": end, "latestOffset": latest, "description": "Python@7"}, other]}
    [ours, theirs] = with_metrics(told)["sources"]
    assert ours["metrics"] == {
        "avgOffsetsBehindLatest": "3.0",
        "maxOffsetsBehindLatest": "5",
        "minOffsetsBehindLatest": "0",
    }
    assert ours["description"] == "penstock[orders, payments]"
    assert theirs == other
    assert with_metrics(SimpleNamespace(json=json.dumps(told)))["sources"][0] == ours
