"""Tests compaction with transactions: read_committed readers see the same table before and after a compaction."""

from __future__ import annotations

from random import Random

import pytest
from log_harness import TOPIC_ID, finish, manager, read_all, run

from penstock.clock import ManualClock
from penstock.disk.memory import MemoryDisk
from penstock.log.cleaner import Cleaner
from penstock.log.log import AppendOrigin
from penstock.metadata.configs.topic import LogConfig
from penstock.records.build import build_batch
from penstock.records.control import EndTxn, build_end_txn, read_end_txn
from penstock.records.record import read_records
from penstock.sim.checks.replica_rules import misindexed, read_copy

pytestmark = pytest.mark.exhaustive

NOW = 1_700_000_000_000
COMPACT = LogConfig(cleanup_policy=frozenset({"compact"}), min_cleanable_dirty_ratio=0.01, delete_retention_ms=1000)


class Table:
    """Holds a compacted log with transactional writers, and the records that readers must see."""

    def __init__(self) -> None:
        self.clock = ManualClock(NOW)
        self.logs = manager(MemoryDisk(), self.clock)
        self.log = self.logs.create("t", TOPIC_ID, 0, COMPACT)
        self.sequences: dict[int, int] = {}
        #: Key → value of the newest committed record, by offset.
        self.expected: dict[str, tuple[int, str]] = {}
        #: Records of transactions that are still open, by producer.
        self.open: dict[int, list[tuple[int, str, str]]] = {}

    def append(self, data: bytes, origin: AppendOrigin = AppendOrigin.CLIENT) -> int:
        info = self.log.append_as_leader(data, leader_epoch=0, now_ms=self.clock.wall_ms(), origin=origin)
        self.log.update_high_watermark(self.log.log_end_offset)
        return info.base_offset

    def put(self, key: str, value: str) -> None:
        offset = self.append(build_batch([(self.clock.wall_ms(), key.encode(), value.encode(), ())]))
        self.expected[key] = (offset, value)

    def put_in_transaction(self, producer_id: int, key: str, value: str) -> None:
        sequence = self.sequences.get(producer_id, 0)
        self.sequences[producer_id] = sequence + 1
        data = build_batch(
            [(self.clock.wall_ms(), key.encode(), value.encode(), ())],
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=sequence,
            transactional=True,
        )
        self.open.setdefault(producer_id, []).append((self.append(data), key, value))

    def end(self, producer_id: int, *, commit: bool) -> None:
        marker = build_end_txn(
            EndTxn(commit, 0), producer_id=producer_id, producer_epoch=0, timestamp=self.clock.wall_ms()
        )
        self.append(marker, AppendOrigin.COORDINATOR)
        for offset, key, value in self.open.pop(producer_id):
            if commit and offset > self.expected.get(key, (-1, ""))[0]:
                self.expected[key] = (offset, value)

    def clean(self, max_keys: int = 1000) -> None:
        self.log.roll()
        finish(Cleaner(self.logs, max_keys=max_keys).run())
        self.clock.advance(400)

    def restart(self) -> None:
        run(self.logs.close())
        self.logs = manager(self.logs.disk, self.clock)
        found = self.logs.get("t", 0)
        assert found is not None
        found.update_config(COMPACT)
        self.log = found

    def check(self) -> None:
        index = self.log.aborted_transactions(0, self.log.log_end_offset)
        assert list(misindexed("t-0", read_copy("n1", self.log), index)) == []
        if not self.open:
            assert self.seen() == self.expected

    def seen(self) -> dict[str, tuple[int, str]]:
        """Returns the newest value of each key for a read_committed consumer, which uses markers as Kafka's consumer
        does."""
        end = self.log.last_stable_offset
        aborted = sorted(self.log.aborted_transactions(0, end), key=lambda each: each.first_offset)
        skipped: set[int] = set()
        table: dict[str, tuple[int, str]] = {}
        for header, data in read_all(self.log):
            if header.base_offset >= end:
                break
            while aborted and aborted[0].first_offset <= header.last_offset:
                skipped.add(aborted.pop(0).producer_id)
            if header.is_control:
                marker = read_end_txn(data)
                if marker is not None and not marker.committed:
                    skipped.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in skipped):
                for record in read_records(data):
                    table[(record.key or b"").decode()] = (record.offset, (record.value or b"").decode())
        return table


def test_aborted_records_stay_invisible_if_compaction_runs_while_an_earlier_transaction_is_open() -> None:
    table = Table()
    table.put("k", "committed")
    table.put_in_transaction(7, "other", "open")
    table.put_in_transaction(8, "k", "ABORTED")
    table.end(8, commit=False)
    table.clean()
    table.check()
    table.end(7, commit=True)
    table.check()
    table.put("x", "1")
    table.clean()
    table.check()


def test_records_whose_transaction_aborts_after_a_compaction_are_removed_by_the_next_compaction() -> None:
    table = Table()
    table.put("k", "committed")
    table.put_in_transaction(8, "k", "ABORTED")
    table.clean()
    table.end(8, commit=False)
    table.put_in_transaction(7, "other", "open")
    table.clean()
    table.check()
    assert [value for _, value in table.seen().values()] == ["committed"]
    records = [
        record.value for header, data in read_all(table.log) if not header.is_control for record in read_records(data)
    ]
    assert records == [b"committed", b"open"]


@pytest.mark.parametrize("seed", range(40))
def test_repeated_compactions_keep_the_last_values_and_the_transaction_index_correct(seed: int) -> None:
    random = Random(seed)
    table = Table()
    for step in range(150):
        choice = random.random()
        producer_id = random.randint(1, 4)
        key = f"k{random.randrange(6)}"
        if choice < 0.25:
            table.put(key, str(step))
        elif choice < 0.65:
            table.put_in_transaction(producer_id, key, str(step))
        elif choice < 0.85:
            if producer_id in table.open:
                table.end(producer_id, commit=random.random() < 0.5)
        elif choice < 0.9:
            table.log.roll()
        elif choice < 0.98:
            table.clean(random.choice((2, 3, 1000)))
        else:
            table.restart()
        table.check()
    for producer_id in list(table.open):
        table.end(producer_id, commit=random.random() < 0.5)
    for _ in range(3):
        table.clean()
        table.put("last", "x")
        table.check()
