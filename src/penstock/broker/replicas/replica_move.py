"""Moves one replica to another log directory: copies the log, reports the directory, and swaps the logs.

`penstock.replication.directory_move` decides the steps, and `penstock.log.future_logs` handles the files. The log is
copied in chunks, in threads. While requests come in, chunks are smaller, and the copy pauses after each chunk for as
long as the chunk took. So produce and fetch have the processor and the disk at least half of the time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, assert_never

from penstock.protocol.errors import KafkaError
from penstock.replication.directory_move import (
    Bounds,
    CopyRate,
    MoveEvent,
    MoveFigures,
    MoveState,
    Step,
    StepKind,
    after,
    next_step,
    tail_bytes,
)

if TYPE_CHECKING:
    from penstock.broker.replicas.partition import Partition
    from penstock.broker.replicas.throttle import ByteRate
    from penstock.log.directory import LogDir
    from penstock.log.future_log import FutureLog
    from penstock.log.future_logs import Retired
    from penstock.log.manager import LogManager

#: Bytes that are read and written at once.
CHUNK_BYTES = 1024 * 1024
#: The same while requests come in: a request that arrives during a chunk waits less.
BUSY_CHUNK_BYTES = 768 * 1024
#: A node counts as busy for this time after its last request.
BUSY_SECONDS = 0.05
#: The smallest chunk under a throttle, and the chunks per second that a throttle allows otherwise.
MIN_CHUNK_BYTES = 1024
CHUNKS_PER_SECOND = 8
#: The longest sleep of a throttled copy: then it looks at the limit again, which may have changed.
MAX_SLEEP_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class MoveParts:
    """Holds the objects that all moves of a node share."""

    logs: LogManager
    #: Bounds the number of moves that copy at the same time.
    copiers: asyncio.Semaphore
    throttle: ByteRate
    #: Reports the directory of a replica, and returns when the controller has it.
    assign: Callable[[Partition, bytes], Awaitable[None]]
    #: Reports the directory again that a replica stays in.
    revert: Callable[[Partition, bytes], None]
    #: Returns the number of passes of the event loop that have started requests.
    request_passes: Callable[[], int] = lambda: 0


class ReplicaMove:
    def __init__(self, partition: Partition, future: FutureLog, parts: MoveParts) -> None:
        self.partition = partition
        self.state = MoveState.REQUESTED
        self.reason = ""
        self._parts = parts
        self._future = future
        self.source: LogDir = parts.logs.dirs.of(future.current)
        self.target: LogDir = parts.logs.dirs.of(future.log)
        self._rate = CopyRate()
        self._reported = False
        self._confirmed = False
        self._seen_passes = 0
        self._busy_until = 0.0

    def __repr__(self) -> str:
        replica = f"{self.partition.topic}-{self.partition.index}"
        return f"the move of {replica} from {self.source.path} to {self.target.path}"

    @property
    def ended(self) -> bool:
        return self.state in (MoveState.DONE, MoveState.FAILED, MoveState.CANCELLED)

    @property
    def copied_bytes(self) -> int:
        return self._rate.copied

    def figures(self) -> MoveFigures:
        """Returns the progress of the move: its state, the bytes copied and the rate."""
        copying = self.state in (MoveState.REQUESTED, MoveState.COPYING, MoveState.CAUGHT_UP)
        rate = self._rate.per_second(asyncio.get_running_loop().time()) if copying else 0.0
        return MoveFigures(
            self.partition.topic,
            self.partition.index,
            self.source.path,
            self.target.path,
            self.state,
            self._rate.copied,
            self._future.bytes_left if copying else 0,
            self._future.records_left if copying else 0,
            rate,
            self.reason,
        )

    # Running.

    async def run(self) -> None:
        """Moves the replica to the other directory. If this task is cancelled, the caller must call `give_up`."""
        try:
            async with self._parts.copiers:
                self._take(MoveEvent.STARTED)
                retired = await self._copy_and_swap()
        except KafkaError as error:
            self.give_up(MoveEvent.FAILED, error.message or error.code.name)
            return
        await self._parts.logs.futures.retire(retired)
        self._take(MoveEvent.SWAPPED)

    def _take(self, event: MoveEvent) -> None:
        self.state = after(self.state, event)

    async def _copy_and_swap(self) -> Retired:
        future, futures = self._future, self._parts.logs.futures
        while True:
            await asyncio.sleep(0)
            step = self._next_step()
            tail = tail_bytes(future.current.size)
            in_tail = step.kind is StepKind.COPY and future.bytes_left <= tail
            if step.kind is not StepKind.NOTHING and not in_tail:
                if self.state is MoveState.CAUGHT_UP:
                    self._take(MoveEvent.BEHIND)
                await self._make(step)
                continue
            if self.state is MoveState.COPYING:
                self._take(MoveEvent.REACHED)
            if not self._confirmed:
                await self._confirm()
            elif not future.is_prepared:
                if step.kind is StepKind.COPY:
                    await self._copy_chunk(CHUNK_BYTES)  # the current log may have these records on disk already
                await futures.prepare(future)
            else:
                retired = futures.swap(future, tail)
                if retired is not None:
                    self._take(MoveEvent.CONFIRMED)
                    self.partition.log_moved()
                    return retired

    def _next_step(self) -> Step:
        current, log = self._future.current, self._future.log
        return next_step(
            Bounds(current.log_start_offset, current.log_end_offset),
            Bounds(log.log_start_offset, log.log_end_offset),
            self._future.cut_at,
        )

    async def _make(self, step: Step) -> None:
        future = self._future
        match step.kind:
            case StepKind.TRUNCATE:
                future.truncate_to(step.offset)
            case StepKind.START_OVER:
                future.start_over(step.offset)
            case StepKind.ADVANCE_START:
                await future.advance_start(step.offset)
            case StepKind.COPY:
                await self._copy()
            case StepKind.NOTHING:
                pass
            case _:
                assert_never(step.kind)

    async def _copy(self) -> None:
        throttle, loop = self._parts.throttle, asyncio.get_running_loop()
        busy = self._is_busy(loop.time())
        chunk = BUSY_CHUNK_BYTES if busy else CHUNK_BYTES
        if throttle.limited:
            pause = throttle.excess_ms() / 1000
            if pause:
                await asyncio.sleep(min(pause, MAX_SLEEP_SECONDS))
                return
            chunk = min(chunk, max(MIN_CHUNK_BYTES, throttle.limit // CHUNKS_PER_SECOND))
        self._parts.logs.dirs.free_space.take_for_copy(self.target.path, min(chunk, self._future.bytes_left))
        began = loop.time()
        await self._copy_chunk(chunk)
        if self._future.flush_is_due:
            await self._future.flush()
        if busy:
            await asyncio.sleep(min(loop.time() - began, MAX_SLEEP_SECONDS))

    def _is_busy(self, now: float) -> bool:
        """Returns True if the node started requests in the last BUSY_SECONDS."""
        passes = self._parts.request_passes()
        if passes != self._seen_passes:
            self._seen_passes = passes
            self._busy_until = now + BUSY_SECONDS
        return now < self._busy_until

    async def _copy_chunk(self, chunk: int) -> None:
        try:
            size = await self._future.copy(chunk)
        except KafkaError:
            if self._future.cut_at is None:
                raise
            return  # the current log was truncated while it was read: the next step cuts the copy
        self._parts.throttle.record(size)
        self._rate.add(size, asyncio.get_running_loop().time())

    async def _confirm(self) -> None:
        await self._parts.logs.futures.mark(self._future)
        self._reported = True
        await self._parts.assign(self.partition, self.target.directory_id)
        self._confirmed = True

    # Ending early.

    def give_up(self, event: MoveEvent, reason: str) -> None:
        """Ends the move as failed or cancelled.

        The replica keeps its current log, unless the log's directory has failed.
        """
        self._take(event)
        self.reason = reason
        if self._reported:
            self._parts.revert(self.partition, self.source.directory_id)

    def detach_copy(self) -> None:
        """Detaches the future log from the current log, so that another move can begin.

        The files of the future log stay.
        """
        self._parts.logs.futures.detach(self._future)

    def discard_copy(self) -> None:
        """Removes the files of the future log, unless the current log is offline.

        If the current log is offline, the node may need the future log after a restart: the controller may have
        assigned the replica to the future log's directory.
        """
        futures = self._parts.logs.futures
        futures.detach(self._future)
        futures.discard(self._future, keep_files=self._future.current.offline)
