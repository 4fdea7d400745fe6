"""One Spark session and one broker for all Spark tests of a run, because starting them takes longer than most tests."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from penstock.testing import Broker
from tools.java_tests import require_jars

NAMES = count()
MISSING = [name for name in ("pyspark", "pyarrow") if find_spec(name) is None]


class WithoutSpark(pytest.Module):
    """A test module that is not imported because PySpark is missing. It is skipped, or fails if Spark is required."""

    def collect(self) -> Iterator[pytest.Item | pytest.Collector]:
        reason = f"needs {' and '.join(MISSING)}: run pip install -e '.[dev-spark]'"
        if os.environ.get("SPARK_TESTS") == "required":
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason, allow_module_level=True)


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    """If PySpark is missing, replaces each test module of this directory; otherwise pytest makes the module."""
    return WithoutSpark.from_parent(parent, path=module_path) if MISSING else None


@pytest.fixture(scope="session")
def spark_steps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a directory; a file in it with the name of a sink step kills the Python process that reaches it."""
    return tmp_path_factory.mktemp("steps")


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory, spark_steps: Path) -> Iterator[Any]:
    pytest.importorskip("pyspark")
    warehouse: Path = tmp_path_factory.mktemp("warehouse")
    killing = str(Path(__file__).with_name("killing"))
    with pytest.MonkeyPatch.context() as patch:  # for Spark's Python processes, which inherit Java's environment
        patch.setenv("PENSTOCK_TEST_STEPS", str(spark_steps))
        patch.setenv("PYTHONPATH", killing, prepend=os.pathsep)
        made = _session(warehouse)
    yield made
    made.stop()


def _session(warehouse: Path) -> Any:
    from penstock.spark import session

    return session(
        "penstock-tests",
        master="local[2]",
        memory="768m",
        config={
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.warehouse.dir": str(warehouse),
            "spark.log.level": "ERROR",
            "spark.sql.streaming.numRecentProgressUpdates": "1000",
        },
    )


@pytest.fixture(scope="session")
def spark_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Returns a broker with real files, so that tasks can read files and fetch."""
    with Broker(data=tmp_path_factory.mktemp("broker"), config={"log.segment.bytes": str(1 << 20)}) as broker:
        yield broker


@pytest.fixture
def new_topic(spark_broker: Broker) -> Callable[..., str]:
    """Returns a function that creates a topic with a unique name."""

    def make(partitions: int = 1, **configs: str) -> str:
        name = f"topic-{next(NAMES)}"
        configs = {"retention_ms": "-1", **configs}  # tests write records with times of their own
        spark_broker.create_topic(name, partitions, **configs)
        return name

    return make


@pytest.fixture(scope="session")
def kafka_jars() -> None:
    require_jars()
