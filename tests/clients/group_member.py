"""Runs a group member until its input ends: prints its partitions and the records that it processes, then commits.

Lines of output: `SECONDS owned 0,1,2` at every change (before partitions are revoked, after they are assigned),
`SECONDS lost` when the member was removed from the group, `SECONDS value TEXT` for a record. Seconds are read from the
machine's clock, so that the lines of several members can be compared. Run as `python group_member.py KIND BOOTSTRAP
TOPIC GROUP SESSION_MS`.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

STRATEGY = "range"
BEAT_MS = 200
METADATA_AGE_MS = 500


def say(*words: object) -> None:
    sys.stdout.write(" ".join((f"{time.monotonic():.6f}", *map(str, words))) + "\n")
    sys.stdout.flush()


class Owned:
    def __init__(self) -> None:
        self._partitions: set[int] = set()
        self._left = False

    def add(self, partitions: Iterable[Any]) -> None:
        if not self._left:  # a rebalance may end while the client closes: it reads no more records and leaves next
            self._partitions |= {each.partition for each in partitions}
            self._say()

    def remove(self, partitions: Iterable[Any]) -> None:
        self._partitions -= {each.partition for each in partitions}
        self._say()

    def lose(self) -> None:
        say("lost")
        self._partitions.clear()

    def leave(self) -> None:
        self._left = True
        self._partitions.clear()
        self._say()

    def _say(self) -> None:
        say("owned", ",".join(map(str, sorted(self._partitions))))


def confluent(protocol: str, told: list[str], ended: threading.Event) -> None:
    from confluent_kafka import Consumer, KafkaException

    bootstrap, topic, group, session_ms = told
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "group.protocol": protocol,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "topic.metadata.refresh.interval.ms": METADATA_AGE_MS,
        "log_level": 0,
    }
    if protocol == "classic":
        settings |= {
            "session.timeout.ms": int(session_ms),
            "heartbeat.interval.ms": BEAT_MS,
            "partition.assignment.strategy": STRATEGY,
        }
    owned = Owned()
    consumer = Consumer(settings)
    consumer.subscribe(
        [topic],
        on_assign=lambda _, partitions: owned.add(partitions),
        on_revoke=lambda _, partitions: owned.remove(partitions),
        on_lost=lambda *_: owned.lose(),
    )
    while not ended.is_set():
        messages = [each for each in consumer.consume(100, timeout=0.05) if each.error() is None]
        for message in messages:
            say("value", (message.value() or b"").decode())
        if messages:
            try:
                consumer.commit(asynchronous=False)
            except KafkaException as refused:  # a rebalance intervened: the new owner processes the record again
                say("uncommitted", refused)
    owned.leave()
    consumer.close()


def kafka_python(told: list[str], ended: threading.Event) -> None:
    from kafka import ConsumerRebalanceListener, KafkaConsumer
    from kafka.coordinator.assignors.range import RangePartitionAssignor
    from kafka.errors import KafkaError

    bootstrap, topic, group, session_ms = told
    owned = Owned()

    class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
        def on_partitions_revoked(self, revoked: Any) -> None:
            owned.remove(revoked)

        def on_partitions_assigned(self, assigned: Any) -> None:
            owned.add(assigned)

        def on_partitions_lost(self, _: Any) -> None:
            owned.lose()

    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        session_timeout_ms=int(session_ms),
        heartbeat_interval_ms=BEAT_MS,
        metadata_max_age_ms=METADATA_AGE_MS,
        partition_assignment_strategy=[RangePartitionAssignor],
    )
    consumer.subscribe([topic], listener=Listener())
    while not ended.is_set():
        batches = consumer.poll(timeout_ms=50)
        for records in batches.values():
            for record in records:
                say("value", record.value.decode())
        if batches:
            try:
                consumer.commit()
            except KafkaError as refused:
                say("uncommitted", refused)
    owned.leave()
    consumer.close()


async def aiokafka(told: list[str], ended: threading.Event) -> None:
    from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener
    from aiokafka.coordinator.assignors.range import RangePartitionAssignor
    from aiokafka.errors import CommitFailedError, KafkaError

    bootstrap, topic, group, session_ms = told
    owned = Owned()

    class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
        async def on_partitions_revoked(self, revoked: Any) -> None:
            owned.remove(revoked)

        async def on_partitions_assigned(self, assigned: Any) -> None:
            owned.add(assigned)

    async def work(consumer: AIOKafkaConsumer) -> None:
        await consumer.start()
        while not ended.is_set():
            batches = await consumer.getmany(timeout_ms=50)
            for records in batches.values():
                for record in records:
                    say("value", record.value.decode())
            if batches:
                try:
                    await consumer.commit()
                except CommitFailedError as refused:
                    say("uncommitted", refused)

    while not ended.is_set():
        consumer = AIOKafkaConsumer(
            bootstrap_servers=bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=int(session_ms),
            heartbeat_interval_ms=BEAT_MS,
            metadata_max_age_ms=METADATA_AGE_MS,
            partition_assignment_strategy=(RangePartitionAssignor,),
        )
        consumer.subscribe([topic], listener=Listener())
        # A group that is upgraded while its members join answers them REBALANCE_IN_PROGRESS, as Kafka does, which
        # aiokafka 0.14 takes for the end of the consumer: a service starts a new one.
        try:
            await work(consumer)
            owned.leave()
        except KafkaError as problem:
            say("problem", problem)
            owned.lose()
        await consumer.stop()


def main() -> None:
    kind, *told = sys.argv[1:]
    ended = threading.Event()

    def wait() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=wait, daemon=True).start()
    members: dict[str, Callable[[], None]] = {
        "consumer": lambda: confluent("consumer", told, ended),
        "confluent": lambda: confluent("classic", told, ended),
        "kafka-python": lambda: kafka_python(told, ended),
        "aiokafka": lambda: asyncio.run(aiokafka(told, ended)),
    }
    members[kind]()


if __name__ == "__main__":
    main()
