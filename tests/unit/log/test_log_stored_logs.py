"""Tests what a start restores of several logs in several directories, and which logs it does not serve."""

from __future__ import annotations

import errno
from collections.abc import Coroutine
from functools import partial
from itertools import product
from random import Random
from typing import Any

import pytest
from log_harness import TOPIC_ID, finish, manager, offsets, produce, run

from penstock.clock import ManualClock
from penstock.disk.memory import MemoryDisk
from penstock.log import moved_mark, stored_logs
from penstock.log.checkpoints import parse_offsets, render_offsets
from penstock.log.directory import DirectoryError
from penstock.log.log import AppendOrigin
from penstock.log.manager import LogManager
from penstock.metadata.configs.topic import LogConfig
from penstock.protocol.uuid import ZERO_UUID
from penstock.records.control import EndTxn, build_end_txn

OTHER_ID = bytes(15) + b"\7"
THIRD_ID = bytes(15) + b"\x09"
THREE = ("/a", "/b", "/c")
NAMES = ("cleaner", "log-start", "recovery-point", "replication")


def create(logs: LogManager, topic: str, slot: int = 0, topic_id: bytes = TOPIC_ID) -> None:
    """Creates a log with five records in the directory with this index."""
    log = logs.create(topic, topic_id, 0, LogConfig(), directory_id=logs.dirs[slot].directory_id)
    for _ in range(5):
        produce(log)


@pytest.mark.parametrize("clean", [False, True])
def test_start_restores_the_checkpoints_of_every_log_in_every_directory(clean: bool) -> None:
    disk = MemoryDisk()
    logs = manager(disk, dirs=THREE[:2])
    expected: dict[str, tuple[int, ...]] = {}
    for number in range(6):
        topic = f"t{number}"
        log = logs.create(topic, TOPIC_ID, 0, LogConfig(), directory_id=logs.dirs[number % 2].directory_id)
        for _ in range(10 + number):
            produce(log, commit=False)
        log.update_high_watermark(5 + number)
        log.advance_log_start_offset(number)
        log.note_compacted(2 + number)
        finish(log.flush())
        if not clean:
            produce(log, commit=False)
        expected[topic] = (number, 2 + number, 5 + number, 10 + number, log.log_end_offset)
    if clean:
        run(logs.close())
    else:
        logs.write_checkpoints()
        logs.abandon()
    for path, name in product(THREE[:2], NAMES):
        found = parse_offsets(disk.read_bytes(f"{path}/{name}-offset-checkpoint"))
        assert {key[0] for key in found} <= {f"t{number}" for number in range(6)}
    logs = manager(disk, dirs=THREE[:2])
    restored = {
        log.topic: (
            log.log_start_offset,
            log.cleaned_offset,
            log.high_watermark,
            log.recovery_point,
            log.log_end_offset,
        )
        for log in logs
    }
    assert restored == expected
    assert [log in logs.flush_queue for log in logs] == [not clean] * 6


@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("has_id", [False, True])
@pytest.mark.parametrize("flushed", [False, True])
@pytest.mark.parametrize("records", [0, 3])
def test_log_is_renamed_as_stray_only_if_its_records_were_never_synced_and_its_topic_is_unknown(
    clean: bool, has_id: bool, flushed: bool, records: int
) -> None:
    disk = MemoryDisk()
    logs = manager(disk)
    log = logs.create("t", TOPIC_ID, 0, LogConfig())
    produce(logs.create("other", TOPIC_ID, 0, LogConfig()))
    if records:
        produce(log, records)
    if flushed:
        finish(log.flush())
        logs.write_checkpoints()
    if clean:
        run(logs.close())
        disk.remove("/logs/recovery-point-offset-checkpoint")
    else:
        logs.abandon()
    if not has_id:
        disk.remove("/logs/t-0/partition.metadata")
    logs = manager(disk)
    found = logs.get("t", 0)
    assert logs.get("other", 0) is not None
    stray = [name for name in disk.listdir("/logs") if name.endswith("-stray")]
    if not clean and not has_id and not flushed and records:
        assert found is None
        assert len(stray) == 1
    else:
        assert found is not None
        assert (found.log_end_offset, found.topic_id) == (records, TOPIC_ID if has_id else ZERO_UUID)
        assert not stray


def namesakes(disk: MemoryDisk, ids: tuple[bytes, ...]) -> None:
    """Leaves a log with the name t-0 in each directory, for the topics with these ids."""
    logs = manager(disk, dirs=THREE[: len(ids)])
    for slot, topic_id in enumerate(ids):
        create(logs, f"t{slot}", slot, topic_id)
    run(logs.close())
    for slot in range(len(ids)):
        disk.rename(f"{THREE[slot]}/t{slot}-0", f"{THREE[slot]}/t-0")
        disk.remove(f"{THREE[slot]}/.kafka_cleanshutdown")


@pytest.mark.parametrize(
    ("ids", "refused"),
    [
        ((TOPIC_ID, OTHER_ID, THIRD_ID), False),
        ((TOPIC_ID, OTHER_ID, TOPIC_ID), True),
        ((TOPIC_ID, OTHER_ID, OTHER_ID), True),
        ((TOPIC_ID, TOPIC_ID, OTHER_ID), True),
    ],
)
def test_start_with_several_logs_of_one_name_is_refused_if_two_of_them_have_the_same_topic(
    ids: tuple[bytes, ...], refused: bool
) -> None:
    disk = MemoryDisk()
    namesakes(disk, ids)
    if refused:
        with pytest.raises(DirectoryError, match="move one of them away"):
            manager(disk, dirs=THREE)
        return
    logs = manager(disk, dirs=THREE)
    log = logs.claim("t", 0, ids[2])
    assert log is not None
    assert (log.log_dir, log.topic_id) == (THREE[2], ids[2])


@pytest.mark.parametrize("unknown", [0, 1])
def test_start_with_two_logs_of_one_name_is_refused_if_the_topic_of_one_is_unknown(unknown: int) -> None:
    disk = MemoryDisk()
    namesakes(disk, (TOPIC_ID, OTHER_ID))
    for slot in (0, 1):
        disk.write_atomic(f"{THREE[slot]}/recovery-point-offset-checkpoint", b"0\n1\nt 0 5\n")
    disk.remove(f"{THREE[unknown]}/t-0/partition.metadata")
    with pytest.raises(DirectoryError, match="move one of them away"):
        manager(disk, dirs=THREE[:2])


def spoil(disk: MemoryDisk, path: str) -> None:
    """Makes a log unusable: its transaction marker below the recovery point is damaged."""
    data = disk.inode(f"{path}/t-0/{0:020d}.log").data
    data[-1] ^= 1


def with_marker(logs: LogManager, topic: str, slot: int, topic_id: bytes) -> None:
    log = logs.create(topic, topic_id, 0, LogConfig(), directory_id=logs.dirs[slot].directory_id)
    produce(log, producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    marker = build_end_txn(EndTxn(False, 0), producer_id=7, producer_epoch=0, timestamp=1)
    log.append_as_leader(marker, leader_epoch=0, now_ms=1, origin=AppendOrigin.COORDINATOR)
    finish(log.flush())


@pytest.mark.parametrize("twice", [False, True])
def test_damaged_log_is_not_served_and_a_damaged_second_log_of_a_name_is_refused(twice: bool) -> None:
    disk = MemoryDisk()
    logs = manager(disk, dirs=THREE[:2])
    with_marker(logs, "t", 0, TOPIC_ID)
    with_marker(logs, "u", 1, OTHER_ID)
    logs.write_checkpoints()
    logs.abandon()
    if twice:
        disk.rename("/b/u-0", "/b/t-0")
        disk.write_atomic("/b/recovery-point-offset-checkpoint", b"0\n1\nt 0 2\n")
        spoil(disk, "/b")
        with pytest.raises(DirectoryError, match="a damaged one in /b"):
            manager(disk, dirs=THREE[:2])
        return
    spoil(disk, "/a")
    logs = manager(disk, dirs=THREE[:2])
    assert logs.get("t", 0) is None
    assert list(logs.corruptions) == [("t", 0)]
    other = logs.get("u", 0)
    assert other is not None
    assert offsets(other) == [0, 1]


def test_directory_whose_topic_id_cannot_be_read_goes_offline_and_the_others_are_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = MemoryDisk()
    logs = manager(disk, dirs=THREE[:2])
    create(logs, "t", 0)
    create(logs, "u", 1)
    run(logs.close())
    read = MemoryDisk.read_bytes

    def failing(self: MemoryDisk, path: str, limit: int = 1 << 30) -> bytes:
        if path == "/a/t-0/partition.metadata":
            raise OSError(errno.EIO, "broken")
        return read(self, path, limit)

    monkeypatch.setattr(MemoryDisk, "read_bytes", failing)
    logs = manager(disk, dirs=THREE[:2])
    assert [directory.offline for directory in logs.dirs] == [True, False]
    assert logs.get("t", 0) is None
    assert logs.get("u", 0) is not None


def test_start_removes_all_leftovers_of_deleted_logs_and_half_written_checkpoints() -> None:
    disk = MemoryDisk()
    logs = manager(disk, dirs=THREE[:2])
    create(logs, "t")
    run(logs.close())
    for path, number in product(THREE[:2], (1, 2)):
        disk.mkdir(f"{path}/gone-{number}.abc-delete")
        disk.write_new(f"{path}/recovery-point-offset-checkpoint.{number}.tmp", b"half")
    manager(disk, dirs=THREE[:2])
    assert not [name for path in THREE[:2] for name in disk.listdir(path) if name.endswith(("-delete", ".tmp"))]


def test_second_start_of_a_directory_has_its_lock_its_id_and_its_clean_mark() -> None:
    disk = MemoryDisk()
    logs = manager(disk, dirs=THREE[:2], random=Random(1))
    ids = [directory.directory_id for directory in logs.dirs]
    assert len({*ids, bytes(16)}) == 3
    run(logs.close(broker_epoch=7))
    again = manager(disk, dirs=THREE[:2], random=Random(2))
    assert [directory.directory_id for directory in again.dirs] == ids
    assert [directory.clean for directory in again.dirs] == [True, True]
    with pytest.raises(Exception, match="already uses"):
        manager(disk, dirs=THREE[:2])


@pytest.mark.parametrize("cleaned", [3, 5, 9])
@pytest.mark.parametrize("recovered", [3, 5, 9])
def test_start_lowers_the_checkpoints_of_a_log_that_lost_records(recovered: int, cleaned: int) -> None:
    disk = MemoryDisk()
    logs = manager(disk, dirs=THREE[:1])
    for topic in ("s", "t", "u"):
        create(logs, topic)
    run(logs.close())
    disk.remove("/a/.kafka_cleanshutdown")
    for name, offset in (("recovery-point", recovered), ("cleaner", cleaned)):
        path = f"/a/{name}-offset-checkpoint"
        stored = {("s", 0): 2, ("t", 0): offset, ("u", 0): 2}
        disk.write_atomic(path, render_offsets(stored))
    manager(disk, dirs=THREE[:1]).abandon()
    for name, offset in (("recovery-point", recovered), ("cleaner", cleaned)):
        found = parse_offsets(disk.read_bytes(f"/a/{name}-offset-checkpoint"))
        assert found["t", 0] == min(offset, 5)
        assert (found["s", 0], found["u", 0]) == (2, 2)


def _turn(work: Coroutine[Any, Any, None]) -> str | None:
    """Runs the coroutine until its next pause. Returns None if it has ended."""
    try:
        work.send(None)
    except StopIteration:
        return None
    return "pause"


def test_other_tasks_run_while_a_start_opens_many_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_logs, "OPEN_SLICE", 2)
    for count in range(6):
        disk = MemoryDisk()
        logs = manager(disk)
        for number in range(count):
            logs.create(f"t{number}", TOPIC_ID, 0, LogConfig())
        run(logs.close())
        opening = LogManager(disk, ("/logs",), ManualClock()).open(node_id=1, cluster_id="cluster")
        pauses = list(iter(partial(_turn, opening), None))
        assert len(pauses) == count // 2


@pytest.mark.parametrize("adopted", [0, 1])
def test_log_that_an_adopted_copy_replaced_while_its_directory_was_offline_is_renamed_at_the_start(
    adopted: int,
) -> None:
    disk = MemoryDisk()
    for slot, path in enumerate(THREE[:2]):
        logs = manager(disk, dirs=(path,), random=Random(slot))
        create(logs, "t")
        if slot == adopted:
            moved_mark.mark_adopted(disk, f"{path}/t-0")
        run(logs.close())
    logs = manager(disk, dirs=THREE[:2])
    found = logs.get("t", 0)
    assert found is not None
    assert found.log_dir == THREE[adopted]
    stray = [[name for name in disk.listdir(path) if name.endswith("-stray")] for path in THREE[:2]]
    assert [len(each) for each in stray] == [slot != adopted for slot in range(2)]


def test_start_leaves_the_metadata_log_to_the_quorum_and_goes_on_with_the_next_log() -> None:
    disk = MemoryDisk()
    logs = manager(disk)
    for topic in ("__a", "__cluster_metadata", "t"):
        create(logs, topic)
    logs.abandon()
    path = f"/logs/__cluster_metadata-0/{0:020d}.log"
    disk.open(path).append(b"torn")
    before = disk.read_bytes(path)
    logs = manager(disk)
    assert logs.get("__cluster_metadata", 0) is None
    assert disk.read_bytes(path) == before
    for topic in ("__a", "t"):
        log = logs.get(topic, 0)
        assert log is not None
        assert log.log_end_offset == 5
