"""Runs work that takes the interpreter for long in a thread that leaves the event loop half of the time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


class PacedThread:
    """Runs pieces of work of all callers in turn, in one thread.

    After each piece the thread pauses for as long as the piece used the processor: meanwhile the event loop has the
    interpreter. However many clients ask, one such thread competes with the loop, and it does so half of the time.
    """

    def __init__(self, name: str) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)

    async def run(self, work: Callable[..., T], *args: object) -> T:
        """Runs a piece of work and returns its result. The caller cuts its work into pieces of a few milliseconds."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, _run, work, args)

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)


def _run(work: Callable[..., T], args: tuple[object, ...]) -> T:
    began = time.thread_time()
    try:
        return work(*args)
    finally:
        time.sleep(time.thread_time() - began)
