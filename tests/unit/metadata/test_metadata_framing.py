"""Tests the bytes of metadata records: the frame, the versions by metadata.version, and refused bytes."""

import pytest

from penstock.metadata.checkpoint import (
    CheckpointError,
    checkpoint_name,
    parse_checkpoint_name,
    read_checkpoint,
    write_checkpoint,
)
from penstock.metadata.framing import decode_record, encode_record, record_class
from penstock.metadata.quorum_state import QuorumState, QuorumStateError
from penstock.metadata.voters import Voter
from penstock.protocol.codec import DecodeError


def test_a_feature_record_has_the_same_bytes_as_kafkas() -> None:
    encoded = encode_record(record_class(12)(name="group.version", feature_level=1))
    assert encoded.hex() == "010c000e" + b"group.version".hex() + "000100"
    assert decode_record(encoded) == record_class(12)(name="group.version", feature_level=1)


@pytest.mark.parametrize(("metadata_version", "version"), [(7, 0), (17, 1), (22, 1), (23, 2), (30, 2)])
def test_metadata_version_decides_the_version_in_which_a_record_is_encoded(metadata_version: int, version: int) -> None:
    record = record_class(5)(partition_id=0, topic_id=bytes(16), leader=1)
    assert encode_record(record, metadata_version)[2] == version


@pytest.mark.parametrize(
    "value",
    [
        None,
        b"",
        b"\x01",
        b"\x02\x0c\x00",
        b"\x01\x63\x00",
        b"\x01\x0c\x09\x02a\x00\x01\x00",
        b"\xff" * 8,
        b"\x01\x14\x00\x00\x00",
    ],
    ids=["null", "empty", "cut", "frame 2", "type 99", "version 9", "long varint", "left over"],
)
def test_bytes_that_are_no_metadata_record_raise_a_decode_error(value: bytes | None) -> None:
    with pytest.raises(DecodeError):
        decode_record(value)


VOTERS = (Voter(1, bytes([3] * 16), (("CONTROLLER", "host", 9093),)),)


def snapshot(count: int = 5) -> bytes:
    records = [record_class(2)(name=f"t{index}", topic_id=bytes([index] * 16)) for index in range(count)]
    return b"".join(write_checkpoint(records, epoch=3, timestamp_ms=1, kraft_version=1, voters=VOTERS))


def test_a_checkpoint_contains_records_and_voters() -> None:
    content = read_checkpoint(snapshot())
    assert [record.name for record in content.records] == ["t0", "t1", "t2", "t3", "t4"]
    assert (content.kraft_version, content.voters) == (1, VOTERS)


def test_a_big_checkpoint_is_written_as_several_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.metadata.checkpoint.BATCH_BYTES", 100)
    assert len(read_checkpoint(snapshot(50)).records) == 50


def test_a_truncated_checkpoint_is_refused() -> None:
    whole = snapshot()
    for size in range(len(whole)):
        with pytest.raises(CheckpointError):
            read_checkpoint(whole[:size])


def test_a_flipped_bit_in_a_checkpoint_is_refused() -> None:
    damaged = bytearray(snapshot())
    damaged[len(damaged) // 2] ^= 1
    with pytest.raises(CheckpointError):
        read_checkpoint(bytes(damaged))


def test_checkpoint_file_names_have_kafkas_format() -> None:
    assert checkpoint_name(19, 2) == "00000000000000000019-0000000002.checkpoint"
    assert parse_checkpoint_name("00000000000000000019-0000000002.checkpoint") == (19, 2)
    assert parse_checkpoint_name("bootstrap.checkpoint") is None


def test_the_quorum_state_file_has_kafkas_format() -> None:
    state = QuorumState(leader_id=1, leader_epoch=2)
    assert state.to_bytes() == (
        b'{"leaderId":1,"leaderEpoch":2,"votedId":-1,"votedDirectoryId":"AAAAAAAAAAAAAAAAAAAAAA","data_version":1}'
    )
    assert QuorumState.from_bytes(state.to_bytes()) == state


def test_a_quorum_state_file_without_directory_ids_is_read() -> None:
    old = b'{"clusterId":"","leaderId":3,"leaderEpoch":7,"votedId":-1,"appliedOffset":0,"currentVoters":[],'
    old += b'"data_version":0}'
    assert QuorumState.from_bytes(old) == QuorumState(leader_id=3, leader_epoch=7)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b'{"data_version":2}',
        b"[]",
        b'{"leaderId":"x","data_version":1}',
        QuorumState(leader_epoch=(1 << 31) - 1).to_bytes(),
        QuorumState(leader_epoch=-1).to_bytes(),
    ],
)
def test_a_damaged_quorum_state_file_is_refused(data: bytes) -> None:
    with pytest.raises(QuorumStateError):
        QuorumState.from_bytes(data)
