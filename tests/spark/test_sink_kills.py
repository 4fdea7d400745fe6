"""A streaming query of Spark is killed at each step of its exactly-once sink; then its topic is compared row by row."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from sink_driver import committed_rows

from penstock.spark.sink_steps import DRIVER_STEPS, TASK_STEPS
from penstock.testing import Broker

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(1800)]

ROWS_PER_FILE = 200
PYTHON_PATH = os.pathsep.join([str(Path(__file__).with_name("killing")), *filter(None, [os.environ.get("PYTHONPATH")])])


class Killable:
    def __init__(self, broker: Broker, topic: str, home: Path) -> None:
        self._source, self.steps = home / "in", home / "steps"
        self._source.mkdir()
        self.steps.mkdir()
        self._command = [
            sys.executable,
            str(Path(__file__).with_name("sink_query.py")),
            *(broker.bootstrap, topic, str(self._source), str(home / "checkpoint")),
        ]
        self.expected: list[tuple[str, str]] = []

    def add_files(self, count: int) -> None:
        for _ in range(count):
            number = len(self.expected)
            rows = [f"row-{number + row}" for row in range(ROWS_PER_FILE)]
            (self._source / f"{number:08}.txt").write_text("\n".join(rows) + "\n")
            self.expected += [("", row) for row in rows]

    def run(self, kill_driver_at: str | None = None) -> int:
        """Runs the driver, which a step may kill with its process group; returns its exit code."""
        driver = subprocess.Popen(
            self._command,
            env=os.environ | {"PENSTOCK_TEST_STEPS": str(self.steps), "PYTHONPATH": PYTHON_PATH},
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        if kill_driver_at is not None:
            (self.steps / kill_driver_at).write_text(str(driver.pid))
        return driver.wait(timeout=300)

    def kill_a_task_at(self, step: str) -> None:
        (self.steps / step).write_text("")


def test_query_writes_each_row_once_although_its_driver_is_killed_at_every_step(
    spark_broker: Broker, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic = new_topic(2)
    query = Killable(spark_broker, topic, tmp_path)
    for step in DRIVER_STEPS:
        query.add_files(1)
        assert query.run(kill_driver_at=step) == -signal.SIGKILL, step
    query.add_files(1)
    assert query.run() == 0
    assert sorted(committed_rows(spark_broker, topic)) == sorted(query.expected)


def test_query_writes_each_row_once_although_its_tasks_are_killed_at_every_step(
    spark_broker: Broker, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic = new_topic(2)
    query = Killable(spark_broker, topic, tmp_path)
    query.add_files(3)
    for step in TASK_STEPS:
        query.kill_a_task_at(step)
    assert query.run() == 0
    assert list(query.steps.iterdir()) == [], "every kill has happened"
    assert sorted(committed_rows(spark_broker, topic)) == sorted(query.expected)
