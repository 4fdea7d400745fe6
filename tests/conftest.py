"""Shared by all tests: marks, the distribution over processes, and a heap that garbage collections can skip."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Tests have no bounds in wall time: a busy machine would make Hypothesis fail examples that take 0.2 s.
settings.register_profile("penstock", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("penstock")

TESTS = Path(__file__).parent
#: Directories whose tests share something expensive, a Spark session or an Apache Kafka: one process runs each of them.
TOGETHER = {TESTS / "spark": "spark", TESTS / "oracle": "oracle"}
#: Functions and classes that start a node with its listeners.
NODE_STARTERS = {("penstock.node.local", "make_node"), ("penstock.testing.broker", "Broker")}
NODE_STARTERS |= {("penstock.testing.cluster", "Cluster")}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        group = TOGETHER.get(item.path.parent)
        if group is not None:
            item.add_marker(pytest.mark.xdist_group(group))
        if isinstance(item, pytest.Function) and starts_nodes(item.module.__name__):
            item.add_marker(pytest.mark.nodes)


@cache
def starts_nodes(module: str) -> bool:
    """Returns True if the test module, or a helper module of which it imports a name, imports a starter of nodes."""
    for value in list(vars(sys.modules[module]).values()):
        origin, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
        if (origin, name) in NODE_STARTERS:
            return True
        if isinstance(origin, str) and origin != module and origin in sys.modules:
            file = getattr(sys.modules[origin], "__file__", None)
            if file is not None and TESTS in Path(file).parents and starts_nodes(origin):
                return True
    return False


def pytest_collection_finish() -> None:
    """Freezes the objects of pytest and the test modules, so that garbage collections in tests do not scan them."""
    gc.collect()
    gc.freeze()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite", action="store_true", help="write the answers that scenario scripts get now into their files"
    )


@pytest.fixture
def no_collections() -> Iterator[None]:
    """Turns the garbage collector off: a collection of the whole heap would count as CPU time of the test."""
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def compare_scenario(request: pytest.FixtureRequest) -> Callable[[Path, str], None]:
    """Compares a script's file with the text that its runner returned; with --rewrite, writes the text to the file."""

    def compare(path: Path, found: str) -> None:
        if request.config.getoption("--rewrite"):
            path.write_text(found)
        else:
            assert found == path.read_text()

    return compare
