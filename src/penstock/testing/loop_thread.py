"""Runs an event loop in a background thread, for an embedded node."""

from __future__ import annotations

import asyncio
import threading
import warnings
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from penstock.net.loop import new_event_loop

T = TypeVar("T")

END_LIMIT_S = 1.0


class LoopThread:
    """Runs an event loop in a daemon thread, which does not keep the process of a failed test alive."""

    def __init__(self, name: str = "penstock-broker") -> None:
        self._loop = new_event_loop()
        self._resumed = threading.Event()
        self._resumed.set()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T], timeout_s: float) -> T:
        return self.begin(work).result(timeout_s)

    def begin(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def pause(self) -> None:
        """Blocks the event loop until `resume`: sockets stay open and silent, like the sockets of a stopped process."""
        stands = threading.Event()

        def stand_still() -> None:
            stands.set()
            self._resumed.wait()

        self._resumed.clear()
        self._loop.call_soon_threadsafe(stand_still)
        stands.wait()

    def resume(self) -> None:
        self._resumed.set()

    def end(self) -> None:
        self.resume()
        asyncio.run_coroutine_threadsafe(_cancel_the_rest(), self._loop).result(END_LIMIT_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        # A TLS connection may still wait for its peer's close_notify. A killed node does not wait: the loop
        # closes the socket.
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "unclosed resource <TCPTransport", ResourceWarning)
            self._loop.close()


async def _cancel_the_rest() -> None:
    """Cancels the tasks that a killed broker leaves behind, because asyncio warns about them when the loop closes."""
    rest = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in rest:
        task.cancel()
    await asyncio.gather(*rest, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_asyncgens()
