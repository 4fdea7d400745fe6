"""Tests the simulated disk: data that survives kills and power cuts, failing calls, and the time that calls take."""

import asyncio
import errno
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

import pytest

from penstock.disk.api import DirectoryLockedError, DiskError, make_lasting
from penstock.disk.volume import Severity, Volume
from penstock.node.storage import FormatPlan, format_storage, read_meta_properties
from penstock.sim.engine.disk import DiskConditions, SimDisk
from penstock.sim.engine.loop import ProcessKilled, Timeline
from penstock.sim.engine.trace import Trace


class Rig:
    def __init__(self, seed: int = 1) -> None:
        self.timeline = Timeline(Random(seed))
        self.volume = Volume(lambda: 7)
        self.conditions = DiskConditions()
        self.random = Random(seed)
        self.loop = self.timeline.process("p")
        self.disk = self.view()
        self.disk.mkdir("/d")
        self.volume.sync_all()

    def view(self) -> SimDisk:
        return SimDisk(self.volume, self.loop, self.random, Trace(self.timeline), self.conditions)

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        self.timeline.run(work, self.loop)

    def lose_power(self, severity: Severity = Severity.EVERYTHING) -> None:
        self.volume.lose_power(self.random, severity)
        self.disk = self.view()


def test_power_cut_loses_only_unsynced_data() -> None:
    rig = Rig()
    file = rig.disk.create("/d/f")
    file.append(b"kept ")
    file.sync_now()
    rig.disk.sync_dir("/d")
    file.append(b"lost")
    file.pwrite(b"K", 0)
    file.truncate(2)
    assert rig.disk.read_bytes("/d/f") == b"Ke"
    rig.lose_power()
    assert rig.disk.read_bytes("/d/f") == b"kept "


def test_power_cut_loses_a_synced_file_whose_directory_entry_is_not_synced() -> None:
    rig = Rig()
    file = rig.disk.create("/d/f")
    file.append(b"data")
    file.sync_now()
    rig.lose_power()
    assert not rig.disk.exists("/d/f")


def test_power_cut_undoes_a_rename_or_removal_or_new_directory_that_is_not_synced() -> None:
    rig = Rig()
    rig.disk.write_atomic("/d/old", b"1")
    rig.disk.write_atomic("/d/gone", b"2")
    rig.disk.rename("/d/old", "/d/new")
    rig.disk.remove("/d/gone")
    rig.disk.mkdir("/d/inner/most")
    rig.disk.rename("/d/inner", "/d/moved")
    assert sorted(rig.disk.listdir("/d")) == ["moved", "new"]
    assert rig.disk.is_dir("/d/moved/most")
    rig.lose_power()
    assert sorted(rig.disk.listdir("/d")) == ["gone", "old"]
    rig.disk.rename("/d/old", "/d/new")
    rig.disk.sync_dir("/d")
    rig.lose_power()
    assert sorted(rig.disk.listdir("/d")) == ["gone", "new"]


def test_a_formatted_directory_survives_a_power_cut() -> None:
    rig = Rig()
    for path in ("/data", "/deep/down/data"):
        format_storage(rig.disk, FormatPlan((path,), 1), random=Random(1), now_ms=0)
    make_lasting(rig.disk, "/")
    rig.lose_power()
    for path in ("/data", "/deep/down/data"):
        assert read_meta_properties(rig.disk, path) is not None


def test_some_power_cuts_keep_the_first_unsynced_writes_and_a_part_of_the_next_write() -> None:
    seen = set()
    for seed in range(200):
        rig = Rig(seed)
        file = rig.disk.create("/d/f")
        file.append(b"0123")
        file.sync_now()
        rig.disk.sync_dir("/d")
        for piece in (b"45", b"67", b"89"):
            file.append(piece)
        rig.lose_power(Severity.SOME)
        seen.add(rig.disk.read_bytes("/d/f"))
    assert {b"0123", b"012345", b"01234", b"0123456789"} <= seen
    for content in seen:
        assert content.rstrip(b"\0") == b"0123456789"[: len(content.rstrip(b"\0"))]


def test_some_power_cuts_lose_a_sector_inside_a_large_write() -> None:
    holes = 0
    for seed in range(200):
        rig = Rig(seed)
        file = rig.disk.create("/d/f")
        file.sync_now()
        rig.disk.sync_dir("/d")
        file.append(b"x" * 4096)
        rig.lose_power(Severity.SOME)
        content = rig.disk.read_bytes("/d/f")
        holes += b"\0x" in content
    assert holes > 5


def test_power_cut_keeps_a_prefix_of_an_unsynced_overwrite_and_restores_the_other_bytes() -> None:
    for seed in range(50):
        rig = Rig(seed)
        file = rig.disk.create("/d/f")
        file.append(b"abcdefgh")
        file.sync_now()
        rig.disk.sync_dir("/d")
        file.pwrite(b"XYZ", 2)
        rig.lose_power(Severity.SOME)
        content = rig.disk.read_bytes("/d/f")
        assert content in (b"abcdefgh", b"abXdefgh", b"abXYefgh", b"abXYZfgh"), content


def test_a_sync_covers_only_data_written_before_it_began() -> None:
    rig = Rig()

    async def run() -> None:
        file = rig.disk.create("/d/f")
        file.append(b"before")
        rig.disk.sync_dir("/d")
        syncing = asyncio.ensure_future(file.sync())
        await asyncio.sleep(0)
        file.append(b" after")
        await syncing

    rig.run(run())
    rig.lose_power()
    assert rig.disk.read_bytes("/d/f") == b"before"


def test_data_of_a_failed_sync_may_be_lost_although_a_later_sync_succeeds() -> None:
    rig = Rig()
    file = rig.disk.create("/d/f")
    rig.disk.sync_dir("/d")
    file.append(b"data")
    rig.conditions.write_error = 1.0
    rig.conditions.forget_on_error = True
    with pytest.raises(DiskError):
        file.sync_now()
    rig.conditions.write_error = 0.0
    file.sync_now()
    rig.lose_power()
    assert rig.disk.read_bytes("/d/f") == b""


def test_write_that_does_not_fit_on_a_full_disk_writes_no_byte() -> None:
    rig = Rig()
    file = rig.disk.create("/d/f")
    rig.volume.free_bytes = 10
    file.append(b"12345678")
    with pytest.raises(DiskError) as refused:
        file.append(b"abc")
    assert refused.value.errno == errno.ENOSPC
    assert rig.disk.read_bytes("/d/f") == b"12345678"
    file.pwrite(b"overwritten"[:8], 0)


@pytest.mark.parametrize(
    "operation",
    [
        lambda disk: disk.create("/d/g"),
        lambda disk: disk.open("/d/f").append(b"x"),
        lambda disk: disk.open("/d/f").pread(1, 0),
        lambda disk: disk.rename("/d/f", "/d/g"),
        lambda disk: disk.sync_dir("/d"),
        lambda disk: disk.listdir("/d"),
        lambda disk: disk.read_bytes("/d/f"),
    ],
)
def test_every_call_in_a_broken_directory_fails(operation: Callable[[SimDisk], object]) -> None:
    rig = Rig()
    rig.disk.write_atomic("/d/f", b"data")
    rig.conditions.broken = "/d"
    with pytest.raises(DiskError) as refused:
        operation(rig.disk)
    assert refused.value.errno == errno.EIO


def test_calls_to_a_stalled_disk_wait_for_the_end_of_the_stall() -> None:
    rig = Rig()

    async def run() -> None:
        file = rig.disk.create("/d/f")
        rig.conditions.stall_until = 20.0
        await file.sync()
        assert asyncio.get_running_loop().time() >= 20

    rig.run(run())


def test_killed_process_changes_no_file_and_its_locks_are_released() -> None:
    rig = Rig()
    file = rig.disk.create("/d/f")
    rig.disk.lock("/d")
    with pytest.raises(DirectoryLockedError):
        rig.disk.lock("/d")
    rig.loop.kill()
    rig.disk.release()
    with pytest.raises(DiskError, match="dead"):
        file.append(b"from beyond")
    rig.loop = rig.timeline.process("q")
    rig.view().lock("/d")


def test_a_process_killed_inside_a_write_leaves_a_part_of_the_data() -> None:
    sizes = set()
    for seed in range(30):
        rig = Rig(seed)
        file = rig.disk.create("/d/f")

        def die(kind: str, path: str) -> None:
            raise ProcessKilled

        rig.disk.on_change = die
        with pytest.raises(ProcessKilled):
            file.append(b"12345678")
        sizes.add(len(rig.volume.inode("/d/f").data))
    assert len(sizes) > 3
