"""Measures how long a coroutine runs each time the event loop resumes it."""

from __future__ import annotations

import time
from collections.abc import Coroutine, Generator
from typing import Any


class Steps(Coroutine[Any, Any, Any]):
    """Runs a coroutine, and measures the CPU time between each resumption and the next wait."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        self._coroutine = coroutine
        self.times: list[float] = []

    def send(self, value: Any) -> Any:
        began = time.thread_time()
        try:
            return self._coroutine.send(value)
        finally:
            self.times.append(time.thread_time() - began)

    def throw(self, *error: Any) -> Any:
        return self._coroutine.throw(*error)

    def close(self) -> None:
        self._coroutine.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._coroutine.__await__()
