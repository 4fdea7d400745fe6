"""What all tests share: how they are spread over processes, and a heap that garbage collections need not go through."""

from __future__ import annotations

import gc
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
