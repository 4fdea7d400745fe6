"""The mark of a log: a file that says "everything that this replica was ever counted for is on disk".

A broker whose machine was off tells the controller of its marked logs. Acknowledgements that promise fsync bring the
mark; it goes when they do not promise fsync any more. While the mark may be on disk, only synced records may count:

    state      the file on disk   records that count, see `Log.countable_offset`
    ABSENT     is not there       all; none where fsync is promised: the mark has to be written first
    CHANGING   may be there       none
    PRESENT    is there           the synced ones, fsync promised or not

    any state  --write-->   CHANGING  --all records are synced, then the file is-->  PRESENT
    any state  --remove-->  CHANGING  --the file is gone, also after a power loss--> ABSENT

The log's group commit calls `write` and `remove`, in one task: one change ends before the next one begins, whatever the
config says meanwhile. A change that fails leaves CHANGING. `find` decides the state of a log that is opened.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import Enum
from typing import TYPE_CHECKING

from penstock.log.checkpoints import PARTITION_METADATA_FILE

if TYPE_CHECKING:
    from penstock.log.log import Log

SYNCED_MARK_FILE = "penstock.synced"
#: What the file is called between the two steps of its removal.
REMOVED_MARK_FILE = SYNCED_MARK_FILE + ".removed"


class Mark(Enum):
    ABSENT = "absent"
    CHANGING = "changing"
    PRESENT = "present"


async def write(log: Log, sync_records: Callable[[], Awaitable[object]]) -> None:
    """Records that counted without fsync are synced first: from here on no others count."""
    log.mark = Mark.CHANGING
    await sync_records()
    await log.environment.disk.run(_write_file, log)
    log.mark = Mark.PRESENT


async def remove(log: Log) -> None:
    log.mark = Mark.CHANGING
    await log.environment.disk.run(_remove_file, log)
    log.mark = Mark.ABSENT


def find(log: Log, names: set[str], *, damaged: bool) -> None:
    """The log was opened and its directory has files of these `names`.

    A damaged log lacks records that its mark speaks of. The mark goes for good: the next start finds no damage.
    """
    if REMOVED_MARK_FILE in names or (damaged and SYNCED_MARK_FILE in names):
        _remove_file(log)
    elif SYNCED_MARK_FILE in names:
        log.mark = Mark.PRESENT


def _write_file(log: Log) -> None:
    disk = log.environment.disk
    disk.write_new(f"{log.path}/{SYNCED_MARK_FILE}", b"")
    metadata = f"{log.path}/{PARTITION_METADATA_FILE}"
    if disk.exists(metadata):
        disk.sync_file(metadata)  # the controller is told of the mark under the topic's id
    disk.sync_dir(log.path)


def _remove_file(log: Log) -> None:
    """A process that is killed before the directory is synced leaves the other name: the next start syncs it.

    Without that name, the next start would find no mark, and a power loss could still bring the mark back.
    """
    disk, removed = log.environment.disk, f"{log.path}/{REMOVED_MARK_FILE}"
    if disk.exists(f"{log.path}/{SYNCED_MARK_FILE}"):
        disk.rename(f"{log.path}/{SYNCED_MARK_FILE}", removed)
    disk.sync_dir(log.path)
    disk.remove(removed)
