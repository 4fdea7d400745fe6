"""Nodes that may have died: this one has lost its connection to them, and the controller hasn't decided yet.

Clients notice a dead leader as soon as we do and ask at once who leads now: a few milliseconds before the controller
has chosen. Told of the old leader, they ask again when their own timers say so, often a second later. So the answer
waits for the decision, for a moment. A node just fenced also stays in the list of brokers for a while: there are
clients that lose sight of a partition whose old leader goes in the same answer that brings the new one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.metadata.image import MetadataImage

HOLD_S = 0.3
LINGER_S = 5.0


class SuspectedNodes:
    __slots__ = ("_fenced", "_lost", "_waiting")

    def __init__(self) -> None:
        self._lost: dict[int, float] = {}  # when; kept until the node is reached again, so that each loss counts once
        self._fenced: dict[int, float] = {}
        self._waiting: list[asyncio.Future[None]] = []

    # What happens.

    def lost(self, node_id: int) -> None:
        self._lost.setdefault(node_id, _now())

    def reached(self, node_id: int) -> None:
        if self._lost:
            self._lost.pop(node_id, None)

    def apply(self, old: MetadataImage, new: MetadataImage) -> None:
        """The controller has decided something: whoever waits looks again."""
        if new.brokers is not old.brokers:
            for node_id, broker in new.brokers.items():
                before = old.brokers.get(node_id)
                if broker.fenced and before is not None and not before.fenced:
                    self._fenced[node_id] = _now()
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    # What is asked.

    def about(self, node_ids: Iterable[int]) -> bool:
        """Whether one of these has been lost so lately that a decision is on its way."""
        if not self._lost:
            return False
        earliest = _now() - HOLD_S
        return any(self._lost.get(node_id, earliest) > earliest for node_id in node_ids)

    async def next_decision(self) -> None:
        """Until the image changes, or has had its time to."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        try:
            async with asyncio.timeout(HOLD_S):
                await future
        except TimeoutError:
            pass

    def lingering(self) -> list[int]:
        """Nodes that were fenced only just now."""
        if not self._fenced:
            return []
        earliest = _now() - LINGER_S
        self._fenced = {node_id: when for node_id, when in self._fenced.items() if when > earliest}
        return list(self._fenced)


def _now() -> float:
    return asyncio.get_running_loop().time()
