"""Tests the metrics page in Prometheus' text format: Prometheus' own client parses it."""

from __future__ import annotations

import math

from prometheus_client.parser import text_string_to_metric_families

from penstock.http.exposition import Family, counter, gauge, render


def read(families: list[Family]) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for metric in text_string_to_metric_families(render(families).decode()):
        for sample in metric.samples:
            found.setdefault(sample.name, {})[tuple(sample.labels.items())] = sample.value
    return found


def test_prometheus_client_parses_the_same_labels_and_values_that_were_rendered() -> None:
    odd = 'a "quoted" \\ back\nslash, ünïcode 漢字 {}'
    family = gauge("penstock_lag", "With a \\ and\na line.")
    family.add(3, group=odd, topic="t")
    family.add(2**53, group="other", topic="")
    assert read([family]) == {
        "penstock_lag": {(("group", odd), ("topic", "t")): 3.0, (("group", "other"), ("topic", "")): 2.0**53}
    }


def test_metric_families_keep_their_type_and_help_and_order() -> None:
    text = render([counter("b_total", "Second.", 1), gauge("a", "First.", 0.25)]).decode()
    assert text == (
        "# HELP b_total Second.\n# TYPE b_total counter\nb_total 1\n# HELP a First.\n# TYPE a gauge\na 0.25\n"
    )
    kinds = {metric.name: metric.type for metric in text_string_to_metric_families(text)}
    assert kinds == {"b": "counter", "a": "gauge"}


def test_metric_family_without_samples_is_omitted_and_infinity_and_nan_are_rendered() -> None:
    family = gauge("x", "Odd.")
    for name, value in (("inf", math.inf), ("minus", -math.inf), ("nan", math.nan), ("yes", True)):
        family.add(value, of=name)
    found = read([gauge("empty", "Nothing."), family])["x"]
    assert found[(("of", "inf"),)] == math.inf
    assert found[(("of", "minus"),)] == -math.inf
    assert math.isnan(found[(("of", "nan"),)])
    assert found[(("of", "yes"),)] == 1


def test_metric_labels_with_lone_surrogates_are_rendered() -> None:
    family = gauge("x", "Odd.")
    family.add(1, of="\ud800")
    assert read([family]) == {"x": {(("of", "?"),): 1}}
