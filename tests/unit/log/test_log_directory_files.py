"""Tests log directories: identity, clean-shutdown marker, checkpoints, paths, free space."""

from __future__ import annotations

import errno
from itertools import product
from random import Random

import pytest
from log_harness import TOPIC_ID, finish, manager, produce, run

from penstock.disk.api import DiskError
from penstock.disk.memory import MemoryDisk
from penstock.disk.volume import Severity
from penstock.log import directories as log_directories
from penstock.log.checkpoints import (
    CheckpointError,
    Incarnation,
    parse_incarnation,
    parse_lines,
    parse_offsets,
    parse_properties,
    render_incarnation,
    render_lines,
)
from penstock.log.directories import LogDirectories, PathLookup, is_possible_path
from penstock.log.directory import Checkpoints, DirectoryError, LogDir
from penstock.log.free_space import FreeSpace
from penstock.metadata.configs.topic import LogConfig
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.uuid import uuid_to_str

ID = bytes(range(100, 116))
KEY, OTHER = ("t", 0), ("t", 1)


def directory(disk: MemoryDisk, path: str = "/a") -> LogDir:
    disk.mkdir(path)
    return LogDir(disk, path)


def watched(disk: MemoryDisk) -> list[tuple[str, str]]:
    seen: list[tuple[str, str]] = []
    disk.on_write = lambda kind, path: seen.append((kind, path))
    return seen


# Identity.


@pytest.mark.parametrize("node", [None, "1", "2"])
@pytest.mark.parametrize("key", ["node.id", "broker.id"])
@pytest.mark.parametrize("cluster", [None, "c", "d"])
@pytest.mark.parametrize("with_id", [True, False])
def test_directory_is_refused_if_its_file_names_another_node_or_cluster_and_completed_otherwise(
    node: str | None, key: str, cluster: str | None, with_id: bool
) -> None:
    disk = MemoryDisk()
    found = directory(disk)
    known = {"version": "1", key: node, "cluster.id": cluster, "directory.id": uuid_to_str(ID) if with_id else None}
    before = "".join(f"{name}={value}\n" for name, value in known.items() if value is not None).encode()
    disk.write_new("/a/meta.properties", before)
    if node == "2" or cluster == "d":
        with pytest.raises(DirectoryError, match=r"node\.id" if node == "2" else r"cluster\.id"):
            found.identify(1, "c", Random(1))
        assert disk.read_bytes("/a/meta.properties") == before
        return
    found.identify(1, "c", Random(1))
    if with_id:
        assert found.directory_id == ID
        assert disk.read_bytes("/a/meta.properties") == before
    else:
        assert found.directory_id not in (ID, bytes(16))
        assert parse_properties(disk.read_bytes("/a/meta.properties")) == {
            "version": "1",
            "node.id": "1",
            "cluster.id": "c",
            "directory.id": uuid_to_str(found.directory_id),
        }


def test_directory_with_a_reserved_id_is_refused() -> None:
    disk = MemoryDisk()
    disk.mkdir("/a")
    disk.write_new("/a/meta.properties", f"directory.id={uuid_to_str(bytes(15) + bytes([1]))}\n".encode())
    with pytest.raises(DirectoryError, match="reserved"):
        LogDir(disk, "/a").identify(1, "c", Random(1))


def test_new_directory_is_created_durably_with_its_parents_and_locked_once() -> None:
    disk = MemoryDisk()
    found = LogDir(disk, "/x/y/z")
    seen = watched(disk)
    found.acquire()
    assert disk.is_dir("/x/y/z")
    assert [path for kind, path in seen if kind == "sync_dir"] == ["/", "/x", "/x/y"]
    assert disk.volume.locks == {"/x/y/z"}
    found.release()
    found.release()
    assert disk.volume.locks == set()


def test_power_loss_after_a_start_does_not_restore_the_clean_shutdown_marker() -> None:
    disk = MemoryDisk(crashable=True)
    found = directory(disk)
    found.leave_clean_mark(9)
    found.take_clean_mark()
    assert (found.clean, found.last_incarnation) == (True, Incarnation(9))
    survivor = disk.volume.copied()
    survivor.lose_power(Random(1), Severity.EVERYTHING)
    again = LogDir(MemoryDisk(volume=survivor), "/a")
    again.take_clean_mark()
    assert (again.clean, again.last_incarnation) == (False, Incarnation())


@pytest.mark.parametrize(("written", "now"), list(product(("", "boot 1", "boot 2"), repeat=2)))
@pytest.mark.parametrize("asking", [bytes(16), ID])
def test_incarnation_is_known_only_if_it_ran_since_the_last_boot(written: str, now: str, asking: bytes) -> None:
    incarnation = Incarnation(7, asking)
    known = written == now != ""
    assert parse_incarnation(render_incarnation(incarnation, written), now) == (incarnation if known else Incarnation())


# Checkpoints.


@pytest.mark.parametrize("lines", [[], ["a"], ["a", "b"]])
def test_checkpoint_with_any_other_number_of_lines_is_refused(lines: list[str]) -> None:
    data = render_lines(lines)
    assert parse_lines(data) == lines
    for count in range(-2, 5):
        other = data.replace(f"0\n{len(lines)}\n".encode(), f"0\n{count}\n".encode(), 1)
        if count == len(lines):
            assert parse_lines(other) == lines
        else:
            with pytest.raises(CheckpointError):
                parse_lines(other)
    for wrong in (data + b"x", data + b"x\n", data + b"\n", data[:-1], b"1" + data[1:], b"x", b"\n"):
        with pytest.raises(CheckpointError):
            parse_lines(wrong)


def content(disk: MemoryDisk, name: str) -> dict[tuple[str, int], int]:
    return parse_offsets(disk.read_bytes(f"/a/{name}")) if disk.exists(f"/a/{name}") else {}


def save(found: LogDir, files: Checkpoints, in_background: bool) -> None:
    if in_background:
        run(found.save_checkpoints(lambda: files))
    else:
        found.write_checkpoints(files)


@pytest.mark.parametrize("in_background", [False, True])
def test_only_changed_checkpoint_files_are_written_and_a_failed_file_is_written_again(in_background: bool) -> None:
    disk = MemoryDisk()
    found = directory(disk)
    names = ["first", "second", "third"]
    files: Checkpoints = {name: {KEY: 1} for name in names}
    save(found, files, in_background)
    files = {**files, "second": {KEY: 2}, "third": {KEY: 2, OTHER: 5}}

    def fail(kind: str, path: str) -> None:
        if "second" in path:
            raise DiskError(errno.EMFILE, "too many open files", path)

    disk.on_write = fail
    with pytest.raises(DiskError):
        save(found, files, in_background)
    seen = watched(disk)
    save(found, files, in_background)
    assert {path.split("/")[2].split(".")[0] for kind, path in seen if kind == "create"} == {"second", "third"}
    assert {name: content(disk, name) for name in names} == files
    assert [each for each in seen if each[0] == "sync_dir"] == [("sync_dir", "/a")] * 2
    seen.clear()
    save(found, files, in_background)
    assert seen == [], "nothing has changed"
    again = LogDir(disk, "/a")
    assert {name: again.read_checkpoint(name) for name in names} == files
    save(again, files, in_background)
    assert seen == [], "the files have these contents already"
    assert [again.remembers(key) for key in (KEY, OTHER, ("u", 0))] == [True, True, False]


@pytest.mark.parametrize("moment", range(4))
def test_save_that_is_overtaken_by_a_write_leaves_no_file_and_no_old_offsets(moment: int) -> None:
    disk = MemoryDisk()
    found = directory(disk)
    names = ["x", "y", "z"]
    syncs: list[str] = []

    def overtake(kind: str, path: str) -> None:
        if kind != "sync":
            return
        syncs.append(path)
        if len(syncs) == moment + 1:
            disk.on_write = None
            assert found.remembers(OTHER), "the save is still writing this line"
            found.write_checkpoints({name: {KEY: 1} for name in names})

    disk.on_write = overtake
    run(found.save_checkpoints(lambda: {name: {KEY: 9, OTHER: 9} for name in names}))
    newest = {KEY: 1} if moment < 3 else {KEY: 9, OTHER: 9}
    assert [content(disk, name) for name in names] == [newest] * 3
    assert sorted(disk.listdir("/a")) == names
    assert found.remembers(OTHER) is (moment == 3)


def test_saved_checkpoint_is_synced_before_and_after_its_rename() -> None:
    disk = MemoryDisk()
    found = directory(disk)
    seen = watched(disk)
    run(found.save_checkpoints(lambda: {"x": {KEY: 1}}))
    assert [kind for kind, _ in seen] == ["create", "append", "sync", "rename", "sync_dir"]


def test_two_saves_write_to_different_temporary_files() -> None:
    disk = MemoryDisk()
    found = directory(disk)
    seen = watched(disk)
    for offset in (1, 2):
        run(found.save_checkpoints(lambda offset=offset: {"x": {KEY: offset}}))  # type: ignore[misc]
    created = [path for kind, path in seen if kind == "create"]
    assert len(set(created)) == 2, "a cancelled save may still be writing to its file"


def test_leftovers_of_a_crash_are_removed_and_other_files_kept() -> None:
    disk = MemoryDisk()
    found = directory(disk)
    for name in ("t-0.1-delete", "t-0", "u-0.2-delete", "v-0.3-stray"):
        disk.mkdir(f"/a/{name}")
    for name in ("x.1.tmp", "x", "y.tmp"):
        disk.write_new(f"/a/{name}", b"")
    found.remove_leftovers()
    assert sorted(disk.listdir("/a")) == ["t-0", "v-0.3-stray", "x"]


# Several directories.


@pytest.mark.parametrize("states", list(product(("online", "cordoned", "offline"), repeat=3)))
def test_new_log_goes_to_the_online_directory_with_the_fewest_logs_that_is_not_cordoned(
    states: tuple[str, str, str],
) -> None:
    paths = ("/a", "/b", "/c")
    found = LogDirectories(MemoryDisk(), paths, None, frozenset())
    found.cordon(frozenset(path for path, state in zip(paths, states) if state == "cordoned"))
    for each, state in zip(found, states):
        each.failure = OSError(errno.EIO, "broken") if state == "offline" else None
    counts = {"/a": 2, "/b": 1, "/c": 3}
    wanted = [path for path in ("/b", "/a", "/c") if states[paths.index(path)] == "online"]
    wanted += [path for path in ("/b", "/a", "/c") if states[paths.index(path)] == "cordoned"]
    if wanted:
        assert found.for_new_log("t", None, counts).path == wanted[0]
    else:
        with pytest.raises(KafkaError) as refusal:
            found.for_new_log("t", None, counts)
        assert refusal.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert found.any_offline is ("offline" in states)


def test_incarnation_is_forgotten_in_every_directory_even_if_one_fails() -> None:
    disk = MemoryDisk()
    found = LogDirectories(disk, ("/a", "/b", "/c"), None, frozenset())
    for each in found:
        disk.mkdir(each.path)
        each.note_incarnation(Incarnation(7))

    def fail(kind: str, path: str) -> None:
        if path.startswith("/a/"):
            raise DiskError(errno.EIO, "input/output error", path)

    disk.on_write = fail
    found.forget_incarnation()
    disk.on_write = None
    for each in found:
        each.take_clean_mark()
    assert [each.last_incarnation.broker_epoch for each in found] == [7, -1, -1]


@pytest.mark.parametrize(
    ("path", "possible"),
    [
        ("", False),
        ("/", True),
        ("/" + "x" * 4093, True),
        ("/" + "x" * 4094, True),
        ("/" + "x" * 4095, False),
        ("/" + "é" * 2047, True),
        ("/x" + "é" * 2047, False),
        ("/é" + "x" * 4092, True),
        ("/é" + "x" * 4093, False),
        ("/a\0b", False),
    ],
)
def test_path_of_at_most_4095_bytes_without_a_zero_byte_may_name_a_directory(path: str, possible: bool) -> None:
    assert is_possible_path(path) is possible


class CountingDisk(MemoryDisk):
    """Counts the paths that are resolved, and fails for paths that no directory can have."""

    def __init__(self) -> None:
        super().__init__()
        self.resolved: list[str] = []

    def real_path(self, path: str) -> str:
        assert "\0" not in path
        self.resolved.append(path)
        return super().real_path(path)

    def exists(self, path: str) -> bool:
        if "\0" in path:
            raise ValueError("embedded null byte")
        return super().exists(path)


def test_paths_of_a_request_are_found_by_name_or_resolved_once(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = CountingDisk()
    found = LogDirectories(disk, ("/a", "/b/"), "/m", frozenset())
    for path in ("/a", "/b", "/m"):
        disk.mkdir(path)
    lookup = PathLookup(found)
    assert [finish(lookup.find(path)) for path in ("/a", "/b", "/b/")] == [found[0], found[1], found[1]]
    assert disk.resolved == [], "names in log.dirs need no look at the disk"
    assert [finish(lookup.find(path)) for path in ("/x/../a", "/b/../b", "/m", "/c", "", "/a\0")] == [
        found[0],
        found[1],
        None,
        None,
        None,
        None,
    ]
    assert [found.find(path) for path in ("", "/a\0", "/a")] == [None, None, found[0]]
    disk.resolved.clear()
    assert finish(lookup.find("/b/../b")) is found[1]
    assert disk.resolved == []
    monkeypatch.setattr(log_directories, "MAX_RESOLVED_PATHS", 5)
    assert finish(lookup.find("/a/../a")) is found[0]
    assert finish(lookup.find("/b/./.")) is None, "the limit of resolved paths is reached"
    assert finish(lookup.find("/b/../b")) is found[1]


# Free space.


class VolumesOf(MemoryDisk):
    def __init__(self, usable: dict[str, int]) -> None:
        super().__init__()
        self.usable = usable

    def free_bytes(self, path: str) -> tuple[int, int]:
        return 10_000, self.usable[path]


def test_directory_without_a_free_byte_refuses_records_and_one_with_unknown_space_takes_them() -> None:
    disk = VolumesOf({"/a": 0, "/b": -1, "/c": 1})
    space = FreeSpace(disk)
    all_three = [LogDir(disk, path) for path in disk.usable]
    finish(space.look(all_three, 1))
    assert list(space.short()) == ["/a"]
    assert list(space.watched) == ["/a", "/c"]
    disk.usable = {"/a": -1, "/b": 0, "/c": 0}
    finish(space.look(all_three, 1))
    assert list(space.short()) == ["/c", "/b"]


@pytest.mark.parametrize(("limit", "usable"), list(product((50, 100, 120, 160), (99, 100, 119, 120, 149, 150, 160))))
def test_refused_writes_resume_at_the_refused_size_or_at_a_higher_new_limit(limit: int, usable: int) -> None:
    space = FreeSpace(MemoryDisk())
    space.note("/a", 120, 100)
    with pytest.raises(KafkaError):
        space.take("/a", 50)
    space.note("/a", usable, limit)
    resumes = usable >= (limit if limit < 100 else max(limit, 150))
    assert (space.short() == {}) is resumes
    before = space.watched["/a"].usable
    if resumes:
        space.take("/a", 0)
    else:
        with pytest.raises(KafkaError):
            space.take("/a", 0)
    assert space.watched["/a"].usable == before


def test_checkpoints_of_all_directories_are_written_and_only_the_failing_one_goes_offline() -> None:
    for in_background in (False, True):
        disk = MemoryDisk()
        logs = manager(disk, dirs=("/a", "/b", "/c"))
        for partition in range(3):
            produce(logs.create("t", TOPIC_ID, partition, LogConfig()), 2)

        def fail(kind: str, path: str) -> None:
            if path.startswith("/a/"):
                raise DiskError(errno.EIO, "input/output error", path)

        disk.on_write = fail
        assert (run(logs.save_checkpoints()) if in_background else logs.write_checkpoints()) is False
        assert [each.offline for each in logs.dirs] == [True, False, False]
        for path in ("/b", "/c"):
            assert b"t " in disk.read_bytes(f"{path}/replication-offset-checkpoint")
        assert (run(logs.save_checkpoints()) if in_background else logs.write_checkpoints()) is True
