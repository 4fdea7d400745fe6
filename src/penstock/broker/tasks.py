"""Background tasks that belong to one owner, which cancels them when it stops."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

logger = logging.getLogger(__name__)


class Tasks:
    """Keeps the running tasks in the order of their start, so that all simulated runs cancel them in the same order."""

    __slots__ = ("_running",)

    def __init__(self) -> None:
        self._running: dict[asyncio.Task[None], None] = {}

    def start(self, work: Coroutine[Any, Any, None], name: str | None = None) -> None:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._running[task] = None
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._running[task]
        if not task.cancelled() and task.exception() is not None:
            logger.error("%s failed", task.get_name(), exc_info=task.exception())

    def cancel(self) -> None:
        """Cancels all tasks except the one that calls this."""
        for task in list(self._running):
            if task is not asyncio.current_task():
                task.cancel()

    async def ended(self) -> None:
        if self._running:
            await asyncio.wait(self._running)

    async def close(self) -> None:
        self.cancel()
        await self.ended()
