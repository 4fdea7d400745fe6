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
        if self._next == self._end:
            async with self._refill:
                if self._next == self._end:  # the first of several waiters refilled
                    first, count = await self._allocate()
                    self._next, self._end = first, first + count
        producer_id = self._next
        self._next += 1
        return producer_id
