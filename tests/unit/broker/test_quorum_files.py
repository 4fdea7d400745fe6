"""Tests the recovery of the quorum's files after a crash: snapshot and log become consistent."""

from __future__ import annotations

from pathlib import Path
from random import Random

from penstock.broker.controlplane.metadata_storage import DIRECTORY, SnapshotStore, open_metadata_log
from penstock.broker.controlplane.quorum_files import QuorumFiles
from penstock.clock import ManualClock
from penstock.disk.memory import MemoryDisk
from penstock.disk.real import RealDisk
from penstock.log.log import AppendOrigin, Log
from penstock.metadata.checkpoint import checkpoint_name, write_checkpoint
from penstock.protocol.errors import ErrorCode
from penstock.raft.log_view import OffsetAndEpoch
from penstock.raft.messages import SnapshotChunk
from penstock.raft.voters import Voter, VoterSet
from penstock.records.build import build_batch

VOTERS = VoterSet.of([Voter(1), Voter(2), Voter(3)])


def open_log(disk: MemoryDisk) -> Log:
    return open_metadata_log(disk, "/data", ManualClock(), Random(1))


def write_records(log: Log, count: int, *, epoch: int) -> None:
    for _ in range(count):
        batch = build_batch([(1, None, b"x", ())], leader_epoch=epoch)
        log.append_as_leader(batch, leader_epoch=epoch, now_ms=1, origin=AppendOrigin.RAFT_LEADER)
    log.flush_now()


def start_again(disk: MemoryDisk, log: Log, snapshot: OffsetAndEpoch) -> QuorumFiles:
    """Restarts a process that crashed right after it stored the leader's snapshot."""
    data = b"".join(write_checkpoint([], epoch=snapshot.epoch, timestamp_ms=1))
    disk.write_atomic(f"{log.path}/{checkpoint_name(*snapshot)}", data)
    log.close()
    log = open_log(disk)
    return QuorumFiles(log, disk, ManualClock(), SnapshotStore(disk, log.path), VOTERS)


def test_snapshot_that_was_stored_before_a_crash_replaces_a_longer_log_of_an_older_epoch() -> None:
    disk = MemoryDisk()
    disk.mkdir("/data")
    log = open_log(disk)
    write_records(log, 200, epoch=1)  # other replicas committed 95 of the records, and continued in epoch 2
    view, _ = start_again(disk, log, OffsetAndEpoch(100, 2)).view()
    assert (view.start_offset, view.end_offset, view.last_epoch) == (100, 100, 2)


def test_metadata_log_that_continues_after_the_snapshot_is_kept() -> None:
    disk = MemoryDisk()
    disk.mkdir("/data")
    log = open_log(disk)
    write_records(log, 90, epoch=1)
    write_records(log, 30, epoch=2)
    files = start_again(disk, log, OffsetAndEpoch(100, 2))
    view, _ = files.view()
    assert (view.start_offset, view.end_offset, view.last_epoch) == (0, 120, 2)
    view, _ = files.view()
    assert view.end_offset == 120


def test_damaged_snapshot_is_not_sent_to_a_replica_and_is_reported() -> None:
    disk = MemoryDisk()
    disk.mkdir("/data")
    snapshot = OffsetAndEpoch(100, 2)
    files = start_again(disk, open_log(disk), snapshot)
    path = f"/data/__cluster_metadata-0/{checkpoint_name(*snapshot)}"
    asked = SnapshotChunk(ErrorCode.NONE, 2, 1, snapshot, max_bytes=1 << 20)
    damage: list[str] = []
    whole, _ = files.fill(asked, lambda: damage.append(path))
    assert isinstance(whole, SnapshotChunk)
    assert (whole.error, whole.data, damage) == (ErrorCode.NONE, disk.read_bytes(path), [])
    data = bytearray(whole.data)
    data[len(data) // 2] ^= 1
    disk.write_atomic(path, bytes(data))
    again = QuorumFiles(open_log(disk), disk, ManualClock(), SnapshotStore(disk, "/data/__cluster_metadata-0"), VOTERS)
    refused, _ = again.fill(asked, lambda: damage.append(path))
    assert isinstance(refused, SnapshotChunk)
    assert (refused.error, refused.data, damage) == (ErrorCode.SNAPSHOT_NOT_FOUND, b"", [path])


def test_sent_snapshot_leaves_no_file_open(tmp_path: Path) -> None:
    disk = RealDisk()
    path = str(tmp_path / DIRECTORY)
    log = open_metadata_log(disk, str(tmp_path), ManualClock(), Random(1))
    data = b"".join(write_checkpoint([], epoch=2, timestamp_ms=1))
    disk.write_atomic(f"{path}/{checkpoint_name(100, 2)}", data)
    files = QuorumFiles(log, disk, ManualClock(), SnapshotStore(disk, path), VOTERS)
    before = disk.open_files
    received = b""
    while len(received) < len(data):
        chunk = SnapshotChunk(ErrorCode.NONE, 2, 1, OffsetAndEpoch(100, 2), len(received), 50)
        answer, _ = files.fill(chunk, lambda: None)
        assert isinstance(answer, SnapshotChunk)
        received += answer.data
    assert received == data
    assert disk.open_files == before
    log.close()
    disk.close()
