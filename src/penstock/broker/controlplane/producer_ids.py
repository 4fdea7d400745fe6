"""Producer ids for this node, taken from the controller a block at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

Block = tuple[int, int]  # first id, how many


class ProducerIds:
    def __init__(self, allocate: Callable[[], Awaitable[Block]]) -> None:
        self._allocate = allocate
        self._next = 0
        self._end = 0
        self._refill = asyncio.Lock()

    async def next(self) -> int:
        await self.ready()
        producer_id = self._next
        self._next += 1
        return producer_id

    async def ready(self) -> None:
        """Returns when `take` has an id to give; no wait while the block lasts."""
        while self._next == self._end:
            async with self._refill:
                if self._next == self._end:  # the first of several waiters refilled
                    first, count = await self._allocate()
                    self._next, self._end = first, first + count

    def take(self) -> int | None:
        """An id at once, if the block has one left."""
        if self._next == self._end:
            return None
        self._next += 1
        return self._next - 1
