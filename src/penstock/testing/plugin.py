"""The pytest plugin. It is loaded in every pytest run where Penstock is installed: it imports nothing early.

def test_orders_are_written(penstock):                       a fresh broker for this test
    penstock.create_topic("orders", partitions=3)

@pytest.mark.penstock(topics={"orders": 3}, config={"auto.create.topics.enable": "false"})
def test_unknown_topics_are_refused(penstock): ...

def test_many_share_one(penstock_session): ...               one broker for the whole run

@pytest.mark.penstock(nodes=3, topics={"orders": 3})
def test_orders_survive_a_node(penstock_cluster): ...        a fresh cluster for this test
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from penstock.testing.broker import Broker
    from penstock.testing.cluster import Cluster


def pytest_configure(config: pytest.Config) -> None:
    line = "penstock(**options): options of penstock.testing.Broker or Cluster for the fixture of this test"
    config.addinivalue_line("markers", line)


@pytest.fixture
def penstock(request: pytest.FixtureRequest) -> Iterator[Broker]:
    """A broker of this test's own, on memory; `@pytest.mark.penstock(…)` passes options."""
    from penstock.testing.broker import Broker

    marker = request.node.get_closest_marker("penstock")
    with Broker(**(marker.kwargs if marker is not None else {})) as broker:
        yield broker


@pytest.fixture
def penstock_cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A cluster of this test's own, of three nodes on memory; `@pytest.mark.penstock(…)` passes options."""
    from penstock.testing.cluster import Cluster

    marker = request.node.get_closest_marker("penstock")
    with Cluster(**(marker.kwargs if marker is not None else {})) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def penstock_session() -> Iterator[Broker]:
    """One broker for the whole run: quicker, if every test uses topics of its own."""
    from penstock.testing.broker import Broker

    with Broker() as broker:
        yield broker
