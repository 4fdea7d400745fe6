"""Opens a log that is on disk, after a clean stop or after a crash.

After a clean stop the files are trusted: the last index entry and the headers after it give the end of the log.
After a crash every batch above the recovery point is read and its checksum verified; the log ends at the first batch
that fails, or at a gap between two segments. Indexes, leader epochs and producer state are rebuilt to match.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from penstock.check import check
from penstock.log import synced_mark
from penstock.log.checkpoints import LEADER_EPOCH_FILE, CheckpointError
from penstock.log.epochs import LeaderEpochCache
from penstock.log.log import Log
from penstock.log.producers import ProducerStateManager
from penstock.log.replay import Recovered, batches_between, rebuild_producers
from penstock.log.scan import CorruptBatchError, scan_headers, scan_verified
from penstock.log.segment import (
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    MAX_RELATIVE_OFFSET,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    Segment,
)
from penstock.log.snapshot_files import SNAPSHOT_SUFFIX, SnapshotFiles
from penstock.log.swap import finish_swaps
from penstock.log.synced_mark import Mark
from penstock.log.txn_index import AbortedTransaction

if TYPE_CHECKING:
    from penstock.disk.api import Disk
    from penstock.log.environment import LogEnvironment
    from penstock.metadata.configs.topic import LogConfig

logger = logging.getLogger(__name__)

#: Up to this size it is quicker to walk the headers than to open the index.
SMALL_SEGMENT = 8192
MAX_EPOCH_FILE_BYTES = 1 << 26


@dataclass(slots=True)
class LogPlace:
    """Holds the directory of a log, and the partition that the log belongs to."""

    log_dir: str
    path: str
    topic: str
    partition: int
    topic_id: bytes


@dataclass(slots=True)
class Found:
    """Holds the files that a log's directory contains, by kind."""

    bases: list[int]
    snapshots: list[int]
    names: set[str]


def create_log(environment: LogEnvironment, place: LogPlace, config: LogConfig, start_offset: int = 0) -> Log:
    """Creates a log in its directory, which exists and is empty."""
    segment = Segment.create(
        environment.disk,
        place.path,
        start_offset,
        created_ms=environment.clock.wall_ms(),
        index_interval=config.index_interval_bytes,
    )
    producers = ProducerStateManager()
    producers.map_end_offset = start_offset
    return _assemble(
        environment,
        place,
        config,
        [segment],
        LeaderEpochCache(),
        SnapshotFiles(environment.disk, place.path, []),
        producers,
        start_offset,
        start_offset,
        start_offset,
    )


def open_log(
    environment: LogEnvironment,
    place: LogPlace,
    config: LogConfig,
    *,
    recovery_point: int = 0,
    log_start_offset: int = 0,
    clean: bool,
) -> Log:
    """Opens the log in `place.path`. Raises OSError if the disk fails, CorruptBatchError if the log is unusable."""
    disk = environment.disk
    found = _survey(environment, place.path)
    segments = [
        Segment(
            disk,
            place.path,
            base,
            size=disk.size(f"{place.path}/{base:020d}{LOG_SUFFIX}"),
            has_aborted=f"{base:020d}{TXN_INDEX_SUFFIX}" in found.names,
            created_ms=0,
            index_interval=config.index_interval_bytes,
        )
        for base in found.bases
    ]
    snapshots = SnapshotFiles(disk, place.path, found.snapshots)
    if not segments:
        snapshots.remove_all()
        return _start_over(environment, place, config, log_start_offset, found)
    if not segments[-1].size:
        segments[-1].created_ms = environment.clock.wall_ms()
    epochs, epochs_whole = _load_epochs(environment, place.path, found)
    recovered: Recovered | None = None
    damaged = False
    if clean:
        end = recovery_point = _end_of(segments)
        for segment in segments:
            segment.synced_size = segment.size
    else:
        recovered = Recovered(recovery_point)
        end = _recover(place, segments, recovery_point, recovered)
        damaged = end < recovery_point
        recovery_point = min(recovery_point, end)
    if end < log_start_offset:
        # All remaining records are lost. Their offsets were used once, so the log continues after them.
        logger.warning(
            "%s ends at offset %d, before its start offset %d: the log starts over, empty, at its start offset",
            place.path,
            end,
            log_start_offset,
        )
        _discard(disk, segments, 0)
        snapshots.remove_all()
        return _start_over(environment, place, config, log_start_offset, found)
    start = max(log_start_offset, segments[0].base_offset)
    mark = synced_mark.find(disk, place.path, found.names, damaged=damaged)
    producers = ProducerStateManager()
    log = _assemble(
        environment, place, config, segments, epochs, snapshots, producers, start, end, recovery_point, mark
    )
    _restore_epochs(log, recovered if epochs_whole else None, recovery_point if epochs_whole else start)
    # A snapshot above the recovery point may describe records that are gone.
    if snapshots.remove_above(recovery_point):
        disk.sync_dir(place.path)  # else a crash could bring one back when other records have these offsets
    if not clean:
        _note_unsynced_files(log, found)
    if snapshots.offsets or not clean:
        aborted = rebuild_producers(log, recovered)
        if not clean:
            _restore_aborted(log, aborted)
    else:
        log.producers.map_end_offset = end
    return log


def _note_unsynced_files(log: Log, found: Found) -> None:
    """Lets the next flush sync the files that the previous process may have written and not synced before it died.

    A clean stop has to sync them too, even if the log does not grow, because the start after it trusts them.
    """
    durability, recovery_point = log.durability, log.recovery_point
    if recovery_point in log.snapshots.offsets:  # older snapshots were synced before the recovery point passed them
        durability.note_unsynced(log.snapshots.path(recovery_point))
    for segment, following in pairwise(log.segments):
        # After a truncation to the recovery point, a roll completes the time index below it (see `Log._seal`).
        if following.base_offset == recovery_point and segment.size:
            durability.note_unsynced(segment.path(TIME_INDEX_SUFFIX))
    if LEADER_EPOCH_FILE in found.names:
        durability.note_unsynced(f"{log.path}/{LEADER_EPOCH_FILE}")


def _start_over(environment: LogEnvironment, place: LogPlace, config: LogConfig, start: int, found: Found) -> Log:
    log = create_log(environment, place, config, start)
    environment.disk.sync_dir(place.path)
    synced_mark.find(environment.disk, place.path, found.names, damaged=True)  # removes the mark: the records are lost
    return log


def _assemble(
    environment: LogEnvironment,
    place: LogPlace,
    config: LogConfig,
    segments: list[Segment],
    epochs: LeaderEpochCache,
    snapshots: SnapshotFiles,
    producers: ProducerStateManager,
    start: int,
    end: int,
    recovery_point: int,
    mark: Mark = Mark.ABSENT,
) -> Log:
    return Log(
        environment,
        place.log_dir,
        place.path,
        place.topic,
        place.partition,
        place.topic_id,
        config,
        segments,
        epochs=epochs,
        producers=producers,
        snapshots=snapshots,
        log_start_offset=start,
        log_end_offset=end,
        recovery_point=recovery_point,
        mark=mark,
    )


def _survey(environment: LogEnvironment, path: str) -> Found:
    """Lists the files of the log's directory, and removes files that only a crash leaves behind."""
    disk = environment.disk
    names = finish_swaps(disk, path, set(disk.listdir(path)))
    for name in sorted(name for name in names if name.endswith((DELETED_SUFFIX, ".tmp"))):
        disk.remove(f"{path}/{name}")
        names.discard(name)
    bases = _offsets(names, LOG_SUFFIX)
    known = set(bases)
    for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX):
        for offset in _offsets(names, suffix):
            if offset not in known:
                disk.remove(f"{path}/{offset:020d}{suffix}")
    return Found(bases, _offsets(names, SNAPSHOT_SUFFIX), names)


def _offsets(names: set[str], suffix: str) -> list[int]:
    cut = len(suffix)
    return sorted(int(name[:-cut]) for name in names if name.endswith(suffix) and name[:-cut].isdecimal())


def _end_of(segments: list[Segment]) -> int:
    """Returns the log end offset of a log that was stopped cleanly."""
    last = segments[-1]
    if not last.size:
        return last.base_offset
    end = last.base_offset
    start = 0
    if last.size > SMALL_SEGMENT:
        entry = last.index.last
        start = entry[1] if entry is not None else 0
    for _, header in scan_headers(last.file, start, last.size):
        end = header.next_offset
    return end


def _recover(place: LogPlace, segments: list[Segment], recovery_point: int, recovered: Recovered) -> int:
    """Verifies every batch of the segments above the recovery point. Returns the log end offset.

    The segment that ends at the recovery point, or contains it, does not count as synced: the process may have been
    killed after it had truncated the segment there, and before it had synced the file.
    """
    first = 0
    while first + 1 < len(segments) and segments[first + 1].base_offset <= recovery_point:
        if segments[first + 1].base_offset < recovery_point:
            segments[first].synced_size = segments[first].size
        first += 1
    expected = segments[first].base_offset
    for slot in range(first, len(segments)):
        segment = segments[slot]
        if slot > first and segment.base_offset != expected:
            logger.warning(
                "%s lost records %d to %d: a segment is missing, and the segments after the gap are removed",
                place.path,
                expected,
                segment.base_offset - 1,
            )
            _discard(segment.disk, segments, slot)
            break
        expected, whole = _recover_segment(segment, recovery_point, recovered)
        if not whole:
            _discard(segment.disk, segments, slot + 1)
            break
    if expected < recovery_point:
        logger.error(
            "%s ends at offset %d, but records up to offset %d were on disk: its disk lost synced data",
            place.path,
            expected,
            recovery_point,
        )
    return expected


def _discard(disk: Disk, segments: list[Segment], slot: int) -> None:
    """Removes the segments from index `slot` on and syncs the directory, so that a crash does not bring them back."""
    doomed = segments[slot:]
    for segment in reversed(doomed):
        logger.warning("removing %s: the segment before it is damaged or missing", segment.file.path)
        segment.remove_files()
    del segments[slot:]
    if doomed:
        disk.sync_dir(doomed[0].directory)


def _recover_segment(segment: Segment, recovery_point: int, recovered: Recovered) -> tuple[int, bool]:
    """Verifies a segment from the recovery point on, and truncates it at the first damaged batch.

    Returns the offset after the segment's last valid batch, and True if all batches were valid.
    """
    position, expected = _trusted_part(segment, recovery_point)
    size = segment.size
    segment.trusted_from = position
    segment.size = position
    try:
        for batch in scan_verified(segment.file, position, size, expected):
            if (
                batch.header.last_offset - segment.base_offset > MAX_RELATIVE_OFFSET
            ):  # the checksum does not cover offsets
                raise CorruptBatchError(
                    segment.file.path,
                    batch.position,
                    f"the batch's offset {batch.header.base_offset} is too large for the segment",
                )
            segment.account(batch.header, batch.position)
            recovered.note(segment, batch.position, batch.header)
            expected = batch.header.next_offset
    except CorruptBatchError as error:
        logger.warning(
            "truncating a segment by %d bytes, to the start of its first incomplete or damaged batch: %s",
            size - segment.size,
            error,
        )
        segment.file.truncate(segment.size)
        segment.file.sync_now()
        return expected, False
    check(segment.size == segment.file.size, "a recovered segment ends where its file ends")
    return expected, True


def _trusted_part(segment: Segment, recovery_point: int) -> tuple[int, int]:
    """Returns the position and the offset from which the segment must be verified.

    Removes the index entries after that position.
    """
    if recovery_point > segment.base_offset and segment.size:
        try:
            segment.reset_indexes(recovery_point)
            # A batch must end exactly at the recovery point, else index and log do not match.
            found = segment.locate(recovery_point - 1)
            if found is not None and segment.last_timestamp_fits():
                position = found[0] + found[1]
                header = next(scan_headers(segment.file, found[0], position))[1]
                if header.next_offset == recovery_point:
                    return position, recovery_point
            logger.warning(
                "%s does not match its indexes at the recovery point %d: verifying the whole segment",
                segment.file.path,
                recovery_point,
            )
        except CorruptBatchError as error:
            logger.warning("verifying a whole segment, because its index does not match: %s", error)
    segment.reset_indexes(segment.base_offset)
    return 0, segment.base_offset


def _load_epochs(environment: LogEnvironment, path: str, found: Found) -> tuple[LeaderEpochCache, bool]:
    if LEADER_EPOCH_FILE not in found.names:
        return LeaderEpochCache(), False
    data = environment.disk.read_bytes(f"{path}/{LEADER_EPOCH_FILE}", MAX_EPOCH_FILE_BYTES)
    try:
        return LeaderEpochCache.from_bytes(data), bool(data)
    except CheckpointError as error:
        logger.warning("rebuilding %s/%s from the batches, because it is damaged: %s", path, LEADER_EPOCH_FILE, error)
        return LeaderEpochCache(), False


def _restore_epochs(log: Log, recovered: Recovered | None, start: int) -> None:
    """Adds leader epochs that the epoch file may lack. Reads them from the batches at or above `start`, and from the
    batches below the first epoch in the file."""
    epochs = log.epochs
    epochs.truncate_from_end(min(start, log.log_end_offset))
    if recovered is not None:
        for epoch, offset in recovered.epochs:
            epochs.assign(epoch, offset)
    elif start < log.log_end_offset:
        for _, _, header in batches_between(log.segments, start, log.log_end_offset):
            epochs.assign(header.partition_leader_epoch, header.base_offset)
    first_known = epochs.starts[0] if epochs.starts else log.log_end_offset
    if first_known > log.log_start_offset:
        # The log start moved up and the epochs were written, but the crash came before the log start was.
        known = epochs.entries
        epochs.clear()
        for _, _, header in batches_between(log.segments, log.log_start_offset, first_known):
            epochs.assign(header.partition_leader_epoch, header.base_offset)
        for epoch, offset in known:
            epochs.assign(epoch, offset)
    epochs.truncate_from_start(log.log_start_offset)


def _restore_aborted(log: Log, rebuilt: dict[int, list[AbortedTransaction]]) -> None:
    """Rewrites the transaction indexes above the recovery point from the markers in the log."""
    for segment in log.segments.starting_at(log.recovery_point):
        kept = (
            [each for each in segment.aborted if each.last_offset < log.recovery_point] if segment.has_aborted else []
        )
        new = [each for each in rebuilt.get(segment.base_offset, ()) if each.last_offset >= log.recovery_point]
        if new or segment.has_aborted:
            segment.replace_aborted(kept + new)
