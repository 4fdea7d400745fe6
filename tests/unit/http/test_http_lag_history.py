"""Tests the history of consumer lag: its sampling interval, its limits, and the topics that it includes."""

from __future__ import annotations

from penstock.http.lag_history import MAX_SERIES, MAX_TOPICS, POINTS, STALE_MS, LagHistory


def test_lag_history_ignores_a_sample_too_soon_after_the_previous_sample() -> None:
    history = LagHistory(shortest_ms=1000)
    for at_ms, lag in ((1000, 5), (1999, 7), (2000, 9)):
        history.add_sample("g", at_ms, {"t": lag})
    assert history.samples("g", ["t"]) == [(1000, 5), (2000, 9)]


def test_lag_history_for_a_user_includes_only_the_topics_that_the_user_may_see() -> None:
    history = LagHistory()
    history.add_sample("g", 1000, {"open": 5, "secret": 700})
    history.add_sample("g", 3000, {"open": 6})
    history.add_sample("g", 5000, {"open": 7, "secret": 800})
    assert history.samples("g", ["open"]) == [(1000, 5), (3000, 6), (5000, 7)]
    assert history.samples("g", ["open", "secret"]) == [(1000, 705), (3000, 706), (5000, 807)]
    assert history.samples("g", []) == history.samples("other", ["open"]) == []


def test_lag_history_omits_the_lag_of_a_deleted_topic() -> None:
    history = LagHistory()
    history.add_sample("g", 1000, {"a": 1, "deleted": 100})
    history.add_sample("g", 3000, {"a": 2, "new": 10})
    assert history.samples("g", ["a", "new"]) == [(1000, 1), (3000, 12)]


def test_lag_history_of_a_topic_keeps_a_limited_number_of_samples() -> None:
    history = LagHistory()
    for number in range(POINTS + 5):
        history.add_sample("g", number, {"t": number})
    found = history.samples("g", ["t"])
    assert (len(found), found[-1]) == (POINTS, (POINTS + 4, POINTS + 4))


def test_lag_history_of_a_group_returns_a_limited_number_of_samples_over_all_its_topics() -> None:
    history = LagHistory()
    for number in range(POINTS):
        history.add_sample("g", 2 * number, {"a": 1})
        history.add_sample("g", 2 * number + 1, {"b": 1})
    found = history.samples("g", ["a", "b"])
    assert (len(found), found[-1]) == (POINTS, (2 * POINTS - 1, 2))


def test_lag_history_returns_no_samples_for_a_request_of_too_many_topics() -> None:
    history = LagHistory()
    for number in range(MAX_TOPICS + 1):
        history.add_sample("g", 1000, {f"t{number}": 1})
    assert history.samples("g", [f"t{number}" for number in range(MAX_TOPICS)]) == [(1000, MAX_TOPICS)]
    assert history.samples("g", [f"t{number}" for number in range(MAX_TOPICS + 1)]) == []


def test_lag_history_at_its_limit_replaces_only_groups_without_recent_samples() -> None:
    history = LagHistory()
    for number in range(MAX_SERIES + 1):
        history.add_sample(f"group {number}", 0, {"t": 1})
    assert history.samples(f"group {MAX_SERIES}", ["t"]) == []
    for number in range(1, MAX_SERIES):
        history.add_sample(f"group {number}", STALE_MS, {"t": 1})
    for name in ("one", "two"):
        history.add_sample(name, STALE_MS, {"t": 7})
    assert history.samples("one", ["t"]) == [(STALE_MS, 7)]
    assert history.samples("group 0", ["t"]) == history.samples("two", ["t"]) == []
    assert len(history.samples("group 1", ["t"])) == 2


def test_lag_history_does_not_include_a_group_with_too_many_topics() -> None:
    history, lags = LagHistory(), {f"t{number}": 1 for number in range(MAX_TOPICS + 1)}
    history.add_sample("g", 0, lags)
    assert history.samples("g", lags) == []
