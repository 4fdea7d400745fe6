"""Tests control records: markers of transactions and messages of the quorum."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.persisted.raft.kraft_version_record import KRaftVersionRecord
from penstock.protocol.persisted.raft.leader_change_message import LeaderChangeMessage, Voter
from penstock.protocol.persisted.raft.snapshot_footer_record import SnapshotFooterRecord
from penstock.protocol.persisted.raft.snapshot_header_record import SnapshotHeaderRecord
from penstock.protocol.persisted.raft.voters_record import VotersRecord
from penstock.records.batches import crc_ok
from penstock.records.build import build_batch
from penstock.records.control import (
    ControlType,
    EndTxn,
    build_control,
    build_end_txn,
    control_key,
    control_type,
    parse_control,
    read_end_txn,
)
from penstock.records.header import parse_header
from penstock.records.record import Record, read_records

VOTER = Voter(voter_id=1, voter_directory_id=bytes(range(16)))
MESSAGES: list[tuple[ControlType, Any]] = [
    (ControlType.LEADER_CHANGE, LeaderChangeMessage(version=0, leader_id=1, voters=[Voter(voter_id=1)])),
    (ControlType.LEADER_CHANGE, LeaderChangeMessage(version=1, leader_id=1, voters=[VOTER], granting_voters=[VOTER])),
    (ControlType.SNAPSHOT_HEADER, SnapshotHeaderRecord(version=0, last_contained_log_timestamp=12345)),
    (ControlType.SNAPSHOT_FOOTER, SnapshotFooterRecord(version=0)),
    (ControlType.KRAFT_VERSION, KRaftVersionRecord(version=0, kraft_version=1)),
    (ControlType.KRAFT_VOTERS, VotersRecord(version=0)),
]


@pytest.mark.parametrize("marker", [EndTxn(True, 5), EndTxn(False, 0)])
def test_a_marker_survives_encoding_and_decoding(marker: EndTxn) -> None:
    batch = build_end_txn(marker, producer_id=4, producer_epoch=2, timestamp=99, base_offset=8, leader_epoch=3)
    header = parse_header(batch)
    assert crc_ok(batch)
    assert header.is_control
    assert header.is_transactional
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (4, 2, -1)
    assert (header.base_offset, header.partition_leader_epoch, header.max_timestamp) == (8, 3, 99)
    assert read_end_txn(batch) == marker
    kind = ControlType.COMMIT if marker.committed else ControlType.ABORT
    assert parse_control(read_records(batch)[0]) == (kind, marker)


def test_a_marker_has_the_same_bytes_as_kafkas() -> None:
    (record,) = read_records(build_end_txn(EndTxn(True, 7), producer_id=1, producer_epoch=0, timestamp=0))
    assert record.key == b"\x00\x00\x00\x01"
    assert record.value == b"\x00\x00\x00\x00\x00\x07"


@pytest.mark.parametrize(("kind", "message"), MESSAGES)
def test_a_control_message_of_the_quorum_survives_encoding_and_decoding(kind: ControlType, message: Any) -> None:
    batch = build_control([message], timestamp=50, base_offset=2, leader_epoch=9)
    header = parse_header(batch)
    assert header.is_control
    assert not header.is_transactional
    assert (header.producer_id, header.partition_leader_epoch, header.max_timestamp) == (-1, 9, 50)
    assert parse_control(read_records(batch)[0]) == (kind, message)


def test_several_control_messages_are_written_as_one_batch() -> None:
    batch = build_control([message for _, message in MESSAGES[2:]], timestamp=0, base_offset=5)
    parsed = [parse_control(record) for record in read_records(batch)]
    assert parsed == MESSAGES[2:]


def test_only_end_transaction_records_are_read_as_transaction_markers() -> None:
    assert read_end_txn(build_batch([(0, b"\x00\x00\x00\x01", None, ())])) is None
    assert read_end_txn(build_control([MESSAGES[0][1]], timestamp=0)) is None


def test_unknown_control_records_are_skipped() -> None:
    assert control_type(b"\x00\x00\x00\x63") is None
    assert parse_control(Record(0, 0, b"\x00\x00\x00\x63", b"whatever")) is None


@pytest.mark.parametrize(
    "record",
    [
        Record(0, 0, None, b""),
        Record(0, 0, b"\x00\x00\x00", b""),
        Record(0, 0, b"\xff\xff\x00\x00", b""),
        Record(0, 0, control_key(ControlType.COMMIT), None),
        Record(0, 0, control_key(ControlType.COMMIT), b"\x00\x00\x00"),
        Record(0, 0, control_key(ControlType.ABORT), b"\xff\xff\x00\x00\x00\x00"),
        Record(0, 0, control_key(ControlType.LEADER_CHANGE), b"\x00"),
        Record(0, 0, control_key(ControlType.LEADER_CHANGE), b"\x00\x63\x00"),
        Record(0, 0, control_key(ControlType.SNAPSHOT_HEADER), b"\x00\x00\x00"),
    ],
)
def test_damaged_control_records_are_refused_with_invalid_record(record: Record) -> None:
    with pytest.raises(KafkaError) as refused:
        parse_control(record)
    assert refused.value.code == ErrorCode.INVALID_RECORD
