"""Checks that data which a node regards as synced would survive a power loss at this moment.

    flushed offset    the records below it, the names of their files, the log's directory and the topic id
    recovery point    also the index files of the segments that end below it, and the producer snapshots and leader
                      epochs below it
    synced mark       every record that was in the log when the mark was requested; the mark itself, or its removal
    truncation        the new end of the log's last files, the removal of all files above that end, and a recovery
                      point in the checkpoint file that is not above that end
    fetch offset      the records below it, in a Fetch of the metadata log, or of a topic whose acknowledgements promise
                      fsync: the leader counts them as on this disk
    checkpoint        no checkpoint file has a recovery point above the end of its log
    vote              the file quorum-state
    clean-shutdown    all records, indexes, producer snapshots and leader epochs of the directory: the next start
    mark              verifies nothing

A power loss in a run finds a missing fsync only if the power is lost in the few milliseconds in which it matters. This
check needs no power loss: the simulated volume knows which changes are unsynced. It runs whenever a node makes such a
claim.

A file whose earlier fsync failed is left out: a kernel may have dropped its data, and a later process can't know this.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from penstock.broker.controlplane.metadata_storage import DIRECTORY as METADATA_LOG
from penstock.broker.controlplane.quorum import Quorum
from penstock.broker.controlplane.quorum_files import QuorumFiles
from penstock.broker.replicas.followed_partition import FollowedPartition
from penstock.disk.api import Disk
from penstock.disk.volume import Directory, Inode, Volume
from penstock.log.checkpoints import (
    LEADER_EPOCH_FILE,
    PARTITION_METADATA_FILE,
    RECOVERY_POINT_FILE,
    CheckpointError,
    parse_offsets,
)
from penstock.log.directory import DELETE_SUFFIX, FUTURE_SUFFIX, STRAY_SUFFIX, LogDir
from penstock.log.epochs import LeaderEpochCache
from penstock.log.flush import Durability
from penstock.log.log import Log
from penstock.log.segment import INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX
from penstock.log.snapshot_files import SNAPSHOT_SUFFIX
from penstock.log.synced_mark import SYNCED_MARK_FILE, Mark
from penstock.metadata.quorum_state import QUORUM_STATE_FILE
from penstock.raft.events import Send
from penstock.raft.messages import Fetch
from penstock.sim.checks.taps import Tap
from penstock.sim.engine.machine import Machine

RULE = "durability"
#: The length of the base offset, which is the first field of a batch.
OFFSET_BYTES = 8
INDEX_SUFFIXES = (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)
#: Files that a start after a clean stop trusts.
TRUSTED_SUFFIXES = (LOG_SUFFIX, *INDEX_SUFFIXES, SNAPSHOT_SUFFIX, LEADER_EPOCH_FILE, PARTITION_METADATA_FILE)


class DurabilityClaims:
    def __init__(self, machines: Sequence[Machine], violated: Callable[[str, str], None]) -> None:
        self._machines = machines
        self._violated = violated
        self._reported: set[str] = set()
        #: Logs whose truncation has begun.
        self._truncating: set[Log] = set()

    def taps(self) -> list[Tap]:
        return [
            Tap(Durability, "_sync_records", self.synced, answer=True),
            Tap(Durability, "finish", self.flushed),
            Tap(Durability, "_write_mark", self.marked, answer=True),
            Tap(Durability, "_erase_mark", self.unmarked, answer=True),
            Tap(Log, "begin_truncation", self.truncation_begins),
            Tap(Log, "truncate_to", self.truncated),
            Tap(Log, "truncate_fully_and_start_at", self.truncated),
            Tap(QuorumFiles, "save_state", self.voted),
            Tap(Quorum, "_ask", self.fetching_metadata, before=True),
            Tap(FollowedPartition, "position", self.fetching),
            Tap(LogDir, "_save", self.saved, answer=True),
            Tap(LogDir, "leave_clean_mark", self.stopped),
        ]

    # Claims of a node.

    def synced(self, durability: Durability) -> Callable[[object], None]:
        """Observes a group commit. Checks the flushed offset at its end."""
        log = durability._log
        return lambda _: self._check(log, lambda volume: unsynced_records(volume, log, log.flushed_offset))

    def flushed(self, durability: Durability, *_: object) -> None:
        """Checks the flushed offset and the recovery point after a full flush."""
        log = durability._log
        self._check(log, lambda volume: unsynced_records(volume, log, log.flushed_offset))
        self._check(log, lambda volume: unsynced_indexes(volume, log, durability.recovery_point))
        self._check(log, lambda volume: unsynced_side_files(volume, log, durability.recovery_point))

    def marked(self, durability: Durability) -> Callable[[object], None]:
        """Observes the task that writes a synced mark. At its end, checks the mark and the records that were in the log
        when the task began."""
        log = durability._log
        end, generation = log.log_end_offset, log.generation

        def ended(_: object) -> None:
            if durability.mark is Mark.PRESENT:
                self._check(log, lambda volume: unsynced_name(volume, f"{log.path}/{SYNCED_MARK_FILE}"))
                if log.generation == generation:
                    self._check(log, lambda volume: unsynced_records(volume, log, end))

        return ended

    def unmarked(self, durability: Durability) -> Callable[[object], None]:
        """Observes the task that removes a synced mark. At its end, checks that no power loss can bring it back."""
        log = durability._log
        return lambda _: self._check(log, lambda volume: unsynced_name(volume, f"{log.path}/{SYNCED_MARK_FILE}"))

    def truncation_begins(self, log: Log, *_: object) -> None:
        self._truncating.add(log)

    def truncated(self, log: Log, *_: object) -> None:
        """Checks that no power loss can bring back records, or files about records, that a truncation has removed."""
        if log in self._truncating:
            self._truncating.discard(log)
            self._check(log, lambda volume: unsynced_truncation(volume, log))
            self._check(log, lambda volume: recovery_points_above(volume, log))

    def voted(self, files: QuorumFiles, *_: object) -> None:
        path = f"{files._log.path}/{QUORUM_STATE_FILE}"
        self._check(files._log, lambda volume: (*unsynced_content(volume, path), *unsynced_name(volume, path)))

    def fetching_metadata(self, quorum: Quorum, effect: Send) -> None:
        request, log = effect.request, quorum._files._log
        if isinstance(request, Fetch):
            self._check(log, lambda volume: unsynced_records(volume, log, request.offset))

    def fetching(self, followed: FollowedPartition, *_: object) -> None:
        log = followed.partition.log
        if log.config.fsync_before_ack:
            self._check(log, lambda volume: unsynced_records(volume, log, followed.asked))

    def saved(self, directory: LogDir, *_: object) -> Callable[[object], None]:
        def ended(_: object) -> None:
            machine = self._machine_of(directory.disk)
            logs = machine.broker.logs if machine is not None and machine.broker is not None else ()
            for log in logs:
                if log.log_dir == directory.path and log not in self._truncating:
                    self._check(log, partial(recovery_points_above, log=log))

        return ended

    def stopped(self, directory: LogDir, *_: object) -> None:
        """Checks all files of a directory that has just got its clean-shutdown mark."""
        if not directory.offline:
            self._report(directory.disk, lambda volume: unsynced_directory(volume, directory.path))

    def _check(self, log: Log, losses: Callable[[Volume], Iterator[str] | Sequence[str]]) -> None:
        if not log.offline and not log.health.closed:
            self._report(log.environment.disk, losses)

    def _machine_of(self, disk: Disk) -> Machine | None:
        return next((each for each in self._machines if each.disk is disk), None)

    def _report(self, disk: Disk, losses: Callable[[Volume], Iterator[str] | Sequence[str]]) -> None:
        machine = self._machine_of(disk)
        if machine is None:
            return
        for what in losses(machine.volume):
            if what not in self._reported:
                self._reported.add(what)
                self._violated(RULE, f"{machine.name} regards data as synced that a power loss would erase: {what}")


def unsynced_directory(volume: Volume, path: str) -> Iterator[str]:
    """Yields the trusted files of all logs in the log directory `path` that have unsynced changes.

    Leaves out empty files, because a start creates missing files, and logs that never had records. Also leaves out the
    metadata log: a start verifies all its batches and rebuilds its indexes, whatever the mark says.
    """
    directory = volume.find(path)
    for name, entry in directory.entries.items() if isinstance(directory, Directory) else ():
        if not isinstance(entry, Directory) or name.endswith((DELETE_SUFFIX, STRAY_SUFFIX, FUTURE_SUFFIX)):
            continue
        if name == METADATA_LOG:
            continue
        filled = [file for file, inode in entry.entries.items() if isinstance(inode, Inode) and inode.data]
        if any(file.endswith((LOG_SUFFIX, SNAPSHOT_SUFFIX)) for file in filled):
            for file in filled:
                if file.endswith(TRUSTED_SUFFIXES):
                    yield from unsynced_content(volume, f"{path}/{name}/{file}")
                    yield from _unsynced_creation(volume, f"{path}/{name}/{file}")


def unsynced_records(volume: Volume, log: Log, end: int) -> Iterator[str]:
    """Yields the unsynced data and names that the log's records below offset `end` need to survive a power loss."""
    covered = [segment for segment in log.segments if segment.base_offset < end and segment.size]
    for segment in covered:
        path = segment.path(LOG_SUFFIX)
        inode = volume.find(path)
        if isinstance(inode, Inode) and not inode.poisoned and inode.pending:
            position = min(change.offset for change in inode.pending)
            first = bytes(inode.data[position : position + OFFSET_BYTES])
            if len(first) == OFFSET_BYTES and int.from_bytes(first, "big") < end:
                yield f"{path} from position {position} on, below offset {end}"
        yield from _unsynced_creation(volume, path)
    if covered:
        topic_id = f"{log.path}/{PARTITION_METADATA_FILE}"
        yield from unsynced_content(volume, topic_id)
        yield from _unsynced_creation(volume, topic_id)
        yield from unsynced_name(volume, log.path)


def unsynced_indexes(volume: Volume, log: Log, recovery_point: int) -> Iterator[str]:
    """Yields the unsynced index files of the log's segments that end at or below the recovery point."""
    bases = log.segments.bases
    for segment, next_base in zip(log.segments, bases[1:]):
        if next_base <= recovery_point:
            for suffix in INDEX_SUFFIXES:
                yield from unsynced_content(volume, segment.path(suffix))
                yield from _unsynced_creation(volume, segment.path(suffix))


def unsynced_truncation(volume: Volume, log: Log) -> Iterator[str]:
    """Yields the removed data that a power loss would bring back after a truncation of the log."""
    active = log.segments.active
    for suffix in (LOG_SUFFIX, *INDEX_SUFFIXES):
        inode = volume.find(active.path(suffix))
        if isinstance(inode, Inode) and not inode.poisoned and any(change.length < 0 for change in inode.pending):
            yield f"the truncation of {active.path(suffix)}"
    for step in _steps(volume, active.path(LOG_SUFFIX)):
        for name, _, after in step:
            if after is None:
                yield f"the removal of {log.path}/{name}"


def unsynced_side_files(volume: Volume, log: Log, recovery_point: int) -> Iterator[str]:
    """Yields the producer snapshots and leader epochs below the recovery point that a power loss would erase.

    A start reads the leader epochs between the first epoch in the file and the recovery point only from the file.
    """
    directory = volume.find(log.path)
    for name in sorted(directory.entries) if isinstance(directory, Directory) else ():
        if name.endswith(SNAPSHOT_SUFFIX) and int(name.removesuffix(SNAPSHOT_SUFFIX)) < recovery_point:
            yield from unsynced_content(volume, f"{log.path}/{name}")
            yield from _unsynced_creation(volume, f"{log.path}/{name}")
    path = f"{log.path}/{LEADER_EPOCH_FILE}"
    for data in _possible_contents(volume, path):
        try:
            known = LeaderEpochCache.from_bytes(data).entries
        except CheckpointError:
            continue  # a start would rebuild the file
        for epoch, start in log.epochs.entries:
            # In the file an epoch may start earlier: at an offset that is below the log start now.
            at_start = [each for each, known_start in known if known_start <= start]
            if start < recovery_point and at_start and at_start[-1] != epoch:
                yield f"the leader epoch {epoch} at offset {start} in {path}"


def recovery_points_above(volume: Volume, log: Log) -> Iterator[str]:
    """Yields the recovery points above the log end that a start after a power loss could read for this log.

    After later appends, such a start would trust records that were never synced.
    """
    if posixpath.basename(log.path) != f"{log.topic}-{log.partition}":
        return  # the checkpoint file does not contain copies that are not in use yet
    path = f"{posixpath.dirname(log.path)}/{RECOVERY_POINT_FILE}"
    for data in _possible_contents(volume, path):
        try:
            recovery_point = parse_offsets(data).get((log.topic, log.partition), 0)
        except CheckpointError:
            continue  # a start would verify all records
        if recovery_point > log.log_end_offset:
            yield f"the recovery point of {log.path} in {path} is still {recovery_point}, above {log.log_end_offset}"


def _possible_contents(volume: Volume, path: str) -> list[bytes]:
    """Returns the contents that the file may have after a power loss, depending on which renames survive."""
    name = posixpath.basename(path)
    found = [volume.find(path)]
    found += [entry for step in _steps(volume, path) for each, *entries in step if each == name for entry in entries]
    return [bytes(entry.data) for entry in found if isinstance(entry, Inode)]


def unsynced_content(volume: Volume, path: str) -> Iterator[str]:
    """Yields `path` if a change of the file's content is not synced."""
    inode = volume.find(path)
    if isinstance(inode, Inode) and inode.pending and not inode.poisoned:
        yield f"the content of {path}"


def unsynced_name(volume: Volume, path: str) -> Iterator[str]:
    """Yields `path` if the creation, a rename or the removal of this file or directory is not synced."""
    if any(name == posixpath.basename(path) for step in _steps(volume, path) for name, _, _ in step):
        yield f"the directory entry of {path}"


def _unsynced_creation(volume: Volume, path: str) -> Iterator[str]:
    """Yields `path` if the file was created and the sync of its directory is missing.

    The rename of a compacted file does not count: after a power loss, the file is there under one of its two names.
    """
    name = posixpath.basename(path)
    if any(len(step) == 1 and step[0][0] == name and step[0][2] is not None for step in _steps(volume, path)):
        yield f"the directory entry of {path}"


def _steps(
    volume: Volume, path: str
) -> Sequence[Sequence[tuple[str, Inode | Directory | None, Inode | Directory | None]]]:
    """Returns the unsynced changes of the directory that contains `path`."""
    directory = volume.find(posixpath.dirname(path))
    return directory.pending if isinstance(directory, Directory) else ()
