"""Results as tables and JSON, and progress where nobody watches."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.cli import output

ROWS: list[dict[str, Any]] = [
    {"topic": "a", "partitions": 3, "hidden": b"x"},
    {"topic": "longer", "partitions": None, "hidden": {2, 1}},
]


def test_a_pipe_gets_plain_columns(capsys: pytest.CaptureFixture[str]) -> None:
    output.rows("table", ["topic", "partitions"], ROWS)
    assert capsys.readouterr().out == "TOPIC   PARTITIONS\na       3\nlonger  -\n"


def test_json_has_every_key(capsys: pytest.CaptureFixture[str]) -> None:
    output.rows("json", ["topic"], ROWS)
    shown = json.loads(capsys.readouterr().out)
    assert shown[0] == {"topic": "a", "partitions": 3, "hidden": "x"}
    assert shown[1]["hidden"] == [1, 2]


def test_an_empty_table_is_a_remark_and_empty_json_a_list(capsys: pytest.CaptureFixture[str]) -> None:
    output.rows("table", ["topic"], [], empty="no topics")
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "no topics\n")
    output.rows("json", ["topic"], [])
    assert json.loads(capsys.readouterr().out) == []


def test_a_terminal_gets_a_drawn_table(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    output.rows("table", ["topic", "partitions"], ROWS)
    assert "longer" in capsys.readouterr().out


def test_one_record_is_lines_or_an_object(capsys: pytest.CaptureFixture[str]) -> None:
    output.record("table", {"id": 1, "names": ["a", "b"], "ok": True})
    assert capsys.readouterr().out == "id     1\nnames  a,b\nok     yes\n"
    output.record("json", {"id": 1})
    assert json.loads(capsys.readouterr().out) == {"id": 1}


def test_progress_is_plain_lines_where_nobody_watches(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "PROGRESS_EVERY_S", 0.0)
    with output.Progress("read", total=200, unit="records") as progress:
        progress.add(100)
    said = capsys.readouterr().err
    assert said.startswith("read 100 of 200 (50 %) records, ")
    assert "\r" not in said


def test_quiet_progress_says_nothing(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "PROGRESS_EVERY_S", 0.0)
    with output.Progress("read", quiet=True) as progress:
        progress.add()
    assert capsys.readouterr().err == ""
