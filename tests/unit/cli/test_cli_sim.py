"""Tests `penstock sim`: its output as text and as JSON, and its exit codes."""

import json
import signal
import socket
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.cli.main import main

pytestmark = pytest.mark.programs


def test_sim_with_one_seed_prints_the_events_of_the_run_and_whether_it_passed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["sim", "--seed", "4", "--profile", "crash", "--seconds", "3"]) == 0
    told = capsys.readouterr().out
    assert told.startswith("seed 4  profile crash  3 s")
    assert "n1        serves" in told
    assert "× real time" in told
    assert told.rstrip().endswith("verdict: all promises kept; excused: 0 records, 0 partitions, 0 seconds")


def test_json_output_of_sim_contains_a_digest_of_the_trace(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sim", "--seed", "4", "--profile", "calm", "--seconds", "1", "--output", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["ok"] is True
    assert found["violations"] == []
    assert len(found["trace"]) == 16
    assert found["virtual_seconds"] > 1


def test_sim_finds_a_planted_bug_and_shrinks_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--seed", "5", "--profile", "calm", "--seconds", "2", "--plant", "open-transactions-shown"]
    assert main(["sim", *words]) == 1
    told = capsys.readouterr().out
    assert "BROKEN  transactions are whole" in told
    line = next(line for line in told.splitlines() if line.startswith("again:"))
    assert "penstock sim --seed 5 --profile calm" in line
    assert "--actors" in line
    assert line.endswith("--plant open-transactions-shown")


def test_sim_with_a_range_of_seeds_prints_a_summary(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--seeds", "1..2", "--profile", "calm", "--seconds", "1", "--output", "json"]
    assert main(["sim", *words]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["seeds"], found["failed"], found["failed_seeds"]) == (2, 0, [])


def test_sim_runs_seeds_in_several_processes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sim", "--seeds", "1..2", "--seconds", "1", "--jobs", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["seeds"] == 2


def test_sim_with_the_trace_option_prints_messages_and_disk_writes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sim", "--seed", "1", "--profile", "calm", "--seconds", "1", "--actors", "1", "--trace"]) == 0
    told = capsys.readouterr().out
    assert "< c1 " in told
    assert "disk write /data/t0-" in told


def test_sim_lists_the_planted_bugs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sim", "--plant", "list", "--output", "json"]) == 0
    assert "ack-before-fsync" in {each["name"] for each in json.loads(capsys.readouterr().out)}


def test_coverage_file_of_sim_accumulates_the_covered_fault_points_of_several_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--profile", "points", "--seconds", "2", "--coverage", str(tmp_path / "coverage.json")]
    assert main(["sim", "--seeds", "1..2", *words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["seeds"], found["failed"]) == (2, 0)
    assert main(["sim", "--seed", "3", *words]) == 0
    told = capsys.readouterr().out
    assert "points passed" in told
    covered = int(told.partition(" of ")[0].splitlines()[-1])
    assert covered > found["cells_covered"] > 0


def test_sim_output_shows_the_fault_that_was_injected_with_the_at_option(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--seed", "3", "--profile", "calm", "--seconds", "2", "--at", "write segment#3:kill"]
    assert main(["sim", *words]) == 0
    assert "write segment#3: kill of n1" in capsys.readouterr().out


def test_sim_bridge_serves_real_clients_until_it_is_interrupted() -> None:
    words = ["sim", "--seed", "3", "--profile", "calm", "--nodes", "1", "--seconds", "600", "--bridge", "0"]
    command = [sys.executable, "-m", "penstock.cli.main", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        name, _, address = process.stdout.readline().strip().partition("=")
        host, _, port = address.partition(":")
        with socket.create_connection((host, int(port)), timeout=60) as connection:
            connection.sendall(struct.pack(">ihhih", 10, 18, 0, 7, -1))  # ApiVersions v0 with correlation id 7
            answer = connection.recv(8)
        process.send_signal(signal.SIGINT)
        told = process.stdout.read()
    assert name == "bootstrap.servers"
    assert int.from_bytes(answer[4:8], "big") == 7
    assert "n1        serves" in told
    assert process.returncode == 0


@pytest.mark.parametrize(
    "words",
    [
        ["--seed", "1", "--plant", "no-such-bug"],
        ["--seed", "1", "--nodes", "9"],
        ["--seeds", "5..1"],
        ["--seeds", "x"],
        ["--seed", "1", "--seeds", "1..2"],
        ["--seed", "1", "--faults", "x"],
        ["--seed", "1", "--at", "write segment:kill"],
        ["--seed", "1", "--coverage", "coverage.json"],
        ["--seeds", "1..2", "--bridge", "0"],
        ["--seed", "1", "--bridge", "70000"],
        ["--mutants", "--only", "no/such/file.py"],
        [],
    ],
)
def test_sim_exits_with_the_code_for_usage_errors_if_its_options_are_invalid(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sim", *words]) == 2
    assert capsys.readouterr().err
