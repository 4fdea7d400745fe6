"""Unpacks compressed batches without blocking other requests, and limits the memory that unpacking takes.

A megabyte from a client or from a log may unpack to gigabytes and to millions of records. Therefore:

- a batch that unpacks to more than `MAX_UNPACKED_BYTES` is refused: MESSAGE_TOO_LARGE (a producer then splits it);
- unpacking and packing run in a thread of `Disk`. The codecs release the interpreter's lock, but a batch may consist of
  thousands of tiny snappy blocks or gzip members, which are read by Python code;
- the records are examined on the event loop in short steps, between which other tasks run;
- at most `SMALL_BATCHES` batches of up to `SMALL_BYTES` and one larger batch are unpacked at the same time, to bound
  the memory and the threads that compete with the event loop. Small batches do not wait for large batches.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.records.record import records_payload
from penstock.records.scan import Slices, finish, unpacked_if_small
from penstock.records.validate import Prepared, UnpackFirstError, inspecting, packed_anew

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from penstock.disk.api import Disk
    from penstock.records.header import BatchHeader

T = TypeVar("T")

#: The most that a batch may unpack to when the broker examines its records: as much as a request by default.
MAX_UNPACKED_BYTES = 100 * 1024 * 1024
SMALL_BYTES = 4 * 1024 * 1024
SMALL_BATCHES = 2


class Unpacking:
    """Keeps a node's queue of batches to unpack. The queue is served in order."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._small = asyncio.Semaphore(SMALL_BATCHES)
        self._large = asyncio.Semaphore(1)

    async def look_into(self, header: BatchHeader, batch: Buffer, work: Callable[[bytes], Slices[T]]) -> T:
        """Unpacks a batch, calls `work` with its records and returns the result of `work`."""
        small = unpacked_if_small(header, batch)
        if small is not None:
            await asyncio.sleep(0)  # a log may have any number of small batches
            return finish(work(small))

        async def use(data: bytes) -> T:
            return await _in_slices(work(data))

        return await self._unpacked(header, batch, use)

    async def prepare(self, first: UnpackFirstError) -> Prepared:
        """Unpacks and examines a client's batch. Returns the result that the append needs. Raises KafkaError if the
        batch is refused."""
        header, rules = first.header, first.rules

        async def use(data: bytes) -> Prepared:
            max_timestamp = await _in_slices(inspecting(header, data, rules, first.now_ms))
            return Prepared(rules, max_timestamp, await self._disk.run(packed_anew, header, data, rules))

        return await self._unpacked(header, first.batch, use)

    async def _unpacked(self, header: BatchHeader, batch: Buffer, use: Callable[[bytes], Awaitable[T]]) -> T:
        async with self._small:
            try:
                data = await self._disk.run(records_payload, batch, header, SMALL_BYTES)
            except KafkaError as error:
                if error.code is not ErrorCode.MESSAGE_TOO_LARGE:
                    raise
            else:
                return await use(data)
        async with self._large:
            data = await self._disk.run(records_payload, batch, header, MAX_UNPACKED_BYTES)
            return await use(data)


async def _in_slices(work: Slices[T]) -> T:
    while True:
        try:
            next(work)
        except StopIteration as done:
            result: T = done.value
            return result
        await asyncio.sleep(0)
