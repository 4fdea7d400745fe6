"""Writes the marks of a move: small files in the two logs of a move, which tell which log is old.

A move ends with two renames in two directories, and a crash may come between them:

    B/t-0.<id>-future → B/t-0        from here on B has the current log
    A/t-0 → A/t-0.<id>-delete        the old log

A move writes two marks. Both are synced before the broker reports the new directory to the controller, and so before
the first rename.

- The *moved mark* in B's log names A. If a start finds the partition in both directories, the log in A is old, and the
  start finishes the move. The moved mark is removed after the second rename is on disk.
- The *leaving mark* in A's log names B. If a start can't read B, it does not serve the log in A, which may be old. The
  leaving mark is removed if the move ends without a swap, and when a start serves the log in A.

There is a third mark, the *adopted mark*, for a lost directory A. If the controller has already assigned the replica to
B, the future log in B becomes the current log and gets the adopted mark. If a later start finds the log in A again, it
sets that log aside as a stray. The first start that can read all directories removes the adopted mark.

Kafka ignores all three files.
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
LEAVING_MARK_FILE = "penstock.leaving"
ADOPTED_MARK_FILE = "penstock.adopted"
MAX_BYTES = 1 << 16


def write(disk: Disk, path: str, sources: Iterable[bytes]) -> None:
    """Writes the directory ids `sources` as the moved mark of the log in `path`, and syncs the mark.

    Removes the mark if `sources` is empty.
    """
    ids = sorted(sources)
    if ids:
        disk.write_atomic(f"{path}/{MOVED_MARK_FILE}", _render(ids))
    elif disk.exists(f"{path}/{MOVED_MARK_FILE}"):
        disk.remove(f"{path}/{MOVED_MARK_FILE}")
        disk.sync_dir(path)


def _render(ids: Iterable[bytes]) -> bytes:
    return "".join(f"{uuid_to_str(each)}\n" for each in ids).encode()


def read(disk: Disk, path: str) -> frozenset[bytes]:
    """Returns the ids of the directories from which the log in `path` was moved."""
    return _read(disk, f"{path}/{MOVED_MARK_FILE}")


def _read(disk: Disk, mark: str) -> frozenset[bytes]:
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


def write_leaving(disk: Disk, path: str, target: bytes) -> None:
    """Writes and syncs the leaving mark of the log in `path`: a copy of the log in the directory `target` will replace
    the log."""
    disk.write_atomic(f"{path}/{LEAVING_MARK_FILE}", _render([target]))


def read_leaving(disk: Disk, path: str) -> frozenset[bytes]:
    """Returns the id of the directory to which the log in `path` may have been moved; empty without a leaving mark."""
    return _read(disk, f"{path}/{LEAVING_MARK_FILE}")


def remove_leaving(disk: Disk, path: str) -> None:
    """Removes the leaving mark of the log in `path`, if there is a mark. Called if this log is the current log.

    The removal is not synced, so a power loss may restore the mark. The log is then kept offline, but only while the
    directory that the mark names (the target of the move) is offline: see `stays`.
    """
    if disk.exists(f"{path}/{LEAVING_MARK_FILE}"):
        disk.remove(f"{path}/{LEAVING_MARK_FILE}")


def stays(disk: Disk, path: str, directories: Iterable[LogDir]) -> bool:
    """True if the log in `path` is the current log of its partition. Called for a log that is in one directory only.

    Returns False if the log has a leaving mark for a directory that can't be read: the log may be old. The id of an
    offline directory may be unknown, so every offline directory may be the one that the mark names.

    Before it returns True, removes the leaving mark and, if no directory is offline, the adopted mark.
    """
    targets = read_leaving(disk, path)
    known = list(directories)
    readable = {each.directory_id for each in known if not each.offline}
    some_offline = any(each.offline for each in known)
    if not targets <= readable and some_offline:
        return False
    if targets:
        remove_leaving(disk, path)
        disk.sync_dir(path)
    if not some_offline and disk.exists(f"{path}/{ADOPTED_MARK_FILE}"):
        disk.remove(f"{path}/{ADOPTED_MARK_FILE}")
    return True


def mark_adopted(disk: Disk, path: str) -> None:
    """Writes the adopted mark of the future log in `path`, and syncs it."""
    disk.write_atomic(f"{path}/{ADOPTED_MARK_FILE}", b"")


def put_replaced_logs_aside(
    disk: Disk,
    places: Mapping[str, list[LogDir]],
    topic_id: Callable[[str], bytes],
    name_for_stray: Callable[[LogDir, str], str],
) -> None:
    """Renames each log that was replaced by an adopted copy while its directory was offline.

    `places` maps each log's name to its directories. A log with the same name but another topic id is not renamed.
    Called after `finish_moves`, which may have renamed some of these logs.
    """
    for name, owners in places.items():
        left = [each for each in owners if disk.exists(each.file(name))] if len(owners) > 1 else []
        adopted = [each for each in left if disk.exists(f"{each.file(name)}/{ADOPTED_MARK_FILE}")]
        if len(adopted) != 1:
            continue
        for other in [each for each in left if each is not adopted[0]]:
            if topic_id(other.file(name)) == topic_id(adopted[0].file(name)):
                logger.warning(
                    "%s is renamed to a stray directory: its copy in %s has replaced it",
                    other.file(name),
                    adopted[0].path,
                )
                disk.rename(other.file(name), name_for_stray(other, name))
                disk.sync_dir(other.path)


def finish_moves(
    disk: Disk, places: Mapping[str, list[LogDir]], name_for_removal: Callable[[LogDir, str], str]
) -> None:
    """Finishes moves that a crash interrupted between their two renames: renames the old logs for removal.

    `places` maps each log's name to its directories. A log that is in two directories without a mark stays in both; the
    caller then refuses to start.
    """
    for name, owners in places.items():
        if len(owners) == 1:
            continue
        marks = {owner.path: read(disk, owner.file(name)) for owner in owners}
        old = {owner.directory_id for owner in owners if read_leaving(disk, owner.file(name))}
        newest = [each for each in owners if all(o is each or o.directory_id in marks[each.path] & old for o in owners)]
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
