"""Appends the audit lines of a node to a file, in a thread, so that a slow disk does not block the event loop.

The file is created with mode 0600. An existing file may also be readable by its group; all other rights are removed. If
the file was moved away, as logrotate does, the next lines go to a new file. If the disk is too slow, lines beyond a
limit are dropped; if a write fails, its lines are lost. In both cases the node's log says how many lines are missing.
"""

from __future__ import annotations

import asyncio
import logging
import os
import stat

from penstock.broker.controlplane.metadata_storage import StorageError

logger = logging.getLogger(__name__)

#: Lines that wait for the disk.
MAX_WAITING = 10_000
#: Rights that an existing file keeps: log shippers often read by group.
RIGHTS = 0o640


class AuditFile:
    def __init__(self, path: str) -> None:
        self._path = path
        self._waiting: list[bytes] = []
        self._dropped = 0
        self._writing: asyncio.Task[None] | None = None

    def check(self) -> None:
        """Opens the file once, so that a wrong path is found at the node's start. Raises StorageError."""
        try:
            os.close(self._open())
        except OSError as error:
            raise StorageError(
                f"penstock.audit.file={self._path} can't be written ({error.strerror or error}): name a file in a "
                "directory that this user can write to."
            ) from None

    def put(self, line: bytes) -> None:
        if len(self._waiting) >= MAX_WAITING:
            self._dropped += 1
            return
        self._waiting.append(line)
        if self._writing is None:
            self._writing = asyncio.get_running_loop().create_task(self._write(), name="audit-file")

    async def close(self) -> None:
        """Waits until all lines are written."""
        while self._writing is not None:
            await self._writing

    async def _write(self) -> None:
        try:
            while self._waiting:
                lines, self._waiting = self._waiting, []
                dropped, self._dropped = self._dropped, 0
                if dropped:
                    logger.error("%d audit lines were dropped, because %s was too slow", dropped, self._path)
                try:
                    await asyncio.to_thread(self._append, b"".join(lines))
                except OSError as error:
                    logger.error("%d audit lines could not be written to %s: %s", len(lines), self._path, error)
        finally:
            self._writing = None

    def _open(self) -> int:
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            mode = os.fstat(descriptor).st_mode
            if stat.S_ISREG(mode) and stat.S_IMODE(mode) & ~RIGHTS:
                os.fchmod(descriptor, stat.S_IMODE(mode) & RIGHTS)
        except OSError:  # the file belongs to another user
            os.close(descriptor)
            raise
        return descriptor

    def _append(self, data: bytes) -> None:
        descriptor = self._open()  # each time: the file may have been moved
        try:
            while data:
                data = data[os.write(descriptor, data) :]
        finally:
            os.close(descriptor)
