"""Tests a broker in the foreground: its ready line, its shutdown, and the error if it can't start."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.cli.exit import Exit
from penstock.cli.main import main
from penstock.testing import Broker

pytestmark = pytest.mark.programs

COMMAND = [sys.executable, "-m", "penstock.cli.main"]


Begin = Callable[..., tuple["subprocess.Popen[str]", str]]


@pytest.fixture
def begin() -> Iterator[Begin]:
    """Starts a command and waits for its first line; ends processes that a failed test leaves running."""
    begun: list[subprocess.Popen[str]] = []

    def start(*words: str, stderr: int = subprocess.DEVNULL) -> tuple[subprocess.Popen[str], str]:
        process = subprocess.Popen([*COMMAND, *words], stdout=subprocess.PIPE, stderr=stderr, text=True)
        begun.append(process)
        assert process.stdout is not None
        return process, process.stdout.readline()

    yield start
    for process in begun:
        if process.returncode is None:
            process.kill()
            process.communicate()


def end(process: subprocess.Popen[str], number: signal.Signals = signal.SIGTERM) -> int:
    process.send_signal(number)
    process.communicate(timeout=120)
    return process.returncode


def test_command_up_warns_about_property_overrides_without_effect(begin: Begin) -> None:
    overrides = ("--override", "num.io.threads=3", "--override", "num.partitons=2", "--override", "num.partitions=2")
    process, line = begin("up", "--ephemeral", "--port", "0", "--no-http", *overrides, stderr=subprocess.PIPE)
    assert line.startswith("ready ")
    process.send_signal(signal.SIGTERM)
    _, told = process.communicate(timeout=120)
    assert [each for each in told.splitlines() if each.startswith("warning: ")] == [
        "warning: num.io.threads is accepted but has no effect: Penstock does not support it yet.",
        "warning: num.partitons is not a broker property of Kafka 4.3 and is ignored: write num.partitions if you mean "
        "that.",
    ]


def test_ready_line_of_command_up_contains_the_address_the_directory_and_the_process_id(
    begin: Begin, tmp_path: Path
) -> None:
    process, line = begin("up", "--port", "0", "--data", str(tmp_path / "data"))
    try:
        said = re.fullmatch(r"ready 127\.0\.0\.1:(\d+) directory=(\S+) pid=(\d+)\n", line)
        assert said is not None
        assert said[2] == str(tmp_path / "data")
        assert int(said[3]) == process.pid
        assert main(["topic", "list", "--bootstrap", f"127.0.0.1:{said[1]}"]) == Exit.OK
    finally:
        assert end(process) == Exit.OK
    assert (tmp_path / "data" / ".kafka_cleanshutdown").exists()


def test_command_up_prints_its_ready_line_as_json_and_stops_cleanly_at_ctrl_c(begin: Begin) -> None:
    process, line = begin("up", "--port", "0", "--ephemeral", "--output", "json")
    assert json.loads(line)["directory"] == "memory"
    assert end(process, signal.SIGINT) == Exit.OK


def send_without_end(client: socket.socket, questions: bytes) -> None:
    """Sends until TimeoutError: the broker stops reading from a client that doesn't read its answers."""
    sent = 0
    while True:
        sent += client.send(questions[sent % len(questions) :])


def test_second_sigterm_stops_a_node_that_waits_for_a_client_that_does_not_read(begin: Begin) -> None:
    process, line = begin("up", "--port", "0", "--ephemeral", "--output", "json")
    host, port = json.loads(line)["bootstrap"].split(":")
    question = bytes.fromhex("0000000a0012000000000001ffff")  # ApiVersions v0; its answer is forty times as long
    with socket.create_connection((host, int(port)), timeout=120) as stuck:
        stuck.settimeout(3)
        with pytest.raises(TimeoutError):
            send_without_end(stuck, question * 1_000)
        process.send_signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=120)
    assert process.returncode == 128 + signal.SIGTERM


def test_command_whose_output_pipe_is_closed_prints_no_traceback(begin: Begin, tmp_path: Path) -> None:
    path = tmp_path / "recovery-point-offset-checkpoint"
    path.write_text("0\n20000\n" + "topic 0 0\n" * 20000)
    process, _ = begin("log", "dump", str(path), stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    with process.stderr:
        assert process.stderr.read() == ""
    assert process.wait(20) == Exit.BROKEN_PIPE


def test_command_up_reports_a_taken_port_in_one_line(
    penstock_session: Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["up", "--ephemeral", "--port", str(penstock_session.port)]) == Exit.ADDRESS_IN_USE
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert str(penstock_session.port) in said.err


def test_command_up_prints_the_address_of_the_console_and_serves_it(begin: Begin) -> None:
    process, _ = begin("up", "--port", "0", "--ephemeral")
    assert process.stdout is not None
    said = re.fullmatch(r"console (http://127\.0\.0\.1:\d+/)\n", process.stdout.readline())
    assert said is not None
    with urllib.request.urlopen(f"{said[1]}metrics", timeout=120) as answer:
        assert b"penstock_info" in answer.read()
    assert end(process) == Exit.OK
    process, line = begin("up", "--port", "0", "--ephemeral", "--output", "json", "--no-http")
    assert json.loads(line)["console"] is None
    assert end(process) == Exit.OK


def test_command_up_with_the_http_option_reports_a_taken_port_in_one_line(
    penstock_session: Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    taken = f"127.0.0.1:{penstock_session.port}"
    for words in (["--http", taken], ["--override", f"penstock.http.listener={taken}"]):
        assert main(["up", "--ephemeral", "--port", "0", *words]) == Exit.ADDRESS_IN_USE
        said = capsys.readouterr()
        assert said.out == ""
        assert said.err.count("\n") == 1
        assert f"{taken}: the port is taken" in said.err
    assert main(["up", "--ephemeral", "--port", "0", "--http", "nowhere"]) == Exit.USAGE
    assert "--http takes PORT or HOST:PORT, not 'nowhere'" in capsys.readouterr().err


def test_node_starts_without_the_default_console_if_the_port_of_the_console_is_taken(penstock_session: Broker) -> None:
    from penstock.disk.memory import MemoryDisk
    from penstock.node.local import format_if_new, local_settings, make_node

    taken = {"penstock.http.listener": f"127.0.0.1:{penstock_session.port}"}

    async def scenario() -> None:
        node = make_node(local_settings("/data", port=0, overrides=taken), MemoryDisk(), http_optional=True)
        format_if_new(node)
        await node.start()
        try:
            assert node.http.url is None
            assert "the port is taken" in str(node.http.problem)
        finally:
            await node.stop()

    asyncio.run(scenario())


def test_command_up_reports_a_data_directory_in_use_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Broker(data=tmp_path):
        assert main(["up", "--port", "0", "--data", str(tmp_path)]) == Exit.STORAGE
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    "words",
    [
        ["up", "--ephemeral", "--override", "num.partitions=many"],
        ["up", "--ephemeral", "--override", "nonsense"],
        ["up", "--port", "70000"],
        ["up", "--nodes", "8", "--ephemeral"],
        ["up", "--ephemeral", "--data", "x"],
    ],
)
def test_command_up_with_wrong_options_is_a_usage_error(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == Exit.USAGE
    assert capsys.readouterr().err


@pytest.mark.parametrize("command", ["up", "start server.properties", "check server.properties"])
@pytest.mark.parametrize(
    "name", ["ssl.keystore.password", "sasl.jaas.config", "listener.name.sasl_ssl.plain.sasl.jaas.config"]
)
def test_secret_property_given_with_the_override_option_is_refused_and_not_printed(
    command: str, name: str, properties: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = command.replace("server.properties", str(properties)).split()
    assert main([*words, "--override", f"{name}=hidden"]) == Exit.USAGE
    said = capsys.readouterr().err
    assert name in said
    assert "hidden" not in said


@pytest.fixture
def properties(tmp_path: Path) -> Path:
    path = tmp_path / "server.properties"
    path.write_text(
        "process.roles=broker,controller\nnode.id=7\nlisteners=PLAINTEXT://127.0.0.1:0\n"
        f"log.dirs={tmp_path}/one,{tmp_path}/two\nnonsense.property=1\noffsets.topic.replication.factor=1\n"
    )
    return path


def test_a_node_starts_only_after_its_storage_is_formatted(
    begin: Begin, properties: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["-c", str(properties)]
    assert main(["storage", "info", *where]) == Exit.STORAGE
    assert main(["start", str(properties)]) == Exit.STORAGE
    assert "storage format" in capsys.readouterr().err
    assert main(["storage", "format", *where, "--output", "json", "-t", "Zm9ybWF0dGVkLWJ5LXRlcw"]) == Exit.OK
    formatted = json.loads(capsys.readouterr().out)
    assert (formatted["cluster_id"], formatted["node_id"], len(formatted["formatted"])) == (
        "Zm9ybWF0dGVkLWJ5LXRlcw",
        7,
        2,
    )
    assert main(["storage", "format", *where]) == Exit.EXISTS
    assert main(["storage", "format", *where, "--ignore-formatted"]) == Exit.OK
    capsys.readouterr()
    assert main(["storage", "info", *where, "--output", "json"]) == Exit.OK
    assert {row["node_id"] for row in json.loads(capsys.readouterr().out)} == {7}
    process, line = begin("start", str(properties), stderr=subprocess.PIPE)
    assert line.startswith("ready 127.0.0.1:")
    process.send_signal(signal.SIGTERM)
    _, warned = process.communicate(timeout=120)
    assert process.returncode == Exit.OK
    assert "nonsense.property" in warned


def test_command_start_reports_a_missing_or_invalid_properties_file_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["start", str(tmp_path / "absent")]) == Exit.NOT_FOUND
    wrong = tmp_path / "wrong.properties"
    wrong.write_text("num.partitions=many\n")
    assert main(["start", str(wrong)]) == Exit.USAGE
    listener = tmp_path / "listener.properties"
    listener.write_text(f"listeners=nonsense\nlog.dirs={tmp_path}/data\n")
    assert main(["start", str(listener)]) == Exit.USAGE
    assert capsys.readouterr().err.count("\n") == 3


def test_storage_random_uuid_prints_an_id_in_kafkas_format(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["storage", "random-uuid"]) == Exit.OK
    assert re.fullmatch(r"[A-Za-z0-9_-]{22}\n", capsys.readouterr().out)


def test_default_data_directory_of_command_up_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    from penstock.cli.up import default_data

    monkeypatch.delenv("PENSTOCK_DATA", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", "/somewhere")
    if sys.platform == "linux":
        assert default_data() == os.path.join("/somewhere", "penstock")
    monkeypatch.setenv("PENSTOCK_DATA", "/elsewhere")
    assert default_data() == "/elsewhere"
