"""Measures share groups: records per second with 1, 4 and 16 share consumers, and the memory of records in flight.

Java's ShareConsumerPerformance consumes and acknowledges; Penstock's own share consumer holds records in flight, from
both brokers. Meanwhile a third client sends small requests: its longest wait shows for how long a broker stood still.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from bench.brokers import Peer
from bench.cells import Cell, Numbers, Scale, fresh_topic, with_cpu
from bench.load import java_share_consume, librdkafka
from bench.probe import Probe
from bench.process import cpu_seconds, memory
from penstock.client.admin import Admin
from penstock.client.client import AsyncClient
from penstock.client.share_consumer import Delivered, ShareConsumer, ShareConsumerSettings
from penstock.net.loop import run
from penstock.protocol.messages.api_00_produce import PartitionProduceData, ProduceRequest, TopicProduceData
from penstock.protocol.vocabulary import ConfigOperation, ResourceType
from penstock.records.build import build_batch

CONSUMERS = (1, 4, 16)
PARTITIONS = 6
SIZE = 100
#: A batch is acquired whole, so that its records are in flight whatever the limit of a partition is.
IN_FLIGHT_PARTITIONS = 100
LOCK_MS = 60_000  # the longest that brokers allow by default
FETCH_LIMIT_S = 50.0
ACKNOWLEDGED_AT_ONCE = 10_000
RELEASE_S = 2.0


async def _configure(client: AsyncClient, group: str, **configs: str) -> None:
    changes = {"share.auto.offset.reset": "earliest", **configs}
    altered = [(name, ConfigOperation.SET, value) for name, value in changes.items()]
    await Admin(client).alter_configs(ResourceType.GROUP, group, altered)


def consume_cell(consumers: int, records: int) -> Cell:
    def measure(peer: Peer) -> Numbers:
        topic = fresh_topic(peer, "share", PARTITIONS)
        librdkafka("produce", peer.bootstrap, topic, records=records, size=SIZE, partitions=PARTITIONS)
        group = f"group-{topic}"

        async def prepare() -> None:
            async with AsyncClient(peer.bootstrap) as client:
                await _configure(client, group)

        run(prepare())
        return with_cpu(
            peer,
            records,
            SIZE,
            lambda: java_share_consume(peer.bootstrap, topic, group=group, records=records, threads=consumers),
        )

    return Cell(f"share/java/{SIZE}B/{PARTITIONS}p/{consumers}c", measure)


def in_flight_cell(records: int) -> Cell:
    def measure(peer: Peer) -> Numbers:
        topic = fresh_topic(peer, "flight", IN_FLIGHT_PARTITIONS)
        with Probe(peer.port) as probe:
            numbers = run(_hold(peer, topic, records))
            time.sleep(RELEASE_S)  # the broker releases the records that the consumer held when it closed
        return {**numbers, "others_p99_ms": probe.p99_ms, "others_longest_ms": probe.longest_ms}

    return Cell(f"share/in-flight/{records}/{IN_FLIGHT_PARTITIONS}p", measure, fresh=True, repeat=False)


async def _hold(peer: Peer, topic: str, records: int) -> Numbers:
    """Acquires all records and holds them; then acknowledges every second record, so that no two states are equal."""
    group = f"group-{topic}"
    async with AsyncClient(peer.bootstrap) as client:
        await _configure(client, group, **{"share.record.lock.duration.ms": str(LOCK_MS)})
        await _produce(client, topic, records // IN_FLIGHT_PARTITIONS)
        settings = ShareConsumerSettings(max_records=records, max_wait_ms=500)
        async with ShareConsumer(client, group, [topic], settings) as consumer:
            while len(consumer.assignment) < IN_FLIGHT_PARTITIONS:
                await consumer.poll()
            before, cpu_before = memory(peer.pid), cpu_seconds(peer.pid)
            held: list[Delivered] = []
            began = time.monotonic()
            while len(held) < records:
                if time.monotonic() - began > FETCH_LIMIT_S:
                    raise RuntimeError(f"only {len(held)} of {records} records came before their locks expired")
                held += await consumer.poll()
            whole, cpu_whole = memory(peer.pid), cpu_seconds(peer.pid)
            for first in range(0, len(held), ACKNOWLEDGED_AT_ONCE):
                for delivered in held[first : first + ACKNOWLEDGED_AT_ONCE : 2]:
                    consumer.acknowledge(delivered)
                failed = [error for _, _, error in await consumer.commit() if error is not None]
                if failed:
                    raise RuntimeError(f"an acknowledgement was refused: {failed[0]}")
            single, cpu_single = memory(peer.pid), cpu_seconds(peer.pid)
    return {
        "rss_mb_before": before.rss_mb,
        "mb_whole_batches": whole.rss_mb - before.rss_mb,
        "mb_single_records": single.rss_mb - before.rss_mb,
        "cpu_s_acquire": cpu_whole - cpu_before,
        "cpu_s_acknowledge": cpu_single - cpu_whole,
    }


async def _produce(client: AsyncClient, topic: str, each: int) -> None:
    """Writes one batch to each partition."""
    await client.refresh([topic])
    [described] = [found for found in await Admin(client).list_topics() if found.name == topic]
    batch = build_batch([(0, None, b"x", ())] * each)
    for index in described.partitions:
        data = TopicProduceData(
            name=topic,
            topic_id=described.topic_id,
            partition_data=[PartitionProduceData(index=index, records=batch)],
        )
        answer = await client.request(ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=[data]))
        if answer.responses[0].partition_responses[0].error_code:
            raise RuntimeError(f"{topic}-{index} can't be written: {answer.responses[0].partition_responses[0]}")


def cells(scale: Scale) -> Iterator[Cell]:
    for consumers in CONSUMERS:
        yield consume_cell(consumers, scale.records_100 // 2)
    yield in_flight_cell(scale.in_flight)
