"""Tests `penstock storage format`: properties and options decide which directories record the voters."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from penstock.cli.exit import Exit
from penstock.cli.main import main
from penstock.metadata.checkpoint import read_checkpoint
from penstock.protocol.persisted.metadata.user_scram_credential_record import UserScramCredentialRecord
from penstock.testing import Broker

VOTERS = "controller.quorum.voters=1@127.0.0.1:9093,2@127.0.0.1:9094"
SERVERS = "controller.quorum.bootstrap.servers=127.0.0.1:9093,127.0.0.1:9094"
INITIAL = "1@127.0.0.1:9093:AQEBAQEBAQEBAQEBAQEBAQ,2@127.0.0.1:9094:AgICAgICAgICAgICAgICAg"
SNAPSHOT = "__cluster_metadata-0/00000000000000000000-0000000000.checkpoint"


def properties(tmp_path: Path, roles: str, *lines: str, node_id: int = 1) -> Path:
    path = tmp_path / "server.properties"
    listeners = {"broker": "PLAINTEXT://127.0.0.1:9092", "controller": "CONTROLLER://127.0.0.1:9093"}
    named = ",".join(listeners[role] for role in roles.split(","))
    text = [f"process.roles={roles}", f"node.id={node_id}", f"listeners={named}", f"log.dirs={tmp_path}/data"]
    path.write_text("\n".join([*text, "controller.listener.names=CONTROLLER", *lines]) + "\n")
    return path


@pytest.mark.parametrize(
    ("roles", "line", "flags", "names_voters"),
    [
        ("broker,controller", VOTERS, [], False),
        ("controller", VOTERS, [], False),
        ("broker", VOTERS.replace("1@", "3@"), [], False),
        ("broker", SERVERS, [], False),
        ("broker", SERVERS, ["--initial-controllers", INITIAL], False),
        ("broker,controller", SERVERS, ["--no-initial-controllers"], False),
        ("broker,controller", SERVERS, ["--standalone"], True),
        ("broker,controller", SERVERS, ["--initial-controllers", INITIAL], True),
        ("broker,controller", "", [], True),
    ],
)
def test_storage_format_writes_the_voters_only_if_the_flags_start_a_new_quorum(
    tmp_path: Path, roles: str, line: str, flags: list[str], names_voters: bool
) -> None:
    path = properties(tmp_path, roles, line)
    assert main(["storage", "format", "-c", str(path), "-t", "Zm9ybWF0dGVkLWJ5LXRlcw", *flags]) == Exit.OK
    assert (tmp_path / "data" / "meta.properties").exists()
    assert (tmp_path / "data" / SNAPSHOT).exists() is names_voters


@pytest.mark.parametrize(
    ("roles", "line", "flags", "sentence"),
    [
        ("broker,controller", SERVERS, [], "--standalone for a new cluster with one controller, --initial-controllers"),
        ("broker,controller", VOTERS, ["--standalone"], "remove --standalone and --initial-controllers"),
        ("broker,controller", VOTERS, ["-I", INITIAL], "remove --standalone and --initial-controllers"),
        ("broker", SERVERS, ["--standalone"], "--standalone needs a controller: leave it out"),
    ],
)
def test_storage_format_refuses_flags_that_contradict_the_quorum_properties(
    tmp_path: Path, roles: str, line: str, flags: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = properties(tmp_path, roles, line)
    assert main(["storage", "format", "-c", str(path), *flags]) == Exit.USAGE
    assert sentence in capsys.readouterr().err
    assert not (tmp_path / "data").exists()


def test_storage_format_and_start_refuse_a_reserved_directory_id(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = properties(tmp_path, "broker,controller", SERVERS)
    reserved = "1@127.0.0.1:9093:AAAAAAAAAAAAAAAAAAAAAQ"
    assert main(["storage", "format", "-c", str(path), "-I", reserved]) == Exit.STORAGE
    assert "AAAAAAAAAAAAAAAAAAAAAQ of node 1" in capsys.readouterr().err
    data = tmp_path / "data"
    data.mkdir()  # Kafka formats such a directory
    (data / "meta.properties").write_text("version=1\nnode.id=1\ncluster.id=c\ndirectory.id=AAAAAAAAAAAAAAAAAAAAAQ\n")
    assert main(["start", str(path)]) == Exit.STORAGE
    assert "directory.id=AAAAAAAAAAAAAAAAAAAAAQ, but the first 100 ids are reserved" in capsys.readouterr().err


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no modes")
def test_files_of_a_node_can_be_read_and_written_only_by_their_owner(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with Broker(data=tmp_path / "data", topics={"t": 2}):
            pass
    finally:
        os.umask(before)
    written = [tmp_path / "data", *(tmp_path / "data").rglob("*")]
    assert len(written) > 10
    assert [path for path in written if path.stat().st_mode & 0o077] == []


def test_storage_format_writes_scram_users_from_arguments_and_from_a_file(tmp_path: Path) -> None:
    path = properties(tmp_path, "broker,controller")
    users = tmp_path / "users"
    users.write_text("SCRAM-SHA-512=[name=bob,password=bob-secret]\n\nSCRAM-SHA-256=[name=bob,password=bob-secret]\n")
    ann = "SCRAM-SHA-256=[name=ann,password=ann-secret]"
    flags = ["--add-scram", ann, "--add-scram-file", str(users)]
    assert main(["storage", "format", "-c", str(path), *flags]) == Exit.OK
    stored = (tmp_path / "data" / "bootstrap.checkpoint").read_bytes()
    made = [record for record in read_checkpoint(stored).records if isinstance(record, UserScramCredentialRecord)]
    assert [(record.name, record.mechanism) for record in made] == [("ann", 1), ("bob", 2), ("bob", 1)]
    assert b"secret" not in stored


def test_storage_format_refuses_invalid_scram_users_before_it_writes_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = properties(tmp_path, "broker,controller")
    ann = "SCRAM-SHA-256=[name=ann,password=ann-secret]"
    for wrong in (["-S", ann, "-S", ann], ["-S", "PLAIN=[name=ann,password=ann-secret]"], ["--add-scram-file", "/no"]):
        assert main(["storage", "format", "-c", str(path), *wrong]) == Exit.USAGE
        assert "secret" not in capsys.readouterr().err
    assert not (tmp_path / "data").exists()
