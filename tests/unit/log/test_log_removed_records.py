"""Tests the removal of records when something is wrong, and what stays afterwards: damage, failed disks, open files."""

from __future__ import annotations

import errno

import pytest
from log_harness import TOPIC_ID, batch, manager, offsets, produce, run
from move_harness import A, B, directories, log_in_a, names, swapped
from segment_harness import BASE, LONG, filled

from penstock.disk.memory import MemoryDisk, MemoryFile
from penstock.log.directory import DirectoryError, LogDir
from penstock.log.segment import LOG_SUFFIX, SUFFIXES
from penstock.log.txn_index import AbortedTransaction
from penstock.metadata.configs.topic import LogConfig
from penstock.protocol.errors import ErrorCode, KafkaError

SIZE = len(batch())
NOW = 1_700_000_000_000


@pytest.fixture
def handles(monkeypatch: pytest.MonkeyPatch) -> list[MemoryFile]:
    """Collects all files that are opened."""
    found: list[MemoryFile] = []
    begin = MemoryFile.__init__

    def opened(self: MemoryFile, disk: MemoryDisk, path: str) -> None:
        begin(self, disk, path)
        found.append(self)

    monkeypatch.setattr(MemoryFile, "__init__", opened)
    return found


def still_open(handles: list[MemoryFile]) -> list[str]:
    return [each.path for each in handles if each._inode is not None]


def test_segment_keeps_no_open_file_of_its_aborted_transactions_and_none_at_all_when_it_is_closed(
    handles: list[MemoryFile],
) -> None:
    for entries in (0, 1, 3):
        for how in ("close", "remove_files"):
            handles.clear()
            segment, _ = filled(LONG)
            for number in range(entries):
                segment.append_aborted(AbortedTransaction(7, BASE + number, BASE + number, BASE + number + 1))
            assert not [path for path in still_open(handles) if path.endswith(".txnindex")]
            segment.seal()
            _ = segment.index.entries(), segment.time_index.entries()
            getattr(segment, how)()
            assert still_open(handles) == []


@pytest.mark.parametrize("missing", SUFFIXES)
def test_segment_can_be_renamed_without_an_index_but_not_without_its_data_file(missing: str) -> None:
    segment, _ = filled(LONG)
    segment.seal()
    segment.disk.remove(segment.path(missing))
    if missing == LOG_SUFFIX:
        with pytest.raises(OSError, match="no such file"):
            segment.change_suffix(".swap")
    else:
        segment.change_suffix(".swap")
        assert segment.disk.exists(segment.path(LOG_SUFFIX))


def test_truncation_behind_a_damaged_batch_is_refused_and_reports_the_damage() -> None:
    for cut in range(1, 5):
        disk = MemoryDisk()
        logs = manager(disk)
        log = logs.create("t", TOPIC_ID, 0, LogConfig())
        for _ in range(5):
            produce(log)
        run(logs.close())
        logs = manager(disk)
        found = logs.get("t", 0)
        assert found is not None
        log = found
        disk.inode("/logs/t-0/00000000000000000000.log").data[2 * SIZE + 8] = 0x7F
        if cut < 2:
            assert log.truncate_to(cut)
            assert (log.log_end_offset, logs.corruptions) == (cut, {})
            continue
        with pytest.raises(KafkaError) as refused:
            log.truncate_to(cut)
        assert refused.value.code is ErrorCode.CORRUPT_MESSAGE
        assert list(logs.corruptions) == [("t", 0)]
        assert (log.log_end_offset, log.offline) == (5, False)


def test_retention_deletes_nothing_of_a_log_whose_directory_has_failed() -> None:
    for failed in (False, True):
        logs = manager()
        log = logs.create("t", TOPIC_ID, 0, LogConfig(segment_bytes=SIZE, retention_bytes=SIZE))
        for _ in range(4):
            produce(log)
        if failed:
            logs.take_offline(logs.dirs[0], OSError(errno.EIO, "broken"))
        before = sorted(logs.disk.listdir("/logs/t-0"))
        assert log.delete_old_segments(NOW) == (0 if failed else 3)
        assert (sorted(logs.disk.listdir("/logs/t-0")) == before) is failed
        assert log.log_start_offset == (0 if failed else 3)


def test_retention_removes_the_producer_snapshots_of_deleted_segments() -> None:
    for kept in range(1, 5):
        logs = manager()
        log = logs.create("t", TOPIC_ID, 0, LogConfig(segment_bytes=SIZE, retention_bytes=kept * SIZE))
        for sequence in range(5):
            produce(log, producer_id=7, producer_epoch=0, base_sequence=sequence)
        assert log.snapshots.offsets == [1, 2, 3, 4]
        assert log.delete_old_segments(NOW) == 5 - kept
        assert offsets(log) == list(range(5 - kept, 5))
        assert log.snapshots.offsets == [each for each in (1, 2, 3, 4) if each >= 5 - kept]
        found = [name for name in logs.disk.listdir("/logs/t-0") if name.endswith(".snapshot")]
        assert sorted(found) == [f"{each:020d}.snapshot" for each in log.snapshots.offsets]


@pytest.mark.parametrize("code", [errno.EIO, errno.EMFILE])
def test_directory_that_cannot_be_listed_before_moves_are_finished_is_not_served(
    code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second listing succeeds: without the first, an old log would be served beside the new log."""
    disk = MemoryDisk()
    logs = directories(disk)
    log = log_in_a(logs)
    produce(log)
    run(swapped(logs, logs.futures.create(log, logs.dirs[1])))
    logs.abandon()
    listed, log_names = [], LogDir.log_names

    def failing(self: LogDir) -> list[str]:
        listed.append(self.path)
        if listed == [A]:
            raise OSError(code, "broken")
        return log_names(self)

    monkeypatch.setattr(LogDir, "log_names", failing)
    if code == errno.EMFILE:
        with pytest.raises(DirectoryError, match="limit of open files"):
            directories(disk)
        return
    logs = directories(disk)
    assert [each.offline for each in logs.dirs] == [True, False]
    found = logs.get("t", 0)
    assert found is not None
    assert (found.log_dir, names(logs, B)) == (B, ["t-0"])
