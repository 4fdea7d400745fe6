"""Tests the files of the metadata log: replays of all small logs, and the snapshots in the log's directory."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise, product
from random import Random
from typing import Any

import pytest

from penstock.broker.controlplane import metadata_batches, metadata_storage
from penstock.broker.controlplane.metadata_batches import first_records, metadata_version, split
from penstock.broker.controlplane.metadata_storage import (
    DIRECTORY,
    SnapshotStore,
    StorageError,
    bootstrap_records,
    open_metadata_log,
    read_bootstrap,
    replay,
)
from penstock.clock import ManualClock
from penstock.disk.memory import MemoryDisk
from penstock.log.log import AppendOrigin, Log
from penstock.metadata.apply import apply
from penstock.metadata.checkpoint import checkpoint_name, read_checkpoint, write_checkpoint
from penstock.metadata.features import MAX_METADATA_VERSION, default_features
from penstock.metadata.framing import encode_record
from penstock.metadata.image import EMPTY_IMAGE, MetadataImage
from penstock.protocol.persisted.metadata.config_record import ConfigRecord
from penstock.protocol.persisted.metadata.feature_level_record import FeatureLevelRecord
from penstock.protocol.persisted.raft.kraft_version_record import KRaftVersionRecord
from penstock.protocol.uuid import METADATA_TOPIC_ID
from penstock.raft.voters import Voter
from penstock.records.build import build_batch
from penstock.records.control import build_control

PATH = f"/data/{DIRECTORY}"
TOPIC, BROKER = 2, 4
VERSION = MAX_METADATA_VERSION


def new_disk() -> MemoryDisk:
    disk = MemoryDisk()
    disk.mkdir("/data")
    return disk


def store_on(disk: MemoryDisk) -> SnapshotStore:
    disk.mkdir(PATH)
    return SnapshotStore(disk, PATH)


def config(number: int) -> ConfigRecord:
    return ConfigRecord(resource_type=TOPIC, resource_name=f"t{number}", name="retention.ms", value=str(number))


class SmallLog:
    """Holds a metadata log with batches of the given kinds, and the offset after each batch.

    A positive kind is a batch with that number of configs. Kind 0 sets the next kraft.version, up to 1.
    """

    def __init__(self, kinds: Sequence[int]) -> None:
        self.log: Log = open_metadata_log(new_disk(), "/data", ManualClock(), Random(1))
        self.ends, self.sizes, self.records = [0], [0], list[list[Any]]()
        for epoch, kind in enumerate(kinds, start=1):
            records = [config(self.ends[-1] + index) for index in range(kind)]
            if kind:
                values = [(epoch * 10, None, encode_record(record, VERSION), ()) for record in records]
                batch = build_batch(values, leader_epoch=epoch)
            else:
                batch = build_control(
                    [KRaftVersionRecord(version=0, kraft_version=1)], timestamp=epoch, leader_epoch=epoch
                )
            self.log.append_as_leader(batch, leader_epoch=epoch, now_ms=1, origin=AppendOrigin.RAFT_LEADER)
            self.records.append(records)
            self.ends.append(self.log.log_end_offset)
            self.sizes.append(self.sizes[-1] + len(batch))

    def image(self, batches: int) -> MetadataImage:
        """Returns the image of the first batches, built from the records themselves."""
        records = [record for batch in self.records[:batches] for record in batch]
        image = apply(EMPTY_IMAGE, records, offset=self.ends[batches] - 1, epoch=batches)
        features = {"kraft.version": 1} if any(not batch for batch in self.records[:batches]) else {}
        return replace(image, features=features)


@pytest.mark.parametrize("read_bytes", [1, 150, 1 << 20])
def test_replay_of_every_part_of_a_small_metadata_log_gives_the_image_of_its_records(
    monkeypatch: pytest.MonkeyPatch, read_bytes: int
) -> None:
    monkeypatch.setattr(metadata_storage, "READ_BYTES", read_bytes)
    for kinds in product((0, 1, 2), repeat=3):
        small = SmallLog(kinds)
        for begin in range(4):
            start = small.image(begin)
            for end in range(begin, 4):
                loaded = replay(small.log, start, small.ends[end])
                assert loaded.image == small.image(end), (kinds, begin, end)
                assert loaded.replayed_bytes == small.sizes[end] - small.sizes[begin]
                if begin == end:
                    assert loaded.image is start
                    continue
                changes = loaded.image.changes
                part = [record for batch in small.records[begin:end] for record in batch]
                assert changes.configs == {(TOPIC, record.resource_name) for record in part}
                assert changes.features == any(not batch for batch in small.records[begin:end])
                assert changes.base_version == start.version


def test_metadata_log_of_a_new_directory_has_the_id_of_the_metadata_topic() -> None:
    disk = new_disk()
    log = open_metadata_log(disk, "/data", ManualClock(), Random(1))
    assert log.topic_id == METADATA_TOPIC_ID
    log.close()
    marker = f"{PATH}/partition.metadata"
    assert b"AAAAAAAAAAAAAAAAAAAAAQ" in disk.read_bytes(marker)
    own = disk.read_bytes(marker) + b"\n"
    disk.write_atomic(marker, own)
    open_metadata_log(disk, "/data", ManualClock(), Random(1)).close()
    assert disk.read_bytes(marker) == own  # an existing file is kept


def test_deleted_segments_of_the_metadata_log_leave_no_files() -> None:
    disk = new_disk()
    log = open_metadata_log(disk, "/data", ManualClock(), Random(1))
    for _ in range(3):
        batch = build_batch([(1, None, b"x", ())], leader_epoch=1)
        log.append_as_leader(batch, leader_epoch=1, now_ms=1, origin=AppendOrigin.RAFT_LEADER)
        log.roll()
    log.update_high_watermark(3)
    log.advance_log_start_offset(2)
    log.delete_old_segments(1)
    begins = {int(name.split(".")[0]) for name in disk.listdir(PATH) if name[:20].isdigit()}
    assert begins == {2, 3}


def test_metadata_log_begins_a_segment_after_the_configured_bytes_or_time() -> None:
    def segments(between_ms: int, **limits: int) -> int:
        clock = ManualClock()
        log = open_metadata_log(new_disk(), "/data", clock, Random(1), **limits)
        for _ in range(6):
            batch = build_batch([(clock.wall_ms(), None, bytes(400_000), ())], leader_epoch=1)
            log.append_as_leader(batch, leader_epoch=1, now_ms=clock.wall_ms(), origin=AppendOrigin.RAFT_LEADER)
            clock.advance(between_ms)
        return len(log.segments)

    day_ms = 86_400_000
    assert segments(0) == segments(day_ms) == 1
    assert segments(0, segment_bytes=1 << 20) == 3  # two batches each
    assert segments(day_ms, segment_ms=2 * day_ms - 1) == 3
    assert segments(8 * day_ms) == 6


def test_records_of_the_metadata_log_never_expire_by_their_age_or_by_the_size_of_the_log() -> None:
    disk = new_disk()
    years_later = ManualClock(1 << 42)
    log = open_metadata_log(disk, "/data", years_later, Random(1))
    for _ in range(3):
        batch = build_batch([(1, None, bytes(1000), ())], leader_epoch=1)
        log.append_as_leader(batch, leader_epoch=1, now_ms=1, origin=AppendOrigin.RAFT_LEADER)
        log.roll()
    log.update_high_watermark(3)
    log.delete_old_segments(years_later.wall_ms())
    assert (log.log_start_offset, log.log_end_offset) == (0, 3)
    begins = {int(name.split(".")[0]) for name in disk.listdir(PATH) if name[:20].isdigit()}
    assert begins == {0, 1, 2, 3}


def test_snapshots_are_listed_by_offset_then_epoch_and_other_files_are_not() -> None:
    disk = new_disk()
    store = store_on(disk)
    listed = [(5, 2), (5, 1), (40, 1), (7, 9)]
    for name in [*(checkpoint_name(*one) for one in listed), "5-1.checkpoint", checkpoint_name(9, 1) + ".part", "x"]:
        disk.write_atomic(f"{PATH}/{name}", b"")
    assert store.names() == [(*one, checkpoint_name(*one)) for one in sorted(listed)]


def stored(disk: MemoryDisk, end_offset: int, epoch: int, count: int, kraft_version: int = 1) -> bytes:
    """Writes a snapshot with configs of `count` topics to the disk. Returns the file's content."""
    parts = write_checkpoint(
        [config(number) for number in range(count)], epoch=epoch, timestamp_ms=1, kraft_version=kraft_version
    )
    data = b"".join(parts)
    disk.write_atomic(f"{PATH}/{checkpoint_name(end_offset, epoch)}", data)
    return data


def test_latest_snapshot_is_the_newest_one_that_is_not_damaged() -> None:
    disk = new_disk()
    store = store_on(disk)
    assert (store.latest(), store.last_bytes) == (EMPTY_IMAGE, 0)
    contents = {end: stored(disk, end, end // 10, end // 10) for end in (10, 20, 30)}
    for newest in (30, 20, 10):
        image = store.latest()
        assert (image.offset, image.epoch, len(image.configs)) == (newest - 1, newest // 10, newest // 10)
        assert image.features == {"kraft.version": 1}
        assert store.last_bytes == len(contents[newest])
        path = f"{PATH}/{checkpoint_name(newest, newest // 10)}"
        disk.write_atomic(path, contents[newest][:-1])
    assert store.latest() == EMPTY_IMAGE


@pytest.mark.parametrize("topics", [0, 1, 1000])
def test_written_snapshot_has_the_whole_image_and_the_voters(topics: int) -> None:
    disk = new_disk()
    store = store_on(disk)
    records = [FeatureLevelRecord(name="metadata.version", feature_level=VERSION), *map(config, range(topics))]
    image = apply(EMPTY_IMAGE, records, offset=topics, epoch=3)
    image = replace(image, features={**image.features, "kraft.version": 1})
    voters = (Voter(1, bytes(15) + b"\x01", (("CONTROLLER", "h", 1),)), Voter(2, bytes(15) + b"\x02"))
    name = asyncio.run(store.write(image, voters, now_ms=7))
    assert name == checkpoint_name(topics + 1, 3)
    data = disk.read_bytes(f"{PATH}/{name}")
    assert store.last_bytes == len(data)
    content = read_checkpoint(data)
    assert (content.voters, content.kraft_version) == (voters, 1)
    again = SnapshotStore(disk, PATH)
    assert again.latest() == image
    assert again.last_bytes == len(data)


def test_installed_snapshot_is_stored_and_its_size_is_known() -> None:
    disk = new_disk()
    store = store_on(disk)
    data = stored(disk, 10, 1, 5)
    store.install(checkpoint_name(20, 2), data)
    assert disk.read_bytes(f"{PATH}/{checkpoint_name(20, 2)}") == data
    assert store.last_bytes == len(data)
    assert store.latest().offset == 19


def test_only_older_snapshots_and_unfinished_downloads_are_removed() -> None:
    for end_offset in range(1, 7):
        disk = new_disk()
        store = store_on(disk)
        kept = ["quorum-state", "leader-epoch-checkpoint"]
        parts = [checkpoint_name(offset, 1) + ".part" for offset in (1, 4, 9)]
        for name in [kept[0], parts[0], *(checkpoint_name(offset, 1) for offset in range(1, 6)), *parts[1:], kept[1]]:
            disk.write_atomic(f"{PATH}/{name}", b"")
        store.remove_before(end_offset)
        left = [checkpoint_name(offset, 1) for offset in range(1, 6) if offset >= end_offset]
        assert sorted(disk.listdir(PATH)) == sorted([*kept, *left])


def test_bootstrap_records_come_from_the_file_if_there_is_a_file() -> None:
    disk = new_disk()
    path = "/data/bootstrap.checkpoint"
    default = bootstrap_records(default_features(MAX_METADATA_VERSION))
    assert read_bootstrap(disk, None) == read_bootstrap(disk, path) == default
    own = [FeatureLevelRecord(name="metadata.version", feature_level=20)]
    disk.write_atomic(path, b"".join(write_checkpoint(own, epoch=0, timestamp_ms=1)))
    assert [(one.name, one.feature_level) for one in read_bootstrap(disk, path)] == [("metadata.version", 20)]
    assert read_bootstrap(disk, None) == default
    disk.write_atomic(path, b"torn")
    with pytest.raises(StorageError, match=r"bootstrap.checkpoint can't be used .*: format the directory again"):
        read_bootstrap(disk, path)


def test_bootstrap_has_a_record_for_each_feature_above_zero_and_metadata_version_first() -> None:
    features = {"b": 2, "kraft.version": 1, "a": 1, "metadata.version": 7, "off": 0}
    listed = [(one.name, one.feature_level) for one in bootstrap_records(features)]
    assert listed == [("metadata.version", 7), ("a", 1), ("b", 2)]
    assert bootstrap_records({}) == []


def test_batches_are_as_large_as_the_limit_allows_and_have_all_records_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(metadata_batches, "MAX_BATCH_BYTES", 100)

    def size(group: Sequence[bytes]) -> int:
        return sum(len(value) + 32 for value in group)

    for count in range(5):
        for lengths in product((1, 18, 19, 36, 68, 69, 200), repeat=count):
            values = [bytes([index]) * length for index, length in enumerate(lengths)]
            groups = split(values)
            assert [value for group in groups for value in group] == values
            assert all(size(group) <= 100 or len(group) == 1 for group in groups)
            assert all(groups) or not values
            for group, following in pairwise(groups):
                assert size([*group, following[0]]) > 100, lengths


def feature(name: str, level: int) -> FeatureLevelRecord:
    return FeatureLevelRecord(name=name, feature_level=level)


def test_records_are_encoded_with_the_metadata_version_that_they_set_themselves() -> None:
    image = replace(EMPTY_IMAGE, features={"metadata.version": 20})
    group, own = feature("group.version", 1), feature("metadata.version", 25)
    for records, expected in (
        ([], 20),
        ([group], 20),
        ([config(1)], 20),
        ([own], 25),
        ([config(1), group, own, config(2)], 25),
    ):
        assert metadata_version(image, records) == expected
    assert metadata_version(EMPTY_IMAGE, [config(1)]) == 0


@pytest.mark.parametrize(("level", "has_config"), [(None, False), (0, False), (1, True), (2, True)])
def test_first_records_set_min_insync_replicas_if_eligible_leader_replicas_are_on(
    level: int | None, has_config: bool
) -> None:
    features = [feature("metadata.version", 30), feature("group.version", 1)]
    if level is not None:
        features.append(feature("eligible.leader.replicas.version", level))
    begin, *inner, end = first_records(features, 2)
    assert (type(begin).__name__, type(end).__name__) == ("BeginTransactionRecord", "EndTransactionRecord")
    assert inner[: len(features)] == features
    configs = [(one.resource_type, one.resource_name, one.name, one.value) for one in inner[len(features) :]]
    assert configs == ([(BROKER, "", "min.insync.replicas", "2")] if has_config else [])
