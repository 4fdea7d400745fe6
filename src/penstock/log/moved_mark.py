"""The moved mark: a file in a log's directory that names the log directories from which the log was moved.

A move ends with two renames in two directories, and a crash may come between them:

    B/t-0.<id>-future → B/t-0        from here on B has the current log
    A/t-0 → A/t-0.<id>-delete        the old log

Before the first rename, the mark in B's log names A and is synced. So if a start finds the partition in both
directories, the mark tells that the log in A is the old one, and the start finishes the move. The mark is removed after
the second rename is on disk. Kafka ignores the file.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from penstock.log.directory import LogDir
from penstock.protocol.uuid import uuid_from_str, uuid_to_str

if TYPE_CHECKING:
    from penstock.disk.api import Disk

logger = logging.getLogger(__name__)

MOVED_MARK_FILE = "penstock.moved"
MAX_BYTES = 1 << 16


def write(disk: Disk, path: str, sources: Iterable[bytes]) -> None:
    """Writes the moved mark of the log in `path` with the directory ids `sources`, and syncs it. Removes the mark if
    `sources` is empty."""
    lines = [uuid_to_str(source) for source in sorted(sources)]
    if lines:
        disk.write_atomic(f"{path}/{MOVED_MARK_FILE}", "".join(f"{line}\n" for line in lines).encode())
    elif disk.exists(f"{path}/{MOVED_MARK_FILE}"):
        disk.remove(f"{path}/{MOVED_MARK_FILE}")
        disk.sync_dir(path)


def read(disk: Disk, path: str) -> frozenset[bytes]:
    """Returns the ids of the directories from which the log in `path` was moved."""
    mark = f"{path}/{MOVED_MARK_FILE}"
    if not disk.exists(mark):
        return frozenset()
    try:
        return frozenset(map(uuid_from_str, disk.read_bytes(mark, MAX_BYTES).decode().split()))
    except ValueError as error:
        logger.warning("%s is damaged and ignored: %s", mark, error)
        return frozenset()


def forget(disk: Disk, path: str, sources: Iterable[bytes]) -> None:
    """Removes the directory ids `sources` from the moved mark of the log in `path`, because these directories no longer
    hold an old copy of the log."""
    named = read(disk, path)
    if named:
        write(disk, path, named.difference(sources))


def finish_moves(
    disk: Disk, places: Mapping[str, list[LogDir]], name_for_removal: Callable[[LogDir, str], str]
) -> None:
    """Finishes moves that a crash interrupted between their two renames: renames the old logs for removal.

    `places` has the directories of each log; the key is the log's name. A log that is in two directories without a mark
    stays in both; the caller then refuses to start.
    """
    for name, owners in places.items():
        if len(owners) == 1:
            continue
        marks = {owner.path: read(disk, owner.file(name)) for owner in owners}
        newest = [each for each in owners if all(o is each or o.directory_id in marks[each.path] for o in owners)]
        if len(newest) == 1:
            _finish(disk, newest[0], [each for each in owners if each is not newest[0]], name, name_for_removal)


def _finish(
    disk: Disk, newest: LogDir, others: list[LogDir], name: str, name_for_removal: Callable[[LogDir, str], str]
) -> None:
    disk.sync_dir(newest.path)  # the rename may be only in the page cache, if no power was lost
    for other in others:
        logger.warning(
            "finishing the move of %s from %s to %s, which a crash interrupted: the old log is removed",
            name,
            other.path,
            newest.path,
        )
        disk.rename(other.file(name), name_for_removal(other, name))
        disk.sync_dir(other.path)
    forget(disk, newest.file(name), [other.directory_id for other in others])
