"""Serves a Fetch with very many partitions in slices, so that other requests are served in between.

A slice only locates records in the segments; the records are read when all slices are done. After each slice the fetch
parks at the partitions of this slice. So no append to these partitions is missed while later slices run.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from penstock.broker.fetch.long_poll import MAX_WAIT_MS, READ_AT_ONCE, Fetching, PartitionRead
from penstock.broker.requests.slices import SLICE_PARTITIONS, Slices, starts
from penstock.protocol.errors import KafkaError

if TYPE_CHECKING:
    from penstock.broker.replicas.partition import Partition

#: A Fetch with at most this many partitions is served without slices.
SMALL_FETCH_PARTITIONS = 2_000


class LargeFetching:
    __slots__ = ("_fetching", "_missing", "_parked", "_slices", "_woken")

    def __init__(self, fetching: Fetching, slices: Slices) -> None:
        self._fetching = fetching
        self._slices = slices
        self._missing = fetching.min_bytes
        self._parked: list[Partition] = []
        self._woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def locate(self, max_wait_ms: int) -> list[PartitionRead]:
        """Locates the records for the response, and returns a `PartitionRead` for each partition.

        If the located records have fewer bytes than the request's minimum, parks the fetch and locates records again
        after the wait.
        """
        try:
            reads, waits = await self._pass(waits=max_wait_ms > 0)
            if waits and self._missing > 0:
                reads = []
                await asyncio.wait((self._woken,), timeout=min(max_wait_ms, MAX_WAIT_MS) / 1000)
        finally:
            self._unpark()
        if waits:
            self._fetching.again = True
            reads, _ = await self._pass(waits=False)
        return reads

    async def read(self, reads: list[PartitionRead]) -> list[Any]:
        unsent = self._fetching.unsent
        size = sum(read.size for read in reads)
        if unsent is not None:
            unsent.take(size)
        try:
            chunks: list[Any] = []
            for start in starts(len(reads)):
                await self._slices.turn()
                chunks += [
                    await _chunk(read, at_once=size <= READ_AT_ONCE) for read in reads[start : start + SLICE_PARTITIONS]
                ]
            return chunks
        finally:
            if unsent is not None:
                unsent.give_back(size)

    def notify(self, appended_bytes: int) -> None:
        self._missing -= appended_bytes
        if self._missing <= 0:
            self.abandon()

    def abandon(self) -> None:
        """Ends the wait of a parked fetch: `locate` then returns the records that are available."""
        if not self._woken.done():
            self._woken.set_result(None)

    async def _pass(self, *, waits: bool) -> tuple[list[PartitionRead], bool]:
        """Locates the records of all partitions once, a few partitions at a time.

        Returns a `PartitionRead` for each partition, and True if the fetch is parked until a partition has new records.
        """
        fetching = self._fetching
        fetching.quiet = []
        reads: list[PartitionRead] = []
        total = 0
        known = False
        for start in starts(len(fetching.wanted)):
            await self._slices.turn()
            quiet = len(fetching.quiet)
            found, total, urgent = fetching.pass_over(fetching.wanted[start : start + SLICE_PARTITIONS], total)
            reads += found
            known = known or len(fetching.quiet) > quiet or not all(read.unknown for read in found)
            waits = waits and not urgent and total < fetching.min_bytes
            if waits:
                self._park([read.partition for read in found if read.partition is not None])
                self._park(fetching.quiet[quiet:])
        self._missing -= total
        return reads, waits and known

    def _park(self, partitions: list[Partition]) -> None:
        from_follower = self._fetching.reader.replica_id >= 0
        for partition in partitions:
            partition.waiters.park(self, from_follower=from_follower)
        self._parked += partitions

    def _unpark(self) -> None:
        for partition in self._parked:
            partition.waiters.unpark(self)
        self._parked = []


async def _chunk(read: PartitionRead, *, at_once: bool) -> Any:
    if not read.size or read.slice is None:
        return b""
    try:
        data = read.slice.read_cached() if at_once else None
        return await read.slice.read() if data is None else data
    except KafkaError as error:
        read.fail(error)
        return b""
