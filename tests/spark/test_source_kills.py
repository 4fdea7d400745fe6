"""A driver and all its processes are killed at random points; with the checkpoint, every row is written once."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from penstock.testing import Broker

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(1200)]
RECORDS = 2000
PER_BATCH = 100
KILLS = 2
PATIENCE_S = 500

DRIVER = """
import sys
from penstock.spark import session
bootstrap, place = sys.argv[1:]
spark = session(master="local[2]", memory="600m", config={"spark.ui.enabled": "false", "spark.log.level": "ERROR"})
stream = (
    spark.readStream.format("penstock").option("kafka.bootstrap.servers", bootstrap).option("subscribe", "t")
    .option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", "100").load()
)
query = (
    stream.selectExpr("partition", "offset", "CAST(value AS STRING) AS number").writeStream.format("parquet")
    .option("path", place + "/table").option("checkpointLocation", place + "/checkpoint")
    .trigger(availableNow=True).start()
)
query.awaitTermination()
"""


def batches_done(place: Path) -> int:
    return len(list((place / "checkpoint" / "commits").glob("[0-9]*")))


def drive(broker: Broker, place: Path, kill_after: int | None) -> None:
    """Runs the driver, and kills it with all its processes once the given number of batches is committed."""
    process = subprocess.Popen(
        [sys.executable, "-c", DRIVER, broker.bootstrap, str(place)],
        env=dict(os.environ) | {"SPARK_LOCAL_IP": "127.0.0.1"},
        start_new_session=True,
    )
    try:
        while kill_after is not None:
            try:
                process.wait(0.02)
                return  # the driver ended before
            except subprocess.TimeoutExpired:
                if batches_done(place) >= kill_after:
                    return
        assert process.wait(PATIENCE_S) == 0
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def test_query_delivers_every_row_once_although_its_driver_is_killed_several_times(
    spark: object, tmp_path: Path
) -> None:
    from pyspark.sql import SparkSession

    assert isinstance(spark, SparkSession)
    chance = random.Random(7)
    with Broker(topics={"t": 2}) as broker:
        with broker.client() as client, client.producer() as producer:
            for partition in (0, 1):
                half = range(partition, RECORDS, 2)
                producer.send_many("t", [(None, b"%d" % number, (), None) for number in half], partition=partition)
        for _ in range(KILLS):
            drive(broker, tmp_path, kill_after=batches_done(tmp_path) + chance.randint(1, 5))
        survived = batches_done(tmp_path)
        drive(broker, tmp_path, kill_after=None)
    assert 0 < survived < RECORDS // PER_BATCH
    rows = spark.read.parquet(str(tmp_path / "table")).collect()
    found = sorted((row.partition, row.offset, int(row.number)) for row in rows)
    assert found == [(part, offset, 2 * offset + part) for part in (0, 1) for offset in range(RECORDS // 2)]
