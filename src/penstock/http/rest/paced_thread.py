"""Runs long computations in a thread that uses at most half of the processor time, so that the event loop can run."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


class PacedThread:
    """Runs the functions of all callers one after the other, in one thread.

    After each function, the thread sleeps for as long as the function used the processor. So the event loop gets
    Python's GIL for at least half of the time, even if many clients send requests.
    """

    def __init__(self, name: str) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)

    async def run(self, work: Callable[..., T], *args: object) -> T:
        """Runs `work` in the thread and returns its result.

        C code in `work` should take only a few milliseconds, because it may hold the GIL; Python code may take longer.
        """
        return await asyncio.get_running_loop().run_in_executor(self._thread, _run, work, args)

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)


def _run(work: Callable[..., T], args: tuple[object, ...]) -> T:
    began = time.thread_time()
    try:
        return work(*args)
    finally:
        time.sleep(time.thread_time() - began)
