"""Runs stock clients as load, each in a process of its own: librdkafka (confluent-kafka) and Kafka's Java tools.

`python -m bench.load produce|consume|pace …` is the librdkafka side; it prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from typing import Any

from tools.kafka import COLLECTOR, run_tool

JAVA_FLAGS = ("-Xmx512M", *COLLECTOR)
LIMIT_S = 900.0


def percentile(ordered: list[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else float("nan")


def latency_summary(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    return {name: percentile(ordered, share) for name, share in (("p50", 0.5), ("p99", 0.99), ("p999", 0.999))}


# --- from the benchmark's side ------------------------------------------------------------------------------------


def librdkafka(what: str, bootstrap: str, topic: str, **options: Any) -> dict[str, Any]:
    command = [sys.executable, "-m", "bench.load", what, "--bootstrap", bootstrap, "--topic", topic]
    for name, value in options.items():
        command += [f"--{name.replace('_', '-')}", str(value)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"librdkafka {what}: {(done.stderr or done.stdout).strip().splitlines()[-1:]}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


SUMMARY = re.compile(
    r"(\d+) (?:steady state )?records sent, ([\d.]+) records/sec .*?, ([\d.]+) ms avg latency, ([\d.]+) ms max latency,"
    r" (\d+) ms 50th, (\d+) ms 95th, (\d+) ms 99th, (\d+) ms 99\.9th"
)


def java_produce(
    bootstrap: str,
    topic: str,
    *,
    records: int,
    size: int,
    acks: str,
    rate: int = -1,
    warmup: int = 0,
    **properties: Any,
) -> dict[str, Any]:
    wanted = {"bootstrap.servers": bootstrap, "acks": acks, **{k.replace("_", "."): v for k, v in properties.items()}}
    args = ["--topic", topic, "--num-records", str(records), "--record-size", str(size), "--throughput", str(rate)]
    if warmup:
        args += ["--warmup-records", str(warmup)]
    args += ["--command-property", *(f"{name}={value}" for name, value in wanted.items())]
    began = time.monotonic()
    done = run_tool("org.apache.kafka.tools.ProducerPerformance", *args, timeout=LIMIT_S, flags=JAVA_FLAGS)
    found = SUMMARY.findall(done.stdout)
    if done.returncode != 0 or not found:
        raise RuntimeError(f"ProducerPerformance: {(done.stderr or done.stdout).strip().splitlines()[-1:]}")
    sent, per_second, _, _, p50, _, p99, p999 = found[-1]
    return {
        "records": int(sent),
        "records_per_s": float(per_second),
        "seconds": time.monotonic() - began,
        "p50": float(p50),
        "p99": float(p99),
        "p999": float(p999),
    }


def java_consume(bootstrap: str, topic: str, *, records: int) -> dict[str, Any]:
    args = ["--bootstrap-server", bootstrap, "--topic", topic, "--num-records", str(records), "--hide-header"]
    args += ["--timeout", "30000"]
    done = run_tool("org.apache.kafka.tools.ConsumerPerformance", *args, timeout=LIMIT_S, flags=JAVA_FLAGS)
    lines = [line.split(", ") for line in done.stdout.splitlines() if line.count(",") >= 9]
    if done.returncode != 0 or not lines:
        raise RuntimeError(f"ConsumerPerformance: {(done.stderr or done.stdout).strip().splitlines()[-1:]}")
    # start, end, MB, MB/s, records, records/s, rebalance ms, fetch ms, fetch MB/s, fetch records/s
    fields = lines[-1]
    return {"records": int(fields[4]), "records_per_s": float(fields[9])}


def java_share_consume(bootstrap: str, topic: str, *, group: str, records: int, threads: int) -> dict[str, Any]:
    args = ["--bootstrap-server", bootstrap, "--topic", topic, "--group", group, "--num-records", str(records)]
    args += ["--threads", str(threads), "--hide-header", "--timeout", "30000"]
    done = run_tool("org.apache.kafka.tools.ShareConsumerPerformance", *args, timeout=LIMIT_S, flags=JAVA_FLAGS)
    lines = [line.split(", ") for line in done.stdout.splitlines() if line.count(",") >= 6]
    if done.returncode != 0 or not lines:
        raise RuntimeError(f"ShareConsumerPerformance: {(done.stderr or done.stdout).strip().splitlines()[-1:]}")
    # start, end, MB, MB/s, records/s, records, fetch ms
    fields = lines[-1]
    return {"records": int(fields[5]), "records_per_s": float(fields[4])}


# --- the child's side ---------------------------------------------------------------------------------------------


def produce(told: argparse.Namespace) -> dict[str, Any]:
    from confluent_kafka import Producer

    failed: list[str] = []
    producer = Producer(
        {
            "bootstrap.servers": told.bootstrap,
            "acks": told.acks,
            "linger.ms": 5,
            "queue.buffering.max.messages": 500_000,
            "batch.size": told.batch_size,
            "on_delivery": lambda error, _: failed.append(str(error)) if error else None,
            **json.loads(told.config),
        }
    )
    value = os.urandom(told.size)
    producer.list_topics(told.topic, timeout=30)
    began = time.monotonic()
    for index in range(told.records):
        while True:
            try:
                producer.produce(told.topic, value, partition=index // 64 % told.partitions)
                break
            except BufferError:
                producer.poll(0.05)
        if index & 0x3FFF == 0:
            producer.poll(0)
    left = producer.flush(120)
    seconds = time.monotonic() - began
    if left or failed:
        raise RuntimeError(f"{left} records unsent, {len(failed)} failed: {failed[:1]}")
    return {"records": told.records, "seconds": seconds, "records_per_s": told.records / seconds}


def consume(told: argparse.Namespace) -> dict[str, Any]:
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    settings = {"bootstrap.servers": told.bootstrap, "group.id": "bench", "enable.auto.commit": False}
    consumer = Consumer({**settings, **json.loads(told.config)})
    consumer.assign([TopicPartition(told.topic, partition, OFFSET_BEGINNING) for partition in range(told.partitions)])
    seen, began = 0, time.monotonic()
    while seen < told.records:
        got = consumer.consume(10_000, timeout=30)
        if not got:
            raise RuntimeError(f"only {seen} of {told.records} records were received")
        failed = next((message.error() for message in got if message.error()), None)
        if failed:
            raise RuntimeError(str(failed))
        seen += len(got)
    seconds = time.monotonic() - began
    consumer.close()
    return {"records": seen, "seconds": seconds, "records_per_s": seen / seconds}


def pace(told: argparse.Namespace) -> dict[str, Any]:
    """Sends a record every 1/rate seconds, each in its own request; latency is librdkafka's own measurement."""
    from confluent_kafka import Producer

    latencies: list[float] = []
    failed: list[str] = []

    def delivered(error: Any, message: Any) -> None:
        if error:
            failed.append(str(error))
        else:
            latencies.append(message.latency() * 1000)

    settings = {"bootstrap.servers": told.bootstrap, "acks": told.acks, "linger.ms": 0, "on_delivery": delivered}
    producer = Producer(settings)
    producer.list_topics(told.topic, timeout=30)
    value = os.urandom(told.size)
    began = time.monotonic()
    for index in range(told.records):
        due = began + index / told.rate
        while (wait := due - time.monotonic()) > 0:
            producer.poll(wait)
        producer.produce(told.topic, value, partition=index % told.partitions)
    producer.flush(60)
    if failed:
        raise RuntimeError(f"{len(failed)} failed: {failed[0]}")
    return {"records": told.records, **latency_summary(latencies[told.warmup :])}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.load")
    parser.add_argument("what", choices=("produce", "consume", "pace"))
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--partitions", type=int, default=1)
    parser.add_argument("--records", type=int, required=True)
    parser.add_argument("--size", type=int, default=100)
    parser.add_argument("--acks", default="1")
    parser.add_argument("--batch-size", type=int, default=131_072)
    parser.add_argument("--rate", type=float, default=1000.0)
    parser.add_argument("--warmup", type=int, default=0)
    parser.add_argument("--config", default="{}", help="further settings of librdkafka, as JSON")
    told = parser.parse_args()
    print(json.dumps({"produce": produce, "consume": consume, "pace": pace}[told.what](told)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
