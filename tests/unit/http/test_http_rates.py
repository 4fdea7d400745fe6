"""Tests how rates are computed from samples of end offsets."""

from __future__ import annotations

from penstock.http.rates import Rates, Sums


def test_rate_of_a_topic_is_its_growth_between_two_samples() -> None:
    rates = Rates()
    assert rates.add_sample(0.0, {"t": Sums(2, 100, 1000)}) == {}
    assert rates.add_sample(2.0, {"t": Sums(2, 300, 5000)}) == {"t": (100.0, 2000.0)}


def test_two_samples_too_close_together_give_no_rate() -> None:
    rates = Rates()
    rates.add_sample(0.0, {"t": Sums(1, 0, 0)})
    assert rates.add_sample(0.1, {"t": Sums(1, 10, 10)}) == {}
    assert rates.add_sample(1.0, {"t": Sums(1, 20, 10)})["t"].records == 20.0


def test_rates_are_computed_from_recent_samples_only() -> None:
    rates = Rates()
    for second in range(100):
        found = rates.add_sample(float(second), {"t": Sums(1, 1000 if second < 50 else 0, 0)})
        assert ("t" in found) == (second != 0 and not 50 <= second < 60)
    assert found["t"].records == 0.0


def test_rate_of_a_topic_is_unknown_if_it_was_recreated_or_a_leader_is_unreachable() -> None:
    rates = Rates()
    rates.add_sample(0.0, {"anew": Sums(1, 100, 0), "silent": Sums(3, 10, 0), "kept": Sums(1, 1, 9)})
    found = rates.add_sample(
        1.0, {"anew": Sums(1, 5, 0), "silent": Sums(2, 50, 0), "new": Sums(1, 5, 5), "kept": Sums(1, 1, 4)}
    )
    assert found == {"kept": (0.0, 0.0)}  # retention reduces the size: the byte rate is zero, not negative
