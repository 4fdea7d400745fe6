"""A task's memory depends on its fetch size, and not on the number of records that it reads."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from penstock.client.sync import Client
from penstock.testing import Broker

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
MB = 1 << 20
SMALL_MB, LARGE_MB = 24, 240
#: Difference in MB between two runs of the same program, mostly from the allocator's arenas.
NOISE_MB = 24

# Reads everything like Spark's worker, batch by batch, and prints its peak memory.
TASK = """
import resource, sys
from penstock.spark.batch import BatchReader
from penstock.spark.options import parse_options
from penstock.spark.schema import source_schema
bootstrap, topic, mode, fetch = sys.argv[1:]
options = {
    "kafka.bootstrap.servers": bootstrap, "subscribe": topic, "read.mode": mode,
    "kafka.max.partition.fetch.bytes": fetch,
}
reader = BatchReader(parse_options(options), source_schema(options))
rows = sum(batch.num_rows for task in reader.partitions() for batch in reader.read(task))
print(rows, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""


def fill(client: Client, topic: str, megabytes: int) -> int:
    """Fills a topic with the given MB; returns the number of records."""
    value = bytes(range(256)) * 4
    client.create_topic(topic, 1)
    with client.producer() as producer:
        for _ in range(megabytes):
            producer.send_many(topic, [(None, value, (), None)] * 1024, partition=0)
    return megabytes * 1024


def peak_mb(broker: Broker, topic: str, mode: str, records: int, fetch_mb: int) -> int:
    command = [sys.executable, "-c", TASK, broker.bootstrap, topic, mode, str(fetch_mb * MB)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=200)
    rows, peak = (int(word) for word in done.stdout.split())
    assert rows == records
    return peak


@pytest.mark.parametrize("mode", ["wire", "files"])
def test_memory_of_a_task_does_not_grow_with_the_size_of_the_topic(tmp_path: Path, mode: str) -> None:
    with Broker(data=tmp_path) as broker, broker.client() as client:
        small = peak_mb(broker, "small", mode, fill(client, "small", SMALL_MB), 2)
        large = peak_mb(broker, "large", mode, fill(client, "large", LARGE_MB), 2)
    assert large <= small + NOISE_MB


def test_memory_of_a_task_is_limited_to_a_multiple_of_its_fetch_size(tmp_path: Path) -> None:
    """A task holds one fetch that it decodes and one in flight, each with its columns, without further copies."""
    with Broker(data=tmp_path) as broker, broker.client() as client:
        records = fill(client, "topic", LARGE_MB // 2)
        small = peak_mb(broker, "topic", "wire", records, 1)
        large = peak_mb(broker, "topic", "wire", records, 16)
    assert large <= small + 4 * 16 + NOISE_MB
