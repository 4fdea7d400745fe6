"""The examples produce the results that their docstrings describe."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections import Counter
from datetime import datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from penstock.pipelines.running import run
from penstock.testing import Broker

EXAMPLES = Path(__file__).parents[2] / "examples"


def load(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(Path(path).stem, EXAMPLES / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_clickstream_example_ends_a_visit_after_half_an_hour_without_clicks() -> None:
    pytest.importorskip("pyspark")
    example = load("clickstream/clickstream.py")
    gap = example.GAP_MS
    clicks = [(gap, "b"), (0, "a"), (gap - 1, "c"), (2 * gap, "d")]
    assert example.apart(clicks) == [[(0, "a"), (gap - 1, "c"), (gap, "b")], [(2 * gap, "d")]]
    assert example.apart([]) == []


def test_replayed_changes_of_the_change_capture_example_equal_the_rows_of_its_database() -> None:
    made, rows = load("change-capture/change_capture.py").changes(3, 500)
    replayed: dict[str, Any] = {}
    for key, row in made:
        if row is None:
            del replayed[key]
        else:
            replayed[key] = row
    assert replayed == rows
    assert any(row is None for _, row in made)


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_clickstream_example_writes_visits_and_its_dashboard_leaves_out_late_clicks(spark: Any, tmp_path: Path) -> None:
    example = load("clickstream/clickstream.py")
    clicks = [click for _, click in example.visits(1, 20)]
    with Broker(topics={example.TOPIC: 2}) as broker:
        example.produce(broker.bootstrap, [*clicks, example.closing_click()])
        run(lambda: example.start_sessions(spark, broker.bootstrap, str(tmp_path)))
        example.produce(broker.bootstrap, [example.late_click()])
        run(lambda: example.start_sessions(spark, broker.bootstrap, str(tmp_path)))
        run(lambda: example.start_dashboard(spark, broker.bootstrap, str(tmp_path)))
    found = spark.read.parquet(f"{tmp_path}/sessions").collect()
    assert {row["user"] for row in found} == {click["user"] for click in clicks}
    assert sum(row["clicks"] for row in found) == len(clicks)
    by_user: dict[str, list[tuple[int, str]]] = {}
    for click in clicks:
        at = int(datetime.fromisoformat(click["at"]).timestamp() * 1000)
        by_user.setdefault(click["user"], []).append((at, click["page"]))
    expected = {(user, visit[0][0], len(visit)) for user, made in by_user.items() for visit in example.apart(made)}
    assert {(row["user"], round(row["start"].timestamp() * 1000), row["clicks"]) for row in found} == expected
    assert Counter(row["user"] for row in found)["visitor-0"] >= 2
    board = spark.read.parquet(f"{tmp_path}/dashboard").collect()
    assert sum(row["clicks"] for row in board) >= len(clicks)


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_table_of_the_change_capture_example_has_the_rows_of_its_database(tmp_path: Path) -> None:
    with Broker() as broker:
        command = [sys.executable, str(EXAMPLES / "change-capture" / "change_capture.py"), "--changes", "200"]
        command += ["--bootstrap", broker.bootstrap, "--table", str(tmp_path / "customers")]
        environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")}
        done = subprocess.run(command, capture_output=True, text=True, timeout=1700, check=False, env=environment)
    if "unresolved dependency" in done.stderr:
        pytest.skip("Delta's jars are on Maven Central, which can't be reached")
    assert done.returncode == 0, done.stderr
