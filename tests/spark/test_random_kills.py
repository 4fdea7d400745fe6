"""Copies a topic exactly once while any part of a cluster is killed at random; compares all rows at the end.

After a driver has died, the records of its decided batch are deleted at the source, so that the replay has no rows.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from sink_driver import committed_rows
from standalone import EXECUTORS, Standalone, standalone
from test_source_sink_kills import PATIENCE_S, batches_done, filled

from penstock.spark.ranges import from_json
from penstock.spark.sink_decisions import DecisionLog
from penstock.testing import Broker

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(1800)]

DECIDED = "driver, once it has decided"
KINDS = ("executor", "worker", "broker", "driver", DECIDED)
STEP = "driver-decided"
RUNS = 12
SETTINGS = EXECUTORS | {"spark.task.maxFailures": "20", "spark.penstock.test.failOnDataLoss": "false"}


class Copy:
    """A query, its drivers in order, and the pending kills with the number of batches that each waits for."""

    def __init__(self, broker: Broker, cluster: Standalone, place: Path, kills: list[tuple[int, str]]) -> None:
        self._broker, self._cluster, self._place, self.kills = broker, cluster, place, kills
        self.checkpoint, self._steps = place / "checkpoint", place / "steps"
        self._steps.mkdir()
        self.empty_replays = 0

    def drive(self) -> bool:
        """Runs a driver and kills processes during its run. Returns True if the driver completed the query."""
        words = [str(Path(__file__).with_name("copy_query.py")), self._broker.bootstrap, str(self.checkpoint)]
        words += [self._cluster.url, *(f"{name}={value}" for name, value in SETTINGS.items())]
        path = [str(Path(__file__).with_name("killing")), *filter(None, [os.environ.get("PYTHONPATH")])]
        more = {"PENSTOCK_TEST_STEPS": str(self._steps), "PYTHONPATH": os.pathsep.join(path)}
        with (self._place / "driver.log").open("ab") as log:
            driver = subprocess.Popen(
                [sys.executable, *words],
                env=os.environ | {"SPARK_LOCAL_IP": "127.0.0.1"} | more,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        if (self._steps / STEP).exists():  # the last driver ended before it reached the step
            (self._steps / STEP).write_text(str(driver.pid))
        deadline = time.monotonic() + PATIENCE_S
        try:
            while time.monotonic() < deadline:
                with suppress(subprocess.TimeoutExpired):
                    return driver.wait(0.05) == 0
                if self.kills and batches_done(self.checkpoint) >= self.kills[0][0]:
                    self._kill(self.kills[0][1], driver.pid)
            raise TimeoutError(f"the driver is not through after {PATIENCE_S} s: see {self._place}/driver.log")
        finally:
            with suppress(ProcessLookupError):
                os.killpg(driver.pid, signal.SIGKILL)
            driver.wait()

    def _kill(self, kind: str, driver: int) -> None:
        """Kills a process of this kind. If there was such a process, removes the kill from the pending ones."""
        if kind == "broker":
            self._broker.kill()
            self._broker.start()
        elif kind == "driver":
            os.killpg(driver, signal.SIGKILL)
        elif kind == DECIDED:
            (self._steps / STEP).write_text(str(driver))
        else:
            found = self._cluster.executors() if kind == "executor" else self._cluster.python_workers()
            if not found:
                return
            with suppress(ProcessLookupError):
                os.kill(found[0], signal.SIGKILL)
        self.kills.pop(0)

    def trim(self) -> None:
        """Deletes the records of the last decision at the source, also if the decision is not completed."""
        query = json.loads((self.checkpoint / "metadata").read_text())["id"]
        with self._broker.client() as client:
            last = DecisionLog(client, query).last()
            if last is None or last.batch < 0:
                return
            *_, offsets = (self.checkpoint / "offsets" / str(last.batch)).read_text().splitlines()
            client.delete_records(from_json(json.loads(offsets)))
        self.empty_replays += not (self.checkpoint / "commits" / str(last.batch)).exists()


@pytest.mark.parametrize("seed", [1, 2])
def test_query_writes_each_row_once_although_random_processes_are_killed(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    kinds = [*KINDS, chance.choice(KINDS)]
    chance.shuffle(kinds)
    kills = list(zip(sorted(chance.sample(range(1, 11), len(kinds))), kinds, strict=True))
    with Broker(data=tmp_path / "broker") as broker, standalone(tmp_path) as cluster:
        expected = filled(broker)
        copy = Copy(broker, cluster, tmp_path, list(kills))
        for _ in range(RUNS):
            if copy.drive():
                break
            copy.trim()
        else:
            pytest.fail(f"no driver got to the end after {kills}: see {tmp_path}/driver.log")
        assert copy.kills == [], kills
        assert copy.empty_replays, "at least that of the driver that had just decided"
        assert sorted(committed_rows(broker, "out")) == expected
