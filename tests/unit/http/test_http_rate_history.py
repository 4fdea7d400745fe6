"""Tests the history of produce rates: its length, its topics, and gaps."""

from __future__ import annotations

import pytest

from penstock.http import rate_history
from penstock.http.rate_history import POINTS, RateHistory
from penstock.http.rates import Rate


def test_rate_history_keeps_a_limited_number_of_samples_per_topic_and_for_all_topics_together() -> None:
    history = RateHistory()
    for number in range(POINTS + 5):
        history.add_sample(1000 * number, {"a": Rate(number, 1.0), "b": Rate(1.0, 2.0)})
    found = history.of_topic("a")
    assert (len(found), found[0], found[-1]) == (
        POINTS,
        (5000, 5.0, 1.0),
        (1000 * (POINTS + 4), float(POINTS + 4), 1.0),
    )
    total = history.of_all()
    assert (len(total), total[-1]) == (POINTS, (1000 * (POINTS + 4), float(POINTS + 5), 3.0))


def test_rate_history_of_a_topic_begins_with_its_first_record_and_is_dropped_after_an_hour_without_records() -> None:
    history = RateHistory()
    history.add_sample(0, {"t": Rate(0.0, 0.0)})
    assert history.of_topic("t") == []
    history.add_sample(1, {"t": Rate(5.0, 9.0)})
    assert history.of_topic("t") == [(1, 5.0, 9.0)]
    for number in range(POINTS - 1):
        history.add_sample(2 + number, {"t": Rate(0.0, 0.0)})
    assert len(history.of_topic("t")) == POINTS
    history.add_sample(POINTS + 1, {})
    assert history.of_topic("t") == []


def test_rate_history_has_a_gap_where_the_rate_of_a_topic_is_unknown() -> None:
    history = RateHistory()
    for at_ms, rates in ((1, {"t": Rate(1.0, 1.0)}), (2, {}), (3, {"t": Rate(2.0, 2.0)})):
        history.add_sample(at_ms, rates)
    assert history.of_topic("t") == [(1, 1.0, 1.0), (2, None, None), (3, 2.0, 2.0)]
    assert [each.records for each in history.of_all()] == [1.0, 0.0, 2.0]


def test_rate_history_includes_a_limited_number_of_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rate_history, "MAX_TOPICS", 2)
    history = RateHistory()
    history.add_sample(1, {name: Rate(1.0, 1.0) for name in "abc"})
    assert [len(history.of_topic(name)) for name in "abc"] == [1, 1, 0]
