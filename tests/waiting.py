"""Waits for a condition of code that runs in other threads or processes."""

from __future__ import annotations

import time
from collections.abc import Callable

#: A condition that does not hold after this time will never hold; busy machines need seconds, not minutes.
LIMIT_S = 120.0
PAUSE_S = 0.01


def until(condition: Callable[[], object], sentence: str = "the condition does not become true") -> None:
    """Returns when the condition holds. Fails the test with the sentence after LIMIT_S."""
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, sentence
        time.sleep(PAUSE_S)
