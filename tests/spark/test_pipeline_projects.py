"""Commands for Spark's declarative pipelines: a project is created, checked, run, and stopped with a reason."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from penstock import processes, runs
from penstock.cli.exit import Exit
from penstock.cli.main import main
from penstock.testing import Broker


@pytest.fixture(autouse=True)
def _state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def pipeline(*words: str, place: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "penstock.cli.main", "pipeline", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=550, check=False, cwd=place)


def test_second_creation_of_a_project_in_the_same_directory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["pipeline", "init", "shop", "--topic", "orders"]) == Exit.OK
    assert "orders" in (tmp_path / "shop" / "transformations" / "events.py").read_text()
    assert main(["pipeline", "init", "shop"]) == Exit.EXISTS
    assert "choose another name" in capsys.readouterr().err
    (tmp_path / "file").touch()
    assert main(["pipeline", "init", "file/shop"]) == Exit.STORAGE
    assert "the directory file/shop can't be created" in capsys.readouterr().err


def test_directory_without_a_project_is_reported_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pipeline", "run", str(tmp_path)]) == Exit.NOT_FOUND
    assert "has no spark-pipeline.yml" in capsys.readouterr().err


def test_invalid_project_file_is_reported_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("pyspark")
    (tmp_path / "spark-pipeline.yml").write_text("name: shop\ncolour: blue\n")
    assert main(["pipeline", "dry-run", str(tmp_path)]) == Exit.USAGE
    assert "colour" in capsys.readouterr().err


def test_pipeline_runs_are_listed_with_their_state(capsys: pytest.CaptureFixture[str]) -> None:
    runs.save(runs.begin("here", "/p/spark-pipeline.yml"))
    runs.save(runs.Run("there", 2**22 + 1, "/p/spark-pipeline.yml", "2026-01-01T00:00:00+00:00"))
    runs.save(runs.Run("bad", 1, "/p/spark-pipeline.yml", "2026-01-01T00:00:00+00:00", "failed", "No broker."))
    assert main(["pipeline", "list", "--json"]) == Exit.OK
    listed = {row["pipeline"]: row["state"] for row in json.loads(capsys.readouterr().out)}
    assert listed == {"bad": "failed", "here": "running", "there": "killed"}
    assert main(["pipeline", "status", "here"]) == Exit.OK
    assert main(["pipeline", "status", "bad"]) == Exit.FAILED
    assert main(["pipeline", "status", "nobody"]) == Exit.NOT_FOUND
    assert main(["pipeline", "stop", "there"]) == Exit.NOT_FOUND


def test_pipeline_run_records_its_state_in_a_file_and_continues_if_the_file_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def state() -> tuple[str, str]:
        run = runs.load("shop")
        assert run is not None
        return run.shown, run.last

    with runs.Recording(runs.begin("shop", "/p")) as recording:
        assert runs.free_name("shop") == "shop"  # its own
        recording.note(last="batch 1")
        assert state() == ("running", "batch 1")
    assert state() == ("done", "batch 1")
    with pytest.raises(ValueError), runs.Recording(runs.begin("shop", "/p")):
        raise ValueError("no broker")
    assert state() == ("failed", "no broker")
    with pytest.raises(KeyboardInterrupt), runs.Recording(runs.begin("shop", "/p")):
        raise KeyboardInterrupt
    assert state()[0] == "stopped"
    with runs.Recording(runs.begin("other", "/p"), keep=False):
        assert runs.load("other") is None

    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    told: list[str] = []
    with runs.Recording(runs.begin("shop", "/p"), on_problem=told.append) as recording:
        recording.note(last="batch 2")
    assert [text.rpartition(": ")[2] for text in told] == ["`pipeline list` won't know this run"]


def test_second_running_pipeline_with_the_same_name_gets_a_number_in_its_name() -> None:
    other = os.getppid()
    runs.save(replace(runs.begin("table-orders", "/t"), pid=other, started=processes.started(other)))
    assert runs.free_name("table-orders") == "table-orders-2"


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_project_can_be_run_twice_and_a_failing_flow_ends_the_run_with_the_reason(tmp_path: Path) -> None:
    with Broker(data=tmp_path / "broker", topics={"orders": 2}) as broker:
        with broker.client() as client, client.producer() as producer:
            producer.send_many("orders", [(b"k", str(n).encode(), (), None) for n in range(50)])
        made = pipeline("init", "shop", "--topic", "orders", "-b", broker.bootstrap, place=tmp_path)
        assert made.returncode == 0, made.stderr
        checked = pipeline("dry-run", "shop", place=tmp_path)
        assert checked.returncode == 0, checked.stderr
        done = pipeline("run", "shop", place=tmp_path)
        assert done.returncode == 0, done.stderr
        assert "events: batch 0, 50 rows" in done.stderr
        assert "lag 0" in done.stderr
        assert "Warning" not in done.stderr
        assert runs.load("shop") is not None
        tables = {path.name for path in (tmp_path / "shop" / "storage" / "warehouse").iterdir()}
        assert {"events", "events_by_key"} <= tables
        definition = tmp_path / "shop" / "transformations" / "events.py"
        definition.write_text(definition.read_text().replace('"orders"', '"missing"'))
        failed = pipeline("run", "shop", "--full-refresh-all", place=tmp_path)
    assert failed.returncode == Exit.FAILED
    assert "missing" in failed.stderr.splitlines()[-1]
