"""Tests each operation on the quorum's files alone, with all small logs, snapshots and chunks."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from random import Random

import pytest

from penstock.broker.controlplane import quorum_files
from penstock.broker.controlplane.metadata_storage import DIRECTORY, SnapshotStore, StorageError, open_metadata_log
from penstock.broker.controlplane.quorum_files import CHECK_SNAPSHOT_MS, DamagedSnapshotError, QuorumFiles
from penstock.check import InvariantError
from penstock.clock import ManualClock
from penstock.disk.memory import MemoryDisk
from penstock.log.log import AppendOrigin, Log
from penstock.metadata.checkpoint import checkpoint_name, write_checkpoint
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.raft.batches import parse_batches
from penstock.raft.events import LeaderChange, QuorumState, VotersChange
from penstock.raft.log_view import Batch, OffsetAndEpoch
from penstock.raft.messages import FetchAnswer, SnapshotChunk
from penstock.raft.voters import ReplicaKey, Voter, VoterSet
from penstock.records.build import build_batch

PATH = f"/data/{DIRECTORY}"


def voters(*node_ids: int) -> VoterSet:
    return VoterSet.of(Voter(node_id, bytes([node_id] * 16)) for node_id in node_ids)


STATIC = voters(1)


class Stage:
    def __init__(self, disk: MemoryDisk | None = None) -> None:
        if disk is None:
            disk = MemoryDisk(crashable=True)
            disk.mkdir("/data")
        self.disk = disk
        self.clock = ManualClock()
        self.log: Log = open_metadata_log(disk, "/data", self.clock, Random(1))
        self.files = QuorumFiles(self.log, disk, self.clock, SnapshotStore(disk, PATH), STATIC)
        self.damaged: list[str] = []

    def write(self, epoch: int, records: int = 1) -> None:
        batch = build_batch([(1, None, b"x", ())] * records, leader_epoch=epoch)
        self.log.append_as_leader(batch, leader_epoch=epoch, now_ms=1, origin=AppendOrigin.RAFT_LEADER)

    def append(self, content: bytes | LeaderChange | VotersChange, records: int = 1, epoch: int = 1) -> None:
        end = self.files.end_offset
        self.files.append((Batch(end, end + records - 1, epoch, content),), epoch)

    def store(self, snapshot: OffsetAndEpoch, who: VoterSet | None = None) -> bytes:
        data = snapshot_data(snapshot.epoch, who)
        self.disk.write_atomic(f"{PATH}/{checkpoint_name(*snapshot)}", data)
        return data

    def chunk(self, asked: SnapshotChunk) -> SnapshotChunk:
        filled, records = self.files.fill(asked, lambda: self.damaged.append("damaged"))
        assert isinstance(filled, SnapshotChunk)
        assert records == b""
        return filled

    def download(self, data: bytes, snapshot: OffsetAndEpoch) -> None:
        half = len(data) // 2
        self.files.write_snapshot(snapshot, 0, data[:half])
        self.files.write_snapshot(snapshot, half, data[half:])


def snapshot_data(epoch: int, who: VoterSet | None = None) -> bytes:
    listed = () if who is None else who.voters
    return b"".join(write_checkpoint([], epoch=epoch, timestamp_ms=1, kraft_version=1 if listed else 0, voters=listed))


def one_record(epoch: int = 1) -> bytes:
    return build_batch([(1, None, b"x", ())], leader_epoch=epoch)


def asked(snapshot: OffsetAndEpoch, position: int = 0, max_bytes: int = 1 << 20) -> SnapshotChunk:
    return SnapshotChunk(ErrorCode.NONE, 1, 1, snapshot, position, max_bytes)


# --- the vote -------------------------------------------------------------------------------------------


def test_every_field_of_the_quorum_state_survives_a_power_loss() -> None:
    stage = Stage()
    assert stage.files.read_state() == QuorumState()
    choices = product((0, 7), (-1, 0, 3), (None, ReplicaKey(0), ReplicaKey(2, bytes([5] * 16))))
    for seed, (epoch, leader_id, voted) in enumerate(choices):
        state = QuorumState(epoch, leader_id, voted)
        stage.files.save_state(state)
        assert Stage(stage.disk.crash(Random(seed))).files.read_state() == state


def test_node_with_an_unreadable_vote_does_not_start() -> None:
    stage = Stage()
    stage.disk.write_atomic(f"{PATH}/quorum-state", b"torn")
    with pytest.raises(StorageError, match="quorum-state can't be read"):
        stage.files.read_state()


# --- the recovered log -----------------------------------------------------------------------------------


def test_view_of_every_small_log_and_snapshot_follows_the_rule_of_kafka() -> None:
    """Compares with Kafka's rule: a snapshot replaces a log that ends before it or whose last epoch is older. An older
    snapshot never replaces an empty log."""
    refused = 0
    snapshots = [None, *(OffsetAndEpoch(*pair) for pair in product((2, 3, 4), (1, 2, 3)))]
    for start, epochs, snapshot in product((0, 2, 3), ([], [1], [1, 2], [2, 2]), snapshots):
        stage = Stage()
        if start:
            stage.log.truncate_fully_and_start_at(start)
        for epoch in epochs:
            stage.write(epoch)
        end, last_epoch = start + len(epochs), max(epochs, default=0)
        case = (start, epochs, snapshot)
        replaced = snapshot is not None and (end < snapshot.offset or (snapshot.epoch > last_epoch and start != end))
        if snapshot is not None:
            stage.store(snapshot)
            if replaced:
                start = end = snapshot.offset
        if start > (0 if snapshot is None else snapshot.offset):
            refused += 1
            with pytest.raises(StorageError, match=f"starts at offset {start} and no snapshot"):
                stage.files.view()
            continue
        view, history = stage.files.view()
        assert (view.start_offset, view.end_offset, view.snapshot) == (start, end, snapshot), case
        if replaced or not epochs:
            assert view.last_epoch == (snapshot.epoch if snapshot is not None and start == snapshot.offset else 0), case
        else:
            assert view.last_epoch == last_epoch, case
        assert (stage.files.end_offset, stage.files.flushed_offset) == (end, end)
        assert (history.latest, stage.files.has_voters) == (STATIC, False)
    assert refused


@pytest.mark.parametrize("read_bytes", [1, 1 << 20])
def test_view_has_the_voters_of_the_snapshot_and_of_all_later_records(
    monkeypatch: pytest.MonkeyPatch, read_bytes: int
) -> None:
    monkeypatch.setattr(quorum_files, "READ_BYTES", read_bytes)
    listed = (None, voters(7, 8))
    for kinds in product((False, True), repeat=4):
        for end_offset, in_snapshot in [(0, None), *product((1, 2, 3, 4), listed)]:
            stage = Stage()
            for offset, is_change in enumerate(kinds):
                stage.append(VotersChange(voters(1, offset + 2)) if is_change else one_record())
            if end_offset:
                stage.store(OffsetAndEpoch(end_offset, 1), in_snapshot)
            _, history = stage.files.view()
            first = in_snapshot or STATIC
            sets = {offset: voters(1, offset + 2) for offset in range(end_offset, 4) if kinds[offset]}
            for below in range(end_offset, 5):
                known = [offset for offset in sets if offset < below]
                assert history.before(below) == (sets[known[-1]] if known else first), (kinds, end_offset, below)
            assert history.latest_offset == max(sets, default=end_offset - 1)
            assert stage.files.has_voters == bool(sets or in_snapshot)


def test_view_ignores_damaged_snapshots_and_snapshots_of_newly_formatted_directories() -> None:
    stage = Stage()
    for _ in range(3):
        stage.write(1)
    stage.store(OffsetAndEpoch(0, 0), voters(4))
    view, history = stage.files.view()
    assert (view.snapshot, history.latest, history.latest_offset) == (None, voters(4), -1)
    stage.store(OffsetAndEpoch(2, 1), voters(5))
    torn = stage.store(OffsetAndEpoch(3, 1), voters(6))[:-1]
    stage.disk.write_atomic(f"{PATH}/{checkpoint_name(3, 1)}", torn)
    view, history = stage.files.view()
    assert (view.snapshot, history.latest, history.latest_offset) == (OffsetAndEpoch(2, 1), voters(5), 1)


# --- appends and truncations -----------------------------------------------------------------------------


def test_own_batches_of_all_kinds_are_appended_together_with_their_epochs() -> None:
    stage = Stage()
    two = build_batch([(1, None, b"a", ()), (1, None, b"b", ())], leader_epoch=4)
    change = LeaderChange(1, (1,), (1,), voters(1, 2))
    stage.files.append(
        (Batch(0, 2, 4, change), Batch(3, 4, 4, two), Batch(5, 5, 4, VotersChange(voters(1, 3)))),
        4,
    )
    data = stage.log.read(0, 1 << 20, upper_bound=6).read_now()
    found = [(one.base_offset, one.last_offset, one.epoch, one.voters) for one in parse_batches(data)]
    assert found == [(0, 2, 4, voters(1, 2)), (3, 4, 4, None), (5, 5, 4, voters(1, 3))]


def test_all_fetched_batches_are_appended_with_the_offsets_and_epochs_of_the_leader() -> None:
    leader, follower = Stage(), Stage()
    for epoch, records in ((1, 2), (1, 1), (3, 1)):
        leader.write(epoch, records)
    data = leader.log.read(0, 1 << 20, upper_bound=4).read_now()
    follower.files.append(parse_batches(data), 3)
    assert bytes(follower.log.read(0, 1 << 20, upper_bound=4).read_now()) == bytes(data)
    assert follower.log.epochs.entries == leader.log.epochs.entries


def test_append_with_other_offsets_than_the_log_is_an_error() -> None:
    for first, last in ((1, 1), (0, 1)):
        with pytest.raises(InvariantError):
            Stage().files.append((Batch(first, last, 1, one_record()),), 1)


@pytest.mark.parametrize("offset", range(5))
def test_truncated_records_do_not_return_after_a_power_loss(offset: int) -> None:
    for seed in range(8):
        stage = Stage()
        for _ in range(4):
            stage.write(1)
        stage.log.flush_now()
        stage.files.truncate(offset)
        assert (stage.files.end_offset, stage.files.flushed_offset) == (offset, offset)
        assert Stage(stage.disk.crash(Random(seed))).files.end_offset == offset


def test_truncation_inside_a_batch_is_an_error() -> None:
    stage = Stage()
    stage.write(1, records=3)
    with pytest.raises(InvariantError, match="between two batches"):
        stage.files.truncate(2)


def test_committed_offset_becomes_the_high_watermark_of_the_log() -> None:
    stage = Stage()
    for _ in range(3):
        stage.write(1)
    for offset in (1, 3):
        stage.files.committed(offset)
        assert stage.log.high_watermark == offset


# --- answers ---------------------------------------------------------------------------------------------


def test_fetch_answer_gets_the_records_from_its_offset_on() -> None:
    stage = Stage()
    for _ in range(3):
        stage.write(1)
    stage.files.committed(1)  # peers of the quorum also fetch records that are not committed
    for read_from, max_bytes in product(range(4), (1, 1 << 20)):
        answer = FetchAnswer(ErrorCode.NONE, 1, 1, read_from=read_from, max_bytes=max_bytes)
        same, data = stage.files.fill(answer, lambda: None)
        assert same == answer
        expected = list(range(read_from, 3))[: 1 if max_bytes == 1 else 3]
        assert [one.base_offset for one in parse_batches(data)] == expected
    none = FetchAnswer(ErrorCode.NONE, 1, 1, max_bytes=1 << 20)
    assert stage.files.fill(none, lambda: None) == (none, b"")


def test_snapshot_chunk_has_the_asked_part_of_the_file_or_an_error() -> None:
    stage = Stage()
    snapshot = OffsetAndEpoch(5, 2)
    data = stage.store(snapshot)
    size = len(data)
    for position, max_bytes in product((-1, 0, 1, size - 1, size, size + 1), (0, 1, size - 1, size, size + 1)):
        ask = asked(snapshot, position, max_bytes)
        if 0 <= position < size:
            expected = replace(ask, size=size, data=data[position : position + max_bytes])
        else:
            expected = replace(ask, error=ErrorCode.POSITION_OUT_OF_RANGE)
        assert stage.chunk(ask) == expected
    for missing in (OffsetAndEpoch(5, 1), OffsetAndEpoch(4, 2)):
        assert stage.chunk(asked(missing)) == replace(asked(missing), error=ErrorCode.SNAPSHOT_NOT_FOUND)


def test_refused_snapshot_fetch_gets_no_data() -> None:
    stage = Stage()
    snapshot = OffsetAndEpoch(5, 2)
    stage.store(snapshot)
    for refused in (
        replace(asked(snapshot), error=ErrorCode.FENCED_LEADER_EPOCH),
        replace(asked(snapshot), snapshot=None),
        replace(asked(snapshot), error=ErrorCode.NOT_LEADER_OR_FOLLOWER, snapshot=None),
    ):
        assert stage.chunk(refused) == refused


def test_snapshot_is_checked_for_damage_when_a_fetch_begins_but_not_again_within_the_interval() -> None:
    stage = Stage()
    first, second = OffsetAndEpoch(5, 2), OffsetAndEpoch(6, 2)
    data = stage.store(first)
    damaged = data[:-1] + bytes([data[-1] ^ 1])
    assert stage.chunk(asked(first)).error == ErrorCode.NONE
    for snapshot in (first, second):
        stage.disk.write_atomic(f"{PATH}/{checkpoint_name(*snapshot)}", damaged)
    for wait_ms, snapshot, position, is_refused in (
        (0, second, 0, True),  # the check of another snapshot does not count
        (0, second, 1, False),
        (CHECK_SNAPSHOT_MS - 1, first, 0, False),
        (1, first, 1, False),
        (0, first, 0, True),
        (-CHECK_SNAPSHOT_MS - 1, first, 0, True),  # the clock went back
    ):
        stage.clock.advance(wait_ms)
        stage.damaged.clear()
        answer = stage.chunk(asked(snapshot, position))
        case = (wait_ms, snapshot, position)
        assert answer.error == (ErrorCode.SNAPSHOT_NOT_FOUND if is_refused else ErrorCode.NONE), case
        assert stage.damaged == ["damaged"] * is_refused
        assert (answer.data == b"") == is_refused


# --- a snapshot from the leader ----------------------------------------------------------------------------


def test_downloaded_chunks_are_joined_and_a_download_can_begin_again() -> None:
    stage = Stage()
    snapshot = OffsetAndEpoch(9, 3)
    data = snapshot_data(3, voters(1, 2))
    stage.files.write_snapshot(snapshot, 0, b"an earlier download")
    for position in range(0, len(data), 10):
        stage.files.write_snapshot(snapshot, position, data[position : position + 10])
    with pytest.raises(InvariantError, match="arrive in order"):
        stage.files.write_snapshot(snapshot, len(data) + 1, b"x")
    assert stage.files.install_snapshot(snapshot) == voters(1, 2)
    assert stage.disk.read_bytes(f"{PATH}/{checkpoint_name(*snapshot)}") == data
    with pytest.raises(DamagedSnapshotError):
        stage.files.install_snapshot(snapshot)  # a download is installed once


def test_download_may_be_as_large_as_the_limit_and_not_larger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quorum_files, "MAX_SNAPSHOT_BYTES", 10)
    snapshot = OffsetAndEpoch(9, 3)
    for first in range(10):
        files = Stage().files
        files.write_snapshot(snapshot, 0, bytes(first))
        files.write_snapshot(snapshot, first, bytes(10 - first))
        for position in (first, 10):
            with pytest.raises(KafkaError, match="larger than the maximum of 10 bytes") as refused:
                files.write_snapshot(snapshot, position, bytes(11 - position))
            assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
            files.write_snapshot(snapshot, first, bytes(10 - first))


def test_installed_snapshot_replaces_the_log_and_older_snapshots() -> None:
    stage = Stage()
    for _ in range(4):
        stage.write(1)
    stage.log.flush_now()
    stage.store(OffsetAndEpoch(2, 1))
    snapshot = OffsetAndEpoch(9, 3)
    stage.download(snapshot_data(3), snapshot)
    assert stage.files.install_snapshot(snapshot) is None
    assert (stage.log.log_start_offset, stage.files.end_offset, stage.files.flushed_offset) == (9, 9, 9)
    assert SnapshotStore(stage.disk, PATH).names() == [(9, 3, checkpoint_name(9, 3))]


def test_damaged_download_changes_nothing() -> None:
    stage = Stage()
    stage.write(1)
    stage.store(OffsetAndEpoch(1, 1))
    stage.download(snapshot_data(3)[:-1], OffsetAndEpoch(9, 3))
    with pytest.raises(DamagedSnapshotError):
        stage.files.install_snapshot(OffsetAndEpoch(9, 3))
    assert (stage.log.log_start_offset, stage.files.end_offset) == (0, 1)
    assert SnapshotStore(stage.disk, PATH).names() == [(1, 1, checkpoint_name(1, 1))]


def test_power_loss_at_any_step_of_an_installation_leaves_the_old_log_or_the_new_snapshot() -> None:
    snapshot = OffsetAndEpoch(9, 3)
    results = set()
    for step in range(1000):
        stage = Stage()
        for _ in range(4):
            stage.write(1)
        stage.store(OffsetAndEpoch(2, 1))
        stage.files.view()
        stage.download(snapshot_data(3), snapshot)
        left = [step]

        def lose_power(operation: str, path: str, left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] < 0:
                raise OSError(5, "power loss")

        stage.disk.on_write = lose_power
        try:
            stage.files.install_snapshot(snapshot)
            done = True
        except (OSError, KafkaError):
            done = False
        for seed in range(20):
            view, _ = Stage(stage.disk.crash(Random(seed))).files.view()
            found = (view.start_offset, view.end_offset, view.last_epoch, view.snapshot)
            results.add(found)
            if done:
                assert found == (9, 9, 3, snapshot)
        if done:
            break
    assert results == {(0, 4, 1, OffsetAndEpoch(2, 1)), (9, 9, 3, snapshot)}
