"""Cuts long loops of a coroutine into slices, with other callbacks of the event loop in between."""

from __future__ import annotations

import asyncio

#: Items between two yields to the event loop: a long listing must not delay requests by more than about 1 ms.
SLICE = 200


async def yield_between_slices(number: int) -> None:
    """Yields to the event loop after every SLICE items. Call this for each item, with the item's index."""
    if number % SLICE == SLICE - 1:
        await asyncio.sleep(0)
