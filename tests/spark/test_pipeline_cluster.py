"""Pipeline commands on a Spark cluster of a master and two workers, which differ only in `--master`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from standalone import EXECUTORS, standalone

from penstock.testing import Broker

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(1800)]


def pipeline(place: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "penstock.cli.main", "pipeline", *words]
    environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "XDG_STATE_HOME": str(place / "state")}
    return subprocess.run(command, capture_output=True, text=True, timeout=850, check=False, cwd=place, env=environment)


def executors(place: Path) -> int:
    """Returns the number of executors that were started."""
    return sum(path.is_dir() for number in (1, 2) for path in (place / f"work-{number}").glob("app-*/*"))


def test_table_pipeline_and_declarative_pipeline_run_on_the_executors_of_a_cluster(tmp_path: Path) -> None:
    import pyarrow.dataset as ds

    with Broker(data=tmp_path / "broker", topics={"orders": 2}) as broker, standalone(tmp_path) as cluster:
        with broker.client() as client, client.producer() as producer:
            producer.send_many("orders", [(b"k%d" % n, b'{"n": %d}' % n, (), None) for n in range(100)])
        there = ["--master", cluster.url, "--memory", "600m"]
        there += [word for name, value in EXECUTORS.items() for word in ("--conf", f"{name}={value}")]

        words = ["table", "orders", str(tmp_path / "table"), "--format", "parquet", "-b", broker.bootstrap]
        done = pipeline(tmp_path, *words, *there)
        assert done.returncode == 0, done.stderr
        assert sorted(ds.dataset(tmp_path / "table").to_table()["n"].to_pylist()) == list(range(100))
        assert executors(tmp_path) == 2

        pipeline(tmp_path, "init", "shop", "--topic", "orders", "-b", broker.bootstrap)
        done = pipeline(tmp_path, "run", "shop", *there)
        assert done.returncode == 0, done.stderr
        assert "events: batch 0, 100 rows" in done.stderr
        assert executors(tmp_path) == 4
