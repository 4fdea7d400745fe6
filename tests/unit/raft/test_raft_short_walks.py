"""Tests that short random schedules of a quorum violate no invariant, and that it recovers from each of them."""

from __future__ import annotations

import pytest
from raft_walk import run_seeds


@pytest.mark.parametrize("first", range(50_000, 50_040, 8))
def test_quorum_keeps_its_promises_and_recovers_on_short_random_schedules(first: int) -> None:
    run_seeds(first, 8)
