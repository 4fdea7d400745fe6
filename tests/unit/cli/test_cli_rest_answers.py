"""Tests what REST commands say about a URL or a server that is not a node's HTTP listener."""

from __future__ import annotations

import pytest

from penstock.cli.exit import Exit
from penstock.cli.main import main
from penstock.cli.rest import Rest

URL = "http://127.0.0.1:9644"
COMMANDS = ["operation list", "operation describe 1", "operation cancel 1", "quorum snapshot", "topic compact t"]
FOREIGN = {
    "html": b"<html>hi</html>",
    "nothing": b"",
    "list": b"[]",
    "null": b"null",
    "string": b'"x"',
    "deep": b"[" * 200_000,
    "other object": b'{"status":"ok"}',
    "other rows": b'{"operations":[1,2]}',
    "number that is a path": b'{"operation":"1/../x","state":"running","error":null}',
}


def answer_with(patch: pytest.MonkeyPatch, status: int, text: bytes) -> None:
    patch.setattr(Rest, "_exchange", lambda *_: (status, text))


@pytest.mark.parametrize("text", FOREIGN.values(), ids=FOREIGN)
@pytest.mark.parametrize("command", COMMANDS)
def test_command_reports_in_one_sentence_that_a_server_is_not_a_penstock_node(
    command: str, text: bytes, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answer_with(monkeypatch, 200, text)
    assert main([*command.split(), "--http", URL]) == Exit.CANNOT_CONNECT
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(f"penstock: {URL} is not a Penstock node's HTTP listener: ")
    assert printed.err.count("\n") == 1


@pytest.mark.parametrize("text", [b'{"detail":{"a":1}}', b'{"detail":""}', b"[" * 200_000, b"[]", b""])
def test_http_error_without_a_description_is_reported_with_its_status_code(
    text: bytes, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answer_with(monkeypatch, 500, text)
    assert main(["operation", "list", "--http", URL]) == Exit.FAILED
    assert capsys.readouterr().err == f"penstock: {URL} answered with status 500\n"


@pytest.mark.parametrize("url", ["https://ann:hush@h:1", "http://:hush@h", "http://ann:hush@h:x", "ann:hush@h:1"])
@pytest.mark.parametrize("command", ["operation list", "quorum resign", "quorum resign --yes"])
def test_login_in_the_url_of_the_http_option_is_refused_and_not_printed(
    command: str, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command.split(), "--http", url]) == Exit.USAGE
    printed = capsys.readouterr()
    assert "--command-config" in printed.err
    assert "hush" not in printed.out + printed.err


def test_help_does_not_print_the_password_in_the_url_of_the_environment_variable(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PENSTOCK_HTTP", "https://ann:hush@h:1")
    assert main(["operation", "list", "--help"]) == Exit.OK
    printed = capsys.readouterr().out
    assert "PENSTOCK_HTTP" in printed
    assert "hush" not in printed
