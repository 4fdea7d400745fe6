"""Locks a directory with a POSIX lock on its `.lock` file, as a JVM does.

A POSIX lock does not exclude a second lock by the same process. So this module also keeps a set of the directories that
this process has locked.
"""

from __future__ import annotations

import errno
import os
import sys

from penstock.disk.api import FILE_MODE, DirectoryLockedError

_LOCKED_HERE: set[str] = set()
_TAKEN = (errno.EACCES, errno.EAGAIN, errno.EDEADLK)


class RealLock:
    __slots__ = ("_fd", "_key")

    def __init__(self, fd: int, key: str) -> None:
        self._fd = fd
        self._key = key

    def release(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            _LOCKED_HERE.discard(self._key)


def lock_directory(path: str) -> RealLock:
    """Locks the directory and returns the lock.

    Raises DirectoryLockedError if it is locked, OSError if this file system supports no locks.
    """
    key = os.path.realpath(path)
    taken = f"Another process or broker already uses {path}: stop that process or broker, or use another directory."
    if key in _LOCKED_HERE:
        raise DirectoryLockedError(taken)
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0)
    fd = os.open(os.path.join(path, ".lock"), flags, FILE_MODE)
    try:
        _lock_descriptor(fd)
    except OSError as error:
        os.close(fd)
        if error.errno in _TAKEN:
            raise DirectoryLockedError(taken) from error
        raise
    _LOCKED_HERE.add(key)
    return RealLock(fd, key)


def _lock_descriptor(fd: int) -> None:
    if sys.platform == "win32":
        import msvcrt

        msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)
    else:
        import fcntl

        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
