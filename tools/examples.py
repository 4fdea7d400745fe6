"""Chooses how many examples a property test tries: the full number, or a fifth of it under `make unit`."""

from __future__ import annotations

import os

QUICK_SHARE = 5
QUICK_LEAST = 5


def examples(count: int) -> int:
    """Returns `count`; if `TEST_EXAMPLES=quick` is set, a fifth of it, at least five."""
    if os.environ.get("TEST_EXAMPLES") != "quick":
        return count
    return min(count, max(QUICK_LEAST, count // QUICK_SHARE))
