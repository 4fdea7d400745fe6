"""Keeps a reserve of descriptors, so that checkpoints and snapshots can be written when no other descriptor is left."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import threading
from collections.abc import Callable, Iterator
from typing import Concatenate, ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)
#: Enough for one file per thread and the pipes of a helper process.
RESERVED_DESCRIPTORS = 24


class Reserve:
    """Keeps some descriptors in reserve: they are open on the null device.

    When the process has no free descriptor left, one caller at a time closes them, opens its own files instead, and
    fills the reserve again afterwards.
    """

    def __init__(self) -> None:
        self._held: list[int] = []
        self._lock = threading.RLock()  # reentrant: write_atomic syncs the directory while it has the reserve

    def fill(self) -> None:
        """Opens the missing descriptors of the reserve, or as many of them as the process's limit allows."""
        with contextlib.suppress(OSError):
            while len(self._held) < RESERVED_DESCRIPTORS:
                self._held.append(os.open(os.devnull, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0)))

    def release(self) -> None:
        while self._held:
            os.close(self._held.pop())

    @contextlib.contextmanager
    def lent(self) -> Iterator[None]:
        with self._lock:
            self.release()
            try:
                yield
            finally:
                self.fill()


class HasReserve(Protocol):
    @property
    def reserve(self) -> Reserve: ...


D = TypeVar("D", bound=HasReserve)


def from_reserve(method: Callable[Concatenate[D, P], T]) -> Callable[Concatenate[D, P], T]:
    """Decorates a method of a disk: if the method fails for lack of descriptors, runs it again with the reserve."""

    @functools.wraps(method)
    def with_reserve(disk: D, /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return method(disk, *args, **kwargs)
        except OSError as error:
            if error.errno not in NO_DESCRIPTORS:
                raise
        with disk.reserve.lent():
            return method(disk, *args, **kwargs)

    return with_reserve
