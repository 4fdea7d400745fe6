"""Tests the small files of a log directory: they have Kafka's format, and torn files are refused."""

from __future__ import annotations

import struct

import pytest

from penstock.log import checkpoints
from penstock.log.checkpoints import CheckpointError
from penstock.log.snapshots import SnapshotEntry, SnapshotError, parse_snapshot, render_snapshot
from penstock.records.batches import crc32c


def test_an_offset_checkpoint_has_one_line_per_partition() -> None:
    offsets = {("a", 0): 5, ("b-c", 12): 2**40}
    data = checkpoints.render_offsets(offsets)
    assert data == b"0\n2\na 0 5\nb-c 12 1099511627776\n"
    assert checkpoints.parse_offsets(data) == offsets
    assert checkpoints.parse_offsets(b"") == {}


def test_checkpoint_file_that_is_cut_at_any_length_is_refused() -> None:
    data = checkpoints.render_offsets({("topic", 0): 100, ("topic", 1): 200})
    for length in range(1, len(data)):
        with pytest.raises(CheckpointError):
            checkpoints.parse_offsets(data[:length])


def test_topic_id_is_read_from_a_complete_partition_metadata_file_but_not_from_a_torn_file() -> None:
    topic_id = bytes(range(16))
    data = checkpoints.render_partition_metadata(topic_id)
    assert data == b"version: 0\ntopic_id: AAECAwQFBgcICQoLDA0ODw"
    assert checkpoints.parse_partition_metadata(data) == topic_id
    for cut in range(len(data)):
        assert checkpoints.parse_partition_metadata(data[:cut]) is None


def test_properties_file_with_comments_and_escapes_is_parsed() -> None:
    data = b"#Sun Nov 15\n#\nversion=1\n node.id = 3 \ncluster.id=ab\\:c\\=d\n"
    assert checkpoints.parse_properties(data) == {"version": "1", "node.id": "3", "cluster.id": "ab:c=d"}
    assert checkpoints.parse_properties(checkpoints.render_properties({"a.b": "c"})) == {"a.b": "c"}


def test_clean_shutdown_marker_contains_the_broker_epoch() -> None:
    assert checkpoints.render_clean_shutdown(7) == b'{"version":0,"brokerEpoch":7}'
    assert checkpoints.parse_clean_shutdown(b'{"version":0,"brokerEpoch":7}') == 7
    assert checkpoints.parse_clean_shutdown(b"") == -1
    assert checkpoints.parse_clean_shutdown(b"[]") == -1


def test_a_producer_snapshot_consists_of_version_crc_and_entries_of_46_bytes() -> None:
    entry = SnapshotEntry(7, 1, 41, 900, 3, 1_700_000_000_000, 5, -1)
    data = render_snapshot([entry])
    body = struct.pack(">i", 1) + struct.pack(">qhiqiqiq", *entry)
    assert data == struct.pack(">hI", 1, crc32c(body)) + body
    assert len(data) == 10 + 46
    assert parse_snapshot(data) == [entry]
    assert parse_snapshot(render_snapshot([])) == []


def test_damaged_producer_snapshot_is_refused() -> None:
    data = render_snapshot([SnapshotEntry(7, 1, 41, 900, 3, 0, 5, -1)] * 3)
    for cut in range(len(data)):
        with pytest.raises(SnapshotError):
            parse_snapshot(data[:cut])
    for place in range(len(data)):
        with pytest.raises(SnapshotError):
            parse_snapshot(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
