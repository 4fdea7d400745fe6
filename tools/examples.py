"""How many examples a property test tries: the full number, or a fifth of it under `make unit`."""

from __future__ import annotations

import os

QUICK_SHARE = 5
QUICK_LEAST = 5


def examples(count: int) -> int:
    """Returns `count`, or a fifth of it (at least five) where `TEST_EXAMPLES=quick` is set."""
    if os.environ.get("TEST_EXAMPLES") != "quick":
        return count
    return min(count, max(QUICK_LEAST, count // QUICK_SHARE))
