"""Defines the interfaces `File` (one open file) and `Disk` (a tree of files). Paths are plain strings with `/`."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, ParamSpec, Protocol, TypeAlias, TypeVar

if TYPE_CHECKING:
    from typing_extensions import Buffer as AnyBuffer

P = ParamSpec("P")
T = TypeVar("T")

Buffer: TypeAlias = bytes | bytearray | memoryview


#: New files and directories can be read by their owner only: they hold records, offsets and credentials. Existing ones
#: keep their modes.
DIRECTORY_MODE = 0o700
FILE_MODE = 0o600


def private(path: str, flags: int) -> int:
    """Opens a file so that only its owner can read it: an opener for `open(..., opener=private)`."""
    return os.open(path, flags, FILE_MODE)


class DiskError(OSError):
    """Raised if the disk is full, failing or gone. The caller must not write to that directory any more."""


#: Errors for lack of descriptors or memory: not a fault of the disk.
_SHORTAGE = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


def is_shortage(error: BaseException | None) -> bool:
    """True if the error or its cause is a lack of descriptors or memory, and not a fault of the disk."""
    return error is not None and (
        (isinstance(error, OSError) and error.errno in _SHORTAGE) or is_shortage(error.__cause__)
    )


class DirectoryLockedError(Exception):
    """Raised if another process has locked this directory."""


class File(Protocol):
    """The interface of a file. Descriptors are pooled, so the file may be closed and opened again between calls."""

    path: str

    @property
    def size(self) -> int: ...

    def append(self, *buffers: AnyBuffer) -> None:
        """Appends all buffers, or raises DiskError and leaves the file unchanged."""

    async def append_later(self, *buffers: AnyBuffer) -> None:
        """Appends as `append` does, without blocking the event loop. Until it returns, the caller must not change the
        file."""

    def pread(self, size: int, offset: int) -> bytes:
        """Reads up to `size` bytes; fewer only at the end of the file."""

    def pread_cached(self, size: int, offset: int) -> Buffer | None:
        """Returns the bytes as `pread` does if they are in the page cache; otherwise returns None."""

    async def read(self, size: int, offset: int) -> bytes:
        """Reads as `pread` does, without blocking the event loop."""

    def pwrite(self, data: Buffer, offset: int) -> None: ...

    def truncate(self, size: int) -> None: ...

    def sync_now(self) -> None: ...

    async def sync(self) -> None: ...

    def close(self) -> None: ...


class Lock(Protocol):
    def release(self) -> None: ...


class Disk(Protocol):
    #: True if another process can open the same files by path.
    shared: bool

    def open(self, path: str, *, size: int | None = None) -> File:
        """Returns a handle of the file. The first write creates a missing file. A known `size` saves a stat call."""

    def create(self, path: str) -> File:
        """Creates an empty file and returns a handle."""

    def exists(self, path: str) -> bool: ...

    def is_dir(self, path: str) -> bool: ...

    def real_path(self, path: str) -> str:
        """Returns the path without links, `..` and trailing slashes, so that two names of one directory are equal."""

    def listdir(self, path: str) -> list[str]: ...

    def mkdir(self, path: str) -> None:
        """Creates a directory and its parents; no error if it exists."""

    def rename(self, old: str, new: str) -> None:
        """Renames `old` to `new`; a file named `new` is replaced. The caller must close its handles of `old`."""

    def remove(self, path: str) -> None:
        """Removes a file; no error if it does not exist."""

    def remove_tree(self, path: str) -> None: ...

    def size(self, path: str) -> int: ...

    def mtime_ms(self, path: str) -> int: ...

    def read_bytes(self, path: str, limit: int = 1 << 30) -> bytes: ...

    def sync_dir(self, path: str) -> None: ...

    def sync_file(self, path: str) -> None: ...

    def write_atomic(self, path: str, data: bytes, *, sync: bool = True) -> None:
        """Replaces a file atomically: after a crash, the file has the old or the new contents.

        With sync=False, the file may also be empty or missing after a power loss.
        """

    def write_new(self, path: str, data: bytes) -> None:
        """Writes a new file, not atomically: a crash may leave only a part of it."""

    def sync_volume(self, path: str) -> bool:
        """Syncs everything written so far to the volume of `path`. Returns False if the operating
        system can't do this."""

    def lock(self, path: str) -> Lock:
        """Locks the directory `path` for this process and returns the lock.

        Raises DirectoryLockedError if the directory is locked already.
        """

    def boot_id(self) -> str:
        """Returns the id of this boot; empty if unknown. A new id means that unsynced writes may be lost."""

    def free_bytes(self, path: str) -> tuple[int, int]:
        """Returns (total, usable) bytes of the volume, or (-1, -1) if unknown."""

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs the blocking `function` in a thread, and returns its result."""

    async def run_worker(self, module: str, request: bytes) -> bytes:
        """Runs `python -m module` in another process with `request` on its stdin, and returns its stdout.

        Only a disk whose files other processes can open (`shared`) supports this.
        """

    def close(self) -> None: ...


def make_lasting(disk: Disk, path: str) -> None:
    """Creates a directory and its parents, and syncs them, so that a power loss removes none of them."""
    parents: list[str] = []
    here = path
    while not disk.exists(here) and (above := os.path.dirname(here)) != here:
        parents.append(above or ".")
        here = above
    disk.mkdir(path)
    for parent in reversed(parents):
        disk.sync_dir(parent)
