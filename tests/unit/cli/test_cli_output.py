"""Tests output as tables and as JSON, and progress without a terminal."""

from __future__ import annotations

import json
import logging
import sys
from typing import Any

import pytest

from penstock.cli import output
from penstock.cli.serve import PrintableFormatter

ROWS: list[dict[str, Any]] = [
    {"topic": "a", "partitions": 3, "hidden": b"x"},
    {"topic": "longer", "partitions": None, "hidden": {2, 1}},
]


def test_output_to_a_pipe_has_plain_columns(capsys: pytest.CaptureFixture[str]) -> None:
    output.rows("table", ["topic", "partitions"], ROWS)
    assert capsys.readouterr().out == "TOPIC   PARTITIONS\na       3\nlonger  -\n"


def test_json_output_has_every_key_of_a_row(capsys: pytest.CaptureFixture[str]) -> None:
    output.rows("json", ["topic"], ROWS)
    shown = json.loads(capsys.readouterr().out)
    assert shown[0] == {"topic": "a", "partitions": 3, "hidden": "x"}
    assert shown[1]["hidden"] == [1, 2]


def test_empty_listing_is_printed_as_a_note_on_stderr_or_as_an_empty_json_list(
    capsys: pytest.CaptureFixture[str],
) -> None:
    output.rows("table", ["topic"], [], empty="no topics")
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "no topics\n")
    output.rows("json", ["topic"], [])
    assert json.loads(capsys.readouterr().out) == []


def test_output_to_a_terminal_is_drawn_as_a_table(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    output.rows("table", ["topic", "partitions"], ROWS)
    assert "longer" in capsys.readouterr().out


def test_single_object_is_printed_as_lines_with_name_and_value_or_as_one_json_object(
    capsys: pytest.CaptureFixture[str],
) -> None:
    output.record("table", {"id": 1, "names": ["a", "b"], "ok": True})
    assert capsys.readouterr().out == "id     1\nnames  a,b\nok     yes\n"
    output.record("json", {"id": 1})
    assert json.loads(capsys.readouterr().out) == {"id": 1}


def test_progress_is_printed_as_plain_lines_if_the_output_is_no_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "PROGRESS_EVERY_S", 0.0)
    with output.Progress("read", total=200, unit="records") as progress:
        progress.add(100)
    said = capsys.readouterr().err
    assert said.startswith("read 100 of 200 (50 %) records, ")
    assert "\r" not in said


def test_quiet_progress_prints_nothing(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "PROGRESS_EVERY_S", 0.0)
    with output.Progress("read", quiet=True) as progress:
        progress.add()
    assert capsys.readouterr().err == ""


EVIL = "\x1b]0;owned\x07\x1b[2J\x9b31mgroup\n\u202efake \udcff"
CONTROLS = ("\x1b]", "\x1b[2J", "\x07", "\x9b", "\u202e", "\udcff", "group\n")


@pytest.mark.parametrize("terminal", [False, True])
@pytest.mark.parametrize("how", ["table", "json"])
def test_output_shows_control_characters_as_escapes(
    how: str, terminal: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: terminal)
    output.rows(how, ["group", "members"], [{"group": EVIL, "members": [EVIL, {EVIL: EVIL}]}])
    output.record(how, {"group": EVIL, "bytes": EVIL.encode(errors="replace")})
    output.note(EVIL)
    said = capsys.readouterr()
    assert not [found for found in CONTROLS if found in said.out + said.err]
    assert r"\x1b]0;owned\x07\x1b[2J\x9b31mgroup\n\u202efake \udcff" in said.err
    if how == "table" and not terminal:
        assert said.out.splitlines()[1].startswith(r"\x1b]0;owned\x07")


def test_printed_json_parses_to_the_original_value(capsys: pytest.CaptureFixture[str]) -> None:
    output.record("json", {"group": EVIL})
    assert json.loads(capsys.readouterr().out) == {"group": EVIL}


def test_control_characters_in_a_log_line_are_escaped() -> None:
    formatter = PrintableFormatter("%(levelname)s %(message)s")
    try:
        raise ValueError(EVIL)
    except ValueError:
        record = logging.LogRecord("net", logging.ERROR, "", 0, "client %s", (EVIL,), sys.exc_info())
    first, *others = formatter.format(record).splitlines()
    assert first.startswith(r"ERROR client \x1b]0;owned")
    assert others[0] == "Traceback (most recent call last):"
    assert not [found for found in CONTROLS if found in "".join([first, *others])]
