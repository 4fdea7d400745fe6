"""Tests `penstock log dump` on intact and damaged files of each kind."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from penstock.cli.exit import Exit
from penstock.cli.main import main
from penstock.log.checkpoints import render_offsets
from penstock.log.snapshots import SnapshotEntry, render_snapshot
from penstock.log.txn_index import AbortedTransaction
from penstock.metadata.framing import encode_records
from penstock.protocol.persisted.framing import encode_key, encode_value
from penstock.protocol.persisted.group.offset_commit import OffsetCommitKey, OffsetCommitValue
from penstock.protocol.persisted.metadata.topic_record import TopicRecord
from penstock.records.build import build_batch
from penstock.records.control import EndTxn, build_end_txn

SEGMENT = "00000000000000000100"


def dump(capsys: pytest.CaptureFixture[str], *words: str) -> list[dict[str, Any]]:
    main(["log", "dump", "--output", "json", *words])
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def written(directory: Path, name: str, data: bytes) -> str:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / name).write_bytes(data)
    return str(directory / name)


def two_batches() -> bytes:
    first = build_batch([(1000, b"k", b"v", (("h", b"1"),)), (1001, None, None, ())], base_offset=100)
    return first + build_end_txn(EndTxn(True, 3), producer_id=9, producer_epoch=0, timestamp=1002, base_offset=102)


def test_log_dump_shows_the_records_of_a_batch_only_with_the_deep_option(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path / "t-0", f"{SEGMENT}.log", two_batches())
    batches = dump(capsys, path)
    assert [(b["kind"], b["base_offset"], b["count"], b["control"]) for b in batches] == [
        ("batch", 100, 2, False),
        ("batch", 102, 1, True),
    ]
    items = dump(capsys, path, "--deep")
    assert [item["kind"] for item in items] == ["batch", "record", "record", "batch", "control"]
    assert items[1] | {"file": ""} == {
        "file": "",
        "kind": "record",
        "offset": 100,
        "timestamp": 1000,
        "key": "k",
        "value": "v",
        "headers": {"h": "1"},
    }
    assert (items[4]["type"], items[4]["value"]) == ("commit", {"committed": True, "coordinator_epoch": 3})


def test_log_dump_reports_a_corrupt_batch_and_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = bytearray(two_batches())
    data[70] ^= 0xFF
    path = written(tmp_path / "t-0", f"{SEGMENT}.log", bytes(data))
    assert main(["log", "dump", path]) == Exit.FAILED
    said = capsys.readouterr()
    assert "corrupt position=0" in said.out
    assert "corrupt data found" in said.err


def test_log_dump_recognises_an_internal_topic_by_its_directory_name_and_decodes_its_records(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    key = encode_key(OffsetCommitKey(group="g", topic="t", partition=1))
    value = encode_value(OffsetCommitValue(offset=42, metadata="m", commit_timestamp=5), 3)
    path = written(tmp_path / "__consumer_offsets-7", f"{SEGMENT}.log", build_batch([(1, key, value, ())]))
    item = dump(capsys, path, "--deep")[1]
    assert item["type"] == "OffsetCommit"
    assert item["key"] == {"group": "g", "topic": "t", "partition": 1}
    assert item["value"]["offset"] == 42
    assert "type" not in dump(capsys, path, "--plain")[1]


def test_log_dump_shows_ids_in_metadata_records_in_kafkas_format(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records = encode_records([TopicRecord(name="t", topic_id=bytes(15) + b"\x01")], 30, 1)
    path = written(tmp_path / "elsewhere", f"{SEGMENT}.log", build_batch(records))
    item = dump(capsys, path, "--metadata")[1]
    assert (item["type"], item["value"]) == ("TopicRecord", {"name": "t", "topic_id": "AAAAAAAAAAAAAAAAAAAAAQ"})


def test_log_dump_shows_absolute_offsets_of_index_entries_and_ignores_preallocated_zeros(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    offsets = written(tmp_path / "t-0", f"{SEGMENT}.index", struct.pack(">iiii", 5, 4096, 9, 8192) + bytes(80))
    times = written(tmp_path / "t-0", f"{SEGMENT}.timeindex", struct.pack(">qi", 1000, 5) + bytes(24))
    assert [(e["offset"], e["position"]) for e in dump(capsys, offsets)] == [(105, 4096), (109, 8192)]
    assert [(e["timestamp"], e["offset"]) for e in dump(capsys, times)] == [(1000, 105)]


def test_log_dump_decodes_transaction_indexes_snapshots_and_checkpoints(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    aborted = written(tmp_path / "t-0", f"{SEGMENT}.txnindex", AbortedTransaction(1, 100, 110, 100).pack())
    state = written(tmp_path / "t-0", f"{SEGMENT}.snapshot", render_snapshot([SnapshotEntry(1, 2, 3, 4, 5, 6, 7, -1)]))
    points = written(tmp_path, "recovery-point-offset-checkpoint", render_offsets({("t", 0): 5}))
    meta = written(tmp_path, "meta.properties", b"version=1\ncluster.id=c\n")
    assert dump(capsys, aborted)[0]["first_offset"] == 100
    assert dump(capsys, state)[0]["producer_epoch"] == 2
    assert dump(capsys, points)[0] == {"file": points, "kind": "checkpoint", "topic": "t", "partition": 0, "offset": 5}
    assert dump(capsys, meta)[0]["cluster.id"] == "c"


def test_log_dump_of_a_directory_decodes_all_its_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(tmp_path / "t-0", f"{SEGMENT}.log", two_batches())
    written(tmp_path / "t-0", f"{SEGMENT}.index", b"")
    assert main(["log", "dump", str(tmp_path / "t-0")]) == Exit.OK
    assert capsys.readouterr().out.count("# ") == 2


@pytest.mark.parametrize(
    ("name", "code"), [("absent.log", Exit.NOT_FOUND), ("absent.index", Exit.NOT_FOUND), ("odd", Exit.NOT_FOUND)]
)
def test_log_dump_of_a_missing_file_reports_the_file(
    tmp_path: Path, name: str, code: Exit, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["log", "dump", str(tmp_path / name)]) == code
    assert capsys.readouterr().err.startswith("penstock: ")


def test_log_dump_of_a_file_with_an_unknown_name_is_a_usage_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["log", "dump", written(tmp_path, "notes.txt", b"hello")]) == Exit.USAGE
    assert "notes.txt is not a file of a log" in capsys.readouterr().err
