"""Putting compacted segments in the place of the ones they were made from, so that a crash at any point is harmless.

X.log.cleaned     being written: worth nothing, removed on start
X.log.swap        whole and synced: from here on the new segment counts, and start finishes what was begun
X.log.deleted     an old segment on its way out, removed on start
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.log.scan import scan_headers
from penstock.log.segment import DELETED_SUFFIX, LOG_SUFFIX, SUFFIXES

if TYPE_CHECKING:
    from penstock.disk.api import Disk

CLEANED_SUFFIX = ".cleaned"
SWAP_SUFFIX = ".swap"


def finish_swaps(disk: Disk, path: str) -> None:
    names = disk.listdir(path)
    if not any(name.endswith((CLEANED_SUFFIX, SWAP_SUFFIX)) for name in names):
        return
    for name in names:
        if name.endswith(CLEANED_SUFFIX):
            disk.remove(f"{path}/{name}")
    swapped = sorted(name for name in names if name.endswith(LOG_SUFFIX + SWAP_SUFFIX))
    for name in swapped:
        _remove_replaced(disk, path, name, set(names))
    for name in names:
        # The log file last: while it still has its suffix, this is done again after another crash.
        if name.endswith(SWAP_SUFFIX) and name not in swapped:
            disk.rename(f"{path}/{name}", f"{path}/{name[: -len(SWAP_SUFFIX)]}")
    for name in swapped:
        disk.rename(f"{path}/{name}", f"{path}/{name[: -len(SWAP_SUFFIX)]}")
    disk.sync_dir(path)


def _remove_replaced(disk: Disk, path: str, swap_name: str, names: set[str]) -> None:
    """Old segments that the new one covers: those that start inside of its offsets."""
    base = int(swap_name[:20])
    file = disk.open(f"{path}/{swap_name}")
    end = base
    for _, header in scan_headers(file, 0, file.size):
        end = header.next_offset
    file.close()
    for name in names:
        if not name.endswith(LOG_SUFFIX):
            continue
        offset = int(name[: -len(LOG_SUFFIX)])
        if base <= offset < max(end, base + 1):
            for suffix in SUFFIXES:
                if f"{offset:020d}{suffix}" in names and not (suffix != LOG_SUFFIX and offset == base):
                    disk.rename(f"{path}/{offset:020d}{suffix}", f"{path}/{offset:020d}{suffix}{DELETED_SUFFIX}")
