"""Tests moves between log directories of a real node that is killed: the command is repeated, and no record is lost."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from chaos_node import Process, fill, read, running

from penstock.cli.exit import Exit
from penstock.client.cluster_admin import ClusterAdmin
from penstock.client.sync import Client

pytestmark = [pytest.mark.programs, pytest.mark.slow]

TOPICS = ("t", "u", "v")
RECORDS = 30
ROUNDS = 4


def logdir(node: Process, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "penstock.cli.main", "logdir", *words, "-b", node.bootstrap]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def directories_of(client: Client) -> set[str]:
    held = client.run(ClusterAdmin(client.asynchronous).holdings(1))
    return {held.replicas[name, 0].directory for name in TOPICS} | {each.directory for each in held.futures.values()}


def moves_begun(client: Client) -> bool:
    return bool(client.run(ClusterAdmin(client.asynchronous).holdings(1)).futures)


def test_evacuation_of_a_log_directory_finishes_although_node_and_command_are_killed(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to("disk")
    a, b, link = (str(tmp_path / name) for name in ("a", "b", "link"))
    log_dirs = f"{a},{b},{link}"
    written: dict[str, list[int]] = {name: [] for name in TOPICS}

    def write(client: Client, most: int) -> None:
        for name, numbers in written.items():
            more, refusal = fill(client, name, first=len(numbers), most=most)
            assert refusal is None
            numbers += more

    with running(tmp_path, log_dirs) as node, node.client() as client:
        for name in TOPICS:
            client.create_topic(name, 1)
        write(client, RECORDS)
    for number in range(ROUNDS):
        with running(tmp_path, log_dirs) as node, node.client() as client:
            command = logdir(node, "evacuate", a if number % 2 else f"{a}/../a/", "--yes", "--throttle", "1M")
            while not moves_begun(client) and command.poll() is None:
                pass  # each look is a request
            write(client, 3)
            assert command.poll() in (None, Exit.OK)
            command.kill()
            command.communicate()
            # the node is killed, too, while the moves go on
    with running(tmp_path, log_dirs) as node, node.client() as client:
        write(client, 3)
        command = logdir(node, "evacuate", a, "--yes", "--throttle", "1G")
        _, said = command.communicate(timeout=120)
        assert command.returncode == Exit.OK, said
        assert directories_of(client) <= {b, link}
        for name, numbers in written.items():
            assert read(client, name) == numbers
    names = [path.name for place in (a, b, link) for path in Path(place).iterdir() if path.is_dir()]
    assert sorted(name for name in names if not name.endswith("-delete") and name[0] in "tuv") == ["t-0", "u-0", "v-0"]
