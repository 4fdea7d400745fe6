"""Compares a recovered log with a log that never had more records, for every flush and every damaged batch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial
from itertools import product
from random import Random

import pytest
from log_harness import ROOT, TOPIC_ID, batch, check_indexes, finish, read_all, run

from penstock.clock import ManualClock
from penstock.disk.memory import MemoryDisk
from penstock.log import replay
from penstock.log.checkpoints import render_offsets
from penstock.log.log import AppendOrigin, Log
from penstock.log.manager import LogManager
from penstock.metadata.configs.topic import LogConfig
from penstock.records.control import EndTxn, build_end_txn

NOW = 1_700_000_000_000
PATH = f"{ROOT}/t-0"
CONFIG = LogConfig(segment_bytes=270, index_interval_bytes=1, retention_ms=-1)


@dataclass(frozen=True)
class Step:
    """Describes one batch: its leader epoch, its producer, and whether it begins or ends a transaction."""

    epoch: int
    producer: int = -1
    sequence: int = -1
    transactional: bool = False
    commits: bool | None = None

    def append_to(self, log: Log) -> None:
        append = partial(log.append_as_leader, leader_epoch=self.epoch, now_ms=NOW)
        if self.commits is not None:
            marker = EndTxn(self.commits, 0)
            append(
                build_end_txn(marker, producer_id=self.producer, producer_epoch=0, timestamp=NOW),
                origin=AppendOrigin.COORDINATOR,
            )
            return
        if self.producer < 0:
            append(batch())
            return
        append(
            batch(
                2,
                producer_id=self.producer,
                producer_epoch=0,
                base_sequence=self.sequence,
                transactional=self.transactional,
            )
        )


STEPS = (
    Step(0),
    Step(0, 0, 0),
    Step(1, 5, 0, transactional=True),
    Step(1, 6, 0, transactional=True),
    Step(1, 5, commits=False),
    Step(3, 0, 2),
    Step(3, 6, commits=False),
    Step(4, 5, 2, transactional=True),
    Step(4),
    Step(4, 5, commits=True),
    Step(6, 0, 4),
)
#: The offset before each step, and the offset after the last step.
ENDS = [sum(2 if each.sequence >= 0 else 1 for each in STEPS[:count]) for count in range(len(STEPS) + 1)]


def opened(disk: MemoryDisk) -> tuple[LogManager, Log]:
    logs = LogManager(disk, (ROOT,), ManualClock(NOW))
    finish(logs.open(node_id=1, cluster_id="cluster", config_of=lambda topic: CONFIG))
    return logs, logs.get("t", 0) or logs.create("t", TOPIC_ID, 0, CONFIG)


def with_steps(count: int, disk: MemoryDisk | None = None, flushed: int | None = None) -> tuple[LogManager, Log]:
    """Returns a log with the first steps. It is flushed after `flushed` of them."""
    logs, log = opened(MemoryDisk() if disk is None else disk)
    for number in range(count + 1):
        if number == flushed:
            finish(log.flush())
            logs.write_checkpoints()
        if number < count:
            STEPS[number].append_to(log)
    return logs, log


def state(log: Log) -> dict[str, object]:
    """Returns everything that a log derives from its batches."""
    log.update_high_watermark(log.log_end_offset)
    producers = [
        (each.producer_id, each.producer_epoch, each.last_sequence, each.last_offset, each.txn_first_offset)
        for each in log.producers
    ]
    return {
        "end": log.log_end_offset,
        "batches": [header for header, _ in read_all(log)],
        "epochs": log.epochs.entries,
        "producers": sorted(producers, key=lambda each: each[0]),
        "producers end": log.producers.map_end_offset,
        "stable": log.last_stable_offset,
        "aborted": log.aborted_transactions(0, 1000),
    }


@cache
def state_after(count: int) -> dict[str, object]:
    """Returns the state of a log that has only the first steps."""
    return state(with_steps(count)[1])


def positions() -> list[tuple[int, int]]:
    """Returns the base offset of the segment of each step, and the position in its file."""
    _, log = with_steps(len(STEPS))
    found: list[tuple[int, int]] = []
    for segment in log.segments:
        position = 0
        for header, _ in read_all(log):
            if segment is log.segments.starting_at(header.base_offset)[0]:
                found.append((segment.base_offset, position))
                position += header.size
    return found


WHERE = positions()


def test_the_steps_fill_several_segments_with_several_batches() -> None:
    bases = [base for base, _ in WHERE]
    assert len(WHERE) == len(STEPS)
    assert len(set(bases)) > 3
    assert max(bases.count(base) for base in bases) > 2


@pytest.mark.parametrize("most_kept", [0, 2, 100_000])
def test_log_after_a_crash_equals_a_log_that_ends_before_its_first_damaged_batch(
    most_kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay, "MAX_KEPT", most_kept)
    for flushed in range(0, len(STEPS) + 1, 1 if most_kept > 2 else 3):
        for damaged in range(flushed, len(STEPS) + 1):
            disk = MemoryDisk()
            logs, log = with_steps(len(STEPS), disk, flushed)
            if damaged % 2:
                log.store()
            logs.abandon()
            if damaged < len(STEPS):
                base, position = WHERE[damaged]
                disk.inode(f"{PATH}/{base:020d}.log").data[position + 40] ^= 1
            if damaged % 3:
                for base in {base for base, _ in WHERE if base >= ENDS[flushed]}:
                    disk.remove(f"{PATH}/{base:020d}.txnindex")
            logs, log = opened(disk)
            assert (log.recovery_point, log.log_start_offset) == (ENDS[flushed], 0)
            assert (log in logs.flush_queue) is (flushed < damaged)
            assert state(log) == state_after(damaged)
            for segment in log.segments:
                assert segment.size == segment.file.size
                check_indexes(segment)
            finish(log.flush())
            names = {name[:20] for name in disk.listdir(PATH) if name.endswith((".log", "index"))}
            assert names == {f"{base:020d}" for base in log.segments.bases}
            for step in STEPS[damaged:]:
                step.append_to(log)
            assert state(log) == state_after(len(STEPS))


def test_recovery_trusts_only_the_bytes_before_a_recovery_point_that_is_the_end_of_a_batch() -> None:
    for point in range(ENDS[-1] + 1):
        disk = MemoryDisk()
        logs, log = with_steps(len(STEPS), disk)
        finish(log.flush())
        logs.write_checkpoints()
        logs.abandon()
        disk.write_atomic(f"{ROOT}/recovery-point-offset-checkpoint", render_offsets({("t", 0): point}))
        _, log = opened(disk)
        first = log.segments.starting_at(point)[0]
        for segment in log.segments:
            ends = [end for (base, _), end in zip(WHERE, ENDS[1:], strict=True) if base == segment.base_offset]
            starts = [position for base, position in WHERE if base == segment.base_offset]
            trusted = 0
            if segment.base_offset < first.base_offset:
                trusted = segment.size
            elif segment is first and point in ends:
                trusted = [*starts, segment.size][ends.index(point) + 1]
            assert segment.trusted_from == trusted
            following = next((base for base in log.segments.bases if base > segment.base_offset), point)
            assert segment.synced_size == (segment.size if following < point else 0), "it may have been truncated there"
        assert state(log) == state_after(len(STEPS))
        for segment in log.segments:
            check_indexes(segment)


def test_truncated_log_equals_a_log_that_never_had_the_truncated_batches() -> None:
    for count, flushed in product(range(len(STEPS) + 1), (None, 0, 6)):
        logs, log = with_steps(len(STEPS), flushed=flushed)
        log.update_high_watermark(ENDS[count])
        log.truncate_to(ENDS[count])
        assert state(log) == state_after(count)
        finish(log.flush())
        logs.write_checkpoints()
        logs.abandon()
        assert isinstance(logs.disk, MemoryDisk)
        assert state(opened(logs.disk)[1]) == state_after(count)


def test_log_after_a_clean_stop_has_the_same_state() -> None:
    for count in range(len(STEPS) + 1):
        disk = MemoryDisk()
        logs, log = with_steps(count, disk)
        expected = state(log)
        run(logs.close())
        logs, log = opened(disk)
        assert log.recovery_point == log.log_end_offset
        assert log not in logs.flush_queue
        assert state(log) == expected
        assert all(segment.synced_size == segment.size for segment in log.segments)


@pytest.mark.parametrize("clean", [False, True])
def test_log_start_at_any_offset_keeps_epochs_and_producers_through_a_restart(clean: bool) -> None:
    """As in Kafka, an epoch without records is forgotten, and after a crash also the producers that neither a snapshot
    nor a batch above the log start names."""
    for start, save_start in product(range(ENDS[-1] + 1), (True, False)):
        disk = MemoryDisk()
        logs, log = with_steps(len(STEPS), disk)
        log.update_high_watermark(log.log_end_offset)
        whole = log.epochs.entries
        log.advance_log_start_offset(start)
        expected = state(log) | {"epochs": [each for each in log.epochs.entries if each[1] < log.log_end_offset]}
        has_snapshot = start <= log.segments.bases[-1]
        if clean:
            run(logs.close())
        else:
            finish(log.flush())
            logs.write_checkpoints()
            logs.abandon()
        if not save_start:  # as after a crash before the new log start was written
            disk.write_atomic(f"{ROOT}/log-start-offset-checkpoint", render_offsets({}))
        _, log = opened(disk)
        if save_start:
            assert log.log_start_offset == start
            if not clean and not has_snapshot:
                del expected["producers"]
            found = state(log)
            assert {name: found[name] for name in expected} == expected
        else:
            assert (log.log_start_offset, log.epochs.entries) == (0, whole)


@pytest.mark.parametrize("clean", [False, True])
def test_epochs_below_a_log_start_that_was_written_before_them_are_removed(clean: bool) -> None:
    for start in range(ENDS[-1]):
        disk = MemoryDisk()
        logs, log = with_steps(len(STEPS), disk)
        finish(log.flush())
        old = disk.read_bytes(f"{PATH}/leader-epoch-checkpoint")
        log.update_high_watermark(log.log_end_offset)
        log.advance_log_start_offset(start)
        expected = log.epochs.entries
        logs.write_checkpoints()
        if clean:
            run(logs.close())
        else:
            logs.abandon()
        disk.write_atomic(f"{PATH}/leader-epoch-checkpoint", old)
        assert opened(disk)[1].epochs.entries == expected


@pytest.mark.parametrize("clean", [False, True])
def test_log_whose_first_segments_are_gone_starts_at_its_first_segment(clean: bool) -> None:
    disk = MemoryDisk()
    logs, log = with_steps(len(STEPS), disk)
    log.update_high_watermark(log.log_end_offset)
    bases = list(log.segments.bases)
    log.advance_log_start_offset(bases[2])
    assert log.delete_old_segments(NOW) == 2
    finish(logs.removal.run(all_of_them=True))
    if clean:
        run(logs.close())
    else:
        finish(log.flush())
        logs.write_checkpoints()
        logs.abandon()
    disk.write_atomic(f"{ROOT}/log-start-offset-checkpoint", render_offsets({}))
    _, log = opened(disk)
    assert (log.log_start_offset, log.segments.bases) == (bases[2], bases[2:])


@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("lost", ["data files", "records"])
def test_log_without_its_records_starts_over_without_producers_epochs_and_old_files(clean: bool, lost: str) -> None:
    disk = MemoryDisk()
    logs, log = with_steps(len(STEPS), disk)
    log.update_high_watermark(log.log_end_offset)
    log.advance_log_start_offset(ENDS[-1] - 1)
    if clean:
        run(logs.close())
    else:
        finish(log.flush())
        logs.write_checkpoints()
        logs.abandon()
    for name in sorted(disk.listdir(PATH)):
        if name.endswith(".log") and (lost == "data files" or int(name[:20]) > 0):
            disk.remove(f"{PATH}/{name}")
    _, log = opened(disk)
    start = ENDS[-1] - 1
    assert (log.log_start_offset, log.log_end_offset, log.segments.bases) == (start, start, [start])
    assert (log.epochs.entries, len(log.producers), log.snapshots.offsets) == ([], 0, [])
    assert log.producers.map_end_offset == start
    assert [name for name in disk.listdir(PATH) if name[:20].isdecimal()] == [f"{start:020d}.log"]


@pytest.mark.parametrize("snapshots", [False, True])
def test_segments_and_snapshots_that_a_recovery_removed_do_not_come_back_after_a_power_loss(snapshots: bool) -> None:
    disk = MemoryDisk(crashable=True)
    disk.mkdir(ROOT)
    logs, log = with_steps(len(STEPS), disk)
    finish(log.flush())
    logs.write_checkpoints()
    logs.abandon()
    if not snapshots:
        log.snapshots.remove_all()
        disk.sync_dir(PATH)
    base, position = WHERE[4]
    disk.inode(f"{PATH}/{base:020d}.log").data[position + 40] ^= 1
    disk.write_atomic(f"{ROOT}/recovery-point-offset-checkpoint", render_offsets({("t", 0): ENDS[2]}))
    _, log = opened(disk)
    assert log.log_end_offset == ENDS[4]
    left = {name: disk.size(f"{PATH}/{name}") for name in disk.listdir(PATH) if name.endswith((".log", ".snapshot"))}
    for seed in range(20):
        after = disk.crash(Random(seed))
        names = [name for name in after.listdir(PATH) if name.endswith((".log", ".snapshot"))]
        assert {name: after.size(f"{PATH}/{name}") for name in names} == left


def test_start_removes_all_files_that_only_a_crash_leaves_behind() -> None:
    disk = MemoryDisk()
    logs, log = with_steps(3, disk)
    expected = state(log)
    logs.abandon()
    stale = [f"{number:020d}{suffix}" for number in (88, 99) for suffix in (".index", ".timeindex", ".txnindex")]
    stale += [f"{number:020d}.log.deleted" for number in (88, 99)]
    stale += [f"{number:020d}.snapshot.tmp" for number in (88, 99)]
    before = set(disk.listdir(PATH))
    for name in stale:
        disk.write_new(f"{PATH}/{name}", b"x")
    _, log = opened(disk)
    assert set(disk.listdir(PATH)) <= before
    assert state(log) == expected


# Walks over the batches.


def test_batches_between_two_offsets_are_those_that_overlap_them() -> None:
    _, log = with_steps(len(STEPS))
    log.roll()  # the active segment is empty
    headers = [header for header, _ in read_all(log)]
    for start, end in product(range(ENDS[-1] + 2), repeat=2):
        found = [header for _, _, header in replay.batches_between(log.segments, start, end)]
        if start < end:
            assert found == [header for header in headers if header.last_offset >= start and header.base_offset < end]
        for segment, position, header in replay.batches_between(log.segments, start, end):
            assert (segment.base_offset, position) == WHERE[headers.index(header)]


@pytest.mark.parametrize("most_kept", [0, 1, 8, 9, 10])
def test_recovered_batches_are_those_of_the_log_from_an_offset_on(
    most_kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay, "MAX_KEPT", most_kept)
    _, log = with_steps(len(STEPS))
    every = list(replay.batches_between(log.segments, 0, 1000))
    for verified, offset, end in product(ENDS, ENDS, ENDS):
        recovered = replay.Recovered(verified)
        for found in every:
            recovered.note(*found)
        kept = [each for each in every if each[2].base_offset >= verified]
        changes: list[tuple[int, int]] = []
        for _, _, header in kept:
            if not changes or changes[-1][0] != header.partition_leader_epoch:
                changes.append((header.partition_leader_epoch, header.base_offset))
        assert recovered.epochs == changes
        of_producers = [each for each in kept if each[2].producer_id >= 0]
        assert recovered.batches == (None if len(of_producers) > most_kept else of_producers)
        log.log_end_offset = end
        seen = [each for each in recovered.batches_from(log, offset) if each[2].producer_id >= 0]
        if offset <= end:
            assert seen == [each for each in every if each[2].producer_id >= 0 and offset <= each[2].last_offset < end]
