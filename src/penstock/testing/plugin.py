"""Defines the pytest plugin. pytest loads it if Penstock is installed, so it imports the broker only on first use.

def test_orders_are_written(penstock):                       a fresh broker for this test
    penstock.create_topic("orders", partitions=3)

@pytest.mark.penstock(topics={"orders": 3}, config={"auto.create.topics.enable": "false"})
def test_unknown_topics_are_refused(penstock): ...

def test_many_share_one(penstock_session): ...               one broker for the whole run

@pytest.mark.penstock(nodes=3, topics={"orders": 3})
def test_orders_survive_a_node(penstock_cluster): ...        a fresh cluster for this test
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from penstock.testing.broker import Broker
    from penstock.testing.cluster import Cluster

PACKAGES = ("penstock", "pyspark_penstock")


class OrdinaryImports:
    """Imports Penstock's modules with Python's own import system, so that pytest does not rewrite their asserts.

    pytest rewrites all modules of a distribution that has a plugin. Python could then not use the compiled files of the
    broker, and would compile all modules again if pytest can't store the rewritten modules.
    """

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        return PathFinder.find_spec(name, path, target) if name.partition(".")[0] in PACKAGES else None


def pytest_load_initial_conftests() -> None:
    if OrdinaryImports not in sys.meta_path:
        sys.meta_path.insert(0, OrdinaryImports)


def pytest_unconfigure() -> None:
    if OrdinaryImports in sys.meta_path:
        sys.meta_path.remove(OrdinaryImports)


def pytest_configure(config: pytest.Config) -> None:
    line = "penstock(**options): options of penstock.testing.Broker or Cluster for the fixture of this test"
    config.addinivalue_line("markers", line)


@pytest.fixture
def penstock(request: pytest.FixtureRequest) -> Iterator[Broker]:
    """Provides a broker for this test only, in memory. `@pytest.mark.penstock(…)` passes options."""
    from penstock.testing.broker import Broker

    marker = request.node.get_closest_marker("penstock")
    with Broker(**(marker.kwargs if marker is not None else {})) as broker:
        yield broker


@pytest.fixture
def penstock_cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Provides a cluster of three nodes for this test only, in memory. `@pytest.mark.penstock(…)` passes options."""
    from penstock.testing.cluster import Cluster

    marker = request.node.get_closest_marker("penstock")
    with Cluster(**(marker.kwargs if marker is not None else {})) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def penstock_session() -> Iterator[Broker]:
    """Provides one broker for the whole run.

    This is faster than a broker per test, but every test must use its own topics.
    """
    from penstock.testing.broker import Broker

    with Broker() as broker:
        yield broker
