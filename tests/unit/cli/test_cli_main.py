"""Tests the command `penstock` itself: its commands, help, exit codes and one-line errors."""

from __future__ import annotations

import argparse
import subprocess
import sys

import pytest

from penstock.cli import main as cli
from penstock.cli.exit import Exit, Failure
from penstock.cli.options import pairs, size


def command(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "penstock.cli.main", *words], capture_output=True, text=True, check=False
    )


def test_help_lists_every_command_and_the_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == Exit.OK
    shown = capsys.readouterr().out
    assert all(noun in shown for noun in cli.NOUNS)
    assert "3 cannot connect" in shown


def test_version_option_prints_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == Exit.OK
    assert capsys.readouterr().out.startswith("penstock ")


def test_unknown_command_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["frobnicate"]) == Exit.USAGE
    assert "frobnicate" in capsys.readouterr().err


def test_help_is_printed_without_importing_heavy_modules() -> None:
    probe = (
        "import sys; from penstock.cli.main import main; main(['--help']);"
        "heavy = {'asyncio', 'rich', 'uvloop', 'penstock.cli.up', 'penstock.cli.topic'};"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"


@pytest.mark.parametrize("noun", cli.NOUNS)
def test_every_command_has_help(noun: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([noun, "--help"]) == Exit.OK
    assert "usage: penstock" in capsys.readouterr().out


def run_with(action: object, *, debug: bool = False) -> int:
    return cli.run(argparse.Namespace(run=action, debug=debug))


def raising(problem: BaseException) -> object:
    def action(_: argparse.Namespace) -> int:
        raise problem

    return action


def test_failed_command_prints_one_line_to_stderr_and_exits_with_the_code_of_the_failure(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run_with(raising(Failure("no such topic: create it", Exit.NOT_FOUND))) == 4
    said = capsys.readouterr()
    assert said.err == "penstock: no such topic: create it\n"
    assert said.out == ""


def test_unexpected_exception_shows_no_traceback_without_the_debug_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_with(raising(ValueError("first\nsecond"))) == Exit.FAILED
    assert capsys.readouterr().err.count("\n") == 1


def test_unexpected_exception_shows_its_traceback_with_the_debug_option() -> None:
    with pytest.raises(ValueError, match="why"):
        run_with(raising(ValueError("why")), debug=True)


def test_ctrl_c_exits_with_130(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_with(raising(KeyboardInterrupt())) == 130
    assert capsys.readouterr().err == ""


def test_error_for_an_invalid_address_shows_the_expected_form(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["topic", "list", "--bootstrap", "host:port"]) == Exit.USAGE
    assert "host:port" in capsys.readouterr().err


def test_value_of_a_name_value_option_may_contain_equals_signs() -> None:
    assert pairs(["a=b=c", " d = e "], "--config") == {"a": "b=c", "d": "e"}
    with pytest.raises(Failure, match="NAME=VALUE"):
        pairs(["alone"], "--config")


@pytest.mark.parametrize(("text", "value"), [("10", 10), ("1k", 1024), ("2MiB", 2 << 20), ("3GB", 3 << 30)])
def test_sizes_are_parsed_with_units(text: str, value: int) -> None:
    assert size(text) == value


def test_an_invalid_size_is_refused() -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        size("many")
