"""Tests the files of pipeline runs: files that pipelines write, and invalid files."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from penstock import processes, runs
from penstock.cli.exit import Exit
from penstock.cli.main import main
from penstock.http.pipelines import MAX_PIPELINES, pipelines_here

QUERY = runs.Query("clicks", True, 3, 100, 350, 49.5, 2010, 7)


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    found = runs.directory()
    found.mkdir(parents=True)
    return found


def test_last_progress_of_a_query_is_saved_and_read_back() -> None:
    with runs.Recording(runs.begin("demo", "clicks to a table")) as recording:
        recording.progressed("a", replace(QUERY, batch=2), "earlier")
        recording.progressed("a", QUERY, "batch 3")
        found = runs.load("demo")
        assert found is not None
        assert (found.queries, found.last, found.shown) == ({"a": QUERY}, "batch 3", "running")
        (shown,) = pipelines_here()
        assert (shown.name, shown.state, shown.queries) == ("demo", "running", (QUERY,))
    (shown,) = pipelines_here()
    assert shown.state == "done"


def test_clusters_and_topics_of_a_pipeline_run_are_saved_and_read_back() -> None:
    with runs.Recording(runs.begin("demo", "", ["one", "two"])) as recording:
        recording.progressed("a", replace(QUERY, topic_ids=("x", "y")), "")
        (shown,) = pipelines_here()
    assert shown.clusters == ("one", "two")
    assert shown.queries[0].topic_ids == ("x", "y")


def test_second_pipeline_with_the_same_name_and_another_spec_gets_a_numbered_name() -> None:
    ended = replace(runs.begin("table-orders", "orders → /a"), state="done")
    runs.save(ended)
    assert runs.free_name("table-orders", "orders → /a") == "table-orders"
    assert runs.free_name("table-orders", "orders → /b") == "table-orders-2"
    runs.save(replace(ended, name="table-orders-2", spec="orders → /b"))
    assert runs.free_name("table-orders", "orders → /b") == "table-orders-2"
    assert runs.free_name("table-orders") == "table-orders"


def test_number_of_queries_of_a_pipeline_run_is_bounded() -> None:
    with runs.Recording(runs.begin("demo", "")) as recording:
        for number in range(runs.MAX_QUERIES + 20):
            recording.progressed(str(number), QUERY, "")
    found = runs.load("demo")
    assert found is not None
    assert len(found.queries) == runs.MAX_QUERIES
    assert str(runs.MAX_QUERIES + 19) in found.queries


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "null",
        "[" * 100_000,
        '"' + "x" * runs.MAX_BYTES,
        "{}",
        json.dumps({"name": "x", "pid": 0, "spec": "", "began": ""}),
        json.dumps({"name": "x", "pid": -1, "spec": "", "began": ""}),
        json.dumps({"name": "x", "pid": 10**30, "spec": "", "began": ""}),
        json.dumps({"name": "x", "pid": True, "spec": "", "began": ""}),
        json.dumps({"name": ["x"], "pid": 5, "spec": "", "began": ""}),
        json.dumps({"name": "x", "pid": 5, "spec": "", "began": "", "queries": []}),
        json.dumps({"name": "x", "pid": 5, "spec": "", "began": "", "state": {}}),
    ],
)
def test_invalid_file_of_a_pipeline_run_is_skipped(place: Path, content: str) -> None:
    (place / "bad.json").write_text(content.replace('"x"', '"bad"'))
    (place / "directory.json").mkdir()
    runs.save(runs.begin("good", ""))
    assert runs.load("bad") is None
    assert [run.name for run in runs.load_all()] == ["good"]
    assert [pipeline.name for pipeline in pipelines_here()] == ["good"]


@pytest.mark.parametrize("wrong", [{}, {"lag": -1}, {"lag": "7"}, {"rows": None}, {"batch_ms": 2**70}, {"name": 5}])
def test_invalid_numbers_in_the_file_of_a_pipeline_run_are_ignored(place: Path, wrong: dict[str, object]) -> None:
    told = {**{name: getattr(QUERY, name) for name in QUERY.__slots__}, **wrong}
    told.update({} if wrong else {"rows_per_second": float("nan")})
    run = {"name": "x", "pid": os.getpid(), "spec": "", "began": "", "queries": {"a": told, "b": 7}}
    (place / "x.json").write_text(json.dumps(run))
    found = runs.load("x")
    assert found is not None
    assert found.queries == {}


def test_only_the_latest_pipeline_runs_are_shown_and_running_pipelines_come_first(place: Path) -> None:
    for number in range(MAX_PIPELINES + 10):
        runs.save(runs.Run(f"run{number}", os.getpid(), "", "", "done"))
        os.utime(place / f"run{number}.json", (number, number))
    runs.save(runs.begin("now", ""))
    os.utime(place / "now.json", (50, 50))
    shown = [pipeline.name for pipeline in pipelines_here()]
    assert shown[:2] == ["now", f"run{MAX_PIPELINES + 9}"]
    assert len(shown) == MAX_PIPELINES


def test_pipeline_run_file_of_an_older_version_is_read(place: Path) -> None:
    (place / "old.json").write_text(
        '{"name": "old", "pid": 1, "spec": "s", "began": "b", "state": "failed", "last": "l"}'
    )
    assert runs.load("old") == runs.Run("old", 1, "s", "b", "failed", "l")


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    """Yields a process that is not a pipeline. It runs until its input ends."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def test_stop_does_not_signal_another_process_that_has_the_pid_of_a_killed_pipeline(
    stranger: subprocess.Popen[bytes],
) -> None:
    here = runs.begin("table-orders", "")
    runs.save(replace(here, pid=stranger.pid))
    left = runs.load("table-orders")
    assert left is not None
    assert left.shown == "killed"
    assert not runs.stop(left)
    assert main(["pipeline", "stop", "table-orders"]) == Exit.NOT_FOUND
    assert stranger.poll() is None


def test_stop_ends_a_running_pipeline(stranger: subprocess.Popen[bytes]) -> None:
    runs.save(replace(runs.begin("demo", ""), pid=stranger.pid, started=processes.started(stranger.pid)))
    assert main(["pipeline", "stop", "demo"]) == Exit.OK
    assert stranger.wait(timeout=60) == -signal.SIGTERM


@pytest.mark.parametrize("name", ["../evil", "../../../evil", "/etc/evil", "..", ".", "a b/c", "\0", "x" * 300])
def test_pipeline_run_with_any_name_reads_and_writes_only_its_own_directory(place: Path, name: str) -> None:
    outside = json.dumps({"name": name, "pid": os.getpid(), "spec": "", "began": ""})
    (place.parent / "evil.json").write_text(outside)
    assert runs.load(name) is None
    runs.save(runs.begin(name, ""))
    found = runs.load(name)
    assert found is not None
    assert found.name == name
    assert len(list(place.iterdir())) == 1


def test_pipeline_run_file_with_the_name_of_another_run_is_skipped(place: Path) -> None:
    runs.save(runs.begin("orders", ""))
    (place / "orders.json").rename(place / "clicks.json")
    assert runs.load("clicks") is None
    assert runs.load_all() == []
