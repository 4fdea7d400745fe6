"""Tests commands that send requests to a broker, with an embedded broker in this process."""

from __future__ import annotations

import argparse
import io
import json
import os
import secrets
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.cli import consume, produce
from penstock.cli.exit import Exit
from penstock.cli.main import main
from penstock.client.sync import Client
from penstock.records.record import Record
from penstock.testing import Broker


class Shell:
    def __init__(
        self, bootstrap: str, capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.bootstrap = bootstrap
        self._captured = capsysbinary
        self._monkeypatch = monkeypatch
        self.err = ""

    def run(self, *words: str, code: int = Exit.OK, stdin: bytes = b"") -> str:
        reading, writing = os.pipe()
        os.write(writing, stdin)
        os.close(writing)
        with os.fdopen(reading, "rb") as source:
            self._monkeypatch.setattr("sys.stdin", io.TextIOWrapper(source))
            left = main([*words, "--bootstrap", self.bootstrap])
        said = self._captured.readouterr()
        self.err = said.err.decode()
        assert left == code, self.err
        return said.out.decode()

    def json(self, *words: str) -> Any:
        return json.loads(self.run(*words, "--output", "json"))


@pytest.fixture
def shell(
    penstock_session: Broker, capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> Shell:
    return Shell(penstock_session.bootstrap, capsysbinary, monkeypatch)


@pytest.fixture
def name() -> str:
    return f"t-{secrets.token_hex(4)}"


# --- topics -------------------------------------------------------------------------------------------------------


def test_topics_can_be_created_listed_described_altered_and_deleted_with_the_topic_command(
    shell: Shell, name: str
) -> None:
    shell.run("topic", "create", name, "-p", "2", "-c", "retention.ms=1000")
    assert name in shell.run("topic", "list")
    assert [row["partitions"] for row in shell.json("topic", "list", name)] == [2]
    (described,) = shell.json("topic", "describe", name)
    assert described["configs"] == {"retention.ms": "1000"}
    assert [(p["partition"], p["start_offset"], p["end_offset"]) for p in described["partitions"]] == [
        (0, 0, 0),
        (1, 0, 0),
    ]
    shell.run("topic", "alter", name, "-p", "3", "-c", "cleanup.policy=compact", "--unset", "retention.ms")
    (described,) = shell.json("topic", "describe", name)
    assert described["configs"] == {"cleanup.policy": "compact"}
    assert len(described["partitions"]) == 3
    assert "LEADER" in shell.run("topic", "describe", name)
    assert "deleted" in shell.run("topic", "delete", name)
    assert shell.json("topic", "list", name) == []


def test_creating_an_existing_topic_and_deleting_a_missing_topic_exit_with_different_codes(
    shell: Shell, name: str
) -> None:
    shell.run("topic", "create", name)
    shell.run("topic", "create", name, code=Exit.EXISTS)
    assert shell.err.count("\n") == 1
    assert "exists" in shell.run("topic", "create", name, "--if-not-exists")
    shell.run("topic", "describe", "absent", code=Exit.NOT_FOUND)
    shell.run("topic", "delete", "absent", code=Exit.NOT_FOUND)
    shell.run("topic", "delete", "absent", "--if-exists")


def test_topic_create_with_dry_run_creates_no_topic(shell: Shell, name: str) -> None:
    assert "would be created" in shell.run("topic", "create", name, "--dry-run")
    assert shell.json("topic", "list", name) == []


def test_topic_create_shows_the_created_topic_even_if_another_topic_is_refused(shell: Shell, name: str) -> None:
    made = shell.run("topic", "create", name, "not/a/name", code=Exit.FAILED)
    assert name in made
    assert "not/a/name" in shell.err


@pytest.mark.parametrize(
    "words",
    [
        ["topic", "create", "x", "--assignment", "a:b"],
        ["topic", "create", "x", "--assignment", "1", "-p", "2"],
        ["topic", "create", "x", "-c", "nonsense"],
        ["topic", "alter", "x"],
        ["config", "alter", "topic", "x"],
        ["config", "describe", "broker", "one"],
        ["produce", "-t", "x", "-X", "nonsense=1"],
        ["produce", "-t", "x", "-X", "acks=2"],
        ["consume", "-t", "x", "-o", "nowhere"],
        ["consume", "-t", "x", "-o", "stored"],
        ["consume", "-t", "x", "-f", "%x"],
    ],
)
def test_command_with_an_invalid_argument_exits_with_the_code_for_usage_errors(shell: Shell, words: list[str]) -> None:
    shell.run(*words, code=Exit.USAGE)
    assert shell.err.startswith("penstock: ")


def test_topic_create_with_the_assignment_option_creates_the_given_partitions(shell: Shell, name: str) -> None:
    shell.run("topic", "create", name, "--assignment", "1,1")
    assert shell.json("topic", "list", name)[0]["partitions"] == 2


# --- configs ------------------------------------------------------------------------------------------------------


def test_configs_can_be_set_described_altered_and_unset_with_the_config_command(shell: Shell, name: str) -> None:
    shell.run("topic", "create", name)
    shell.run("config", "set", "topic", name, "retention.ms=5000", "cleanup.policy=compact")
    found = {row["name"]: row for row in shell.json("config", "describe", "topic", name)}
    assert (found["retention.ms"]["value"], found["retention.ms"]["source"]) == ("5000", "topic")
    shell.run("config", "alter", "topic", name, "--append", "cleanup.policy=delete", "--delete", "retention.ms")
    found = {row["name"]: row for row in shell.json("config", "describe", "topic", name)}
    assert found["cleanup.policy"]["value"] == "compact,delete"
    assert "retention.ms" not in found
    shell.run("config", "unset", "topic", name, "cleanup.policy")
    everything = shell.json("config", "describe", "topic", name, "--all", "--docs", "--synonyms")
    policy = next(row for row in everything if row["name"] == "cleanup.policy")
    assert (policy["value"], policy["source"]) == ("delete", "default")
    assert policy["documentation"]


def test_config_set_with_a_value_out_of_bounds_fails_and_names_the_config(shell: Shell, name: str) -> None:
    shell.run("topic", "create", name)
    shell.run("config", "set", "topic", name, "segment.bytes=5", code=Exit.FAILED)
    assert "segment.bytes" in shell.err


def test_config_set_takes_secrets_from_a_file_and_refuses_them_as_arguments(shell: Shell, tmp_path: Path) -> None:
    secret = "listener.name.plaintext.ssl.key.password"
    shell.run("config", "set", "broker", "1", f"{secret}=hidden-7", code=Exit.USAGE)
    assert "--file FILE" in shell.err
    assert "hidden-7" not in shell.err
    shell.run("config", "alter", "broker", "1", "--set", f"{secret}=hidden-7", code=Exit.USAGE)
    shell.run("config", "set", "broker", "1", code=Exit.USAGE)
    file = tmp_path / "changes.properties"
    file.write_text(f"{secret}=hidden-7\nlog.cleaner.threads=2\n")
    shell.run("config", "set", "broker", "1", "--file", str(file))
    found = {row["name"]: row["value"] for row in shell.json("config", "describe", "broker", "1")}
    assert (found[secret], found["log.cleaner.threads"]) == ("(hidden)", "2")
    shell.run("config", "unset", "broker", "1", secret, "log.cleaner.threads")


def test_config_set_broker_default_changes_a_setting_of_all_brokers(shell: Shell) -> None:
    shell.run("config", "set", "broker", "default", "log.cleaner.threads=2")
    row = next(r for r in shell.json("config", "describe", "broker", "1") if r["name"] == "log.cleaner.threads")
    assert (row["value"], row["source"]) == ("2", "all brokers")
    shell.run("config", "unset", "broker", "default", "log.cleaner.threads")
    assert {"kind": "broker", "name": "1"} in shell.json("config", "list", "broker")


# --- produce and consume ------------------------------------------------------------------------------------------


def test_lines_given_to_produce_are_printed_by_consume(shell: Shell, name: str) -> None:
    shell.run("produce", "-t", name, stdin=b"one\ntwo\nthree")
    assert shell.err == f"produced 3 records to {name}\n"
    assert shell.run("consume", "-t", name, "-e") == "one\ntwo\nthree\n"


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_produce_delivers_records_with_every_codec_and_every_acks_setting(shell: Shell, name: str, codec: str) -> None:
    for acks in ("1", "all"):
        shell.run("produce", "-t", name, "-z", codec, "-a", acks, stdin=b"x" * 100 + b"\n")
    assert shell.run("consume", "-t", name, "-e", "-q").split() == ["x" * 100] * 2


def test_records_consumed_as_json_can_be_produced_again_with_the_same_keys_headers_and_nulls(
    shell: Shell, name: str
) -> None:
    shell.run("produce", "-t", name, "-K", ":", "-Z", "-H", "h=1", "-H", "none", stdin=b"k:v\ntombstone:\n:w\n")
    envelopes = shell.run("consume", "-t", name, "-e", "-J")
    shell.run("produce", "-t", f"{name}-copy", "-J", stdin=envelopes.encode())
    first = [json.loads(line) for line in envelopes.splitlines()]
    second = [json.loads(line) for line in shell.run("consume", "-t", f"{name}-copy", "-e", "-J").splitlines()]
    assert [(e["key"], e["payload"], e["headers"], e["ts"]) for e in first] == [
        (e["key"], e["payload"], e["headers"], e["ts"]) for e in second
    ]
    assert [(e["key"], e["payload"]) for e in first] == [("k", "v"), ("tombstone", None), (None, "w")]
    assert first[0]["headers"] == ["h", "1", "none", None]


def test_consume_formats_all_records_of_a_fetch_in_one_call(
    shell: Shell, name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    written = b"".join(b"%d\n" % number for number in range(20_000))
    (tmp_path / "numbers").write_bytes(written)
    shell.run("produce", "-t", name, "-l", str(tmp_path / "numbers"))
    writes: list[int] = []
    show = consume.formatter

    def counting(args: argparse.Namespace) -> Any:
        inner = show(args)

        def shown(place: Any, records: list[Record]) -> bytes:
            writes.append(len(records))
            return inner(place, records)

        return shown

    monkeypatch.setattr(consume, "formatter", counting)
    assert shell.run("consume", "-t", name, "-e", "-q").encode() == written
    assert sum(writes) == 20_000
    assert len(writes) < 20


@pytest.mark.parametrize("delimiter", [b"\n", b"--"])
@given(parts=st.lists(st.text("ab-\n", max_size=6).map(str.encode), max_size=8))
def test_produce_finds_the_same_records_in_its_input_wherever_the_reads_of_the_input_end(
    delimiter: bytes, parts: list[bytes]
) -> None:
    *whole, rest = b"".join(parts).split(delimiter)
    found = [record for records in produce.split(parts, delimiter) for record in records]
    assert found == [*whole, *([rest] if rest else [])]


def test_records_that_are_not_utf8_can_be_consumed_as_json_and_produced_again_unchanged(
    shell: Shell, name: str, tmp_path: Path
) -> None:
    every_byte = tmp_path / "bytes"
    every_byte.write_bytes(bytes(range(256)))
    shell.run("produce", "-t", name, "-k", "\udcff\udcfe", "-H", "h=\udc80", str(every_byte))
    envelopes = shell.run("consume", "-t", name, "-e", "-J")
    shell.run("produce", "-t", f"{name}-copy", "-J", stdin=envelopes.encode())
    (copied,) = shell_records(shell, f"{name}-copy")
    assert copied[2:] == (b"\xff\xfe", bytes(range(256)), (("h", b"\x80"),))


def test_produce_refuses_a_json_object_without_payload_and_stores_no_record(shell: Shell, name: str) -> None:
    shell.run("topic", "create", name)
    shell.run("produce", "-t", name, "-J", stdin=b'{"key":"k","value":"v"}\n', code=Exit.USAGE)
    assert 'the record has no "payload"' in shell.err
    assert shell.run("consume", "-t", name, "-e", "-q") == ""


def test_consume_prints_records_with_the_given_format_string_and_delimiters(shell: Shell, name: str) -> None:
    shell.run("produce", "-t", name, "-k", "key", "-D", ";", stdin=b"a;b")
    assert shell.run("consume", "-t", name, "-e", "-f", "%t %p %o %k %s\\n") == f"{name} 0 0 key a\n{name} 0 1 key b\n"
    assert shell.run("consume", "-t", name, "-e", "-K", "=", "-D", "|") == "key=a|key=b|"


def test_produce_sends_one_record_per_file_and_with_option_l_one_record_per_line(
    shell: Shell, name: str, tmp_path: Path
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_bytes(b"1\n2\n")
    second.write_bytes(bytes(range(256)))
    shell.run("produce", "-t", name, str(first), str(second))
    assert [record.value for record in shell_records(shell, name)] == [b"1\n2\n", bytes(range(256))]
    shell.run("produce", "-t", f"{name}-lines", "-l", str(first))
    assert shell.run("consume", "-t", f"{name}-lines", "-e") == "1\n2\n"
    shell.run("produce", "-t", name, str(tmp_path / "absent"), code=Exit.NOT_FOUND)


def shell_records(shell: Shell, name: str) -> list[Record]:
    with Client(shell.bootstrap) as client, client.consumer() as consumer:
        consumer.assign({(name, 0): -2})
        return [record for fetched in consumer.poll(5) for record in fetched.records()]


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        (["beginning"], "01234"),
        (["end"], ""),
        (["3"], "34"),
        (["-2"], "34"),
        (["s@1002"], "234"),
        (["e@1002"], "01"),
        (["s@1001", "e@1003"], "12"),
        (["s@9999"], ""),
    ],
)
def test_consume_starts_and_stops_at_the_positions_given_with_option_o(
    shell: Shell, name: str, where: list[str], expected: str
) -> None:
    lines = "".join(json.dumps({"payload": str(n), "ts": 1000 + n}) + "\n" for n in range(5))
    shell.run("topic", "create", name, "-c", "retention.ms=-1")
    shell.run("produce", "-t", name, "-J", stdin=lines.encode())
    options = [word for each in where for word in ("-o", each)]
    assert shell.run("consume", "-t", name, "-e", "-D", "", *options) == expected


def test_count_option_limits_the_number_of_records_consumed_and_produced(shell: Shell, name: str) -> None:
    shell.run("produce", "-t", name, "-c", "3", stdin=b"1\n2\n3\n4\n5\n")
    assert shell.run("consume", "-t", name, "-c", "2") == "1\n2\n"
    assert shell.run("consume", "-t", name, "-e", "-q") == "1\n2\n3\n"


def test_control_characters_of_group_ids_and_records_are_escaped_on_a_terminal(
    shell: Shell, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell.run("produce", "-t", name, stdin=b"\x1b[2J\n")
    evil = f"\x1b]0;{name}\x07"
    assert shell.run("consume", "-t", name, "-e", "-q", "-G", evil, "--commit") == "\x1b[2J\n"
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    listed = shell.run("group", "list")
    assert rf"\x1b]0;{name}" in listed.replace("\n", "")
    assert f"\x1b]0;{name}" not in listed
    assert shell.run("consume", "-t", name, "-e", "-q") == "\\x1b[2J\n"


def test_consume_resumes_at_the_groups_stored_offset(shell: Shell, name: str) -> None:
    shell.run("produce", "-t", name, stdin=b"1\n2\n3\n4\n")
    assert shell.run("consume", "-t", name, "-G", f"g-{name}", "--commit", "-c", "2", "-q") == "1\n2\n"
    assert shell.run("consume", "-t", name, "-G", f"g-{name}", "--commit", "-e", "-q") == "3\n4\n"
    assert shell.run("consume", "-t", name, "-G", f"g-{name}", "-e", "-q") == ""


def test_produce_fails_if_the_broker_refuses_a_record(shell: Shell, name: str) -> None:
    shell.run("topic", "create", name, "-c", "max.message.bytes=200")
    shell.run("produce", "-t", name, stdin=b"x" * 1000 + b"\n", code=Exit.FAILED)
    assert shell.err.count("\n") == 1


def test_consume_of_a_missing_topic_or_partition_fails(shell: Shell, name: str) -> None:
    shell.run("consume", "-t", name, "-e", code=Exit.NOT_FOUND)
    shell.run("topic", "create", name)
    shell.run("consume", "-t", name, "-p", "7", "-e", code=Exit.NOT_FOUND)
    assert "no partition 7" in shell.err


def test_command_reports_an_unreachable_broker_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topic", "list", "--bootstrap", "127.0.0.1:1"]) == Exit.CANNOT_CONNECT
    assert capsys.readouterr().err.startswith("penstock: nothing listens at 127.0.0.1:1")
