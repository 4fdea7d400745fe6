"""Samples of lag: their spacing and their limits."""

from __future__ import annotations

from penstock.http import lag_history
from penstock.http.lag_history import MAX_GROUPS, POINTS, SHORTEST_MS, LagHistory


def test_lag_history_ignores_a_sample_shortly_after_the_previous_sample() -> None:
    history = LagHistory()
    assert history.add_sample("g", 1000, 5) == [(1000, 5)]
    assert history.add_sample("g", 1000 + SHORTEST_MS - 1, 7) == [(1000, 5)]
    assert history.add_sample("g", 1000 + SHORTEST_MS, 9) == [(1000, 5), (1000 + SHORTEST_MS, 9)]


def test_lag_history_limits_samples_and_groups_and_keeps_the_groups_described_last() -> None:
    history = LagHistory()
    for number in range(POINTS + 5):
        found = history.add_sample("g", number * SHORTEST_MS, number)
    assert (len(found), found[-1][1]) == (POINTS, POINTS + 4)
    for number in range(MAX_GROUPS - 1):
        history.add_sample(f"other {number}", 0, 0)
    history.add_sample("g", 10**9, 1)
    history.add_sample("one more", 0, 0)
    assert len(history.add_sample("g", 2 * 10**9, 2)) == POINTS
    assert len(history._groups) <= lag_history.MAX_GROUPS
