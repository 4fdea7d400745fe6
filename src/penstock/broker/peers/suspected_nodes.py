"""Tracks suspected nodes: this node has lost its connection to them, but the controller has not fenced them yet.

When a leader dies, clients often send a Metadata request a few milliseconds before the controller elects a new leader.
If the response named the old leader, clients would retry only after their backoff, often a second later. So the
response waits briefly for the controller's decision. A node that was just fenced stays in the response's list of
brokers for a while, because some clients lose a partition if its old leader disappears from this list too early.
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
        # time of the loss; kept until the node is reached again, so that each loss counts once
        self._lost: dict[int, float] = {}
        self._fenced: dict[int, float] = {}
        self._waiting: list[asyncio.Future[None]] = []

    # Events.

    def lost(self, node_id: int) -> None:
        self._lost.setdefault(node_id, _now())

    def reached(self, node_id: int) -> None:
        if self._lost:
            self._lost.pop(node_id, None)

    def apply(self, old: MetadataImage, new: MetadataImage) -> None:
        """Takes over the new image, and wakes the requests that wait in `next_decision`."""
        if new.brokers is not old.brokers:
            for node_id, broker in new.brokers.items():
                before = old.brokers.get(node_id)
                if broker.fenced and before is not None and not before.fenced:
                    self._fenced[node_id] = _now()
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    # Queries.

    def about(self, node_ids: Iterable[int]) -> bool:
        """Returns True if this node has just lost its connection to one of the given nodes.

        In this case the controller may soon fence the lost node.
        """
        if not self._lost:
            return False
        earliest = _now() - HOLD_S
        return any(self._lost.get(node_id, earliest) > earliest for node_id in node_ids)

    async def next_decision(self) -> None:
        """Waits until the metadata image changes, but at most HOLD_S seconds."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        try:
            async with asyncio.timeout(HOLD_S):
                await future
        except TimeoutError:
            pass

    def lingering(self) -> list[int]:
        """Returns the ids of recently fenced nodes, which responses still list as brokers."""
        if not self._fenced:
            return []
        earliest = _now() - LINGER_S
        self._fenced = {node_id: when for node_id, when in self._fenced.items() if when > earliest}
        return list(self._fenced)


def _now() -> float:
    return asyncio.get_running_loop().time()
