"""Runs random histories with crashes. The recovered log is always a prefix of the written records, without a gap.

It is never shorter than the fsynced records. Indexes, leader epochs, producer state and aborted transactions match the
recovered batches.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, field, replace
from random import Random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from log_harness import TOPIC_ID, check_indexes, finish, manager, read_all, run, scan

from penstock.clock import ManualClock
from penstock.disk.memory import MemoryDisk
from penstock.log.directory import STRAY_SUFFIX
from penstock.log.epochs import LeaderEpochCache
from penstock.log.log import AppendOrigin, Log
from penstock.log.manager import LogManager
from penstock.log.producers import ProducerStateManager
from penstock.log.replay import aborted_entry
from penstock.log.txn_index import AbortedTransaction
from penstock.metadata.configs.topic import LogConfig
from penstock.records.build import build_batch
from penstock.records.control import EndTxn, build_end_txn, read_end_txn
from penstock.records.header import BatchHeader, parse_header
from tools.examples import examples

#: All examples together take minutes on a machine that does other work; nothing in here waits.
pytestmark = pytest.mark.timeout(1500)

EXAMPLES = int(os.environ.get("PENSTOCK_EXAMPLES", "60"))
NOW = 1_700_000_000_000
CONFIG = LogConfig(segment_bytes=1200, index_interval_bytes=100, retention_ms=-1)


class StoppedError(Exception):
    """Raised by calls after the machine or the process has stopped."""


@dataclass
class Producer:
    producer_id: int
    epoch: int = 0
    sequence: int = 0
    in_transaction: bool = False


@dataclass
class Model:
    batches: list[tuple[BatchHeader, bytes]] = field(default_factory=list)
    #: Offsets below this were promised to be on disk.
    durable: int = 0
    #: Records below this are deleted; after a crash some may be back.
    start: int = 0
    end: int = 0

    def visible(self, start: int) -> list[tuple[BatchHeader, bytes]]:
        return [each for each in self.batches if each[0].last_offset >= start]

    def cut(self, offset: int) -> None:
        straddling = [each[0].base_offset for each in self.batches if each[0].last_offset >= offset]
        self.batches = [each for each in self.batches if each[0].last_offset < offset]
        self.end = min(self.end, offset, *straddling)
        self.durable = min(self.durable, self.end)
        self.start = min(self.start, self.end)


class CrashingLog(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock(NOW)
        self.disk = MemoryDisk(crashable=True, now_ms=self.clock.wall_ms)
        self.disk.mkdir("/logs")
        self.logs: LogManager = manager(self.disk, self.clock)
        self.log: Log = self.logs.create("t", TOPIC_ID, 0, CONFIG)
        self.logs.write_checkpoints()
        self.model = Model()
        self.epoch = 0
        self.producers = [Producer(10), Producer(11)]

    # What a broker does.

    @rule(count=st.integers(1, 5), size=st.integers(0, 200), skew=st.integers(-50, 50))
    def append(self, count: int, size: int, skew: int) -> None:
        records = [(NOW + self.model.end + skew, b"k", bytes(size), ())] * count
        self._append(build_batch(records))

    @rule(which=st.integers(0, 1), count=st.integers(1, 3), transactional=st.booleans())
    def append_idempotent(self, which: int, count: int, transactional: bool) -> None:
        producer = self.producers[which]
        transactional = transactional or producer.in_transaction
        data = build_batch(
            [(NOW, b"k", b"v", ())] * count,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            base_sequence=producer.sequence,
            transactional=transactional,
        )
        self._append(data)
        producer.sequence += count
        producer.in_transaction = transactional

    @rule(which=st.integers(0, 1), committed=st.booleans())
    def end_transaction(self, which: int, committed: bool) -> None:
        producer = self.producers[which]
        if producer.in_transaction:
            marker = build_end_txn(
                EndTxn(committed, 1), producer_id=producer.producer_id, producer_epoch=producer.epoch, timestamp=NOW
            )
            self._append(marker, AppendOrigin.COORDINATOR)
            producer.in_transaction = False

    def _append(self, data: bytes, origin: AppendOrigin = AppendOrigin.CLIENT) -> None:
        start = self.log.log_end_offset
        self.log.append_as_leader(data, leader_epoch=self.epoch, now_ms=NOW, origin=origin)
        stored = self.log.read(start, 1 << 20, upper_bound=self.log.log_end_offset).read_now()
        self.model.batches.append((parse_header(stored), bytes(stored)))
        self.model.end = self.log.log_end_offset
        self.log.update_high_watermark(self.log.log_end_offset)

    @rule()
    def new_leader_epoch(self) -> None:
        self.epoch += 1

    @rule()
    def roll(self) -> None:
        self.log.roll()

    @rule()
    def flush(self) -> None:
        finish(self.log.flush())
        self.model.durable = self.model.end

    @rule()
    def wait_for_fsync(self) -> None:
        run(self.log.flushed(self.model.end))
        self.model.durable = self.model.end

    @rule()
    def checkpoint(self) -> None:
        self.logs.write_checkpoints()

    @rule()
    def checkpoint_in_the_background(self) -> None:
        finish(self.logs.save_checkpoints())

    @precondition(lambda self: self.model.batches)
    @rule(data=st.data())
    def delete_records(self, data: st.DataObject) -> None:
        self.model.start = data.draw(st.integers(self.log.log_start_offset, self.log.high_watermark))
        self.log.advance_log_start_offset(self.model.start)

    @rule()
    def delete_old_segments(self) -> None:
        self.log.delete_old_segments(NOW)

    @precondition(lambda self: self.model.batches)
    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(max(0, self.log.log_start_offset), self.model.end))
        self.log.truncate_to(offset)
        self.model.cut(offset)
        assert self.log.log_end_offset == self.model.end
        self._forget_producers()

    def _forget_producers(self) -> None:
        # A producer that lost a batch starts over with a new epoch, as real ones do.
        for producer in self.producers:
            producer.epoch += 1
            producer.sequence = 0
            entry = self.log.producers.get(producer.producer_id)
            producer.in_transaction = entry is not None and entry.txn_first_offset is not None

    # What the world does.

    @rule(seed=st.integers(0, 1 << 32))
    def crash(self, seed: int) -> None:
        self._lose_power(seed)

    @rule()
    def kill(self) -> None:
        self._lose_process()

    @rule(data=st.data(), steps=st.integers(0, 12))
    def kill_in_the_middle(self, data: st.DataObject, steps: int) -> None:
        self._stop_in_the_middle(data, steps)
        self._lose_process()

    @rule(data=st.data(), seed=st.integers(0, 1 << 32), steps=st.integers(0, 12))
    def crash_in_the_middle(self, data: st.DataObject, seed: int, steps: int) -> None:
        self._stop_in_the_middle(data, steps)
        self._lose_power(seed)

    def _stop_in_the_middle(self, data: st.DataObject, steps: int) -> None:
        action = data.draw(st.sampled_from(["append", "roll", "flush", "truncate", "checkpoint", "retention", "close"]))
        offset = data.draw(st.integers(self.log.log_start_offset, self.log.log_end_offset))
        before = replace(self.model, batches=list(self.model.batches))
        left = [steps]

        def count_down(operation: str, path: str) -> None:
            if not left[0]:
                raise StoppedError
            left[0] -= 1

        self.disk.on_write = count_down
        with suppress(StoppedError):
            self._act(action, offset)
        self.disk.on_write = None
        if action == "truncate":
            # Either cut or not: what is promised is what is below the cut.
            after = replace(before)
            after.cut(offset)
            before.durable = min(before.durable, after.end)
            self.model = before

    def _act(self, action: str, offset: int) -> None:
        if action == "append":
            self.append(2, 60, 0)
        elif action == "roll":
            self.log.roll()
        elif action == "flush":
            self.flush()
        elif action == "truncate":
            self.log.truncate_to(offset)
        elif action == "checkpoint":
            self.logs.write_checkpoints()
        elif action == "retention":
            self.log.delete_old_segments(NOW)
        else:
            run(self.logs.close())

    def _lose_power(self, seed: int) -> None:
        self.disk = self.disk.crash(Random(seed))
        self._recover()

    def _lose_process(self) -> None:
        """Kills the process: all written data stays, synced or not."""
        self.logs.abandon()
        self._recover()

    def _recover(self) -> None:
        self._start()
        self._check_prefix()
        self.log.update_high_watermark(self.log.log_end_offset)
        self._forget_producers()

    def _start(self) -> None:
        self.logs = manager(self.disk, self.clock)
        found = self.logs.get("t", 0)
        if found is None:  # a power loss before the first sync took the topic id
            assert not self.model.durable
            for name in self.disk.listdir("/logs"):
                if name.endswith(STRAY_SUFFIX):
                    self.disk.remove_tree(f"/logs/{name}")
            found = self.logs.create("t", TOPIC_ID, 0, CONFIG)
        if found.topic_id != TOPIC_ID:
            found.assign_topic_id(TOPIC_ID)
        self.log = found
        self.log.update_config(CONFIG)

    @rule()
    def clean_restart(self) -> None:
        run(self.logs.close())
        self._start_clean()

    @rule(seed=st.integers(0, 1 << 32))
    def power_loss_after_a_clean_stop(self, seed: int) -> None:
        run(self.logs.close())
        self.disk = self.disk.crash(Random(seed))
        self._start_clean()

    def _start_clean(self) -> None:
        before = self.model.end
        self._start()
        assert self.log.log_end_offset == before
        assert self.log.recovery_point == before
        self.model.durable = before
        self.log.update_high_watermark(self.log.log_end_offset)

    # What must hold.

    def _check_prefix(self) -> None:
        log, model = self.log, self.model
        survived = read_all(log)
        assert log.log_start_offset <= model.start, "records are gone that nobody deleted"
        expected = model.visible(log.log_start_offset)
        if len(survived) > len(expected):
            # The append that was under way may have made it.
            assert len(survived) == len(expected) + 1
            assert survived[-1][0].base_offset == model.end
            expected = [*expected, survived[-1]]
        assert survived == expected[: len(survived)], "not a prefix of what was written"
        assert log.log_end_offset >= model.durable, "an fsynced record is gone"
        if survived:
            assert log.log_end_offset == survived[-1][0].next_offset
        gone = [each for each in model.batches if each[0].last_offset < log.log_start_offset]
        model.batches = gone + survived
        model.start, model.end = log.log_start_offset, log.log_end_offset

    @invariant()
    def files_and_state_agree(self) -> None:
        log = self.log
        stored = [entry for segment in log.segments for entry in scan(segment)]
        assert [header for _, header in stored] == [
            header for header, _ in self.model.batches if header.base_offset >= log.segments.bases[0]
        ]
        assert log.size == sum(header.size for _, header in stored)
        for segment in log.segments:
            check_indexes(segment)
        epochs = LeaderEpochCache()
        for header, _ in self.model.batches:
            epochs.assign(header.partition_leader_epoch, header.base_offset)
        epochs.truncate_from_start(log.log_start_offset)
        if log.log_start_offset < log.log_end_offset:
            assert log.epochs.entries == epochs.entries
        self._check_producers()

    def _check_producers(self) -> None:
        oracle = ProducerStateManager()
        aborted: list[AbortedTransaction] = []
        for header, data in self.model.batches:
            if header.producer_id >= 0:
                completed = oracle.update(header, read_end_txn(data))
                if completed is not None and completed.aborted:
                    aborted.append(aborted_entry(oracle, completed))
        # Of a producer whose data is all deleted a crash or a cut may leave nothing, or only what its markers say.
        start = self.log.log_start_offset
        known, true = _summary(self.log.producers), _summary(oracle)
        assert known.keys() <= true.keys()
        for producer in oracle:
            first = producer.txn_first_offset
            if producer.last_offset >= start and (first is None or first >= start):
                assert known[producer.producer_id] == true[producer.producer_id]
        if (oracle.first_undecided_offset or 0) >= start:
            assert self.log.producers.first_undecided_offset == oracle.first_undecided_offset
        found = self.log.aborted_transactions(0, self.log.log_end_offset + 1)
        assert [each for each in found if each.first_offset >= start] == [
            each for each in aborted if each.first_offset >= start
        ]


def _summary(producers: ProducerStateManager) -> dict[int, tuple[int, int, int | None]]:
    return {each.producer_id: (each.producer_epoch, each.last_sequence, each.txn_first_offset) for each in producers}


TestCrashingLog = CrashingLog.TestCase
TestCrashingLog.settings = settings(
    max_examples=examples(EXAMPLES), stateful_step_count=25, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
