"""Shared by all tests: the distribution of tests over processes, and a heap that garbage collections can skip."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Tests have no bounds in wall time: a busy machine would make Hypothesis fail examples that take 0.2 s.
settings.register_profile("penstock", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("penstock")

TESTS = Path(__file__).parent
#: Directories whose tests share something expensive, a Spark session or an Apache Kafka: one process runs each of them.
TOGETHER = {TESTS / "spark": "spark", TESTS / "oracle": "oracle"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        group = TOGETHER.get(item.path.parent)
        if group is not None:
            item.add_marker(pytest.mark.xdist_group(group))


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
