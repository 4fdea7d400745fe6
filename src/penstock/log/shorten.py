"""Removes records of a log: at the end (truncation) and at the start (retention, DeleteRecords).

A crash may come between two steps, so their order matters. Truncation first lowers the checkpoints, then truncates and
syncs the segment files, then removes producer snapshots and other files above the new end: the disk always holds a
valid earlier state of the log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.log.replay import rebuild_producers
from penstock.log.scan import CorruptBatchError
from penstock.log.segment import Segment
from penstock.log.swap import cancel_swaps
from penstock.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from penstock.log.log import Log


def truncate_to(log: Log, offset: int) -> bool:
    if offset < 0:
        raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, f"A log can't be truncated to the negative offset {offset}.")
    if offset >= log.log_end_offset:
        if offset == log.log_end_offset:
            # An epoch may start at the log end: that of records that retention has deleted.
            log.epochs.truncate_from_end(offset)
        return False
    try:
        cancel_swaps(log)
        # Batches stay whole: a cut inside a batch removes all of it.
        offset = log.segments.starting_at(offset)[0].boundary(offset)
        if offset <= log.segments.bases[0]:
            truncate_fully_and_start_at(log, offset)
        else:
            _cut(log, offset)
    except CorruptBatchError as error:
        log.health.report_corruption(str(error))
        raise KafkaError(
            ErrorCode.CORRUPT_MESSAGE, f"The log can't be truncated, because a batch is damaged: {error}."
        ) from error
    except OSError as error:
        raise log.health.failed_midway(error) from error
    return True


def _cut(log: Log, offset: int) -> None:
    log.begin_truncation(offset)
    later = [segment for segment in log.segments if segment.base_offset >= offset]
    if later:
        log.drop_segments(later[::-1])
        # Else a crash could bring one of them back behind newer records.
        log.environment.disk.sync_dir(log.path)
    log.segments.active.truncate_to(offset)
    log.end_at(offset)
    log.epochs.truncate_from_end(offset)
    log.snapshots.remove_above(offset)
    # After a crash, no file may describe removed records once other records have their offsets.
    log.environment.disk.sync_dir(log.path)
    rebuild_producers(log)


def truncate_fully_and_start_at(log: Log, offset: int) -> None:
    log.begin_truncation(min(offset, log.log_start_offset))
    try:
        cancel_swaps(log)
        log.drop_segments(log.segments[::-1])
        segment = Segment.create(
            log.environment.disk,
            log.path,
            offset,
            created_ms=log.environment.clock.wall_ms(),
            index_interval=log.config.index_interval_bytes,
        )
        log.restart_at(segment)
        log.epochs.clear()
        log.snapshots.remove_all()
        log.producers.clear(offset)
        log.environment.disk.sync_dir(log.path)
        log.environment.recovery_point_lowered(log)
    except OSError as error:
        raise log.health.failed_midway(error) from error


def delete_old_segments(log: Log, now_ms: int) -> int:
    if log.offline:
        return 0
    try:
        doomed = _doomed(log, now_ms)
        if not doomed:
            return 0
        if len(doomed) == len(log.segments):
            log.roll(now_ms=now_ms)
        log.drop_segments(doomed)
        log.snapshots.keep_only(log.segments.bases)
    except OSError as error:
        raise log.health.failed(error) from error
    first = log.segments.bases[0]
    if first > log.log_start_offset:
        log.advance_log_start_offset(first)
    return len(doomed)


def _doomed(log: Log, now_ms: int) -> list[Segment]:
    """Returns the segments that retention deletes: the oldest segments, up to the first segment that has to stay.

    A segment is deleted if it is too old, if the log has at least retention.bytes without it, or if it lies below the
    log start. A segment with records at or above the high watermark stays.
    """
    config = log.config
    excess = log.size - config.retention_bytes if config.delete and config.retention_bytes >= 0 else -1
    by_time = config.delete and config.retention_ms >= 0
    doomed: list[Segment] = []
    for slot, segment in enumerate(log.segments):
        is_last = slot + 1 == len(log.segments)
        end = log.log_end_offset if is_last else log.segments.bases[slot + 1]
        if end > log.high_watermark or (is_last and not segment.size):
            break
        expired = by_time and now_ms - _newest(segment) > config.retention_ms
        too_much = excess >= segment.size
        below_start = not is_last and end <= log.log_start_offset
        if not (expired or too_much or below_start):
            break
        excess -= segment.size
        doomed.append(segment)
    return doomed


def _newest(segment: Segment) -> int:
    """Returns the largest timestamp in the segment; the file's modification time if no record has a timestamp."""
    timestamp = segment.max_timestamp
    return timestamp if timestamp >= 0 else segment.disk.mtime_ms(segment.file.path)
