"""Reads and writes the quorum's files for `raft`: its vote, its log and its snapshots."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.broker.controlplane.metadata_storage import READ_BYTES, StorageError
from penstock.check import check
from penstock.log.flush import sync_to_end
from penstock.log.log import AppendOrigin
from penstock.metadata.checkpoint import CheckpointError, check_checkpoint, checkpoint_name, read_checkpoint
from penstock.metadata.quorum_state import QUORUM_STATE_FILE, QuorumStateError
from penstock.metadata.quorum_state import QuorumState as StateFile
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.uuid import ZERO_UUID
from penstock.protocol.vocabulary import NO_NODE
from penstock.raft.batches import encode_own, parse_batches
from penstock.raft.events import LeaderChange, QuorumState, VotersChange
from penstock.raft.log_view import LogView, OffsetAndEpoch
from penstock.raft.messages import FetchAnswer, SnapshotChunk
from penstock.raft.voters import ReplicaKey, Voter, VoterHistory, VoterSet

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.broker.controlplane.metadata_storage import SnapshotStore
    from penstock.clock import Clock
    from penstock.disk.api import Disk
    from penstock.log.log import Log
    from penstock.raft.log_view import Batch
    from penstock.raft.messages import Answer

logger = logging.getLogger(__name__)

MAX_SNAPSHOT_BYTES = 1 << 30
#: A snapshot is checked for damage when a peer begins to fetch it, unless the last check was within this time.
CHECK_SNAPSHOT_MS = 10_000


class DamagedSnapshotError(Exception):
    """Raised if the snapshot that the leader sent can't be decoded."""


class QuorumFiles:
    def __init__(self, log: Log, disk: Disk, clock: Clock, snapshots: SnapshotStore, static_voters: VoterSet) -> None:
        self._log = log
        self._disk = disk
        self._clock = clock
        self._snapshots = snapshots
        self._static_voters = static_voters
        self._download = bytearray()
        self._checked: tuple[str, int] = ("", 0)
        #: True if the snapshot or the log has the voters, so that controller.quorum.voters does not count.
        self.has_voters = False

    # --- the vote ---------------------------------------------------------------------------------------

    def read_state(self) -> QuorumState:
        path = f"{self._log.path}/{QUORUM_STATE_FILE}"
        if not self._disk.exists(path):
            return QuorumState()
        try:
            saved = StateFile.from_bytes(self._disk.read_bytes(path))
        except QuorumStateError as error:
            # Without its saved vote, a voter could vote twice in an epoch.
            raise StorageError(
                f"{path} can't be read ({error}): restore the file, or add the node to the quorum with an empty disk."
            ) from None
        voted = ReplicaKey(saved.voted_id, saved.voted_directory_id) if saved.voted_id != NO_NODE else None
        return QuorumState(saved.leader_epoch, saved.leader_id, voted)

    def save_state(self, state: QuorumState) -> None:
        voted_id, voted_directory = state.voted if state.voted is not None else (NO_NODE, ZERO_UUID)
        data = StateFile(state.leader_id, state.epoch, voted_id, voted_directory).to_bytes()
        self._disk.write_atomic(f"{self._log.path}/{QUORUM_STATE_FILE}", data, sync=True)

    # --- the log ----------------------------------------------------------------------------------------

    @property
    def end_offset(self) -> int:
        return self._log.log_end_offset

    @property
    def flushed_offset(self) -> int:
        return self._log.flushed_offset

    def view(self) -> tuple[LogView, VoterHistory]:
        """Returns the recovered log's offsets and epochs, and the voter sets in the snapshot and the log."""
        log = self._log
        snapshot, voters = self._latest_snapshot()
        if snapshot is not None and _is_beyond(snapshot, log):
            log.truncate_fully_and_start_at(snapshot.offset)
        if log.log_start_offset > (snapshot.offset if snapshot is not None else 0):
            raise StorageError(
                f"{log.path} starts at offset {log.log_start_offset} and no snapshot has the records before it: "
                "restore a snapshot, or add the node to the quorum with an empty disk."
            )
        offset = log.log_start_offset
        while offset < log.log_end_offset:
            batches = parse_batches(log.read(offset, READ_BYTES, upper_bound=log.log_end_offset).read_now())
            if not batches:
                raise StorageError(
                    f"{log.path} can't be read at offset {offset}: restore the directory, or add the node to "
                    "the quorum with an empty disk."
                )
            for batch in batches:
                if batch.voters is not None and batch.last_offset > voters.latest_offset:
                    voters.record(batch.last_offset, batch.voters)
                    self.has_voters = True
            offset = batches[-1].last_offset + 1
        view = LogView(
            start_offset=log.log_start_offset,
            end_offset=log.log_end_offset,
            epochs=log.epochs.entries,
            snapshot=snapshot,
        )
        log.flush_now()
        return view, voters

    def _latest_snapshot(self) -> tuple[OffsetAndEpoch | None, VoterHistory]:
        for end_offset, epoch, name in reversed(self._snapshots.names()):
            try:
                content = read_checkpoint(self._disk.read_bytes(f"{self._log.path}/{name}"))
            except CheckpointError as error:
                logger.error(
                    "snapshot %s/%s is damaged; the previous snapshot is used: %s", self._log.path, name, error
                )
                continue
            voters = _voter_set(content.voters) if content.voters else self._static_voters
            self.has_voters = bool(content.voters)
            # The snapshot of a newly formatted directory ends before the first record: peers never fetch it.
            snapshot = OffsetAndEpoch(end_offset, epoch) if end_offset > 0 else None
            return snapshot, VoterHistory(voters, end_offset - 1)
        return None, VoterHistory(self._static_voters)

    def append(self, batches: tuple[Batch, ...], epoch: int) -> None:
        """Appends batches to the log.

        Batches that this node proposes as leader get their offsets here. Batches that it fetched already have offsets.
        """
        fetched = []
        for batch in batches:
            if isinstance(batch.content, memoryview):
                fetched.append(batch.content)
                continue
            content = batch.content
            if isinstance(content, LeaderChange | VotersChange):
                content = encode_own(content, epoch=batch.epoch, timestamp=self._clock.wall_ms())
            info = self._log.append_as_leader(
                content, leader_epoch=batch.epoch, now_ms=self._clock.wall_ms(), origin=AppendOrigin.RAFT_LEADER
            )
            check(info.base_offset == batch.base_offset, "the log assigns the offsets that raft has assigned")
            check(info.last_offset == batch.last_offset, "a proposal has as many records as it announced")
        if fetched:
            self._log.append_as_follower(b"".join(fetched), epoch)
        check(self._log.log_end_offset == batches[-1].last_offset + 1, "the log ends at the end offset of raft")

    async def flush(self) -> None:
        await sync_to_end(self._log)

    def truncate(self, offset: int) -> None:
        self._log.truncate_to(offset)
        check(self._log.log_end_offset == offset, "the log is truncated between two batches")
        self._log.flush_now()

    def committed(self, high_watermark: int) -> None:
        self._log.update_high_watermark(high_watermark)

    # --- answers ----------------------------------------------------------------------------------------

    def fill(self, answer: Answer, on_damage: Callable[[], None]) -> tuple[Answer, bytes]:
        """Reads the records or the snapshot bytes for the response to a peer.

        Reads synchronously, so that the log can't change meanwhile. Calls `on_damage` if the peer fetches a snapshot
        that is damaged on this node's disk.
        """
        if isinstance(answer, FetchAnswer) and answer.read_from is not None:
            part = self._log.read(answer.read_from, answer.max_bytes, upper_bound=self._log.log_end_offset)
            return answer, bytes(part.read_now())
        if isinstance(answer, SnapshotChunk) and answer.snapshot is not None and not answer.error:
            return self._chunk(answer, answer.snapshot, on_damage), b""
        return answer, b""

    def _chunk(self, answer: SnapshotChunk, snapshot: OffsetAndEpoch, on_damage: Callable[[], None]) -> SnapshotChunk:
        path = f"{self._log.path}/{checkpoint_name(*snapshot)}"
        if not self._disk.exists(path):
            return replace(answer, error=ErrorCode.SNAPSHOT_NOT_FOUND)
        size = self._disk.size(path)
        if not 0 <= answer.position < size:
            return replace(answer, error=ErrorCode.POSITION_OUT_OF_RANGE)
        if answer.position == 0 and not self._is_whole(path, on_damage):
            return replace(answer, error=ErrorCode.SNAPSHOT_NOT_FOUND)
        file = self._disk.open(path)
        try:
            data = file.pread(min(answer.max_bytes, size - answer.position), answer.position)
        finally:
            file.close()
        return replace(answer, size=size, data=bytes(data))

    def _is_whole(self, path: str, on_damage: Callable[[], None]) -> bool:
        """Returns True if the snapshot file is undamaged. Otherwise calls `on_damage`.

        Called before the snapshot is sent, because a peer would fetch a damaged snapshot again and again.
        """
        now_ms = self._clock.wall_ms()
        if self._checked[0] == path and 0 <= now_ms - self._checked[1] < CHECK_SNAPSHOT_MS:
            return True
        try:
            check_checkpoint(self._disk.read_bytes(path))
        except CheckpointError as error:
            logger.error("snapshot %s is damaged (%s) and is written again from memory", path, error)
            on_damage()
            return False
        self._checked = (path, now_ms)
        return True

    # --- a snapshot from the leader -----------------------------------------------------------------------

    def write_snapshot(self, snapshot: OffsetAndEpoch, position: int, data: bytes) -> None:
        del self._download[position:]
        check(len(self._download) == position, f"the chunks of snapshot {snapshot.offset} arrive in order")
        if position + len(data) > MAX_SNAPSHOT_BYTES:
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"The leader's snapshot {snapshot.offset} is larger than the maximum of {MAX_SNAPSHOT_BYTES} bytes: "
                "delete topics or configs.",
            )
        self._download += data

    def install_snapshot(self, snapshot: OffsetAndEpoch) -> VoterSet | None:
        """Stores the downloaded snapshot, then restarts the log at the snapshot's end; returns the snapshot's voters.

        The snapshot is made durable before the log restarts: after a crash between the two steps, the node starts from
        the new snapshot and the old log. Returns None if the snapshot has no voters. Raises DamagedSnapshotError and
        changes nothing if the snapshot can't be decoded.
        """
        data = bytes(self._download)
        self._download.clear()
        try:
            content = read_checkpoint(data)
        except CheckpointError as error:
            raise DamagedSnapshotError(str(error)) from None
        self._snapshots.install(checkpoint_name(*snapshot), data)
        self._log.truncate_fully_and_start_at(snapshot.offset)
        self._log.flush_now()
        self._snapshots.remove_before(snapshot.offset)
        return _voter_set(content.voters) if content.voters else None


def _is_beyond(snapshot: OffsetAndEpoch, log: Log) -> bool:
    """Returns True if the snapshot is newer than the end of the log.

    This happens if the process ended between the two steps of `install_snapshot`. As in Kafka, a log whose last epoch
    is older than the snapshot's epoch counts as older, even if the log is longer: its records may differ from the
    snapshot. An empty log has no epoch to compare: it follows the snapshot at which it starts. If that snapshot is
    damaged, an older snapshot must not move the log back, because the quorum counts on the records before its start.
    """
    is_empty = log.log_start_offset == log.log_end_offset
    return log.log_end_offset < snapshot.offset or (snapshot.epoch > (log.epochs.latest_epoch or 0) and not is_empty)


def _voter_set(voters: tuple[Voter, ...]) -> VoterSet:
    return VoterSet.of(voters)
