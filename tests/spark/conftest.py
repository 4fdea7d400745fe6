"""One Spark session for all Spark tests of a run, and one broker: starting either costs more than most tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from penstock.testing import Broker
from tools.java_tests import require_jars

NAMES = count()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    pytest.importorskip("pyspark")
    from penstock.spark import session

    warehouse: Path = tmp_path_factory.mktemp("warehouse")
    made = session(
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
    yield made
    made.stop()


@pytest.fixture(scope="session")
def spark_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """On real files: both ways of reading are there."""
    with Broker(data=tmp_path_factory.mktemp("broker"), config={"log.segment.bytes": str(1 << 20)}) as broker:
        yield broker


@pytest.fixture
def new_topic(spark_broker: Broker) -> Callable[..., str]:
    """Makes a topic with a name of its own."""

    def make(partitions: int = 1, **configs: str) -> str:
        name = f"topic-{next(NAMES)}"
        configs = {"retention_ms": "-1", **configs}  # tests write records with times of their own
        spark_broker.create_topic(name, partitions, **configs)
        return name

    return make


@pytest.fixture(scope="session")
def kafka_jars() -> None:
    require_jars()
