"""Stops the node before each change of the disk in the random life of a log, and starts it again.

A killed process loses nothing that it wrote. A power loss takes records only from the end, and none that was synced.
The log that recovery finds is equal to a new log with the same batches, and stays so after a clean stop and another
power loss.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random

import pytest
from log_harness import TOPIC_ID, check_indexes, finish, manager, new_log, read_all, run

from penstock.clock import ManualClock
from penstock.disk.memory import MemoryDisk
from penstock.disk.volume import Severity, Volume
from penstock.log.log import Log
from penstock.log.manager import LogManager
from penstock.metadata.configs.topic import LogConfig
from penstock.records.build import build_batch
from penstock.records.control import EndTxn, build_end_txn
from penstock.records.header import parse_header

NOW = 1_700_000_000_000
CONFIG = LogConfig(segment_bytes=400, index_interval_bytes=90, retention_ms=-1)
#: A stop that leaves all written data, and two power losses.
STOPS = (None, Severity.EVERYTHING, Severity.SOME)
#: The shares of the appends to segments, and of all other changes of the disk, at which a stop is tried.
TRIED_APPENDS, TRIED_OTHERS = 0.03, 0.2


@dataclass
class Story:
    """Holds the batches of a log, and the offsets that say which of them a stop may take."""

    batches: list[bytes] = field(default_factory=list)
    #: The end of the log before the change that is under way: a killed process keeps the batches below.
    written: int = 0
    #: A power loss keeps the batches below.
    synced: int = 0
    #: The log start that was requested last; an older log start may come back.
    start: int = 0
    #: Where the log began when it was empty.
    base: int = 0
    #: Where the log begins after the removal of all its batches that is under way.
    next_base: int | None = None

    @property
    def end(self) -> int:
        return parse_header(self.batches[-1]).next_offset if self.batches else self.base

    def below(self, offset: int) -> list[bytes]:
        return [each for each in self.batches if parse_header(each).next_offset <= offset]


@dataclass
class Stop:
    """Holds the disk and the story of a log directly before a change of the disk."""

    change: str
    volume: Volume
    story: Story


class Life:
    def __init__(self, seed: int) -> None:
        self.rng, self.chosen = Random(seed), Random(seed)
        self.clock = ManualClock(NOW)
        self.disk = MemoryDisk(volume=Volume(lambda: NOW, crashable=True, durable_directories=True))
        self.disk.mkdir("/logs")
        self.logs = manager(self.disk, self.clock)
        self.log = self.logs.create("t", TOPIC_ID, 0, CONFIG)
        self.disk.sync_dir(self.log.path)
        self.disk.sync_file(f"{self.log.path}/partition.metadata")
        self.story = Story()
        self.epoch = 0
        self.in_transaction: set[int] = set()
        self.stops: list[Stop] = []
        self.deletes = seed % 3 == 0

    def live(self, steps: int) -> list[Stop]:
        work = [self.append] * 6 + [self.flush, self.sync, self.roll, self.checkpoint, self.truncate, self.begin_epoch]
        if self.deletes:
            work += [self.delete, self.start_over]
        self.disk.on_write = self._note
        for _ in range(steps):
            self.rng.choice(work)()
        return self.stops

    def _note(self, kind: str, path: str) -> None:
        plain = kind == "append" and path.endswith(".log")
        if self.chosen.random() < (TRIED_APPENDS if plain else TRIED_OTHERS):
            story = replace(self.story, batches=[*self.story.batches])
            self.stops.append(Stop(f"{kind} {path}", self.disk.volume.copied(), story))

    # What a follower does with its log.

    def append(self) -> None:
        made = [self._batch() for _ in range(self.rng.randint(1, 3))]
        self.log.append_as_follower(b"".join(made), self.epoch)
        self.log.update_high_watermark(self.log.log_end_offset)
        self.story.written = self.story.end
        assert self.log.log_end_offset == self.story.end

    def _batch(self) -> bytes:
        """Adds a batch to the story: plain, of one of three producers, in a transaction, or a marker."""
        rng, offset, epoch = self.rng, self.story.end, self.epoch
        producer = rng.choice((-1, 5, 6, 7))
        if producer in self.in_transaction and rng.random() < 0.5:
            self.in_transaction.discard(producer)
            marker = EndTxn(rng.random() < 0.5, rng.randint(0, 2))
            data = build_end_txn(
                marker, producer_id=producer, producer_epoch=0, timestamp=NOW, base_offset=offset, leader_epoch=epoch
            )
        else:
            transactional = producer in self.in_transaction or producer == 7
            self.in_transaction |= {producer} if transactional else set()
            data = build_batch(
                [(NOW + rng.randint(-1_000_000, 1_000_000), b"k", bytes(rng.randint(0, 60)), ())] * rng.randint(1, 3),
                base_offset=offset,
                leader_epoch=epoch,
                producer_id=producer,
                producer_epoch=-1 if producer < 0 else 0,
                base_sequence=-1 if producer < 0 else rng.randint(0, 9),
                transactional=transactional,
            )
        self.story.batches.append(data)
        return data

    def begin_epoch(self) -> None:
        self.epoch += 1

    def roll(self) -> None:
        self.log.roll()

    def flush(self) -> None:
        finish(self.log.flush())
        self.story.synced = self.story.end

    def sync(self) -> None:
        run(self.log.flushed(self.log.log_end_offset))
        self.story.synced = self.story.end

    def checkpoint(self) -> None:
        self.logs.write_checkpoints()

    def truncate(self) -> None:
        story = self.story
        offset = max(story.start, story.base, story.end - self.rng.randint(1, 8))
        kept = story.below(offset)
        end = parse_header(kept[-1]).next_offset if kept else story.base
        story.synced, story.written = min(story.synced, end), min(story.written, end)
        self.log.truncate_to(offset)
        story.batches = kept
        assert self.log.log_end_offset == story.end
        self.in_transaction = {each.producer_id for each in self.log.producers if each.txn_first_offset is not None}

    def delete(self) -> None:
        self.story.start = self.rng.randint(self.log.log_start_offset, self.log.log_end_offset)
        self.log.advance_log_start_offset(self.story.start)
        self.log.delete_old_segments(NOW)
        self.story.start = self.log.log_start_offset

    def start_over(self) -> None:
        story = self.story
        base = max(0, self.rng.choice((self.log.log_start_offset, story.end)) + self.rng.randint(-3, 3))
        story.synced, story.written, story.next_base = 0, 0, base
        self.log.truncate_fully_and_start_at(base)
        self.story = Story([], base, base, base, base)
        self.in_transaction.clear()


# What a start finds.


def state(log: Log) -> tuple[object, ...]:
    return (
        [data for _, data in read_all(log)],
        (log.log_start_offset, log.log_end_offset),
        [each for each in log.epochs.entries if each[1] < log.log_end_offset],
        sorted(log.producers.snapshot()),
        log.aborted_transactions(0, log.log_end_offset + 1),
    )


def started(disk: MemoryDisk) -> tuple[LogManager, Log]:
    logs = manager(disk, ManualClock(NOW))
    log = logs.get("t", 0)
    assert log is not None
    assert log.topic_id == TOPIC_ID
    log.update_config(CONFIG)
    return logs, log


def like_new(batches: list[bytes], base: int) -> tuple[object, ...]:
    """Returns the state of a new log with these batches."""
    log = new_log(CONFIG, manager(MemoryDisk(), ManualClock(NOW)))
    log.truncate_fully_and_start_at(base)
    for data in batches:
        log.append_as_follower(data, 1 << 20)
    return state(log)


def check_records(log: Log, story: Story, kept: int) -> None:
    """Checks that the log has a prefix of the story's batches, and all batches below the offset `kept`."""
    found = [data for _, data in read_all(log)]
    visible = [each for each in story.batches if parse_header(each).last_offset >= log.log_start_offset]
    assert found == visible[: len(found)], "not a prefix of the written batches"
    assert log.log_end_offset >= kept
    assert log.log_start_offset <= story.start, "records are gone that nobody deleted"
    if log.log_start_offset == story.base:
        assert state(log) == like_new(found, story.base)


def check_stop(stop: Stop, power: Severity | None, number: int) -> None:
    volume, story = stop.volume.copied(), stop.story
    if power is not None:
        volume.lose_power(Random(number), power)
    disk = MemoryDisk(volume=volume)
    logs, log = started(disk)
    if log.log_start_offset == log.log_end_offset == story.next_base:
        story = Story([], 0, 0, story.next_base, story.next_base)
    check_records(log, story, story.written if power is None else story.synced)
    if power is not Severity.SOME:  # a torn entry may name the first offset of its batch, instead of the last
        for segment in log.segments:
            check_indexes(segment)
    if number % 2:
        more = build_batch([(NOW, b"k", b"v", ())], base_offset=log.log_end_offset, leader_epoch=1000)
        log.append_as_follower(more, 1000)
    before = state(log)
    run(logs.close())
    volume.lose_power(Random(number), Severity.EVERYTHING)
    logs, log = started(MemoryDisk(volume=volume))
    assert (log.recovery_point, state(log)) == (log.log_end_offset, before), "a clean stop keeps everything"


@pytest.mark.parametrize("seed", range(15))
def test_log_is_whole_after_a_stop_before_any_change_of_the_disk(seed: int) -> None:
    life = Life(seed)
    stops = life.live(40)
    check_records(life.log, life.story, life.story.end)
    assert len(stops) > 4
    for number, stop in enumerate(stops):
        power = STOPS[(number + seed) % 3]
        try:
            check_stop(stop, power, number)
        except AssertionError as error:
            raise AssertionError(f"stop {number} before {stop.change}, power loss: {power}") from error
