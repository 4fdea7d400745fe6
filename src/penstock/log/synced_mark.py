"""The synced mark of a log: a file that says "every record that ever counted for this replica is on disk".

After its machine was off, a broker reports its marked logs to the controller. The mark is written when
acknowledgements begin to promise fsync, and removed when they no longer do. While the mark may be on disk, only synced
records may count:

    state      the file on disk   records that count, see `Log.countable_offset`
    ABSENT     is not there       all; none where fsync is promised: the mark has to be written first
    CHANGING   may be there       none
    PRESENT    is there           the synced ones, fsync promised or not

    any state  --write-->   CHANGING  --all records are synced, then the file is-->  PRESENT
    any state  --remove-->  CHANGING  --the file is gone, also after a power loss--> ABSENT

The log's group commit (`flush.Durability`) keeps the state and makes the changes, in one task: one change ends before
the next one begins, whatever the config says meanwhile. A change that fails leaves CHANGING. `find` decides the state
of a log that is opened.
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
    """Returns the state of the mark of a log whose directory has files of these `names`.

    Removes the mark of a damaged log, which lacks records that counted: the next start would find no damage.
    """
    if REMOVED_MARK_FILE in names or (damaged and SYNCED_MARK_FILE in names):
        remove_file(disk, path)
        return Mark.ABSENT
    return Mark.PRESENT if SYNCED_MARK_FILE in names else Mark.ABSENT


def write_file(disk: Disk, path: str) -> None:
    """Writes the mark into the log's directory and syncs it, with the topic id that the controller knows it by."""
    disk.write_new(f"{path}/{SYNCED_MARK_FILE}", b"")
    metadata = f"{path}/{PARTITION_METADATA_FILE}"
    if disk.exists(metadata):
        disk.sync_file(metadata)
    disk.sync_dir(path)


def remove_file(disk: Disk, path: str) -> None:
    """Removes the mark in two steps: renames it, syncs the directory, removes it.

    A process that is killed before the sync leaves the other name, and the next start syncs. Without that name, the
    next start would find no mark, and a power loss could still bring the mark back.
    """
    removed = f"{path}/{REMOVED_MARK_FILE}"
    if disk.exists(f"{path}/{SYNCED_MARK_FILE}"):
        disk.rename(f"{path}/{SYNCED_MARK_FILE}", removed)
    disk.sync_dir(path)
    disk.remove(removed)
