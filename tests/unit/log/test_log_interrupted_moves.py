"""Tests the marks of moves and the copies that a start finds, with several partitions and several old logs of each."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise, product
from random import Random

import pytest
from log_harness import TOPIC_ID, offsets, produce, read_all, run
from move_harness import SMALL, A, B, C, copied, directories, fill, log_in_a, names, swapped

from penstock.clock import ManualClock
from penstock.disk.api import DiskError
from penstock.disk.memory import MemoryDisk
from penstock.disk.volume import Severity
from penstock.log import moved_mark, synced_mark
from penstock.log.directory import DELETE_SUFFIX, LogDir
from penstock.log.leftover_copies import Leftover
from penstock.log.manager import LogManager
from penstock.metadata.configs.topic import LogConfig
from penstock.protocol.uuid import ZERO_UUID

OTHER_ID = bytes(range(1, 17))
FUTURE = "t-0." + "0" * 32 + "-future"
IDS = {path: bytes(15) + bytes([number]) for number, path in enumerate((A, B, C), 200)}


@contextmanager
def watched(disk: MemoryDisk) -> Iterator[list[tuple[str, str]]]:
    seen: list[tuple[str, str]] = []
    disk.on_write = lambda kind, path: seen.append((kind, path))
    yield seen
    disk.on_write = None


def places(disk: MemoryDisk, *logs: tuple[str, str]) -> dict[str, list[LogDir]]:
    """Makes empty directories of logs. Returns the directories of each log, by the log's name."""
    owners = {path: LogDir(disk, path, IDS[path]) for path in (A, B, C)}
    found: dict[str, list[LogDir]] = {}
    for directory, name in logs:
        disk.mkdir(f"{directory}/{name}")
        found.setdefault(name, []).append(owners[directory])
    return found


def removed(owner: LogDir, name: str) -> str:
    return owner.file(f"{name}.removed")


# Marks.


def test_moved_mark_is_written_and_removed_durably_with_every_set_of_ids() -> None:
    disk = MemoryDisk(crashable=True)
    disk.mkdir("/log")
    sets = [frozenset(id_ for id_, chosen in zip(IDS.values(), flags) if chosen) for flags in product((0, 1), repeat=3)]
    for before, gone in product(sets, sets):
        moved_mark.write(disk, "/log", before)
        moved_mark.forget(disk, "/log", gone)
        assert moved_mark.read(disk, "/log") == before - gone
        survivor = disk.volume.copied()
        survivor.lose_power(Random(1), Severity.EVERYTHING)
        after = MemoryDisk(volume=survivor)
        assert moved_mark.read(after, "/log") == before - gone
        assert after.exists(f"/log/{moved_mark.MOVED_MARK_FILE}") is bool(before - gone)


def test_damaged_mark_counts_as_no_mark() -> None:
    disk = MemoryDisk()
    disk.mkdir("/log")
    for file, read in (
        (moved_mark.MOVED_MARK_FILE, moved_mark.read),
        (moved_mark.LEAVING_MARK_FILE, moved_mark.read_leaving),
    ):
        assert read(disk, "/log") == frozenset()
        disk.write_atomic(f"/log/{file}", b"no id\n")
        assert read(disk, "/log") == frozenset()


@pytest.mark.parametrize("target", [None, B, C, "unknown"])
@pytest.mark.parametrize("offline", [(), (B,), (C,), (B, C)])
def test_log_with_a_leaving_mark_stays_unless_its_target_may_be_in_an_offline_directory(
    target: str | None, offline: tuple[str, ...]
) -> None:
    disk = MemoryDisk(crashable=True)
    [[first]] = places(disk, (A, "t-0")).values()
    path = first.file("t-0")
    known = [first, *(LogDir(disk, each, IDS[each]) for each in (B, C))]
    for each in known:
        each.failure = OSError(errno.EIO, "input/output error") if each.path in offline else None
    if target is not None:
        moved_mark.write_leaving(disk, path, IDS.get(target, OTHER_ID))
    moved_mark.mark_adopted(disk, path)
    with watched(disk) as seen:
        stays = moved_mark.stays(disk, path, known)
    assert stays is (target is None or not offline or (target in (B, C) and target not in offline))
    assert bool(moved_mark.read_leaving(disk, path)) is (target is not None and not stays)
    assert disk.exists(f"{path}/{moved_mark.ADOPTED_MARK_FILE}") is (not stays or bool(offline))
    changes = [kind for kind, where in seen if moved_mark.ADOPTED_MARK_FILE not in where]
    assert changes == (["remove", "sync_dir"] if stays and target is not None else [])


def test_start_finishes_every_interrupted_move_of_several_partitions_and_old_logs() -> None:
    disk = MemoryDisk()
    found = places(disk, (A, "s-0"), (A, "t-0"), (B, "t-0"), (A, "u-0"), (B, "u-0"), (C, "u-0"), (B, "v-0"), (C, "v-0"))
    for name, old, newest in (("t-0", (A,), B), ("u-0", (A, B), C), ("v-0", (C,), B)):
        for each in old:
            moved_mark.write_leaving(disk, f"{each}/{name}", IDS[newest])
        moved_mark.write(disk, f"{newest}/{name}", [IDS[each] for each in old] + [OTHER_ID])
    with watched(disk) as seen:
        moved_mark.finish_moves(disk, found, removed)
    assert [sorted(disk.listdir(each)) for each in (A, B, C)] == [
        ["s-0", "t-0.removed", "u-0.removed"],
        ["t-0", "u-0.removed", "v-0"],
        ["u-0", "v-0.removed"],
    ]
    for newest, name in ((B, "t-0"), (C, "u-0"), (B, "v-0")):
        assert moved_mark.read(disk, f"{newest}/{name}") == {OTHER_ID}, "directories of removed logs are forgotten"
    kinds = [(kind, path) for kind, path in seen if kind in ("rename", "sync_dir") and "penstock" not in path]
    for (kind, path), following in pairwise(kinds):
        if kind == "rename":
            assert following == ("sync_dir", path.rpartition("/")[0]), "each rename is synced"
    assert kinds[0] == ("sync_dir", B), "the name of the new log is synced before the old log is renamed"


@pytest.mark.parametrize("marks", list(product((False, True), repeat=4)))
def test_one_of_two_logs_is_old_only_if_both_marks_agree(marks: tuple[bool, bool, bool, bool]) -> None:
    a_moved, a_leaving, b_moved, b_leaving = marks
    disk = MemoryDisk()
    found = places(disk, (A, "t-0"), (B, "t-0"))
    for here, there, moved, leaving in ((A, B, a_moved, a_leaving), (B, A, b_moved, b_leaving)):
        if moved:
            moved_mark.write(disk, f"{here}/t-0", [IDS[there]])
        if leaving:
            moved_mark.write_leaving(disk, f"{here}/t-0", IDS[there])
    moved_mark.finish_moves(disk, found, removed)
    a_is_new, b_is_new = a_moved and b_leaving, b_moved and a_leaving
    assert disk.exists(f"{A}/t-0") is (not b_is_new or a_is_new)
    assert disk.exists(f"{B}/t-0") is (not a_is_new or b_is_new)


def test_every_log_that_an_adopted_copy_replaced_is_renamed_durably() -> None:
    disk = MemoryDisk()
    found = places(disk, (A, "s-0"), (A, "t-0"), (B, "t-0"), (A, "u-0"), (B, "u-0"), (C, "u-0"), (A, "v-0"), (B, "v-0"))
    for path in (f"{A}/s-0", f"{B}/t-0", f"{C}/u-0", f"{A}/v-0", f"{B}/v-0"):
        moved_mark.mark_adopted(disk, path)
    ids = {f"{B}/u-0": OTHER_ID}
    with watched(disk) as seen:
        moved_mark.put_replaced_logs_aside(disk, found, lambda path: ids.get(path, TOPIC_ID), removed)
    assert seen == [
        ("rename", f"{A}/t-0"),
        ("sync_dir", A),
        ("rename", f"{A}/u-0"),
        ("sync_dir", A),
    ], "not the log of another topic, not two adopted copies, not a log without a second one"


# Copies that a start finds.


def interrupted(disk: MemoryDisk, count: int = 2) -> list[int]:
    """Stops the node during a move from A to B, after all records were copied. Returns the offsets of the records."""
    logs = directories(disk, count=count)
    log = log_in_a(logs)
    fill(log)
    run(copied(logs.futures.create(log, logs.dirs[1])))
    found = offsets(log)
    run(logs.close())
    return found


def test_files_with_the_name_of_a_copy_are_ignored() -> None:
    disk = MemoryDisk()
    expected = interrupted(disk)
    disk.write_new(f"{A}/{FUTURE}", b"")
    disk.write_new(f"{B}/{FUTURE}", b"")
    logs = directories(disk)
    assert not any(logs.dirs[slot].offline for slot in (0, 1))
    future = logs.futures.get("t", 0)
    assert future is not None
    assert future.log.log_end_offset == len(expected)
    assert not logs.futures.leftovers.orphans
    assert [disk.exists(f"{path}/{FUTURE}") for path in (A, B)] == [True, True]


def test_only_one_copy_of_a_log_is_resumed_and_the_others_are_removed() -> None:
    disk = MemoryDisk()
    interrupted(disk, count=3)
    for directory in (A, B, C):
        disk.mkdir(f"{directory}/{FUTURE}")
        disk.write_new(f"{directory}/{FUTURE}/partition.metadata", disk.read_bytes(f"{A}/t-0/partition.metadata"))
    logs = directories(disk, count=3)
    assert len(list(logs.futures)) == 1
    left = [name for each in (A, B, C) for name in names(logs, each)]
    assert sorted(name.rpartition("-")[2] for name in left) == ["0", "delete", "delete", "delete", "future"]
    assert FUTURE not in names(logs, A), "a copy in the directory of its own log is of no use"
    run(logs.removal.run())
    assert len([name for each in (A, B, C) for name in names(logs, each)]) == 2


def test_copies_of_two_partitions_in_two_directories_are_all_resumed() -> None:
    disk = MemoryDisk()
    logs = directories(disk, count=3)
    for topic in ("t", "u"):
        for partition, slot in ((0, 1), (1, 2)):
            log = logs.create(topic, TOPIC_ID, partition, SMALL, directory_id=logs.dirs[0].directory_id)
            produce(log, 5)
            run(copied(logs.futures.create(log, logs.dirs[slot])))
    run(logs.close())
    again = directories(disk, count=3)
    found = {(each.log.topic, each.log.partition, each.log.log_dir, each.log.log_end_offset) for each in again.futures}
    assert found == {("t", 0, B, 5), ("t", 1, C, 5), ("u", 0, B, 5), ("u", 1, C, 5)}


def test_directory_whose_copies_cannot_be_listed_goes_offline() -> None:
    disk = MemoryDisk()
    interrupted(disk)
    logs = LogManager(disk, (A, B), ManualClock())
    original = logs.futures.leftovers._load_directory

    def fail(directory: LogDir, config: LogConfig) -> None:
        if directory.path == A:
            raise DiskError(errno.EIO, "input/output error", A)
        original(directory, config)

    logs.futures.leftovers._load_directory = fail  # type: ignore[method-assign]
    run(logs.open(node_id=1, cluster_id="cluster"))
    assert [each.offline for each in logs.dirs] == [True, False]
    assert len(list(logs.futures)) == 1


@pytest.mark.parametrize("topic_id", [ZERO_UUID, OTHER_ID], ids=["no id", "other id"])
@pytest.mark.parametrize("readable", [True, False])
def test_copy_without_a_topic_id_is_removed_only_if_its_partition_has_a_readable_log(
    topic_id: bytes, readable: bool
) -> None:
    disk = MemoryDisk()
    logs = directories(disk)
    log = log_in_a(logs)
    fill(log)
    leftover = Leftover(logs.dirs[1], f"{B}/{FUTURE}", "t", 0, topic_id)
    disk.mkdir(leftover.path)
    if not readable:
        logs.corruptions["t", 0] = "damaged"
    logs.futures.leftovers._load_orphan(leftover)
    kept = not readable or topic_id == OTHER_ID
    assert (names(logs, B) == [FUTURE]) is kept
    assert names(logs, B)[0].endswith(DELETE_SUFFIX) is not kept
    assert logs.futures.leftovers.orphans == ([leftover] if readable and topic_id == OTHER_ID else [])


@pytest.mark.parametrize("higher", ["current", "copy"])
def test_resumed_copy_keeps_the_records_above_the_higher_log_start(higher: str) -> None:
    disk = MemoryDisk()
    logs = directories(disk)
    log = log_in_a(logs)
    for _ in range(10):
        produce(log, 2)
    future = logs.futures.create(log, logs.dirs[1])
    run(copied(future))
    (log if higher == "current" else future.log).update_high_watermark(20)
    (log if higher == "current" else future.log).advance_log_start_offset(20)
    run(logs.close())
    again = directories(disk)
    resumed = again.futures.get("t", 0)
    assert resumed is not None
    assert (resumed.log.log_end_offset, resumed.current.log_end_offset) == (20, 20)
    run(copied(resumed))
    assert resumed.log.log_start_offset == resumed.current.log_start_offset


def test_adopted_copy_has_no_synced_mark_and_keeps_its_name_after_a_power_loss() -> None:
    disk = MemoryDisk(crashable=True)
    expected = interrupted(disk)
    disk.remove_tree(f"{A}/t-0")
    [name] = [each for each in disk.listdir(B) if each.endswith("-future")]
    synced_mark.write_file(disk, f"{B}/{name}")
    disk.sync_volume(B)
    logs = directories(disk)
    [orphan] = logs.futures.leftovers.orphans
    with watched(disk) as seen:
        copy = logs.adopt(orphan, SMALL)
    assert copy is not None
    assert (offsets(copy), copy.log_dir) == (expected, B)
    assert not logs.synced_partitions()
    assert not logs.futures.leftovers.orphans
    steps = [kind for kind, path in seen if path == B or path == orphan.path]
    assert steps[-2:] == ["rename", "sync_dir"], "the new name is synced"
    survivor = disk.volume.copied()
    survivor.lose_power(Random(1), Severity.EVERYTHING)
    after = MemoryDisk(volume=survivor)
    assert after.exists(f"{B}/t-0")
    assert not after.exists(f"{B}/t-0/{synced_mark.SYNCED_MARK_FILE}")


def test_directory_goes_offline_if_its_copy_cannot_be_adopted() -> None:
    disk = MemoryDisk()
    interrupted(disk)
    disk.remove_tree(f"{A}/t-0")
    logs = directories(disk)
    [orphan] = logs.futures.leftovers.orphans

    def fail(kind: str, path: str) -> None:
        if kind == "rename" and path == orphan.path:
            raise DiskError(errno.EIO, "input/output error", path)

    disk.on_write = fail
    assert logs.adopt(orphan, SMALL) is None
    assert [each.offline for each in logs.dirs] == [False, True]


def test_removed_copy_without_a_log_is_no_longer_listed() -> None:
    disk = MemoryDisk()
    interrupted(disk)
    disk.remove_tree(f"{A}/t-0")
    logs = directories(disk)
    [orphan] = logs.futures.leftovers.of("t", 0)
    assert not logs.futures.leftovers.of("t", 1) + logs.futures.leftovers.of("u", 0)
    logs.futures.leftovers.remove(orphan, "the partition is elsewhere")
    assert not logs.futures.leftovers.orphans
    assert not [name for name in names(logs, B) if name.endswith("-future")]


def test_start_after_a_crash_between_the_renames_of_two_moves_serves_both_new_logs() -> None:
    disk = MemoryDisk()
    logs = directories(disk)
    expected = {}
    for topic in ("t", "u"):
        log = logs.create(topic, TOPIC_ID, 0, SMALL, directory_id=logs.dirs[0].directory_id)
        fill(log)
        run(swapped(logs, logs.futures.create(log, logs.dirs[1])))
        produce(log, 2, epoch=4)
        expected[topic] = read_all(log)
    logs.abandon()
    again = directories(disk)
    for topic in ("t", "u"):
        found = again.get(topic, 0)
        assert found is not None
        assert (found.log_dir, read_all(found)) == (B, expected[topic])
        assert not moved_mark.read(disk, found.path), "the old log is gone"
    assert not [name for name in names(again, A) if not name.endswith(DELETE_SUFFIX)]
