"""Tests that writes of clients are refused before a directory is full, even between two readings of its free space."""

from __future__ import annotations

import errno

import pytest
from log_harness import finish

from penstock.disk.memory import MemoryDisk
from penstock.log.directory import LogDir
from penstock.log.free_space import FreeSpace
from penstock.protocol.errors import ErrorCode, KafkaError


def space(usable: int = 1000, limit: int = 600) -> FreeSpace:
    found = FreeSpace(MemoryDisk())
    found.note("/a", usable, limit)
    return found


def refused(found: FreeSpace, size: int, path: str = "/a") -> bool:
    try:
        found.take(path, size)
    except KafkaError as error:
        return error.code is ErrorCode.KAFKA_STORAGE_ERROR
    return False


def test_burst_of_writes_between_two_free_space_readings_stops_at_the_limit() -> None:
    found = space(1000, 600)
    assert [refused(found, 100) for _ in range(5)] == [False] * 4 + [True]
    assert refused(found, 1)  # no small record overtakes the refused one
    assert list(found.short()) == ["/a"]


def test_writes_are_accepted_again_once_the_refused_record_fits() -> None:
    found = space(650, 600)
    assert refused(found, 100)
    found.note("/a", 699, 600)
    assert refused(found, 10)
    found.note("/a", 700, 600)
    assert found.short() == {}
    assert not refused(found, 100)


def test_lower_free_space_limit_takes_effect_at_the_next_reading() -> None:
    found = space(500, 600)
    assert refused(found, 1)
    found.note("/a", 500, 400)
    assert not refused(found, 100)


def test_move_between_directories_stops_at_the_free_space_limit_but_clients_may_still_write() -> None:
    found = space(1000, 600)
    found.take_for_copy("/a", 300)
    with pytest.raises(KafkaError, match="choose another directory"):
        found.take_for_copy("/a", 200)
    assert found.short() == {}
    assert not refused(found, 100)


def test_directory_with_unknown_free_space_accepts_all_writes() -> None:
    found = space(0, 600)
    assert refused(found, 1)
    assert not refused(found, 1 << 40, "/unknown")


def test_error_at_the_free_space_limit_contains_directory_and_limit_and_remedy(
    caplog: pytest.LogCaptureFixture,
) -> None:
    found = space(500, 600)
    for _ in range(3):
        with pytest.raises(KafkaError, match=r"/a is nearly full: it has 500 bytes left, .*=600: delete records"):
            found.take("/a", 1)
    assert len(caplog.records) == 1


class NearlyFullDisk(MemoryDisk):
    """Simulates three volumes with different free space. The free space of the last volume is unknown."""

    def free_bytes(self, path: str) -> tuple[int, int]:
        return 10_000, {"/a": 1000, "/b": 500, "/c": -1}[path]


def test_free_space_is_read_for_every_online_directory() -> None:
    disk = NearlyFullDisk()
    found = FreeSpace(disk)
    directories = [LogDir(disk, path) for path in ("/a", "/b", "/c")]
    finish(found.look(directories, 600))
    assert list(found.watched) == ["/a", "/b"]
    assert list(found.short()) == ["/b"]
    directories[0].failure = OSError(errno.EIO, "input/output error")
    finish(found.look(directories, 400))
    assert list(found.watched) == ["/b"]
    assert not found.short()
