"""`python -m bench.spark_sink`: rows/s of Spark's writes to topics, with and without exactly-once.

The same rows are also written to nowhere (`noop`): what Spark itself takes for them.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from typing import Any

from penstock.client.sync import Client
from penstock.spark import session
from penstock.testing import Broker

PARTITIONS = 4


class Bench:
    def __init__(self, spark: Any, bootstrap: str, home: str, rows: int, value_bytes: int) -> None:
        self._spark, self._bootstrap, self._home, self._rows = spark, bootstrap, home, rows
        self._source = os.path.join(home, "source")
        value = f"rpad(string(id), {value_bytes}, 'x') AS value"
        spark.range(0, rows, 1, PARTITIONS).selectExpr("string(id) AS key", value).write.parquet(self._source)

    def nothing(self) -> None:
        self._spark.read.parquet(self._source).write.format("noop").mode("overwrite").save()

    def batch(self, exactly_once: bool) -> None:
        self._to(self._spark.read.parquet(self._source).write.mode("append"), exactly_once).save()

    def stream(self, exactly_once: bool) -> None:
        frame = self._spark.readStream.schema("key string, value string").parquet(self._source)
        writer = self._to(frame.writeStream.trigger(availableNow=True), exactly_once)
        checkpoint = os.path.join(self._home, f"checkpoint-{time.time_ns()}")
        writer.option("checkpointLocation", checkpoint).start().awaitTermination()

    def _to(self, writer: Any, exactly_once: bool) -> Any:
        topic = f"sink-{time.time_ns()}"
        with Client(self._bootstrap) as client:
            client.create_topic(topic, PARTITIONS)
        return writer.format("penstock").options(
            **{"kafka.bootstrap.servers": self._bootstrap, "topic": topic, "exactlyOnce": str(exactly_once).lower()}
        )

    def measure(self, name: str, work: Callable[[], None]) -> None:
        began = time.perf_counter()
        work()
        took = time.perf_counter() - began
        print(f"{name:24} {took:7.2f} s {self._rows / took / 1e6:7.3f} M rows/s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.spark_sink", description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--value-bytes", type=int, default=92)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--bootstrap", help="a running broker; default: one inside this process, on memory")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as home, Broker() as broker:
        spark = session("bench", master="local[2]", memory="1g", config={"spark.log.level": "ERROR"})
        bench = Bench(spark, args.bootstrap or broker.bootstrap, home, args.rows, args.value_bytes)
        bench.measure("warm-up", lambda: bench.batch(False))
        for _ in range(args.rounds):
            bench.measure("noop", bench.nothing)
            bench.measure("batch", lambda: bench.batch(False))
            bench.measure("batch, exactly once", lambda: bench.batch(True))
            bench.measure("stream", lambda: bench.stream(False))
            bench.measure("stream, exactly once", lambda: bench.stream(True))
        spark.stop()


if __name__ == "__main__":
    main()
