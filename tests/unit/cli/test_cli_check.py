"""Tests `penstock check`: which properties it accepts, lists as ignored or refuses, and its exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.cli.exit import Exit
from penstock.cli.main import main

COMBINED = """\
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=localhost:9093
listeners=PLAINTEXT://:9092,CONTROLLER://:9093
inter.broker.listener.name=PLAINTEXT
advertised.listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL
num.network.threads=3
num.io.threads=8
log.dirs=/tmp/kraft-combined-logs
num.partitions=1
log.segment.bytes=1073741824
"""


def check(path: Path, content: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, str], str]:
    path.write_text(content)
    code = main(["check", str(path), "--json"])
    said = capsys.readouterr()
    return code, {row["property"]: row["verdict"] for row in json.loads(said.out)}, said.err


def test_check_accepts_kafkas_sample_properties_of_a_combined_node(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, verdicts, said = check(tmp_path / "server.properties", COMBINED, capsys)
    assert code == Exit.OK
    assert set(verdicts.values()) == {"honoured"}
    assert said == "13 honoured, 0 ignored, 0 refused\n"
    assert list(tmp_path.iterdir()) == [tmp_path / "server.properties"]


def test_check_lists_ignored_properties_and_fails_for_refused_properties(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "server.properties"
    code, verdicts, said = check(path, COMBINED + "num.io.threads=4\nlog.retention.hour=1\n", capsys)
    assert code == Exit.OK
    assert (verdicts["num.io.threads"], verdicts["log.retention.hour"]) == ("ignored", "ignored")
    assert f"warning: {path} sets num.io.threads more than once" in said
    code, verdicts, said = check(path, COMBINED + "num.partitions=many\n", capsys)
    assert code == Exit.USAGE
    assert verdicts["num.partitions"] == "refused"
    assert said.endswith("1 refused\n")


def test_check_refuses_the_same_security_settings_as_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "server.properties"
    code, verdicts, said = check(path, COMBINED + "authorizer.class.name=StandardAuthorizer\n", capsys)
    assert code == Exit.USAGE
    assert verdicts["authorizer.class.name"] == "refused"
    assert said.endswith("1 refused\n")
    assert main(["start", str(path)]) == Exit.USAGE
    assert "authorizer.class.name" in capsys.readouterr().err


def test_check_refuses_properties_that_contradict_each_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, said = check(tmp_path / "server.properties", COMBINED + "process.roles=controller\n", capsys)
    assert code == Exit.USAGE
    assert "a node would refuse to start: listeners: PLAINTEXT is for clients" in said


def test_check_of_a_missing_file_exits_with_the_code_for_not_found(tmp_path: Path) -> None:
    assert main(["check", str(tmp_path / "absent")]) == Exit.NOT_FOUND
