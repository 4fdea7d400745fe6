"""What `penstock pipeline` says before Spark is started, and how the demo judges itself."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from itertools import islice
from pathlib import Path

import pytest

from penstock.cli.exit import Exit
from penstock.cli.main import main
from penstock.pipelines.demo import differences, events
from penstock.pipelines.running import reason
from penstock.testing import Broker

NOBODY = "127.0.0.1:1"


def test_a_broker_that_is_not_there_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pipeline", "table", "orders", "/tmp/t", "-b", NOBODY, "--timeout", "2"]) == Exit.CANNOT_CONNECT
    assert "no broker answers at 127.0.0.1:1" in capsys.readouterr().err


def test_a_topic_that_is_not_there_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with Broker(config={"auto.create.topics.enable": "false"}) as broker:
        for words in (["table", "orders", "/tmp/t"], ["backfill", "/tmp/t", "orders"]):
            assert main(["pipeline", *words, "-b", broker.bootstrap]) == Exit.NOT_FOUND
            assert capsys.readouterr().err.startswith("penstock: orders: ")


def test_upserts_into_parquet_are_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    with Broker(topics={"orders": 1}) as broker:
        words = ["pipeline", "table", "orders", "/tmp/t", "--format", "parquet", "--mode", "upsert"]
        assert main([*words, "-b", broker.bootstrap]) == Exit.USAGE
    assert "use a Delta table for upserts" in capsys.readouterr().err


def test_an_unknown_option_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pipeline", "table", "orders", "/tmp/t", "--formt", "delta"]) == Exit.USAGE
    assert "--formt" in capsys.readouterr().err


def test_a_wrong_time_for_the_demo_is_a_usage_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RUN_SECONDS", "soon")
    assert main(["pipeline", "demo"]) == Exit.USAGE
    assert capsys.readouterr().err == "penstock: RUN_SECONDS takes a number of seconds, not 'soon'\n"


def test_a_failed_query_is_told_by_the_sentence_in_it() -> None:
    told = (
        "[STREAM_FAILED] Query …\n  File x\npenstock.spark.errors.SourceError: Data was lost.\nJVM stacktrace:\n at a"
    )
    assert reason(RuntimeError(told)) == "Data was lost."
    assert (
        reason(RuntimeError("=== Streaming Query ===\nNo space left on device\n at java")) == "No space left on device"
    )


def test_made_up_events_are_the_same_for_the_same_seed() -> None:
    assert list(islice(events(1), 50)) == list(islice(events(1), 50))
    assert list(islice(events(1), 50)) != list(islice(events(2), 50))


def test_the_demo_notices_rows_that_are_missing_doubled_or_changed() -> None:
    produced, spent = Counter({"/": 3}), Counter({"/": 60})
    right = {"page": "/", "clicks": 3, "ids": 3, "ms": 60}
    assert differences([right], produced, spent) == []
    assert differences([], produced, spent) == ["/: 0 of 3 events"]
    assert differences([{**right, "clicks": 4}], produced, spent) == ["/: 1 rows twice"]
    assert differences([{**right, "ids": 2, "clicks": 2}], produced, spent) == ["/: 2 of 3 events"]
    assert differences([{**right, "ms": 61}], produced, spent) == ["/: other values than were produced"]
    assert differences([right, {**right, "page": None}], produced, spent) == ["None: 3 of 0 events"]


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_demo_stops_by_itself_and_says_that_the_table_is_exact(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "penstock.cli.main", "pipeline", "demo", "--port", "0", "--rate", "100", "--json"],
        env={**os.environ, "RUN_SECONDS": "5", "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=550,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert '"exactly": true' in done.stdout
    assert list(tmp_path.glob("penstock-demo-*")) == []
