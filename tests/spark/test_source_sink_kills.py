"""Copies a topic exactly once while executors and the broker are killed; compares all rows at the end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from copy_query import PER_BATCH
from sink_driver import committed_rows
from standalone import EXECUTORS, standalone

from penstock.testing import Broker

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(1200)]

RECORDS = 1200
KILLS_AFTER_BATCHES = (1, 4, 7)
PATIENCE_S = 500
RUNS = 6


def filled(broker: Broker) -> list[tuple[str, str]]:
    """Fills the source topic; returns the rows that the copy has to have."""
    broker.create_topics({"in": 2, "out": 2})
    with broker.client() as client, client.producer() as producer:
        for partition in (0, 1):
            numbers = range(partition, RECORDS, 2)
            producer.send_many("in", [(None, b"%d" % number, (), None) for number in numbers], partition=partition)
    return sorted((str(number % 2), str(number)) for number in range(RECORDS))


def batches_done(checkpoint: Path) -> int:
    return len(list((checkpoint / "commits").glob("[0-9]*")))


def copy(broker: Broker, place: Path, master: str, settings: dict[str, str], kills: list[Callable[[], None]]) -> int:
    """Runs the driver. Returns its exit code. Each entry of `kills` is carried out, and removed, after its number of
    batches.

    The function only polls the checkpoint; the outcome does not depend on how long any step takes.
    """
    checkpoint = place / "checkpoint"
    words = [str(Path(__file__).with_name("copy_query.py")), broker.bootstrap, str(checkpoint), master]
    words += [f"{name}={value}" for name, value in settings.items()]
    with (place / "driver.log").open("ab") as log:
        driver = subprocess.Popen(
            [sys.executable, *words],
            env=os.environ | {"SPARK_LOCAL_IP": "127.0.0.1"},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    deadline = time.monotonic() + PATIENCE_S
    try:
        while time.monotonic() < deadline:
            with suppress(subprocess.TimeoutExpired):
                return driver.wait(0.05)
            done = len(KILLS_AFTER_BATCHES) - len(kills)
            if kills and batches_done(checkpoint) >= KILLS_AFTER_BATCHES[done]:
                kills.pop(0)()
        raise TimeoutError(f"the driver is not through after {PATIENCE_S} s: see {place}/driver.log")
    finally:
        with suppress(ProcessLookupError):
            os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()


def test_query_from_source_to_sink_writes_each_row_once_although_executors_are_killed(tmp_path: Path) -> None:
    with Broker() as broker, standalone(tmp_path) as cluster:
        expected = filled(broker)
        killed: list[int] = []

        def kill_one() -> None:
            # The two executors in turn; if one is just being restarted, the other.
            running = cluster.executors()
            victim = running[len(killed) % len(running)]
            os.kill(victim, signal.SIGKILL)
            killed.append(victim)

        kills = [kill_one] * len(KILLS_AFTER_BATCHES)
        assert copy(broker, tmp_path, cluster.url, EXECUTORS, kills) == 0
        assert len(set(killed)) == len(KILLS_AFTER_BATCHES)
        assert sorted(committed_rows(broker, "out")) == expected
    assert batches_done(tmp_path / "checkpoint") >= RECORDS // PER_BATCH


def test_query_from_source_to_sink_writes_each_row_once_although_the_broker_is_killed(tmp_path: Path) -> None:
    with Broker(data=tmp_path / "broker") as broker:
        expected = filled(broker)

        def kill_it() -> None:
            broker.kill()
            broker.start()

        kills = [kill_it] * len(KILLS_AFTER_BATCHES)
        # A query may fail when its broker is killed; it restarts from its checkpoint.
        codes: list[int] = []
        while not codes or codes[-1] != 0:
            assert len(codes) < RUNS, f"exit codes {codes}: see {tmp_path}/driver.log"
            codes.append(copy(broker, tmp_path, "local[2,8]", {}, kills))
        assert not kills, "every kill has happened"
        assert sorted(committed_rows(broker, "out")) == expected
