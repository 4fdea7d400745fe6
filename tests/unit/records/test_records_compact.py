"""Tests compaction: a reader of the compacted log ends with the same state, and no sequence or marker is removed
early."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.records.batches import crc_ok
from penstock.records.build import NewRecord, build_batch
from penstock.records.compact import Compactor, LastRecord, LastRecords, OffsetMap, TransactionScan, fingerprint
from penstock.records.compression import Codec
from penstock.records.control import EndTxn, build_control, build_end_txn
from penstock.records.header import HEADER_SIZE, parse_header
from penstock.records.record import Record, read_records
from tools.examples import examples

NOW = 1_000_000
RETENTION = 1000


@dataclass(frozen=True)
class Aborted:
    producer_id: int
    first_offset: int
    last_offset: int


@dataclass
class Round:
    """Runs one compaction over whole logs, as the log's cleaner does."""

    now: int = NOW
    aborted: Sequence[Aborted] = ()
    last_records: dict[int, LastRecord] | None = None
    upper_bound: int = 2**62
    start_offset: int = 0
    max_keys: int = 1000

    def run(self, log: list[bytes]) -> list[bytes]:
        self.kept_aborts: list[object] = []
        offsets = OffsetMap(self.start_offset, self.max_keys)
        scan = TransactionScan()
        scan.add_aborted(self.aborted)
        for batch in log:
            if not offsets.add_batch(parse_header(batch), batch, scan):
                break
        scan = TransactionScan(on_kept_abort=self.kept_aborts.append)
        scan.add_aborted(self.aborted)
        self.compactor = Compactor(
            offsets, scan, self.now, RETENTION, self.upper_bound, last_records=self.last_records or {}
        )
        results = [self.compactor.clean(parse_header(batch), batch) for batch in log]
        return [bytes(result) for result in results if result is not None]


def put(offset: int, *items: tuple[bytes | None, bytes | None], codec: int = 0, **how: int) -> bytes:
    records: list[NewRecord] = [(offset + n, key, value, ()) for n, (key, value) in enumerate(items)]
    return build_batch(records, base_offset=offset, compression=codec, **how)  # type: ignore[arg-type]


def marker(offset: int, committed: bool, producer_id: int = 1) -> bytes:
    return build_end_txn(
        EndTxn(committed, 0), producer_id=producer_id, producer_epoch=0, timestamp=9, base_offset=offset
    )


def transactional(offset: int, *items: tuple[bytes, bytes | None], producer_id: int = 1) -> bytes:
    return put(offset, *items, producer_id=producer_id, producer_epoch=0, base_sequence=0, transactional=True)


def everything(log: list[bytes]) -> list[Record]:
    return [record for batch in log for record in read_records(batch)]


def offsets_of(log: list[bytes]) -> list[int]:
    return [record.offset for record in everything(log)]


@pytest.mark.parametrize("codec", list(Codec))
def test_compaction_keeps_only_the_latest_record_of_a_key_with_its_offset_and_time(codec: Codec) -> None:
    log = [
        put(0, (b"a", b"1"), (b"b", b"1"), (b"a", b"2"), codec=codec),
        put(3, (b"b", b"2"), (b"c", b"1"), codec=codec),
    ]
    cleaned = Round().run(log)
    assert [(r.offset, r.timestamp, r.key, r.value) for r in everything(cleaned)] == [
        (2, 2, b"a", b"2"),
        (3, 3, b"b", b"2"),
        (4, 4, b"c", b"1"),
    ]
    assert cleaned[1] == log[1]
    header = parse_header(cleaned[0])
    assert crc_ok(cleaned[0])
    assert (header.base_offset, header.last_offset, header.records_count) == (0, 2, 1)
    assert (header.base_timestamp, header.max_timestamp, header.compression) == (2, 2, codec)


def test_compaction_does_not_copy_a_batch_that_it_leaves_unchanged() -> None:
    batch = put(0, (b"a", b"1"), (b"b", b"1"))
    compactor = Compactor(OffsetMap(0, 9), TransactionScan(), NOW, RETENTION, 99)
    assert compactor.clean(parse_header(batch), batch) is batch


def test_headers_and_unusual_bytes_are_unchanged_by_compaction() -> None:
    records: list[NewRecord] = [(5, b"a", b"1", ()), (6, b"b", b"x" * 300, (("h", b"\xff"), ("", None)))]
    cleaned = Round().run([build_batch(records), put(2, (b"a", b"2"))])
    assert everything(cleaned)[0] == Record(1, 6, b"b", b"x" * 300, (("h", b"\xff"), ("", None)))


def test_compaction_removes_and_counts_records_without_a_key() -> None:
    work = Round()
    assert offsets_of(work.run([put(0, (None, b"1"), (b"a", b"1"))])) == [1]
    assert work.compactor.stats.records_without_key == 1


def test_tombstone_stays_for_delete_retention_ms_after_its_first_compaction() -> None:
    log = [put(0, (b"a", b"1")), put(1, (b"a", None), (b"b", b"1")), put(3, (b"c", b"1"))]
    first = Round(now=NOW).run(log)
    header = parse_header(first[0])
    assert header.delete_horizon_ms == NOW + RETENTION
    assert [(r.offset, r.timestamp, r.value) for r in everything(first)] == [(1, 1, None), (2, 2, b"1"), (3, 3, b"1")]
    assert Round(now=NOW + RETENTION - 1).run(first) == first
    last = Round(now=NOW + RETENTION).run(first)
    assert offsets_of(last) == [2, 3]
    assert parse_header(last[0]).delete_horizon_ms == NOW + RETENTION
    assert everything(last)[0].timestamp == 2


def test_tombstone_before_a_newer_record_of_its_key_is_removed_by_the_first_compaction() -> None:
    assert offsets_of(Round().run([put(0, (b"a", None)), put(1, (b"a", b"2"))])) == [1]


def test_compaction_keeps_the_log_append_time_of_a_batch_that_gets_a_delete_horizon() -> None:
    batch = build_batch([(1, b"a", None, ()), (2, b"b", b"x", ())], log_append_time=777)
    (cleaned,) = Round().run([batch])
    assert parse_header(cleaned).has_delete_horizon
    assert [r.timestamp for r in everything([cleaned])] == [777, 777]


def test_compaction_keeps_records_after_the_end_of_the_offset_map() -> None:
    log = [put(0, (b"a", b"1")), put(1, (b"b", b"1")), put(2, (b"a", b"2")), put(3, (b"c", b"1"))]
    work = Round(max_keys=2)
    cleaned = work.run(log)
    assert work.compactor.offsets.latest_offset == 2
    assert offsets_of(cleaned) == [1, 2, 3]


def test_record_is_removed_only_if_a_newer_record_of_its_key_is_in_the_dirty_part_of_the_log() -> None:
    log = [put(0, (b"a", b"1"), (b"a", b"2")), put(2, (b"a", b"3")), put(3, (b"b", b"1"))]
    assert offsets_of(Round(start_offset=3).run(log)) == [0, 1, 2, 3]
    assert offsets_of(Round(start_offset=2).run(log)) == [2, 3]


def test_last_compacted_batch_is_kept_as_a_batch_without_records() -> None:
    log = [put(0, (b"a", b"1")), put(1, (b"a", b"2")), put(2, (None, b"x"))]
    cleaned = Round(upper_bound=3).run(log)
    assert offsets_of(cleaned) == [1]
    header = parse_header(cleaned[-1])
    assert (len(cleaned[-1]), header.last_offset, header.records_count) == (HEADER_SIZE, 2, 0)
    assert crc_ok(cleaned[-1])
    assert read_records(cleaned[-1]) == []
    assert Round(upper_bound=3).run(cleaned) == cleaned


def test_last_batch_of_an_active_producer_is_kept_as_a_batch_without_records() -> None:
    batch = put(0, (b"a", b"1"), (b"b", b"2"), producer_id=5, producer_epoch=3, base_sequence=10, codec=Codec.LZ4)
    log = [batch, put(2, (b"a", b"2"), (b"b", b"2"))]
    active = {5: LastRecord(last_data_offset=1, producer_epoch=3)}
    cleaned = Round(last_records=active).run(log)
    header = parse_header(cleaned[0])
    assert (header.producer_id, header.producer_epoch, header.last_sequence) == (5, 3, 11)
    assert (header.records_count, header.compression, header.max_timestamp) == (0, Codec.NONE, 1)
    assert len(Round().run(log)) == 1
    assert len(Round(last_records={5: LastRecord(9, 3)}).run(log)) == 1


def test_last_batch_of_a_producer_is_no_longer_needed_after_a_marker_with_a_new_epoch() -> None:
    last = LastRecords([1])
    for epoch, expected in (
        (0, {1: LastRecord(0, 0)}),  # the marker has the epoch of the batch, so the batch has the state
        (1, {1: LastRecord(None, 1)}),
    ):
        last.add(parse_header(transactional(0, (b"a", b"1"))))
        last.add(parse_header(put(1, (b"a", b"1"), producer_id=2, producer_epoch=0, base_sequence=0)))
        last.add(parse_header(marker(2, True))._replace(producer_epoch=epoch))
        assert last.found == expected


def test_compaction_removes_aborted_records_at_once_and_their_marker_two_compactions_later() -> None:
    log = [transactional(0, (b"a", b"1")), put(1, (b"a", b"0")), transactional(2, (b"a", b"2")), marker(3, False)]
    aborted = [Aborted(1, 0, 3)]
    work = Round(aborted=aborted)
    first = work.run(log)
    assert [parse_header(batch).base_offset for batch in first] == [1, 3]
    assert first[1] == log[3]
    assert work.kept_aborts == aborted
    assert everything(first)[0].value == b"0"
    work = Round(aborted=aborted)
    second = work.run(first)
    assert parse_header(second[1]).delete_horizon_ms == NOW + RETENTION
    assert work.kept_aborts == []
    assert Round(now=NOW + RETENTION - 1).run(second) == second
    assert offsets_of(Round(now=NOW + RETENTION).run(second)) == [1]


def test_aborted_record_does_not_replace_a_committed_record_of_the_same_key() -> None:
    log = [put(0, (b"a", b"good")), transactional(1, (b"a", b"bad")), marker(2, False)]
    assert everything(Round(aborted=[Aborted(1, 1, 2)]).run(log))[0].value == b"good"


def test_compaction_keeps_records_that_a_producer_commits_after_an_aborted_transaction() -> None:
    log = [
        transactional(0, (b"a", b"bad")),
        marker(1, False),
        transactional(2, (b"a", b"good")),
        marker(3, True),
    ]
    twice = [Aborted(1, 0, 1), Aborted(1, 0, 1)]
    assert everything(Round(aborted=twice).run(log))[1].value == b"good"


def test_batch_that_follows_an_aborted_transaction_does_not_count_as_aborted() -> None:
    scan = TransactionScan()
    scan.add_aborted([Aborted(1, 0, 1)])
    batch = transactional(5, (b"a", b"good"))
    assert not scan.data_is_aborted(parse_header(batch))


def test_commit_marker_stays_as_long_as_the_records_of_its_transaction() -> None:
    log = [transactional(0, (b"a", b"1")), marker(1, True), put(2, (b"b", b"1"))]
    for _ in range(3):
        assert Round().run(log) == log
    log[2] = put(2, (b"a", b"2"))
    first = Round().run(log)
    assert [parse_header(batch).base_offset for batch in first] == [1, 2]
    second = Round().run(first)
    assert parse_header(second[0]).has_delete_horizon
    assert offsets_of(Round(now=NOW + RETENTION).run(second)) == [2]


def test_marker_with_the_last_epoch_of_an_active_producer_is_kept_as_a_batch_without_records() -> None:
    active = {1: LastRecord(last_data_offset=None, producer_epoch=0)}
    first = Round(last_records=active).run([marker(0, True), put(1, (b"a", b"1"))])
    cleaned = Round(now=NOW + RETENTION, last_records=active).run(first)
    header = parse_header(cleaned[0])
    assert (header.is_control, header.records_count, header.producer_epoch) == (True, 0, 0)
    assert Round(now=NOW + RETENTION, last_records=active).run(cleaned) == cleaned
    assert len(Round(now=NOW + RETENTION).run(cleaned)) == 1


def test_compaction_never_changes_control_records_other_than_markers() -> None:
    from penstock.protocol.persisted.raft.leader_change_message import LeaderChangeMessage

    log = [build_control([LeaderChangeMessage(version=0, leader_id=1)], timestamp=1), put(1, (b"a", b"1"))]
    assert Round().run(log) == log


def test_short_key_and_long_key_never_have_the_same_fingerprint_in_compaction() -> None:
    long = b"x" * 100
    assert len(fingerprint(long)) == 16
    assert fingerprint(fingerprint(long)) != fingerprint(long)
    assert fingerprint(b"short") == b"short"


items = st.tuples(st.sampled_from([b"a", b"b", b"c", b"key" * 20]), st.none() | st.binary(max_size=3))
logs = st.lists(st.lists(items, min_size=1, max_size=5), min_size=1, max_size=8)


@given(batches=logs, codec=st.sampled_from(list(Codec)), rounds=st.lists(st.integers(0, 2000), min_size=1, max_size=4))
@settings(max_examples=examples(60), deadline=None)
def test_compaction_does_not_change_the_last_value_of_any_key(
    batches: list[list[tuple[bytes, bytes | None]]], codec: Codec, rounds: list[int]
) -> None:
    log: list[bytes] = []
    state: dict[bytes, bytes | None] = {}
    offset = 0
    for batch in batches:
        log.append(put(offset, *batch, codec=codec))
        offset += len(batch)
        state.update(batch)
    live = {key: value for key, value in state.items() if value is not None}
    now = NOW
    for wait in rounds:
        now += wait
        log = Round(now=now, upper_bound=offset).run(log)
        records = everything(log)
        assert {r.key: r.value for r in records if r.value is not None} == live
        assert len({r.key for r in records}) == len(records)
        assert offsets_of(log) == sorted(offsets_of(log))
        assert parse_header(log[-1]).next_offset == offset
        assert all(crc_ok(batch) for batch in log)
        assert [r.timestamp for r in records] == offsets_of(log)
