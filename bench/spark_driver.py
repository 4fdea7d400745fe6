"""`python -m bench.spark_driver`: runs jobs in a Spark session, one JSON object per line, and prints their seconds.

It is a process of its own with Spark's JVM and Python workers as descendants, whose CPU time is the cost of a job.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from penstock.spark import session

SCHEMA = "key string, value string"


class Jobs:
    """Runs the jobs. Each method runs a whole job and returns nothing; the caller measures the time."""

    def __init__(self, spark: Any, home: Path) -> None:
        self._spark, self._home = spark, home

    def read(self, format: str, options: dict[str, str]) -> None:
        self._spark.read.format(format).options(**options).load().write.format("noop").mode("overwrite").save()

    def read_stream(self, format: str, options: dict[str, str]) -> None:
        frame = self._spark.readStream.format(format).options(**options, startingOffsets="earliest").load()
        self._run(frame.writeStream.format("noop"))

    def rows(self, name: str, count: int, value_bytes: int, partitions: int) -> None:
        """Writes rows for the sinks as files. Both sinks read the same files, which are cheap to read."""
        value = f"rpad(string(id), {value_bytes}, 'x') AS value"
        frame = self._spark.range(0, count, 1, partitions).selectExpr("string(id) AS key", value)
        frame.write.mode("overwrite").parquet(str(self._home / name))

    def write(self, rows: str, format: str, options: dict[str, str]) -> None:
        frame = self._spark.read.schema(SCHEMA).parquet(str(self._home / rows))
        frame.write.format(format).options(**options).mode("overwrite" if format == "noop" else "append").save()

    def write_stream(self, rows: str, format: str, options: dict[str, str]) -> None:
        frame = self._spark.readStream.schema(SCHEMA).parquet(str(self._home / rows))
        self._run(frame.writeStream.format(format).options(**options))

    def _run(self, writer: Any) -> None:
        checkpoint = self._home / f"checkpoint-{time.time_ns()}"
        writer.trigger(availableNow=True).option("checkpointLocation", str(checkpoint)).start().awaitTermination()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.spark_driver", description=__doc__)
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--jars", default="")
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--memory", default="1g")
    parser.add_argument("--conf", action="append", default=[], metavar="NAME=VALUE", help="a setting of Spark's")
    told = parser.parse_args()
    # Spark and its JVM print to stdout, so results have a channel of their own.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    config = {"spark.ui.enabled": "false", "spark.log.level": "ERROR", "spark.sql.shuffle.partitions": "2"}
    config |= dict(each.split("=", 1) for each in told.conf)
    if told.jars:
        config["spark.jars"] = told.jars
    spark = session("bench", master=told.master, memory=told.memory, config=config)
    jobs = Jobs(spark, told.home)
    print(json.dumps({"ready": spark.version}), file=answers, flush=True)
    for line in sys.stdin:
        task = json.loads(line)
        began = time.perf_counter()
        try:
            getattr(jobs, task.pop("job"))(**task)
            answer: dict[str, Any] = {"seconds": time.perf_counter() - began}
        except Exception as problem:
            answer = {"failed": (str(problem).strip().splitlines() or [type(problem).__name__])[0]}
        print(json.dumps(answer), file=answers, flush=True)
    spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
