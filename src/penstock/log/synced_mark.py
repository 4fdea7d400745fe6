"""Manages the synced mark of a log: a file that says "every record that ever counted for this replica is on disk".

A record counts for a replica once the replica's copy may count for the high watermark: these are the records below
`Log.countable_offset`. A broker whose machine was off reports its logs with a mark to the controller, because these
logs have lost no record that counted.

The mark is written when the config begins to promise fsync before acknowledgements, and removed when the config no
longer promises it. While the mark may be on disk, only synced records may count:

    state      mark on disk   records that count
    ABSENT     no             all, unless fsync is promised: then none, until the mark is written
    CHANGING   perhaps        none
    PRESENT    yes            the synced records, whether fsync is promised or not

    any state  --write-->   CHANGING  --all records are synced, then the mark is written and synced-->  PRESENT
    any state  --remove-->  CHANGING  --the mark is gone, and no power loss can bring it back-->        ABSENT

`flush.Durability` keeps the state and changes it in one task: one change ends before the next change begins, even if
the config changes meanwhile. If a change fails, the state stays CHANGING. `find` returns the state when a log is
opened.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from penstock.log.checkpoints import PARTITION_METADATA_FILE

if TYPE_CHECKING:
    from penstock.disk.api import Disk

SYNCED_MARK_FILE = "penstock.synced"
#: Name of the file between the two steps of its removal.
REMOVED_MARK_FILE = SYNCED_MARK_FILE + ".removed"


class Mark(Enum):
    ABSENT = "absent"
    CHANGING = "changing"
    PRESENT = "present"


def find(disk: Disk, path: str, names: set[str], *, damaged: bool) -> Mark:
    """Returns the state of a log's synced mark. `names` are the names of the files in the log's directory.

    Removes the mark if the log is damaged: records that counted are missing, and the next start would find no damage
    and trust the mark. Also completes a removal that a crash interrupted.
    """
    if REMOVED_MARK_FILE in names or (damaged and SYNCED_MARK_FILE in names):
        remove_file(disk, path)
        return Mark.ABSENT
    return Mark.PRESENT if SYNCED_MARK_FILE in names else Mark.ABSENT


def write_file(disk: Disk, path: str) -> None:
    """Writes the synced mark, then syncs the log's directory and the file partition.metadata, which holds the topic id.

    The broker reports the synced mark to the controller together with the topic id.
    """
    disk.write_new(f"{path}/{SYNCED_MARK_FILE}", b"")
    metadata = f"{path}/{PARTITION_METADATA_FILE}"
    if disk.exists(metadata):
        disk.sync_file(metadata)
    disk.sync_dir(path)


def remove_file(disk: Disk, path: str) -> None:
    """Removes the synced mark: renames its file, syncs the directory, then removes the renamed file.

    If the process is killed before the sync, the next start finds the file under its new name and syncs again. Without
    the rename, the next start would find no mark, but a power loss could still bring the mark back.
    """
    removed = f"{path}/{REMOVED_MARK_FILE}"
    if disk.exists(f"{path}/{SYNCED_MARK_FILE}"):
        disk.rename(f"{path}/{SYNCED_MARK_FILE}", removed)
    disk.sync_dir(path)
    disk.remove(removed)
