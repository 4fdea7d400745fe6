"""Keeps the pool of a real disk's open descriptors. The pool shrinks when the process runs out of descriptors."""

from __future__ import annotations

import os
from typing import Protocol

from penstock.disk.api import FILE_MODE
from penstock.disk.reserve import NO_DESCRIPTORS, Reserve

OPEN_FLAGS = os.O_RDWR | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


class Pooled(Protocol):
    """The interface of a file whose descriptor is opened when it is needed and may be closed between two calls."""

    path: str
    recently_used: bool

    def release_descriptor(self) -> bool:
        """Closes the file's descriptor. Returns False and leaves it open if a thread is using it."""

    def close(self) -> None:
        """Closes the file's descriptor now, or when the last thread that uses it is done."""


class DescriptorPool:
    def __init__(self, max_open: int, reserve: Reserve) -> None:
        self._max_open = max_open
        self._reserve = reserve
        self._open: dict[Pooled, None] = {}

    def __len__(self) -> int:
        return len(self._open)

    def files(self) -> list[Pooled]:
        return list(self._open)

    def open(self, file: Pooled, create: int) -> int:
        """Returns a new descriptor for `file`. Closes descriptors of other files if too many are open."""
        if len(self._open) >= self._max_open:
            self._evict(max(1, self._max_open // 16))
        try:
            fd = os.open(file.path, OPEN_FLAGS | create, FILE_MODE)
        except OSError as error:
            if error.errno not in NO_DESCRIPTORS:
                raise
            fd = self._open_with_fewer(file.path, create)
        self._open[file] = None
        return fd

    def _open_with_fewer(self, path: str, create: int) -> int:
        """Opens a file when the process has no free descriptor.

        First halves the pool, which closes descriptors, and tries again. If this fails too, uses a reserved descriptor
        (see `reserve`).
        """
        if self._open:
            self._max_open = max(16, len(self._open) // 2)
            self._evict(len(self._open) // 2 + 1)
        try:
            return os.open(path, OPEN_FLAGS | create, FILE_MODE)
        except OSError as error:
            if error.errno not in NO_DESCRIPTORS:
                raise
        with self._reserve.lent():
            return os.open(path, OPEN_FLAGS | create, FILE_MODE)

    def forget(self, file: Pooled) -> None:
        """Removes `file` from the pool. The file closes its descriptor itself."""
        self._open.pop(file, None)

    def _evict(self, wanted: int) -> None:
        """Closes `wanted` descriptors; fewer if threads use too many of them.

        Begins with files that were not used since the last eviction.
        """
        for file in list(self._open):
            if not wanted:
                return
            del self._open[file]
            if file.recently_used or not file.release_descriptor():
                file.recently_used = False
                self._open[file] = None
            else:
                wanted -= 1
        for file in list(self._open):
            if not wanted:
                return
            if file.release_descriptor():
                del self._open[file]
                wanted -= 1
