"""Replaces a segment of a log by the batches that another replica has, because a batch of the segment is damaged.

The new segment is written beside the old segment and swapped in like a compacted segment, so a crash at any point
leaves the old or the new segment. The end of the log and its high watermark do not change, and the replica stays in
sync. Only committed records are replaced: below the high watermark, all in-sync replicas have the same records.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from penstock.log.segment import Segment
from penstock.log.swap import CLEANED_SUFFIX, swap_in
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.records.batches import check_crc, iter_batches

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from penstock.log.log import Log
    from penstock.records.header import BatchHeader

#: Returns batches of the other replica, from the one that holds this offset on. Raises KafkaError.
Fetch = Callable[[int], Awaitable["Buffer"]]


def segment_to_refill(log: Log, offset: int) -> tuple[Segment, int] | None:
    """Returns the sealed segment that holds `offset`, and the offset at which the segment ends.

    Returns None if the segment can't be replaced now: it has uncommitted records, or the log is offline, is being
    moved, or has the cleanup.policy compact. The active segment is sealed first, so that it ends at the current end of
    the log.
    """
    if log.offline or log.is_moving or log.config.compact or not log.log_start_offset <= offset < log.high_watermark:
        return None
    segment = log.segments.starting_at(offset)[0]
    if segment is log.segments.active:
        log.roll()
    end = next((base for base in log.segments.bases if base > segment.base_offset), log.log_end_offset)
    return (segment, end) if end <= log.high_watermark and segment is not log.segments.active else None


async def refill(log: Log, old: Segment, end: int, fetch: Fetch, leader_epoch: int) -> bool:
    """Replaces the sealed segment `old`, which ends at offset `end`, by the batches that `fetch` returns.

    Returns False if the log was truncated, moved or shortened meanwhile. Raises KafkaError, and keeps the old segment,
    if the other replica lacks records or has a damaged batch too.
    """
    generation = log.generation
    await log.flush()
    new = _empty_copy(log, old)
    try:
        await _fill(log, old, new, end, fetch, leader_epoch)
        await log.environment.disk.run(_complete, old, new)
        unchanged = log.generation == generation and old in log.segments and not log.health.closed
        done = bool(unchanged and await swap_in(log, [([old], new)]))
    except OSError as error:
        new.remove_files()
        raise log.health.failed(error) from error
    except BaseException:
        new.remove_files()
        raise
    if not unchanged:
        new.remove_files()
    return done


def _empty_copy(log: Log, old: Segment) -> Segment:
    try:
        return Segment.create(
            log.environment.disk,
            log.path,
            old.base_offset,
            created_ms=log.environment.clock.wall_ms(),
            index_interval=log.config.index_interval_bytes,
            suffix=CLEANED_SUFFIX,
        )
    except OSError as error:
        raise log.health.failed(error) from error


async def _fill(log: Log, old: Segment, new: Segment, end: int, fetch: Fetch, leader_epoch: int) -> None:
    at = max(old.base_offset, log.log_start_offset)
    lowest = old.base_offset
    while at < end:
        headers: list[BatchHeader] = []
        data: list[Buffer] = []
        for header, view in iter_batches(await fetch(at), allow_partial=True):
            if header.base_offset >= end:
                break
            check_crc(view)
            if header.base_offset < lowest or header.next_offset > end or header.partition_leader_epoch > leader_epoch:
                raise _unusable(
                    f"The other replica has a batch at offset {header.base_offset} that does not fit into the segment"
                )
            headers.append(header)
            data.append(view)
            lowest = header.next_offset
        if not headers or lowest <= at:
            raise _unusable(f"The other replica has no records from offset {at} to {end - 1}")
        await new.append_many_later(headers, b"".join(data))
        at = lowest


def _complete(old: Segment, new: Segment) -> None:
    for aborted in old.aborted:
        new.append_aborted(aborted)
    new.seal()
    new.sync_files()
    new.disk.sync_dir(new.directory)


def _unusable(problem: str) -> KafkaError:
    return KafkaError(ErrorCode.CORRUPT_MESSAGE, f"{problem}: it can't be used for the repair.")
