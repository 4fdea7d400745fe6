"""Assigns producer ids on this node from blocks that the controller allocates."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

Block = tuple[int, int]  # first id, number of ids


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
        """Waits until `take` can return an id: allocates a new block if the current block is used up."""
        while self._next == self._end:
            async with self._refill:
                if self._next == self._end:  # false if another waiter has allocated a block
                    first, count = await self._allocate()
                    self._next, self._end = first, first + count

    def take(self) -> int | None:
        """Returns the next id of the block; None if the block is used up."""
        if self._next == self._end:
            return None
        self._next += 1
        return self._next - 1
