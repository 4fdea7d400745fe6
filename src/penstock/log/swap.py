"""Replaces segments by their compacted segments. A crash at any point does no harm.

    X.log.cleaned     a compacted segment that is not in use yet: the next start removes it
    X.log.swap        a compacted segment that replaces old segments: the next start completes the replacement
    X.log.deleted     an old segment that is being removed: the next start removes it

The name of the data file alone tells the state of a segment. If the new suffix is `.deleted`, the data file is renamed
before the index files; otherwise it is renamed after them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.log.scan import scan_headers
from penstock.log.segment import DELETED_SUFFIX, LOG_SUFFIX, SUFFIXES, Segment

if TYPE_CHECKING:
    from penstock.disk.api import Disk
    from penstock.log.log import Log

CLEANED_SUFFIX = ".cleaned"
SWAP_SUFFIX = ".swap"


async def swap_in(log: Log, replacements: list[tuple[list[Segment], Segment]]) -> int:
    """Replaces each group of consecutive, sealed segments by one compacted segment. Returns how many groups were
    replaced.

    The files of the compacted segments end in `.cleaned` and are synced. The log may change while this function syncs:
    a group is not replaced if one of its segments is truncated or deleted meanwhile.
    """
    disk = log.environment.disk
    for _, new in replacements:
        new.change_suffix(SWAP_SUFFIX)
        log.pending_swaps.append(new)
    await disk.run(disk.sync_dir, log.path)
    done = 0
    for old, new in replacements:
        if new not in log.pending_swaps:
            continue  # a truncation has removed it
        log.pending_swaps.remove(new)
        if all(segment in log.segments for segment in old):
            _replace(log, old, new)
            done += 1
        else:
            new.remove_files()
    await disk.run(disk.sync_dir, log.path)
    return done


def _replace(log: Log, old: list[Segment], new: Segment) -> None:
    for segment in old:
        segment.change_suffix(DELETED_SUFFIX)
    new.change_suffix("")
    log.segments.replace(old, new)
    log.environment.discard(log, old)


def cancel_swaps(log: Log) -> None:
    """Removes compacted segments that are not in use yet. Otherwise a crash after a truncation could bring truncated
    records back.
    """
    for segment in log.pending_swaps:
        segment.remove_files()
    log.pending_swaps.clear()


def finish_swaps(disk: Disk, path: str, names: set[str]) -> set[str]:
    """Cleans up after a crash: removes `.cleaned` segments, and completes the replacements that `.swap` segments began.

    Returns the names of the remaining files.
    """
    undecided = sorted(name for name in names if name.endswith(CLEANED_SUFFIX))
    swapping = sorted(name for name in names if name.endswith(SWAP_SUFFIX))
    if not undecided and not swapping:
        return names
    for name in undecided:
        disk.remove(f"{path}/{name}")
    decided = sorted(int(name[:20]) for name in swapping if name.endswith(LOG_SUFFIX + SWAP_SUFFIX))
    for name in swapping:
        if int(name[:20]) not in decided:
            disk.remove(f"{path}/{name}")
    for base in decided:
        _finish_swap(disk, path, base, names)
    disk.sync_dir(path)
    return set(disk.listdir(path))


def _finish_swap(disk: Disk, path: str, base: int, names: set[str]) -> None:
    stem = f"{path}/{base:020d}"
    file = disk.open(f"{stem}{LOG_SUFFIX}{SWAP_SUFFIX}")
    end = base + 1
    for _, header in scan_headers(file, 0, file.size):
        end = header.next_offset
    file.close()
    covered = sorted(int(name[:20]) for name in names if name.endswith(LOG_SUFFIX) and base <= int(name[:20]) < end)
    for offset in covered:
        for suffix in reversed(SUFFIXES):
            if f"{offset:020d}{suffix}" in names:
                disk.remove(f"{path}/{offset:020d}{suffix}")
    # The old files of this base had to go first. If the old data file is gone, files without a suffix are the new ones.
    for suffix in reversed(SUFFIXES):
        if f"{base:020d}{suffix}{SWAP_SUFFIX}" in names:
            disk.rename(f"{stem}{suffix}{SWAP_SUFFIX}", f"{stem}{suffix}")
