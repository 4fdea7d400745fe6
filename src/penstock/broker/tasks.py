"""Keeps the background tasks of one object, and cancels them when the object is closed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

logger = logging.getLogger(__name__)

RETRY_SECONDS, MAX_RETRY_SECONDS = 0.05, 1.0


class Tasks:
    """Keeps the running tasks in the order in which they started, so that a simulated run always cancels them in this
    order.
    """

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
        """Cancels all tasks, except the task that calls this method."""
        for task in list(self._running):
            if task is not asyncio.current_task():
                task.cancel()

    async def ended(self) -> None:
        if self._running:
            await asyncio.wait(self._running)

    async def close(self) -> None:
        self.cancel()
        await self.ended()


class RepeatedRequest:
    """Sends waiting items in a background task, request by request, with longer and longer pauses after failures.

    `is_waiting` returns True while items wait; `send` sends one request and returns False if it failed.
    """

    __slots__ = ("_is_waiting", "_name", "_send", "_task", "closed")

    def __init__(self, name: str, is_waiting: Callable[[], bool], send: Callable[[], Awaitable[bool]]) -> None:
        self._name = name
        self._is_waiting = is_waiting
        self._send = send
        self._task: asyncio.Task[None] | None = None
        self.closed = False

    def start(self) -> None:
        """Starts the task; no-op if it is already running."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name=self._name)

    async def close(self) -> None:
        self.closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        pause = RETRY_SECONDS
        try:
            while self._is_waiting():
                if await self._send():
                    pause = RETRY_SECONDS
                else:
                    await asyncio.sleep(pause)
                    pause = min(pause * 2, MAX_RETRY_SECONDS)
        finally:
            self._task = None
