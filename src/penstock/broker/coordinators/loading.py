"""Loads a coordinator: replays its log into its machine, at once or in slices with the loop free in between.

A log that can't be read as a whole is not served in part: offsets would be missing without a sign of it. Such a
failure is final until an operator mends the log and the partition gets another leader epoch, or the node restarts.
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

LOAD_CHUNK_BYTES = 1 << 20  # `offsets.load.buffer.size` of Kafka is 5 MiB; a smaller one keeps the loop responsive
INLINE_LOAD_BYTES = 1 << 18  # a log this small is replayed within the request that asks for it


class Loading:
    """The load of one coordinator, for the leader epoch that it coordinates in."""

    __slots__ = ("_epoch", "_machine", "_partition", "_stopped", "_task", "failure")

    def __init__(self, machine: Machine[Any], partition: Partition, epoch: int) -> None:
        self._machine = machine
        self._partition = partition
        self._epoch = epoch
        self._task: asyncio.Task[None] | None = None
        self._stopped = False
        #: Why the log could not be read; None while it could.
        self.failure: str | None = None

    @property
    def is_small(self) -> bool:
        """True if a request may wait while the whole log is replayed."""
        return self._partition.log.size <= INLINE_LOAD_BYTES

    def start(self, loading: Coroutine[Any, Any, None]) -> None:
        """Runs a load in the background, until `stop`."""
        self._task = asyncio.get_running_loop().create_task(loading)

    def stop(self) -> None:
        """Ends a load after its current slice. No-op for the task that loads: it may end by itself."""
        self._stopped = True
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()

    def replay_now(self) -> None:
        """Replays the whole log in this pass of the loop.

        Raises KafkaError: NOT_COORDINATOR if this node doesn't lead in this epoch, COORDINATOR_NOT_AVAILABLE with
        `failure` if the log can't be read.
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
        """As `replay_now`, with the loop free between slices. Returns the offset up to which it has come."""
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
            raise KafkaError(ErrorCode.NOT_COORDINATOR, f"Look the coordinator up again: {error.message}") from error

    def _failed(self, error: Exception) -> KafkaError:
        self.failure = f"{self._partition} can't be loaded: {error}"
        logger.error("%s", self.failure)
        return KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, self.failure)
