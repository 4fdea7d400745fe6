"""Tracks whether a log can be used: a log is online until a disk error, and open until it is closed.

After the first disk error the log accepts no more writes, because the state of the disk is unknown until recovery at
the next start. A lack of descriptors or memory is no failure of the disk: the log stays online.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable

from penstock.disk.api import is_shortage
from penstock.log.scan import CorruptBatchError
from penstock.protocol.errors import ErrorCode, KafkaError, without_frames

logger = logging.getLogger(__name__)

#: After these errors the disk can still be read; after any other its pages can't be trusted.
_STILL_READABLE = (errno.ENOSPC, errno.EDQUOT)


class LogHealth:
    """Holds the state of one log, and makes the errors that callers get if the log is offline or closed."""

    __slots__ = ("_disk_failed", "_log_dir", "_name", "closed", "failure", "report_corruption")

    def __init__(
        self,
        name: str,
        log_dir: str,
        *,
        disk_failed: Callable[[OSError], None],
        report_corruption: Callable[[str], None],
    ) -> None:
        self._name = name
        self._log_dir = log_dir
        self._disk_failed = disk_failed
        #: Notifies the log manager of a damaged batch.
        self.report_corruption = report_corruption
        self.failure: OSError | None = None
        self.closed = False

    def check_writable(self) -> None:
        if self.failure is not None or self.closed:
            raise self.unwritable()

    def check_readable(self) -> None:
        if self.failure is not None and self.failure.errno not in _STILL_READABLE:
            raise self.failed(self.failure)

    def unwritable(self) -> KafkaError:
        """Returns the error that a writer gets from a log that is offline or closed."""
        return self.failed(self.failure or OSError(errno.EBADF, "the log is closed"))

    def failed(self, error: OSError) -> KafkaError:
        """Takes the log offline after a disk error and notifies the manager. Returns the error to raise.

        After a lack of descriptors or memory the log stays online, and the caller may try again.
        """
        if self.closed:
            return KafkaError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                "The partition was just closed on this broker: look up its leader again.",
            )
        if self.failure is None and not is_shortage(error):
            self.failure = without_frames(error)
            self._disk_failed(error)
        return KafkaError(
            ErrorCode.KAFKA_STORAGE_ERROR,
            f"Directory {self._log_dir} failed ({error.strerror or error}): see the broker's log.",
        )

    def failed_midway(self, error: OSError) -> KafkaError:
        """Takes the log offline after an error that interrupted a change of its files. Returns the error to raise.

        Even a lack of descriptors or memory takes the log offline here, because the files no longer match the state in
        memory.
        """
        refusal = self.failed(error)
        if self.failure is None and not self.closed:
            self.failure = without_frames(error)
            logger.error(
                "%s is offline until the node restarts: an error interrupted a change of its files (%s)",
                self._name,
                error,
            )
        return refusal

    def moved_to(self, log_dir: str) -> None:
        """Sets the log directory of this log after a move."""
        self._log_dir = log_dir

    def take_offline(self, error: OSError) -> None:
        """Takes this log offline because another log of its directory met a disk error."""
        if self.failure is None:
            self.failure = error

    def corrupt(self, error: CorruptBatchError) -> KafkaError:
        """Reports a damaged batch to the manager. Returns the error to raise."""
        self.report_corruption(str(error))
        return KafkaError(ErrorCode.CORRUPT_MESSAGE, "The stored batch is damaged and is not served.")
