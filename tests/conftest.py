"""What all tests share: how they are spread over processes, and a heap that garbage collections need not go through."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
#: Directories whose tests share something expensive, a Spark session or an Apache Kafka: one process runs each of them.
TOGETHER = {TESTS / "spark": "spark", TESTS / "oracle": "oracle"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        group = TOGETHER.get(item.path.parent)
        if group is not None:
            item.add_marker(pytest.mark.xdist_group(group))


def pytest_collection_finish() -> None:
    """Keeps what pytest and the test modules hold out of the garbage collections that tests ask for."""
    gc.collect()
    gc.freeze()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite", action="store_true", help="write the answers that scenario scripts get now into their files"
    )


@pytest.fixture
def no_collections() -> Iterator[None]:
    """Switches the collector of cycles off: a collection of the whole heap would count for a test's CPU time."""
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
