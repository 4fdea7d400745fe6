"""Loads a coordinator: replays its log into its state machine.

A small log is replayed in one call. A large log is replayed in slices, and the event loop serves requests between the
slices. If part of the log can't be read, the coordinator is not loaded at all: otherwise clients would miss committed
offsets without an error. After such a failure the operator repairs the log. The coordinator then loads in the next
leader epoch, or after a restart of the node.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from penstock.broker.coordinators.replay import replay
from penstock.protocol.codec import DecodeError
from penstock.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from penstock.broker.coordinators.state_machine import Machine
    from penstock.broker.replicas.partition import Partition
    from penstock.log.log import Log

logger = logging.getLogger(__name__)

LOAD_CHUNK_BYTES = 1 << 18  # Kafka's `offsets.load.buffer.size` is 5 MiB; smaller chunks keep the loop responsive
INLINE_LOAD_BYTES = 1 << 18  # a log of at most this size is replayed within the first request


class Loading:
    """Loads one coordinator, for one leader epoch of its partition."""

    __slots__ = ("_epoch", "_machine", "_partition", "_stopped", "_task", "failure")

    def __init__(self, machine: Machine[Any], partition: Partition, epoch: int) -> None:
        self._machine = machine
        self._partition = partition
        self._epoch = epoch
        self._task: asyncio.Task[None] | None = None
        self._stopped = False
        #: Why the log can't be read; None without a failure.
        self.failure: str | None = None

    @property
    def is_small(self) -> bool:
        """Returns True if the log is small enough to be replayed while a request waits."""
        return self._partition.log.size <= INLINE_LOAD_BYTES

    def start(self, loading: Coroutine[Any, Any, None]) -> None:
        """Runs the coroutine `loading` in the background. `stop` ends it."""
        self._task = asyncio.get_running_loop().create_task(loading)

    def stop(self) -> None:
        """Ends a background load after its current slice of the log.

        A call from inside the load does not cancel the task of the load.
        """
        self._stopped = True
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()

    def replay_now(self) -> None:
        """Replays the whole log in one call.

        Raises KafkaError: NOT_COORDINATOR if this node no longer leads in this epoch; COORDINATOR_NOT_AVAILABLE if the
        log can't be read, with the cause in `failure`.
        """
        log = self._own_log()
        offset = log.log_start_offset
        try:
            while offset < log.log_end_offset:
                part = log.read(offset, LOAD_CHUNK_BYTES, upper_bound=log.log_end_offset)
                offset = replay(self._machine, log, offset, part.read_now())
        except (KafkaError, DecodeError) as error:
            raise self._failed(error) from error

    async def replay_in_slices(self) -> int:
        """Replays the log like `replay_now`, but in slices, and serves other requests between the slices.

        Returns the offset after the last replayed record.
        """
        log = self._own_log()
        offset = log.log_start_offset
        try:
            while offset < log.log_end_offset and not self._stopped:
                data = await log.read(offset, LOAD_CHUNK_BYTES, upper_bound=log.log_end_offset).read()
                offset = replay(self._machine, log, offset, data)
                await asyncio.sleep(0)
        except (KafkaError, DecodeError) as error:
            raise self._failed(error) from error
        return offset

    def _own_log(self) -> Log:
        try:
            return self._partition.leader_log(self._epoch)
        except KafkaError as error:
            message = f"{error.message} Send FindCoordinator again, then retry."
            raise KafkaError(ErrorCode.NOT_COORDINATOR, message) from error

    def _failed(self, error: Exception) -> KafkaError:
        self.failure = f"The coordinator of {self._partition} can't read its log ({error}): repair the log."
        logger.error("%s", self.failure)
        return KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, self.failure)
