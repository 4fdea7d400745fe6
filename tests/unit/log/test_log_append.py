"""Tests appends: offsets, epochs, idempotence and transactions. A refused batch changes nothing."""

from __future__ import annotations

import errno
from typing import Any

import pytest
from log_harness import TOPIC_ID, batch, manager, new_log, offsets, produce, read_all

from penstock.clock import ManualClock
from penstock.disk.api import DiskError
from penstock.disk.memory import MemoryDisk
from penstock.log.log import AppendOrigin, Log
from penstock.metadata.configs.topic import LogConfig
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.records.build import build_batch
from penstock.records.control import EndTxn, build_end_txn
from penstock.records.record import read_records

NOW = 1_700_000_000_000


def refused(log: Log, code: ErrorCode, data: bytes, **options: Any) -> KafkaError:
    before = (log.log_end_offset, log.size, log.epochs.entries)
    with pytest.raises(KafkaError) as error:
        log.append_as_leader(data, leader_epoch=0, now_ms=NOW, **options)
    assert error.value.code == code
    assert (log.log_end_offset, log.size, log.epochs.entries) == before
    return error.value


def idempotent(
    sequence: int, count: int = 1, *, epoch: int = 0, producer: int = 7, transactional: bool = False
) -> bytes:
    return batch(count, producer_id=producer, producer_epoch=epoch, base_sequence=sequence, transactional=transactional)


def append(log: Log, data: bytes, origin: AppendOrigin = AppendOrigin.CLIENT, **options: Any) -> int:
    return log.append_as_leader(data, leader_epoch=0, now_ms=NOW, origin=origin, **options).base_offset


def end(log: Log, *, committed: bool, producer: int = 7, epoch: int = 0, coordinator: int = 0, **options: Any) -> int:
    marker = build_end_txn(EndTxn(committed, coordinator), producer_id=producer, producer_epoch=epoch, timestamp=NOW)
    return append(log, marker, AppendOrigin.COORDINATOR, **options)


def test_appended_batches_get_consecutive_offsets_and_the_leader_epoch() -> None:
    log = new_log()
    assert [produce(log, count, epoch=4) for count in (3, 1, 5)] == [0, 3, 4]
    assert log.log_end_offset == 9
    assert {header.partition_leader_epoch for header, _ in read_all(log)} == {4}
    assert log.epochs.entries == [(4, 0)]
    assert offsets(log) == list(range(9))


def test_an_append_returns_offsets_and_append_time() -> None:
    log = new_log()
    info = log.append_as_leader(batch(2, timestamp=NOW - 5), leader_epoch=0, now_ms=NOW)
    assert (info.base_offset, info.last_offset, info.log_append_time, info.max_timestamp) == (0, 1, -1, NOW - 5)
    assert not info.duplicate
    log = new_log(LogConfig(message_timestamp_type="LogAppendTime"))
    info = log.append_as_leader(batch(2, timestamp=5), leader_epoch=0, now_ms=NOW)
    assert info.log_append_time == NOW
    assert [record.timestamp for record in read_records(read_all(log)[0][1])] == [NOW, NOW]


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", ErrorCode.INVALID_RECORD),
        (batch()[:-1] + b"\xff", ErrorCode.CORRUPT_MESSAGE),
        (batch(value=bytes(2000)), ErrorCode.MESSAGE_TOO_LARGE),
        (batch() + batch(), ErrorCode.INVALID_RECORD),
        (batch(control=True), ErrorCode.INVALID_RECORD),
        (batch(timestamp=NOW + 7_200_000), ErrorCode.INVALID_TIMESTAMP),
    ],
)
def test_refused_batch_does_not_change_the_log(data: bytes, code: ErrorCode) -> None:
    refused(new_log(LogConfig(max_message_bytes=1000)), code, data)


def test_a_batch_larger_than_a_segment_is_refused() -> None:
    refused(new_log(LogConfig(segment_bytes=500)), ErrorCode.RECORD_LIST_TOO_LARGE, batch(value=bytes(600)))


def test_duplicate_batch_gets_the_offset_of_the_original_batch_and_is_not_appended() -> None:
    log = new_log()
    append(log, batch(4))
    for sequence in (0, 3, 6, 9, 12, 15):
        append(log, idempotent(sequence, 3))
    for sequence in (3, 6, 9, 12, 15):
        info = log.append_as_leader(idempotent(sequence, 3), leader_epoch=0, now_ms=NOW)
        assert info.duplicate
        assert (info.base_offset, info.last_offset) == (4 + sequence, 6 + sequence)
    assert log.log_end_offset == 22
    refused(log, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, idempotent(0, 3))


@pytest.mark.parametrize("sequence", [0, 1, 4, 9])
def test_batch_with_a_sequence_gap_is_refused(sequence: int) -> None:
    log = new_log()
    append(log, idempotent(0, 5))
    refused(log, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, idempotent(sequence, 2))


def test_an_unknown_producer_may_start_with_any_sequence() -> None:
    log = new_log()
    append(log, idempotent(17))
    append(log, idempotent(18))


def test_producer_sequence_wraps_to_zero_after_its_largest_value() -> None:
    log = new_log()
    append(log, idempotent(2**31 - 3, 2))
    append(log, idempotent(2**31 - 1, 2))
    append(log, idempotent(1, 1))
    info = log.append_as_leader(idempotent(2**31 - 1, 2), leader_epoch=0, now_ms=NOW)
    assert info.duplicate


def test_a_new_producer_epoch_starts_at_sequence_zero_and_ends_the_old_epoch() -> None:
    log = new_log()
    append(log, idempotent(0, 5))
    refused(log, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, idempotent(5, epoch=1))
    append(log, idempotent(0, epoch=1))
    refused(log, ErrorCode.INVALID_PRODUCER_EPOCH, idempotent(5, epoch=0))


def test_failed_verification_of_an_old_producer_epoch_keeps_the_verification_of_the_new_epoch() -> None:
    producers = new_log().producers
    old, new = (producers.start_verification(7, epoch, 0, supports_epoch_bump=True) for epoch in (0, 1))
    assert old is not None
    assert new is not None
    producers.end_verification(7, old)
    assert not producers.is_admitted(7, 0, old)
    assert producers.is_admitted(7, 1, new)
    producers.end_verification(7, new)
    assert not producers.is_admitted(7, 1, new)


def test_offsets_are_added_to_a_transaction_only_while_it_is_open_or_its_verification_is_valid() -> None:
    log = new_log()
    valid = log.producers.start_verification(7, 0, 0, supports_epoch_bump=True)
    assert valid is not None
    log.producers.check_open(7, 0, valid)
    log.producers.end_verification(7, valid)
    for outdated in (valid, None):
        with pytest.raises(KafkaError) as refusal:
            log.producers.check_open(7, 0, outdated)
        assert refusal.value.code is ErrorCode.INVALID_TXN_STATE
    append(log, idempotent(0, transactional=True, producer=7))
    log.producers.check_open(7, 0, None)


def test_the_last_stable_offset_waits_for_the_oldest_open_transaction() -> None:
    log = new_log()
    append(log, batch(2))
    append(log, idempotent(0, transactional=True, producer=1))
    append(log, idempotent(0, transactional=True, producer=2))
    log.update_high_watermark(4)
    assert log.last_stable_offset == 2
    end(log, committed=True, producer=1)
    log.update_high_watermark(5)
    assert log.last_stable_offset == 3
    end(log, committed=False, producer=2)
    assert log.last_stable_offset == 3, "the marker is not below the high watermark yet"
    log.update_high_watermark(6)
    assert log.last_stable_offset == 6


def test_records_of_a_committed_transaction_are_not_stable_until_its_marker_is_committed() -> None:
    log = new_log()
    append(log, idempotent(0, transactional=True, producer=1))
    end(log, committed=True, producer=1)
    stable = []
    for high_watermark in (1, 2):
        log.update_high_watermark(high_watermark)
        stable.append(log.last_stable_offset)
    assert stable == [0, 2]


def test_the_last_stable_offset_is_never_above_the_high_watermark() -> None:
    log = new_log()
    append(log, batch(2))
    append(log, idempotent(0, transactional=True, producer=1))
    append(log, idempotent(0, transactional=True, producer=2))
    end(log, committed=True, producer=1)
    append(log, batch(2))
    stable = [(log.update_high_watermark(mark), log.last_stable_offset) for mark in range(8)]
    assert stable == [(0, 0), (1, 1), (2, 2), (3, 2), (4, 2), (5, 3), (6, 3), (7, 3)]


def test_the_last_stable_offset_is_never_below_the_log_start() -> None:
    log = new_log()
    append(log, idempotent(0, transactional=True))
    append(log, batch(3))
    log.update_high_watermark(4)
    log.advance_log_start_offset(3)
    assert log.last_stable_offset == 3, "its reader would be told OFFSET_OUT_OF_RANGE below"
    end(log, committed=True)
    log.update_high_watermark(5)
    assert log.last_stable_offset == 5


def test_aborted_transactions_are_found_by_the_offsets_they_overlap() -> None:
    log = new_log()
    for number, committed in enumerate((False, True, False)):
        append(log, idempotent(number, transactional=True))
        end(log, committed=committed)
        log.update_high_watermark(log.log_end_offset)
    spans = [(each.first_offset, each.last_offset) for each in log.aborted_transactions(0, 6)]
    assert spans == [(0, 1), (4, 5)]
    assert [each.first_offset for each in log.aborted_transactions(2, 4)] == []
    assert [each.first_offset for each in log.aborted_transactions(5, 6)] == [4]


def test_non_transactional_batch_of_a_producer_with_an_open_transaction_is_refused() -> None:
    log = new_log()
    append(log, idempotent(0, transactional=True))
    refused(log, ErrorCode.INVALID_TXN_STATE, idempotent(1))


def test_transaction_marker_with_an_old_producer_epoch_or_coordinator_epoch_is_refused() -> None:
    log = new_log()
    append(log, idempotent(0, epoch=3, transactional=True))
    with pytest.raises(KafkaError) as error:
        end(log, committed=True, epoch=2)
    assert error.value.code == ErrorCode.INVALID_PRODUCER_EPOCH
    end(log, committed=True, epoch=3, coordinator=5)
    with pytest.raises(KafkaError) as error:
        end(log, committed=True, epoch=3, coordinator=4)
    assert error.value.code == ErrorCode.TRANSACTION_COORDINATOR_FENCED


def test_marker_of_transaction_version_2_must_have_a_higher_producer_epoch() -> None:
    log = new_log()
    append(log, idempotent(0, epoch=3, transactional=True))
    with pytest.raises(KafkaError) as error:
        end(log, committed=True, epoch=3, transaction_version=2)
    assert error.value.code == ErrorCode.INVALID_PRODUCER_EPOCH
    end(log, committed=True, epoch=4, transaction_version=2)
    end(log, committed=True, epoch=4, transaction_version=2)
    append(log, idempotent(0, epoch=4, transactional=True))


def test_a_transactional_batch_is_appended_only_after_its_verification() -> None:
    log = new_log()
    data = idempotent(0, transactional=True)
    refused(log, ErrorCode.INVALID_TXN_STATE, data, verification_required=True)
    looked_up = log.producers.start_verification(7, 0, 0, supports_epoch_bump=True)
    append(log, data, verification=looked_up, verification_required=True)
    assert log.producers.start_verification(7, 0, 1, supports_epoch_bump=True) is None
    append(log, idempotent(1, transactional=True), verification_required=True)
    end(log, committed=True)
    refused(
        log, ErrorCode.INVALID_TXN_STATE, idempotent(2, transactional=True), verification=looked_up,
        verification_required=True,
    )  # fmt: skip


def test_batch_with_a_later_sequence_is_refused_while_an_earlier_batch_is_being_verified() -> None:
    log = new_log()
    looked_up = log.producers.start_verification(7, 0, 0, supports_epoch_bump=True)
    refused(
        log, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, idempotent(3, transactional=True), verification=looked_up,
        verification_required=True,
    )  # fmt: skip


def test_batches_of_one_coordinator_append_get_consecutive_offsets() -> None:
    log = new_log(LogConfig(segment_bytes=300))
    info = log.append_as_leader(
        batch(2) + batch(3) + batch(1), leader_epoch=1, now_ms=NOW, origin=AppendOrigin.COORDINATOR
    )
    assert (info.base_offset, info.last_offset) == (0, 5)
    assert offsets(log) == list(range(6))


def test_follower_appends_batches_unchanged_and_leaves_out_an_incomplete_batch() -> None:
    leader, follower = new_log(), new_log()
    for count in (2, 3, 4):
        produce(leader, count, epoch=count)
    data = bytes(leader.read(0, 1 << 20, upper_bound=9).read_now())
    info = follower.append_as_follower(data[:-1], leader_epoch=9)
    assert info is not None
    assert (info.base_offset, info.last_offset) == (0, 4)
    follower.append_as_follower(bytes(leader.read(5, 1 << 20, upper_bound=9).read_now()), leader_epoch=9)
    assert read_all(follower) == read_all(leader)
    assert follower.epochs.entries == leader.epochs.entries == [(2, 0), (3, 2), (4, 5)]


def test_follower_does_not_append_batches_of_an_epoch_above_its_leaders_epoch() -> None:
    leader, follower = new_log(), new_log()
    for epoch in (1, 2, 3):
        produce(leader, epoch=epoch)
    data = bytes(leader.read(0, 1 << 20, upper_bound=3).read_now())
    follower.append_as_follower(data, leader_epoch=2)
    assert follower.log_end_offset == 2
    assert follower.append_as_follower(bytes(leader.read(2, 99, upper_bound=3).read_now()), leader_epoch=2) is None


def test_follower_refuses_damaged_batches_and_batches_below_its_log_end() -> None:
    follower = new_log()
    data = build_batch([(NOW, b"k", b"v", ())], base_offset=5, leader_epoch=0)
    follower.append_as_follower(data, leader_epoch=0)
    with pytest.raises(KafkaError) as error:
        follower.append_as_follower(data, leader_epoch=0)
    assert error.value.code == ErrorCode.OFFSET_OUT_OF_RANGE
    with pytest.raises(KafkaError) as error:
        follower.append_as_follower(data[:-1] + b"\0\0", leader_epoch=0)
    assert follower.log_end_offset == 6


def test_a_follower_of_a_compacted_log_keeps_the_gaps_between_offsets() -> None:
    follower = new_log(LogConfig(segment_bytes=160))
    for base in (0, 7, 30):
        data = build_batch([(NOW, b"k", b"v", ())], base_offset=base, leader_epoch=0)
        follower.append_as_follower(data, leader_epoch=0)
    assert [header.base_offset for header, _ in read_all(follower)] == [0, 7, 30]
    assert follower.segments.bases == [0, 8], "a segment starts where the one before ended"


def test_a_full_disk_stops_writes_and_keeps_acknowledged_records() -> None:
    disk = MemoryDisk()
    told: list[str] = []
    logs = manager(disk, ManualClock(NOW), on_offline=lambda directory, error: told.append(directory.path))
    log = logs.create("t", TOPIC_ID, 0, LogConfig())
    produce(log, 3)

    def full(operation: str, path: str) -> None:
        raise DiskError(errno.ENOSPC, "No space left on device", path)

    disk.on_write = full
    refused(log, ErrorCode.KAFKA_STORAGE_ERROR, batch())
    disk.on_write = None
    refused(log, ErrorCode.KAFKA_STORAGE_ERROR, batch())
    assert told == ["/logs"]
    assert offsets(log) == [0, 1, 2]


def test_append_that_fails_for_lack_of_descriptors_takes_no_directory_offline() -> None:
    disk = MemoryDisk()
    log = new_log(logs=manager(disk))

    def scarce(operation: str, path: str) -> None:
        raise DiskError(errno.EMFILE, "Too many open files", path)

    disk.on_write = scarce
    refused(log, ErrorCode.KAFKA_STORAGE_ERROR, batch())
    disk.on_write = None
    assert produce(log) == 0


def test_a_closed_log_refuses_appends() -> None:
    log = new_log()
    log.close()
    refused(log, ErrorCode.NOT_LEADER_OR_FOLLOWER, batch())
