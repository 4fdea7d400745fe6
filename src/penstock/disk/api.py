"""The two interfaces: `File` (one open file) and `Disk` (a tree of them). Paths are plain strings with `/`."""

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


#: Records, offsets and credentials are their owner's: nobody else on the machine reads them. Directories and files that
#: are there already keep the modes they have.
DIRECTORY_MODE = 0o700
FILE_MODE = 0o600


def private(path: str, flags: int) -> int:
    """For `open(..., opener=private)`: a file that only its owner can read."""
    return os.open(path, flags, FILE_MODE)


class DiskError(OSError):
    """The disk refused: full, failing or gone. The directory it happened in is no longer to be trusted with writes."""


#: The process or the machine has no descriptor or memory left: the disk is not to blame.
_SHORTAGE = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


def is_shortage(error: BaseException | None) -> bool:
    """True if the error, or the one that caused it, is a lack of descriptors or memory and not a fault of the disk."""
    return error is not None and (
        (isinstance(error, OSError) and error.errno in _SHORTAGE) or is_shortage(error.__cause__)
    )


class DirectoryLockedError(Exception):
    """Another process holds this directory."""


class File(Protocol):
    """A file by name. It may be opened again behind the scenes: descriptors are pooled and bounded."""

    path: str

    @property
    def size(self) -> int: ...

    def append(self, *buffers: AnyBuffer) -> None:
        """All of it, or DiskError with the file as it was."""

    def pread(self, size: int, offset: int) -> bytes:
        """What is there: shorter than asked only at the end of the file."""

    def pread_cached(self, size: int, offset: int) -> Buffer | None:
        """The same, if it takes no disk access; else None."""

    async def read(self, size: int, offset: int) -> bytes:
        """The same, without holding up the loop."""

    def pwrite(self, data: Buffer, offset: int) -> None: ...

    def truncate(self, size: int) -> None: ...

    def sync_now(self) -> None: ...

    async def sync(self) -> None: ...

    def close(self) -> None: ...


class Lock(Protocol):
    def release(self) -> None: ...


class Disk(Protocol):
    #: Whether heavy work on files may be handed to another process by path.
    shared: bool

    def open(self, path: str, *, size: int | None = None) -> File:
        """A handle; the file is made on first write. `size`: what the caller already knows, to save a stat."""

    def create(self, path: str) -> File:
        """Like open, but the file exists (empty) on return."""

    def exists(self, path: str) -> bool: ...

    def is_dir(self, path: str) -> bool: ...

    def listdir(self, path: str) -> list[str]: ...

    def mkdir(self, path: str) -> None:
        """With its parents; fine if it exists."""

    def rename(self, old: str, new: str) -> None:
        """Replaces `new` if it exists and is a file. Handles of `old` must be closed by their owner."""

    def remove(self, path: str) -> None:
        """A file; fine if it is not there."""

    def remove_tree(self, path: str) -> None: ...

    def size(self, path: str) -> int: ...

    def mtime_ms(self, path: str) -> int: ...

    def read_bytes(self, path: str, limit: int = 1 << 30) -> bytes: ...

    def sync_dir(self, path: str) -> None: ...

    def sync_file(self, path: str) -> None: ...

    def write_atomic(self, path: str, data: bytes, *, sync: bool = True) -> None:
        """The file is the old one or the new one. With sync=False a machine crash may also leave it empty or gone."""

    def write_new(self, path: str, data: bytes) -> None:
        """A file that is not there yet; a crash may leave part of it."""

    def sync_volume(self, path: str) -> bool:
        """Everything written so far to the volume of `path` is on disk. False: there is no such call here."""

    def lock(self, path: str) -> Lock:
        """Holds directory `path` for this process, or raises DirectoryLockedError."""

    def boot_id(self) -> str:
        """Another one once what was written and not synced may be gone: the machine was off. Empty: can't be told."""

    def free_bytes(self, path: str) -> tuple[int, int]:
        """(total, usable) bytes of the volume, or (-1, -1)."""

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Blocking work, away from the event loop."""

    async def run_worker(self, module: str, request: bytes) -> bytes:
        """`python -m module` with `request` on its input; returns its output. Only where `shared`."""

    def close(self) -> None: ...


def make_lasting(disk: Disk, path: str) -> None:
    """A directory with its parents, found again after a power loss, as all that is synced in it."""
    parents: list[str] = []
    here = path
    while not disk.exists(here) and (above := os.path.dirname(here)) != here:
        parents.append(above or ".")
        here = above
    disk.mkdir(path)
    for parent in reversed(parents):
        disk.sync_dir(parent)
