"""Errors of `penstock pipeline` before Spark is started, its progress lines, and the demo's own check."""

from __future__ import annotations

import json
import logging
import os
import pty
import shutil
import socket
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from penstock.cli import pipeline_demo, pipeline_ending
from penstock.cli.exit import Exit, Failure
from penstock.cli.main import main
from penstock.cli.pipeline_session import Lines, _silence_py4j, progress_lines
from penstock.client.sync import Client
from penstock.pipelines.demo import differences, events
from penstock.pipelines.parquet_files import parse, render, small_groups
from penstock.pipelines.running import Pace, line, reason
from penstock.pipelines.table import TableJob, _Count
from penstock.pipelines.topics import Topic
from penstock.pipelines.watching import told
from penstock.spark.progress import QueryState
from penstock.testing import Broker

NOBODY = "127.0.0.1:1"


def test_pipeline_command_reports_an_unreachable_broker_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pipeline", "table", "orders", "/tmp/t", "-b", NOBODY, "--timeout", "2"]) == Exit.CANNOT_CONNECT
    assert "nothing listens at 127.0.0.1:1" in capsys.readouterr().err


def test_pipeline_command_reports_a_missing_topic_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with Broker(config={"auto.create.topics.enable": "false"}) as broker:
        for words in (["table", "orders", "/tmp/t"], ["repartition", "orders", "other", "--checkpoint", "/tmp/c"]):
            assert main(["pipeline", *words, "-b", broker.bootstrap]) == Exit.NOT_FOUND
            assert capsys.readouterr().err.startswith("penstock: there is no topic orders: ")


def test_upsert_into_a_parquet_table_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    with Broker(topics={"orders": 1}) as broker:
        words = ["pipeline", "table", "orders", "/tmp/t", "--format", "parquet", "--mode", "upsert"]
        assert main([*words, "-b", broker.bootstrap]) == Exit.USAGE
    assert "use a Delta table for upserts" in capsys.readouterr().err


def test_unknown_option_of_a_pipeline_command_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pipeline", "table", "orders", "/tmp/t", "--formt", "delta"]) == Exit.USAGE
    assert "--formt" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "told", "terminal", "seconds"),
    [
        (None, None, True, None),
        (None, None, False, pipeline_demo.UNWATCHED_S),
        (None, "", True, None),
        (None, "15", True, 15.0),
        (20.0, "15", False, 20.0),
    ],
)
def test_demo_runs_until_ctrl_c_unless_a_time_is_set_or_there_is_no_terminal(
    given: float | None, told: str | None, terminal: bool, seconds: float | None
) -> None:
    assert pipeline_demo.seconds_to_run(given, told, terminal=terminal) == seconds


def test_first_signal_stops_the_demo_cleanly_and_a_later_signal_stops_it_at_once() -> None:
    now = 0.0
    ending = pipeline_ending.Ending(10.0, lambda: now)
    assert not ending.due()
    ending.on_signal()
    ending.on_signal()  # the same Ctrl-C, by way of make
    assert ending.due()
    now = pipeline_ending.AGAIN_S
    with pytest.raises(KeyboardInterrupt):
        ending.on_signal()


def test_demo_ends_after_the_given_time() -> None:
    now = 9.0
    ending = pipeline_ending.Ending(10.0, lambda: now)
    assert not ending.due()
    now = 10.0
    assert ending.due()
    assert not pipeline_ending.Ending(None, lambda: now).due()


def test_demo_uses_another_port_if_the_default_port_is_taken_but_fails_if_a_given_port_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(Failure, match="the port is taken") as raised, pipeline_demo.own_broker(port, str(tmp_path)):
            pass
        assert raised.value.code is Exit.ADDRESS_IN_USE
        monkeypatch.setattr(pipeline_demo, "PORT", port)
        with pipeline_demo.own_broker(None, str(tmp_path)) as broker:
            assert capsys.readouterr().err == f"port {port} is taken, so the demo's broker uses a free port\n"
            with Client(broker.bootstrap) as client:
                assert client.metadata([]).brokers
            broker.check()
        with pytest.raises(Failure, match="the broker process has ended"):
            broker.check()


def test_a_wrong_time_for_the_demo_is_a_usage_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RUN_SECONDS", "soon")
    assert main(["pipeline", "demo"]) == Exit.USAGE
    assert capsys.readouterr().err == "penstock: RUN_SECONDS must be a number of seconds, not 'soon'\n"


def test_reason_of_a_failed_query_is_the_source_error_in_sparks_error_text() -> None:
    told = (
        "[STREAM_FAILED] Query …\n  File x\npenstock.spark.errors.SourceError: Data was lost.\nJVM stacktrace:\n at a"
    )
    assert reason(RuntimeError(told)) == "Data was lost."
    assert (
        reason(RuntimeError("=== Streaming Query ===\nNo space left on device\n at java")) == "No space left on device"
    )


@pytest.mark.parametrize(
    ("told", "sentence"),
    [
        (
            "An error occurred while calling o6.start.\n: java.io.IOException: mkdir of file:/t failed\n\tat java",
            "mkdir of file:/t failed",
        ),
        ("[UNRESOLVED_COLUMN] No column `n`. SQLSTATE: 42703; line 1 pos 0;\n'Filter", "No column `n`."),
        (
            "[STREAM_FAILED] Query [id = 1] terminated with exception: No space. SQLSTATE: XXKST\n=== Streaming",
            "No space.",
        ),
    ],
)
def test_reason_of_a_failed_query_has_no_prefixes_and_suffixes_of_spark_and_java(told: str, sentence: str) -> None:
    assert reason(RuntimeError(told)) == sentence


def test_reason_of_a_failed_query_is_the_last_line_of_a_python_workers_traceback() -> None:
    told = (
        "An exception was thrown from the Python worker:\nTraceback (most recent call last):\n"
        '  File "worker.py", line 7, in main\n    work()\n      ^^^^\nOSError: No space left\n\n\tat org.apache'
    )
    assert reason(RuntimeError(told)) == "OSError: No space left"


def test_pipeline_commands_suppress_log_lines_of_py4j() -> None:
    _silence_py4j()
    _silence_py4j()

    def logged(path: str) -> bool:
        record = logging.LogRecord("root", logging.ERROR, path, 1, "hung up on", (), None)
        return bool(logging.getLogger().filter(record))

    assert not logged("/site-packages/py4j/java_gateway.py")
    assert logged("/site-packages/penstock/client/client.py")


@pytest.mark.parametrize(("raised", "told"), [(BrokenPipeError(), False), (OSError("No space left"), True)])
def test_python_worker_whose_connection_is_closed_prints_no_traceback(
    raised: OSError, told: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("pyspark")
    from penstock.pipelines.quiet_daemon import Quiet

    try:
        raise raised
    except OSError:
        Quiet.print_exc()
    assert ("No space left" in capsys.readouterr().err) is told


def test_progress_line_of_a_query_shows_the_remaining_time() -> None:
    state = QueryState("q", "orders", 4, 1000, 4000, rows_per_second=500.0, batch_ms=2000, lag=60_000)
    assert line(state) == "orders: batch 4, 1,000 rows in 2,000 ms, 500 rows/s, lag 60,000, 2 min to go"
    assert line(replace(state, lag=600)).endswith("lag 600, 1 s to go")
    assert line(replace(state, lag=4_000_000)).endswith(", 2.2 h to go")
    assert line(replace(state, lag=0)).endswith("lag 0")
    assert line(replace(state, rows_per_second=0.0)).endswith("lag 60,000")


def test_progress_is_one_updated_line_on_a_terminal_and_plain_lines_elsewhere(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def said() -> str:
        lines = Lines()
        lines.progress("batch 1")
        lines.progress("batch 2")
        lines.say("flow done")
        lines.end()
        return capsys.readouterr().err

    assert said() == "batch 1\nbatch 2\nflow done\n"
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert said() == "\r\x1b[Kbatch 1\r\x1b[Kbatch 2\r\x1b[Kflow done\n"


def test_progress_line_of_a_batch_job_shows_records_rate_and_remaining_time() -> None:
    assert told("backfill t", 1500, 6000, "records", 3.0) == (
        "backfill t: 1,500 of 6,000 records, 500 records/s, 9 s to go"
    )
    assert told("compared", 3, 7, "parts", 2.0) == "compared: 3 of 7 parts, 1.5 parts/s, 3 s to go"
    assert told("report", 60, 60, "records", 2.0) == "report: 60 of 60 records, 30 records/s"
    assert told("report", 0, 0, "records", 2.0) == ""


def test_last_progress_line_is_shown_after_success_but_not_after_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_lines(lambda _: "done"):
        pass
    assert capsys.readouterr().err == "done\n"
    with pytest.raises(Failure), progress_lines(lambda _: "done"):
        raise Failure("no")
    assert capsys.readouterr().err == ""


def test_demo_generates_the_same_events_for_the_same_seed() -> None:
    assert list(islice(events(1), 50)) == list(islice(events(1), 50))
    assert list(islice(events(1), 50)) != list(islice(events(2), 50))


def test_demo_detects_missing_duplicate_and_changed_rows() -> None:
    produced, spent = Counter({"/": 3}), Counter({"/": 60})
    right = {"page": "/", "clicks": 3, "ids": 3, "ms": 60}
    assert differences([right], produced, spent) == []
    assert differences([], produced, spent) == ["/: 0 of 3 events"]
    assert differences([{**right, "clicks": 4}], produced, spent) == ["/: 1 rows twice"]
    assert differences([{**right, "ids": 2, "clicks": 2}], produced, spent) == ["/: 2 of 3 events"]
    assert differences([{**right, "ms": 61}], produced, spent) == ["/: other values than were produced"]
    assert differences([right, {**right, "page": None}], produced, spent) == ["None: 3 of 0 events"]


DEMO = [sys.executable, "-m", "penstock.cli.main", "pipeline", "demo", "--port", "0", "--rate", "100"]


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_demo_with_a_time_limit_stops_and_reports_that_the_table_has_all_events(tmp_path: Path) -> None:
    done = subprocess.run(
        [*DEMO, "--json"],
        env={**os.environ, "RUN_SECONDS": "5", "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=550,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["exactly"]
    assert told["in_table"] == told["produced"] > 0
    assert list(tmp_path.glob("penstock-demo-*")) == []


def on_terminal(command: list[str], environment: dict[str, str], until: str) -> tuple[int, str]:
    """Runs a command on a terminal of its own, like a shell; sends Ctrl-C once the text is printed, and waits."""
    take = (
        "import fcntl, os, signal, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0);"
        "signal.signal(signal.SIGINT, signal.SIG_DFL);"  # tests that run in the background inherit an ignored signal
        "os.execvp(sys.argv[1], sys.argv[1:])"
    )
    ours, its = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", take, *command],
        stdin=its,
        stdout=its,
        stderr=its,
        env=environment,
        start_new_session=True,
    )
    os.close(its)
    seen = ""
    asked = False
    try:
        while True:
            try:
                text = os.read(ours, 65536).decode(errors="replace")
            except OSError:  # no process has the terminal open any more
                break
            if not text:
                break
            seen += text
            if not asked and until in seen:
                os.write(ours, b"\x03")
                asked = True
        return process.wait(60), seen
    finally:
        os.close(ours)
        process.kill()
        process.wait()


def makefile(place: Path, command: str) -> list[str]:
    if shutil.which("make") is None:
        pytest.skip("there is no make")
    place.write_text(f"run:\n\t@exec {command}\n")
    return ["make", "-f", str(place), "run"]


@pytest.mark.parametrize("alone", [True, False])
def test_make_returns_the_exit_code_of_its_command_if_only_the_command_receives_ctrl_c(
    tmp_path: Path, alone: bool
) -> None:
    script = tmp_path / "command.py"
    script.write_text(
        "import contextlib, signal\n"
        "from penstock.cli.foreground import own_foreground\n"
        f"with own_foreground() if {alone} else contextlib.nullcontext():\n"
        "    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})\n"
        "    print('ready', flush=True)\n"
        "    signal.sigwait({signal.SIGINT})\n"
        "print('compared', flush=True)\n"
    )
    command = makefile(tmp_path / "Makefile", f"{sys.executable} {script}")
    code, seen = on_terminal(command, dict(os.environ), "ready")
    assert "compared" in seen
    assert (code == 0) is alone, seen


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_demo_on_a_terminal_runs_until_ctrl_c_and_then_compares_table_and_events(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "RUN_SECONDS"}
    command = makefile(tmp_path / "Makefile", " ".join(DEMO))
    code, seen = on_terminal(command, {**environment, "TMPDIR": str(tmp_path), "COLUMNS": "100"}, "first rows after")
    assert code == 0, seen
    assert "/checkout" in seen
    assert "exactly       yes" in seen
    assert "Traceback" not in seen


def test_small_parquet_files_are_merged_in_each_directory_that_has_more_than_one_small_file() -> None:
    def entry(path: str, size: int) -> dict[str, Any]:
        return {"path": path, "size": size, "isDir": False}

    entries = [
        entry("file:/t/day=mo/a", 10),
        entry("file:/t/day=mo/b", 20),
        entry("file:/t/day=mo/large", 1 << 30),
        entry("file:/t/day=tu/alone", 10),
    ]
    assert small_groups(entries) == [entries[:2]]
    assert parse(render(entries)) == entries
    with pytest.raises(ValueError, match="has the unknown version v7"):
        parse("v7\n{}")


def test_continuous_query_of_a_parquet_table_stops_after_many_batches_so_that_its_files_are_merged() -> None:
    class Query:
        lastProgress: dict[str, int] | None = None

    def after(batches: list[dict[str, int] | None], *, follow: bool, stop: bool = False) -> bool:
        job = TableJob(Topic("nowhere", "t"), "/t", format="parquet", optimize_every=2, pace=Pace(follow=follow))
        count = _Count(job, lambda: stop)
        count._query = Query()
        due = False
        for batch in batches:
            count._query.lastProgress = batch
            due = count.is_due()
        return due

    first, idle, last = ({"batchId": n, "numInputRows": rows} for n, rows in ((5, 1), (30, 0), (24, 1)))
    assert after([None, first, last], follow=True)
    assert not after([None, first, idle], follow=True)
    assert not after([first, {**last, "batchId": 23}], follow=True)
    assert not after([first, last], follow=False)
    assert after([None], follow=False, stop=True)
