"""Tests that the Grafana dashboard and the Prometheus alert rules use only metrics and labels of the node."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import penstock.http

ROOT = Path(__file__).parents[3]
FILES = Path(penstock.http.__file__).parent
_NAME = re.compile(r"\b(?:penstock|process)_[a-z_]+")


def exported() -> set[str]:
    """Returns all metric names in the source code of the metrics pages."""
    found: set[str] = set()
    for path in FILES.glob("*metrics*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and _NAME.fullmatch(node.value):
                found.add(node.value)
            match node:
                case ast.Call(func=ast.Name("histogram"), args=[ast.Constant(str(name)), *_]):
                    found |= {f"{name}_{suffix}" for suffix in ("bucket", "sum", "count")}
    return found


def alerts() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load((ROOT / "monitoring/alerts.yml").read_text())["groups"]
    rules: list[dict[str, Any]] = group["rules"]
    return rules


def queries() -> Iterator[tuple[str, str]]:
    for rule in alerts():
        yield rule["alert"], rule["expr"]
    for panel in json.loads((ROOT / "monitoring/grafana-dashboard.json").read_text())["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"]


@pytest.mark.parametrize(("title", "query"), list(queries()), ids=lambda text: text)
def test_every_query_of_dashboard_and_alert_rules_names_existing_metrics(title: str, query: str) -> None:
    names = set(_NAME.findall(query))
    assert names, f"{title} asks for no metric"
    assert names <= exported()


def test_every_alert_rule_has_a_severity_and_a_summary() -> None:
    for rule in alerts():
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"]["summary"].endswith(".")
    assert len({rule["alert"] for rule in alerts()}) == len(alerts())
