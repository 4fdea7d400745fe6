"""Defines the cells of the benchmark: a cell is a name and a function that measures a running broker.

Names go from general to particular, so that `--only 'produce/java/*'` selects a family. A cell creates the topics that
it needs. At its end the broker runs, even if the cell restarted it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from bench import groups, raw
from bench.brokers import Peer
from bench.load import java_consume, java_produce, latency_summary, librdkafka
from bench.process import cpu_seconds, memory

Numbers = dict[str, float]
GB = 1e9
SETTLE_S = 0.3  # the work of a broker after its last response counts too
IDLE_S = 5.0
RECOVERY_PARTITIONS = 6
RECOVERY_LIMIT_S = 300.0
GROUP_SIZE = 10
OFFSETS_PER_GROUP = 100


@dataclass(slots=True, frozen=True)
class Scale:
    """Holds the numbers of records, bytes and samples of a full run or a quick run."""

    records_100: int
    records_1024: int
    paced_s: int
    closed_s: float
    starts: int
    partitions: tuple[int, ...]
    recovery_gib: float
    groups: int
    beats_s: float
    offsets: int
    move_gib: float
    move_rounds: int
    in_flight: int
    quick: bool


FULL = Scale(
    2_000_000, 500_000, 20, 5.0, 5, (1, 100, 1000, 10_000), 5.0, 1000, 30.0, 1_000_000, 1.0, 7, 1_000_000, quick=False
)
QUICK = Scale(300_000, 100_000, 5, 2.0, 2, (1, 1000), 0.5, 100, 6.0, 50_000, 0.125, 5, 100_000, quick=True)


@dataclass(slots=True, frozen=True)
class Cell:
    name: str
    measure: Callable[[Peer], Numbers]
    fresh: bool = False  # needs an empty broker of its own, which it may restart
    repeat: bool = True


def create_topic(peer: Peer, name: str, partitions: int) -> float:
    """Creates a topic; returns the seconds until the broker reports that it exists."""
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": peer.bootstrap})
    admin.list_topics(timeout=30)
    began = time.monotonic()
    made = admin.create_topics([NewTopic(name, partitions, 1)], operation_timeout=300, request_timeout=300)
    for future in made.values():
        future.result()
    return time.monotonic() - began


def fresh_topic(peer: Peer, label: str, partitions: int) -> str:
    name = f"{label}-{time.monotonic_ns()}"
    create_topic(peer, name, partitions)
    raw.wait_for_writes(peer.port, name, partitions, time.monotonic() + 30)
    return name


def with_cpu(peer: Peer, records: int, size: int, load: Callable[[], dict[str, float]]) -> Numbers:
    before = cpu_seconds(peer.pid)
    numbers = load()
    time.sleep(SETTLE_S)
    used = cpu_seconds(peer.pid) - before
    return {
        "records_per_s": numbers["records_per_s"],
        "cpu_s_per_million": used / records * 1e6,
        "cpu_s_per_gb": used / (records * size) * GB,
    }


# --- throughput ---------------------------------------------------------------------------------------------------


def produce_cell(client: str, size: int, acks: str, partitions: int, records: int) -> Cell:
    def measure(peer: Peer) -> Numbers:
        topic = fresh_topic(peer, "produce", partitions)
        if client == "java":
            return with_cpu(
                peer,
                records,
                size,
                lambda: java_produce(peer.bootstrap, topic, records=records, size=size, acks=acks),
            )
        return with_cpu(
            peer,
            records,
            size,
            lambda: librdkafka(
                "produce", peer.bootstrap, topic, records=records, size=size, acks=acks, partitions=partitions
            ),
        )

    return Cell(f"produce/{client}/{size}B/acks={acks}/{partitions}p", measure)


def consume_cell(client: str, size: int, partitions: int, records: int) -> Cell:
    def measure(peer: Peer) -> Numbers:
        topic = fresh_topic(peer, "consume", partitions)
        librdkafka("produce", peer.bootstrap, topic, records=records, size=size, partitions=partitions)
        if client == "java":
            return with_cpu(peer, records, size, lambda: java_consume(peer.bootstrap, topic, records=records))
        return with_cpu(
            peer,
            records,
            size,
            lambda: librdkafka("consume", peer.bootstrap, topic, records=records, partitions=partitions),
        )

    return Cell(f"consume/{client}/{size}B/{partitions}p", measure)


# --- latency ------------------------------------------------------------------------------------------------------


def paced_cell(client: str, acks: str, rate: int, seconds: int) -> Cell:
    records, warmup = rate * (seconds + seconds // 4), rate * (seconds // 4)

    def measure(peer: Peer) -> Numbers:
        topic = fresh_topic(peer, "paced", 1)
        before = cpu_seconds(peer.pid)
        if client == "java":
            numbers = java_produce(
                peer.bootstrap, topic, records=records, size=100, acks=acks, rate=rate, warmup=warmup, linger_ms=0
            )
        else:
            numbers = librdkafka(
                "pace", peer.bootstrap, topic, records=records, size=100, acks=acks, rate=rate, warmup=warmup
            )
        used = cpu_seconds(peer.pid) - before
        return {
            "p50_ms": numbers["p50"],
            "p99_ms": numbers["p99"],
            "p999_ms": numbers["p999"],
            "cpu_us_per_request": used / records * 1e6,
        }

    return Cell(f"paced/{client}/{rate}per-s/acks={acks}", measure)


def connections_cell(connections: int, seconds: float) -> Cell:
    def measure(peer: Peer) -> Numbers:
        topic = fresh_topic(peer, "connections", 6)
        raw.closed_loop(peer.port, topic, 6, connections, seconds / 4)
        before = cpu_seconds(peer.pid)
        done = raw.closed_loop(peer.port, topic, 6, connections, seconds)
        used = cpu_seconds(peer.pid) - before
        summary = latency_summary(done.latencies_ms)
        return {
            "requests_per_s": done.requests / done.seconds,
            "cpu_us_per_request": used / done.requests * 1e6,
            "p50_ms": summary["p50"],
            "p99_ms": summary["p99"],
        }

    return Cell(f"connections/{connections}", measure)


# --- start, recovery and partitions -------------------------------------------------------------------------------


def idle_cell(starts: int) -> Cell:
    def measure(peer: Peer) -> Numbers:
        seconds = []
        for _ in range(starts):
            peer.stop()
            seconds.append(peer.start())
        time.sleep(IDLE_S)
        now = memory(peer.pid)
        return {"start_s": sorted(seconds)[len(seconds) // 2], "rss_mb": now.rss_mb, "pss_mb": now.pss_mb}

    return Cell("idle", measure, fresh=True, repeat=False)


MAX_PARTITIONS_PER_REQUEST = 5_000  # Kafka refuses a change of 10,000 records or more


def partitions_cell(partitions: int) -> Cell:
    def measure(peer: Peer) -> Numbers:
        topic = f"wide-{partitions}"
        first = min(partitions, MAX_PARTITIONS_PER_REQUEST)
        created = create_topic(peer, topic, first)
        for start in range(first, partitions, MAX_PARTITIONS_PER_REQUEST):
            more = min(MAX_PARTITIONS_PER_REQUEST, partitions - start)
            created += create_topic(peer, f"{topic}-from-{start}", more)
        checked = min(partitions, 100)  # all partitions of a topic come up together, so a sample is enough
        raw.wait_for_writes(peer.port, topic, checked, time.monotonic() + RECOVERY_LIMIT_S)
        time.sleep(IDLE_S)
        used = memory(peer.pid)
        peer.stop()
        began = time.monotonic()
        peer.start()
        raw.wait_for_writes(peer.port, topic, checked, time.monotonic() + RECOVERY_LIMIT_S)
        return {
            "create_s": created,
            "rss_mb": used.rss_mb,
            "pss_mb": used.pss_mb,
            "restart_s": time.monotonic() - began,
        }

    return Cell(f"partitions/{partitions}", measure, fresh=True, repeat=False)


def recovery_cell(gib: float) -> Cell:
    def measure(peer: Peer) -> Numbers:
        topic = fresh_topic(peer, "recovery", RECOVERY_PARTITIONS)
        raw.fill(peer.port, topic, RECOVERY_PARTITIONS, int(gib * 2**30))
        peer.kill()
        began = time.monotonic()
        peer.start()
        raw.wait_for_writes(peer.port, topic, RECOVERY_PARTITIONS, time.monotonic() + RECOVERY_LIMIT_S)
        return {"serves_again_s": time.monotonic() - began}

    return Cell(f"kill-9/{gib:g}GiB", measure, fresh=True, repeat=False)


# --- coordinators -------------------------------------------------------------------------------------------------


def groups_cell(count: int, seconds: float) -> Cell:
    """Measures the cost of idle members that only send a heartbeat every 3 s."""

    def measure(peer: Peer) -> Numbers:
        done = groups.beating(peer.port, lambda: cpu_seconds(peer.pid), count, GROUP_SIZE, seconds)
        summary = latency_summary(done.latencies_ms)
        return {
            "beats_per_s": done.answered / done.seconds,
            "cpu_percent_of_a_core": done.cpu_s / done.seconds * 100,
            "p50_ms": summary["p50"],
            "p99_ms": summary["p99"],
        }

    return Cell(f"groups/{count}x{GROUP_SIZE}", measure, fresh=True, repeat=False)


def coordinator_load_cell(offsets: int) -> Cell:
    """Measures a restart with many committed offsets in one partition of `__consumer_offsets`, until a client can fetch
    one."""

    def measure(peer: Peer) -> Numbers:
        topic = fresh_topic(peer, "load", OFFSETS_PER_GROUP)
        groups.wait_for_coordinator(peer.port, "load")
        names = groups.groups_of_one_coordinator(
            partition_count(peer, "__consumer_offsets"), offsets // OFFSETS_PER_GROUP
        )
        groups.commit(peer.port, topic, OFFSETS_PER_GROUP, names)
        peer.stop()
        began = time.monotonic()
        started = peer.start()
        groups.wait_for_offset(peer.port, topic, OFFSETS_PER_GROUP - 1, names[-1], RECOVERY_LIMIT_S)
        told = time.monotonic() - began
        used = memory(peer.pid)
        return {"offset_told_s": told, "after_start_s": told - started, "rss_mb": used.rss_mb}

    return Cell(f"coordinator-load/{offsets}", measure, fresh=True, repeat=False)


def partition_count(peer: Peer, topic: str) -> int:
    from confluent_kafka.admin import AdminClient

    return len(
        AdminClient({"bootstrap.servers": peer.bootstrap}).list_topics(topic, timeout=30).topics[topic].partitions
    )


def warm_up(peer: Peer, records: int) -> None:
    """Warms a broker up, because a JVM compiles hot code while it runs. Only the start-up cells measure a cold
    broker."""
    topic = fresh_topic(peer, "warm-up", 1)
    librdkafka("produce", peer.bootstrap, topic, records=records)
    librdkafka("consume", peer.bootstrap, topic, records=records)
    raw.closed_loop(peer.port, topic, 1, 4, 1.0 if records < 1_000_000 else 5.0)


def cells(scale: Scale) -> Iterator[Cell]:
    yield idle_cell(scale.starts)
    for client in ("librdkafka", "java"):
        for size, records in ((100, scale.records_100), (1024, scale.records_1024)):
            for acks in ("1", "all"):
                for partitions in (1, 6):
                    if not scale.quick or (acks == "all") == (partitions == 6):
                        yield produce_cell(client, size, acks, partitions, records)
    for client in ("librdkafka", "java"):
        for size, records in ((100, scale.records_100), (1024, scale.records_1024)):
            for partitions in (1, 6):
                if not scale.quick or partitions == 1:
                    yield consume_cell(client, size, partitions, records)
    for client in ("librdkafka", "java"):
        for acks in ("1", "all"):
            yield paced_cell(client, acks, 1000, scale.paced_s)
    for connections in (1, 10, 100):
        yield connections_cell(connections, scale.closed_s)
    for partitions in scale.partitions:
        yield partitions_cell(partitions)
    yield recovery_cell(scale.recovery_gib)
    yield groups_cell(scale.groups, scale.beats_s)
    yield coordinator_load_cell(scale.offsets)
