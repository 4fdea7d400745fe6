"""Tests that a truncation lasts: after a power loss, no removed segment, snapshot or compacted segment comes back."""

from __future__ import annotations

from random import Random

import pytest
from log_harness import ROOT, TOPIC_ID, batch, finish, manager, produce, read_all, run

from penstock.disk.memory import MemoryDisk
from penstock.disk.volume import Severity, Volume
from penstock.log.log import Log
from penstock.log.segment import Segment
from penstock.metadata.configs.topic import LogConfig
from penstock.protocol.errors import ErrorCode, KafkaError

PATH = f"{ROOT}/t-0"


def filled(disk: MemoryDisk) -> Log:
    """Returns a flushed log with nine records of a producer, in segments that start at 0, 3 and 6."""
    disk.mkdir(ROOT)
    size = len(batch(producer_id=1, producer_epoch=0, base_sequence=0))
    log = manager(disk).create("t", TOPIC_ID, 0, LogConfig(segment_bytes=3 * size))
    for number in range(9):
        produce(log, producer_id=1, producer_epoch=0, base_sequence=number)
    finish(log.flush())
    disk.sync_dir(PATH)
    assert log.segments.bases == [0, 3, 6]
    return log


def kept(disk: MemoryDisk) -> dict[str, int]:
    names = [name for name in disk.listdir(PATH) if name.endswith((".log", ".snapshot", ".swap"))]
    return {name: disk.size(f"{PATH}/{name}") for name in names}


@pytest.mark.parametrize("cut", [1, 3, 4, 5, 6, 7, 8])
def test_files_above_a_truncation_do_not_come_back_after_a_power_loss(cut: int) -> None:
    disk = MemoryDisk(crashable=True)
    log = filled(disk)
    log.truncate_to(cut)
    left = kept(disk)
    assert all(int(name[:20]) <= cut for name in left)
    for seed in range(20):
        assert kept(disk.crash(Random(seed))) == left


@pytest.mark.parametrize("cut", [1, 3, 4, 5, 6, 7, 8])
def test_power_loss_during_a_truncation_takes_no_record_below_the_cut_and_leaves_no_gap(cut: int) -> None:
    disk = MemoryDisk(volume=Volume(lambda: 0, crashable=True, durable_directories=True))
    log = filled(disk)
    log.environment.recovery_point_lowered(log)
    before = read_all(log)
    stops: list[tuple[str, Volume]] = []
    disk.on_write = lambda kind, path: stops.append((f"{kind} {path}", disk.volume.copied()))
    log.truncate_to(cut)
    assert len(stops) > 5
    for change, volume in stops:
        for severity, seed in (
            (Severity.NOTHING, 0),
            (Severity.EVERYTHING, 0),
            *((Severity.SOME, n) for n in range(6)),
        ):
            stopped = volume.copied()
            stopped.lose_power(Random(seed), severity)
            found = manager(MemoryDisk(volume=stopped)).get("t", 0)
            assert found is not None
            assert found.log_end_offset >= cut, change
            assert read_all(found) == before[: found.log_end_offset], change


@pytest.mark.parametrize("cut", [4, 5, 7, 8])
def test_truncation_that_a_kill_interrupted_lasts_after_a_clean_stop_and_a_power_loss(cut: int) -> None:
    disk = MemoryDisk(volume=Volume(lambda: 0, crashable=True, durable_directories=True))
    log = filled(disk)
    log.environment.recovery_point_lowered(log)
    stops: list[tuple[str, Volume]] = []
    disk.on_write = lambda kind, path: stops.append((f"{kind} {path}", disk.volume.copied()))
    log.truncate_to(cut)
    for change, volume in stops:
        again = manager(MemoryDisk(volume=volume))
        found = again.get("t", 0)
        assert found is not None
        before = read_all(found)
        run(again.close())
        volume.lose_power(Random(0), Severity.EVERYTHING)
        found = manager(MemoryDisk(volume=volume)).get("t", 0)
        assert found is not None
        assert read_all(found) == before, change


@pytest.mark.parametrize("kills", [1, 2])
@pytest.mark.parametrize("cut", [4, 5, 7, 8])
def test_truncation_that_a_kill_interrupted_is_synced_together_with_the_first_record_of_a_new_segment(
    cut: int, kills: int
) -> None:
    disk = MemoryDisk(volume=Volume(lambda: 0, crashable=True, durable_directories=True))
    log = filled(disk)
    log.environment.recovery_point_lowered(log)
    stops: list[Volume] = []
    disk.on_write = lambda kind, path: stops.append(disk.volume.copied())
    log.truncate_to(cut)
    for volume in stops:
        found = None
        for _ in range(kills):
            volume = volume.copied()
            found = manager(MemoryDisk(volume=volume)).get("t", 0)
            assert found is not None
            found.roll()
        assert found is not None
        found.append_as_follower(batch(base_offset=found.log_end_offset, leader_epoch=9), 9)
        run(found.flushed(found.log_end_offset))
        expected = read_all(found)
        volume.lose_power(Random(0), Severity.EVERYTHING)
        found = manager(MemoryDisk(volume=volume)).get("t", 0)
        assert found is not None
        assert read_all(found) == expected


@pytest.mark.parametrize("sync", ["flushed", "flush", "flush_now"])
def test_record_that_replaces_truncated_records_survives_a_power_loss_once_it_is_synced(sync: str) -> None:
    for cut in range(5):
        for size in (0, 5, 500):
            disk = MemoryDisk(volume=Volume(lambda: 0, crashable=True, durable_directories=True))
            disk.mkdir(ROOT)
            log = manager(disk).create("t", TOPIC_ID, 0, LogConfig())
            for _ in range(5):
                produce(log)
            log.flush_now()
            log.environment.recovery_point_lowered(log)
            log.truncate_to(cut)
            produce(log, value=b"x" * size, epoch=1)
            if sync == "flush_now":
                log.flush_now()
            else:
                run(log.flush() if sync == "flush" else log.flushed(log.log_end_offset))
            expected = read_all(log)
            disk.volume.lose_power(Random(0), Severity.EVERYTHING)
            found = manager(MemoryDisk(volume=disk.volume)).get("t", 0)
            assert found is not None
            assert read_all(found) == expected, (cut, size)


def test_files_of_a_fully_truncated_log_do_not_come_back_after_a_power_loss() -> None:
    disk = MemoryDisk(crashable=True)
    filled(disk).truncate_fully_and_start_at(20)
    assert kept(disk) == {f"{20:020d}.log": 0}
    for seed in range(20):
        assert kept(disk.crash(Random(seed))) == kept(disk)


@pytest.mark.parametrize("full", [False, True])
def test_truncation_removes_compacted_segments_that_are_not_in_use_yet(full: bool) -> None:
    disk = MemoryDisk(crashable=True)
    log = filled(disk)
    for base in (0, 3):
        log.pending_swaps.append(Segment.create(disk, PATH, base, created_ms=0, index_interval=1, suffix=".swap"))
    if full:
        log.truncate_fully_and_start_at(20)
    else:
        log.truncate_to(7)
    assert not log.pending_swaps
    assert not [name for name in kept(disk) if name.endswith(".swap")]


@pytest.mark.parametrize("offset", [-1, -5])
def test_truncation_to_a_negative_offset_is_refused_and_changes_nothing(offset: int) -> None:
    log = filled(MemoryDisk())
    with pytest.raises(KafkaError) as caught:
        log.truncate_to(offset)
    assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
    assert (log.log_end_offset, log.truncations) == (9, 0)
    assert log.truncate_to(0)


def test_truncation_at_the_log_end_removes_an_epoch_that_starts_there_and_beyond_it_removes_none() -> None:
    log = filled(MemoryDisk())
    log.assign_epoch(5, 9)
    assert not log.truncate_to(10)
    assert log.epochs.entries == [(0, 0), (5, 9)]
    assert not log.truncate_to(9)
    assert log.epochs.entries == [(0, 0)]
