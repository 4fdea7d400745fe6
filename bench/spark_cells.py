"""Compares Penstock's source and sink with Spark's own Kafka connector, on the same topic and machine.

All cells use one Penstock broker and one Spark session; each cell runs Penstock's job and the connector's job in turn.
CPU is that of Spark's driver, its workers and the broker together. In the report "kafka" is the connector. The cells of
the decoder alone, and of growth, have no result for the connector.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from bench.brokers import Penstock, environment
from bench.cells import SETTLE_S, Numbers, fresh_topic
from bench.load import librdkafka
from bench.process import cpu_seconds
from bench.spark_jars import connector_jars
from penstock.records.build import build_batch
from penstock.records.compression import Codec
from penstock.records.header import BatchHeader, parse_header
from penstock.spark.decode import decode_batches

PARTITIONS = 4
RECORDS_PER_BATCH = 1000
DECODE_RECORDS = 200_000
DECODE_S = 2.0
TIMESTAMP_MS = 1_700_000_000_000
WARM_RECORDS = 200_000
OURS, THEIRS = "penstock", "kafka"
FORMATS = {OURS: "penstock", THEIRS: "kafka"}


@dataclass(slots=True, frozen=True)
class SparkScale:
    records_100: int
    records_1024: int
    sink_rows: int
    growth_rows: int


FULL = SparkScale(5_000_000, 1_000_000, 1_000_000, 500_000)
# The same number of records to read as in a full run: with fewer, the start of a query would be measured.
QUICK = SparkScale(5_000_000, 1_000_000, 400_000, 200_000)


@dataclass(slots=True)
class SparkBench:
    """Holds a broker and a Spark session. The first cell that needs them starts them."""

    home: Path
    broker: Penstock = field(init=False)
    conf: Sequence[str] = ()
    driver: subprocess.Popen[str] | None = None
    topics: dict[tuple[int, int, int], str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.broker = Penstock(self.home / "broker")

    def start(self) -> str:
        """Starts broker and session; returns Spark's version."""
        self.broker.start()
        (self.home / "spark").mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "bench.spark_driver", "--home", str(self.home / "spark")]
        command += ["--jars", ",".join(str(jar) for jar in connector_jars())]
        command += [word for each in self.conf for word in ("--conf", each)]
        with (self.home / "spark.log").open("ab") as log:
            self.driver = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, env=environment()
            )
        return str(self._answer()["ready"])

    def warm_up(self, peers: Sequence[str]) -> None:
        """Warms Spark up, because compilation and imports happen once and are not part of a row's cost."""
        for peer in (*peers, *peers):
            for job in ("read", "read_stream", "write", "write_stream"):
                self.warm(job, peer)

    def warm(self, job: str, peer: str) -> None:
        """Runs the job once with few rows."""
        if job.startswith("read"):
            options = self.source(peer, self.filled(WARM_RECORDS, 100), "wire")
            self.run(job, format=FORMATS[peer], options=options)
        else:
            self.run(job, rows=self.rows(WARM_RECORDS // 10), format=FORMATS[peer], options=self.sink())

    def stop(self) -> None:
        driver, self.driver = self.driver, None
        if driver is not None:
            assert driver.stdin is not None
            driver.stdin.close()
            try:
                driver.wait(60)
            except subprocess.TimeoutExpired:
                driver.kill()
                driver.wait()
        self.broker.stop()

    def run(self, job: str, **what: Any) -> float:
        """Runs a job in the session; returns its seconds."""
        assert self.driver is not None
        stdin: IO[str] | None = self.driver.stdin
        assert stdin is not None
        stdin.write(json.dumps({"job": job, **what}) + "\n")
        stdin.flush()
        return float(self._answer()["seconds"])

    def measured(self, records: int, job: str, **what: Any) -> Numbers:
        assert self.driver is not None
        pids = (self.driver.pid, self.broker.pid)
        before = [cpu_seconds(pid) for pid in pids]
        seconds = self.run(job, **what)
        time.sleep(SETTLE_S)
        used = sum(cpu_seconds(pid) - then for pid, then in zip(pids, before, strict=True))
        return {"records_per_s": records / seconds, "cpu_s_per_million": used / records * 1e6}

    def filled(self, records: int, size: int, partitions: int = PARTITIONS) -> str:
        """Returns a topic with the given number of records. Cells share these topics."""
        key = (records, size, partitions)
        if key not in self.topics:
            topic = f"spark-{records}-{size}-{partitions}"
            made = fresh_topic(self.broker, topic, partitions)
            librdkafka("produce", self.broker.bootstrap, made, records=records, size=size, partitions=partitions)
            self.topics[key] = made
        return self.topics[key]

    def rows(self, count: int) -> str:
        """Returns the path of files with the given number of rows of 100 bytes, for a job to read."""
        name = f"rows-{count}"
        if not (self.home / "spark" / name).exists():
            self.run("rows", name=name, count=count, value_bytes=92, partitions=PARTITIONS)
        return name

    def source(self, peer: str, topic: str, mode: str) -> dict[str, str]:
        options = {"kafka.bootstrap.servers": self.broker.bootstrap, "subscribe": topic}
        return options | {"read.mode": mode} if peer == OURS else options

    def sink(self) -> dict[str, str]:
        topic = fresh_topic(self.broker, "spark-sink", PARTITIONS)
        return {"kafka.bootstrap.servers": self.broker.bootstrap, "topic": topic}

    def _answer(self) -> dict[str, Any]:
        assert self.driver is not None
        assert self.driver.stdout is not None
        line = self.driver.stdout.readline()
        if not line:
            raise RuntimeError(f"Spark stopped: see {self.home}/spark.log")
        found: dict[str, Any] = json.loads(line)
        if "failed" in found:
            raise RuntimeError(found["failed"])
        return found


@dataclass(slots=True, frozen=True)
class SparkCell:
    name: str
    measure: Callable[[SparkBench, str], Numbers]
    peers: Sequence[str] = (OURS, THEIRS)
    #: Uncounted runs before the others: in the first runs of a job the JVM compiles its code.
    warm_runs: int = 0


# --- reading ------------------------------------------------------------------------------------------------------


def read_cell(mode: str, job: str, size: int, records: int) -> SparkCell:
    def measure(bench: SparkBench, peer: str) -> Numbers:
        options = bench.source(peer, bench.filled(records, size), mode)
        # fresh_topic has put one record into each partition
        rows = records + PARTITIONS
        return bench.measured(rows, job, format=FORMATS[peer], options=options)

    how = {"read": "batch", "read_stream": "stream"}[job]
    return SparkCell(f"spark/read-{mode}/{how}/{size}B", measure, warm_runs=1)


# --- writing ------------------------------------------------------------------------------------------------------


def sink_cell(exactly_once: bool, job: str, rows: int) -> SparkCell:
    """Compares Penstock's sink with the connector's sink, which always writes at least once, even if `exactly_once` is
    set for Penstock's sink."""

    def measure(bench: SparkBench, peer: str) -> Numbers:
        name = bench.rows(rows)
        options = bench.sink()
        if peer == OURS:
            options["exactlyOnce"] = str(exactly_once).lower()
        return bench.measured(rows, job, rows=name, format=FORMATS[peer], options=options)

    how = {"write": "batch", "write_stream": "stream"}[job]
    return SparkCell(f"spark/sink/{'exactly-once' if exactly_once else 'at-least-once'}/{how}", measure, warm_runs=1)


# --- without the connector ----------------------------------------------------------------------------------------


def decode_cell(name: str, sizes: Sequence[int], compression: int) -> SparkCell:
    """Measures the decoding of record batches to Arrow columns, without Spark and brokers, on one core."""

    def measure(_bench: SparkBench, _peer: str) -> Numbers:
        batches = _batches(sizes, compression)
        records = len(batches) * RECORDS_PER_BATCH
        turns, began = 0, time.process_time()
        while (used := time.process_time() - began) < DECODE_S:
            decoded = sum(len(each) for each in decode_batches(batches, start=0, end=records))
            assert decoded == records
            turns += 1
        return {"records_per_s": turns * records / used}

    return SparkCell(f"spark/decode/{name}", measure, peers=(OURS,))


def _batches(sizes: Sequence[int], compression: int) -> list[tuple[BatchHeader, memoryview]]:
    found = []
    for index in range(DECODE_RECORDS // RECORDS_PER_BATCH):
        base = index * RECORDS_PER_BATCH
        records = [
            (TIMESTAMP_MS + number, b"%08d" % number, os.urandom(sizes[number % len(sizes)]), ())
            for number in range(base, base + RECORDS_PER_BATCH)
        ]
        batch = build_batch(records, base_offset=base, compression=compression)
        found.append((parse_header(batch), memoryview(batch)))
    return found


def growth_cell(name: str, rows: int, partitions: int) -> SparkCell:
    """Measures how the time per row grows with ten times the rows, in the same or ten times as many partitions."""

    def measure(bench: SparkBench, peer: str) -> Numbers:
        def read(count: int, parts: int) -> Numbers:
            options = bench.source(peer, bench.filled(count, 100, parts), "wire")
            return bench.measured(count, "read", format=FORMATS[peer], options=options)

        read(rows, PARTITIONS)
        small, large = read(rows, PARTITIONS), read(10 * rows, partitions)
        return {
            "time_per_row_10x_over_1x": small["records_per_s"] / large["records_per_s"],
            "cpu_per_row_10x_over_1x": large["cpu_s_per_million"] / small["cpu_s_per_million"],
        }

    return SparkCell(f"spark/growth/{name}", measure, peers=(OURS,))


def cells(scale: SparkScale) -> Iterator[SparkCell]:
    for size, records in ((100, scale.records_100), (1024, scale.records_1024)):
        for job in ("read", "read_stream"):
            for mode in ("wire", "files"):
                yield read_cell(mode, job, size, records)
    for job in ("write", "write_stream"):
        for exactly_once in (False, True):
            yield sink_cell(exactly_once, job, scale.sink_rows)
    yield decode_cell("100B", [100], 0)
    yield decode_cell("100B-varied", range(50, 151), 0)
    yield decode_cell("100B-zstd", [100], Codec.ZSTD)
    yield decode_cell("1024B", [1024], 0)
    yield growth_cell("rows", scale.growth_rows, PARTITIONS)
    yield growth_cell("rows-and-partitions", scale.growth_rows, 10 * PARTITIONS)
