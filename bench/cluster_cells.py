"""Measures clusters of three nodes: replicated writes, the pause after a leader is killed, and many partitions."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from bench.cells import GB, SETTLE_S, Numbers, Scale
from bench.clusters import ClusterPeer
from bench.load import java_produce, latency_summary, librdkafka
from bench.process import cpu_seconds, memory

FACTOR = 3
HEALTHY_LIMIT_S = 120.0
GAP_LIMIT_S = 60.0
BETWEEN_RECORDS_S = 0.002
BEFORE_KILL_S = 1.5
AFTER_GAP_S = 1.0


@dataclass(slots=True, frozen=True)
class ClusterCell:
    name: str
    measure: Callable[[ClusterPeer], Numbers]
    repeat: bool = True


def _admin(peer: ClusterPeer) -> Any:
    from confluent_kafka.admin import AdminClient

    return AdminClient({"bootstrap.servers": peer.bootstrap})


def create(peer: ClusterPeer, label: str, partitions: int, assignment: list[list[int]] | None = None) -> str:
    from confluent_kafka.admin import NewTopic

    name = f"{label}-{time.monotonic_ns()}"
    topic = (
        NewTopic(name, replica_assignment=assignment, num_partitions=partitions)
        if assignment
        else NewTopic(name, partitions, FACTOR)
    )
    admin = _admin(peer)  # has to exist until its futures are done
    made = admin.create_topics([topic], operation_timeout=300, request_timeout=300)
    for future in made.values():
        future.result()
    return name


def topic_partitions(peer: ClusterPeer, topic: str) -> dict[int, Any]:
    found: dict[int, Any] = _admin(peer).list_topics(topic, timeout=60).topics[topic].partitions
    return found


def wait_until(peer: ClusterPeer, topic: str, good: Callable[[Any], bool], limit_s: float = HEALTHY_LIMIT_S) -> float:
    """Waits until every partition of a topic is in the wanted state. Returns the seconds that this took."""
    began = time.monotonic()
    while True:
        partitions = topic_partitions(peer, topic)
        if partitions and all(good(each) for each in partitions.values()):
            return time.monotonic() - began
        if time.monotonic() - began > limit_s:
            raise TimeoutError(f"{topic} did not become healthy in {limit_s:.0f} s")
        time.sleep(0.05)


def in_sync(partition: Any) -> bool:
    return len(partition.isrs) == FACTOR and partition.leader >= 0


def cpu(peer: ClusterPeer) -> float:
    return sum(cpu_seconds(pid) for pid in peer.pids)


# --- writes -------------------------------------------------------------------------------------------------------


def produce_cell(client: str, batch_kb: int, records: int, partitions: int = 6) -> ClusterCell:
    size = 100

    def measure(peer: ClusterPeer) -> Numbers:
        topic = create(peer, "replicated", partitions)
        wait_until(peer, topic, in_sync)
        batch = batch_kb * 1024
        before = cpu(peer)
        if client == "java":
            numbers = java_produce(peer.bootstrap, topic, records=records, size=size, acks="all", batch_size=batch)
        else:
            numbers = librdkafka(
                "produce",
                peer.bootstrap,
                topic,
                records=records,
                size=size,
                acks="all",
                partitions=partitions,
                batch_size=batch,
            )
        time.sleep(SETTLE_S)
        used = cpu(peer) - before
        return {
            "records_per_s": numbers["records_per_s"],
            "cpu_s_per_million": used / records * 1e6,
            "cpu_s_per_gb": used / (records * size) * GB,
        }

    return ClusterCell(f"cluster/produce/{client}/{batch_kb}KB", measure)


def paced_cell(client: str, rate: int, seconds: int) -> ClusterCell:
    records, warmup = rate * (seconds + seconds // 4), rate * (seconds // 4)

    def measure(peer: ClusterPeer) -> Numbers:
        topic = create(peer, "paced", 1)
        wait_until(peer, topic, in_sync)
        if client == "java":
            numbers = java_produce(
                peer.bootstrap, topic, records=records, size=100, acks="all", rate=rate, warmup=warmup, linger_ms=0
            )
        else:
            numbers = librdkafka(
                "pace", peer.bootstrap, topic, records=records, size=100, acks="all", rate=rate, warmup=warmup
            )
        return {"p50_ms": numbers["p50"], "p99_ms": numbers["p99"], "p999_ms": numbers["p999"]}

    return ClusterCell(f"cluster/paced/{client}/{rate}per-s", measure)


# --- failover -----------------------------------------------------------------------------------------------------


def failover_cell(trials: int) -> ClusterCell:
    """Kills a partition's leader (-9) while a client writes steadily; measures the longest pause between two
    acknowledgements."""

    def measure(peer: ClusterPeer) -> Numbers:
        gaps = []
        topic = create(peer, "failover", 1)
        for _ in range(trials):
            wait_until(peer, topic, in_sync)
            gaps.append(_one_gap(peer, topic) * 1000)
        summary = latency_summary(gaps)
        return {"gap_p50_ms": summary["p50"], "gap_max_ms": max(gaps), "gap_min_ms": min(gaps)}

    return ClusterCell(f"cluster/failover/{trials}", measure, repeat=False)


def _one_gap(peer: ClusterPeer, topic: str) -> float:
    from confluent_kafka import Producer

    acknowledged: list[float] = []
    failed: list[str] = []

    def delivered(error: Any, _: Any) -> None:
        if error:
            failed.append(str(error))
        else:
            acknowledged.append(time.monotonic())

    settings = {"bootstrap.servers": peer.bootstrap, "acks": "all", "enable.idempotence": True, "linger.ms": 0}
    producer = Producer({**settings, "on_delivery": delivered})

    def stream(until: Callable[[], bool]) -> None:
        while not until():
            producer.produce(topic, b"x" * 100)
            producer.poll(BETWEEN_RECORDS_S)

    began = time.monotonic()
    stream(lambda: time.monotonic() - began > BEFORE_KILL_S and len(acknowledged) > 10)
    leader = topic_partitions(peer, topic)[0].leader
    peer.kill_node(leader)
    killed = time.monotonic()

    def resumed() -> bool:
        if time.monotonic() - killed > GAP_LIMIT_S:
            raise TimeoutError(f"no write was acknowledged for {GAP_LIMIT_S:.0f} s after the leader was killed")
        # Writes in flight may still be acknowledged, so the stream counts as resumed only after a while.
        return acknowledged[-1] > killed + AFTER_GAP_S and acknowledged[-1] - acknowledged[-20] < AFTER_GAP_S

    stream(resumed)
    left = producer.flush(30)
    peer.start_node(leader)
    if left or failed:
        raise RuntimeError(f"{left} records unsent, {len(failed)} failed: {failed[:1]}")
    around = [when for when in acknowledged if when > killed - 0.5]
    return max(later - earlier for earlier, later in pairwise(around))


# --- many partitions ----------------------------------------------------------------------------------------------


#: Most partitions of one topic, a divisor of the measured number: brokers limit the partitions that a request creates.
TOPIC_WIDTH = 2500


def partitions_cell(partitions: int) -> ClusterCell:
    """Measures many replicated partitions: the time until all have a leader and replicas, the memory, and the start of
    a cluster with them."""

    def measure(peer: ClusterPeer) -> Numbers:
        before = sum(memory(pid).pss_mb for pid in peer.pids)
        began = time.monotonic()
        topics = [create(peer, "wide", min(partitions, TOPIC_WIDTH)) for _ in range(0, partitions, TOPIC_WIDTH)]
        created = time.monotonic() - began
        for topic in topics:
            wait_until(peer, topic, in_sync)
        time.sleep(5.0)
        took = sum(memory(pid).pss_mb for pid in peer.pids) - before
        peer.stop()
        again = time.monotonic()
        peer.start()
        for topic in topics:
            wait_until(peer, topic, in_sync)
        return {
            "create_s": created,
            "kb_per_partition": took * 1024 / partitions,
            "start_to_all_in_sync_s": time.monotonic() - again,
        }

    return ClusterCell(f"cluster/partitions/{partitions}", measure, repeat=False)


def election_cell(partitions: int) -> ClusterCell:
    """Kills a node that leads many partitions; measures the time until each has another leader."""

    def measure(peer: ClusterPeer) -> Numbers:
        victim, *others = sorted(peer.ports)
        topic = create(peer, "led", partitions, [[victim, *others] for _ in range(partitions)])
        wait_until(peer, topic, lambda each: in_sync(each) and each.leader == victim)
        peer.kill_node(victim)
        took = wait_until(peer, topic, lambda each: each.leader in others)
        peer.start_node(victim)
        wait_until(peer, topic, in_sync)
        return {"all_elected_s": took}

    return ClusterCell(f"cluster/election/{partitions}", measure, repeat=False)


def warm_up(peer: ClusterPeer, records: int) -> None:
    topic = create(peer, "warm-up", 6)
    wait_until(peer, topic, in_sync)
    librdkafka("produce", peer.bootstrap, topic, records=records, acks="all", partitions=6)


def cells(scale: Scale) -> Iterator[ClusterCell]:
    for client, batch_kb in (("java", 16), ("java", 128), ("librdkafka", 128)):
        yield produce_cell(client, batch_kb, scale.records_100 // 2)
    for client in ("librdkafka", "java"):
        yield paced_cell(client, 100, scale.paced_s)
    yield failover_cell(10)
    for partitions in (1000,) if scale.quick else (1000, 10_000):
        yield partitions_cell(partitions)
    yield election_cell(3000)
