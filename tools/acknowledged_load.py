"""Runs writers that note every acknowledgement, and checks the topic against these notes.

The writers are three stock clients, each an idempotent producer with acks=all that numbers its records and never stops:
librdkafka's, kafka-python's and aiokafka's. `judge` reads the topic and finds lost, duplicate and reordered records.
"""

from __future__ import annotations

import asyncio
import gc
import socket
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field

from confluent_kafka import Consumer, Message, Producer, TopicPartition

QUIET = {"log_level": 0}
DELIVERY_LIMIT_S = 120.0
PROGRESS_LIMIT_S = 90.0
BEHIND = 5_000  # records that a writer may have sent without an acknowledgement


@dataclass(slots=True)
class Book:
    """Holds the acknowledgements of a writer. Record N is in partition N modulo the number of partitions."""

    topic: str
    partitions: int
    acknowledged: dict[int, int] = field(default_factory=dict)  # number → offset
    failed: list[str] = field(default_factory=list)
    sent: int = 0
    longest_gap_s: float = 0.0
    changed: threading.Condition = field(default_factory=threading.Condition)
    _last: float = field(default_factory=time.monotonic)

    def told(self, number: int, offset: int | None, error: object) -> None:
        now = time.monotonic()
        with self.changed:
            if error is not None or offset is None:
                self.failed.append(f"{number}: {error}")
            else:
                self.acknowledged[number] = offset
                self.longest_gap_s = max(self.longest_gap_s, now - self._last)
                self._last = now
            self.changed.notify_all()

    def wait_for(self, more: int) -> None:
        goal = len(self.acknowledged) + more
        with self.changed:
            there = self.changed.wait_for(lambda: len(self.acknowledged) >= goal or self.failed, PROGRESS_LIMIT_S)
        assert there, f"{self.topic}: {len(self.acknowledged)} acknowledged and no progress to {goal}"
        assert not self.failed, f"{self.topic}: {self.failed[:5]}"


Writing = Callable[[str, Book, threading.Event], None]


def forget_leftovers() -> None:
    """Closes the sockets of refused connections. kafka-python leaves them open, and a later test would report them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
        for each in gc.get_objects():
            if isinstance(each, socket.socket) and _was_refused(each):
                each.close()


def _was_refused(each: socket.socket) -> bool:
    """Returns True for an open TCP socket that is neither connected nor listening."""
    if each.fileno() < 0 or each.family not in (socket.AF_INET, socket.AF_INET6):
        return False
    try:
        each.getpeername()
    except OSError:
        return not each.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    return False


class Load:
    """Runs a writer in its own thread."""

    def __init__(self, bootstrap: str, book: Book, writing: Writing) -> None:
        self.book = book
        self._enough = threading.Event()
        self._thread = threading.Thread(target=writing, args=(bootstrap, book, self._enough), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._enough.set()
        self._thread.join(DELIVERY_LIMIT_S + 30)
        assert not self._thread.is_alive(), f"{self.book.topic}: the writer's thread did not end"


def confluent_writes(bootstrap: str, book: Book, enough: threading.Event) -> None:
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "acks": "all",
            "linger.ms": 2,
            "message.timeout.ms": int(DELIVERY_LIMIT_S * 1000),
            "reconnect.backoff.max.ms": 500,
            "topic.metadata.refresh.interval.ms": 5_000,
            **QUIET,
        }
    )

    def callback(number: int) -> Callable[[object, Message], None]:
        return lambda error, message: book.told(number, message.offset(), error)

    while not enough.is_set():
        if book.sent - len(book.acknowledged) > BEHIND:
            producer.poll(0.05)
            continue
        number = book.sent
        producer.produce(
            book.topic, value=b"%d" % number, partition=number % book.partitions, on_delivery=callback(number)
        )
        book.sent += 1
        producer.poll(0.005 if number % 20 == 0 else 0)
    producer.flush(DELIVERY_LIMIT_S)


def kafka_python_writes(bootstrap: str, book: Book, enough: threading.Event) -> None:
    from kafka import KafkaProducer

    producer = KafkaProducer(
        bootstrap_servers=bootstrap.split(","),
        enable_idempotence=True,
        acks="all",
        linger_ms=2,
        delivery_timeout_ms=int(DELIVERY_LIMIT_S * 1000),
        request_timeout_ms=10_000,
        max_block_ms=int(DELIVERY_LIMIT_S * 1000),
    )

    def note(number: int) -> None:
        future = producer.send(book.topic, b"%d" % number, partition=number % book.partitions)
        future.add_callback(lambda done: book.told(number, done.offset, None))
        future.add_errback(lambda error: book.told(number, None, error))

    while not enough.is_set():
        if book.sent - len(book.acknowledged) > BEHIND:
            time.sleep(0.05)
            continue
        note(book.sent)
        book.sent += 1
        if book.sent % 20 == 0:
            time.sleep(0.01)
    producer.flush(DELIVERY_LIMIT_S)
    producer.close(10)


def aiokafka_writes(bootstrap: str, book: Book, enough: threading.Event) -> None:
    asyncio.run(_aiokafka_writes(bootstrap, book, enough))


async def _aiokafka_writes(bootstrap: str, book: Book, enough: threading.Event) -> None:
    from aiokafka import AIOKafkaProducer

    producer = AIOKafkaProducer(
        bootstrap_servers=bootstrap.split(","),
        enable_idempotence=True,
        acks="all",
        linger_ms=2,
        request_timeout_ms=int(DELIVERY_LIMIT_S * 1000),
        metadata_max_age_ms=5_000,
    )
    await producer.start()
    waiting: set[asyncio.Task[None]] = set()

    async def settle(number: int, future: asyncio.Future[object]) -> None:
        try:
            done = await future
            book.told(number, done.offset, None)  # type: ignore[attr-defined]
        except Exception as error:
            book.told(number, None, repr(error))

    try:
        while not enough.is_set():
            if book.sent - len(book.acknowledged) > BEHIND // 5:
                await asyncio.sleep(0.05)
                continue
            number = book.sent
            future = await producer.send(book.topic, b"%d" % number, partition=number % book.partitions)
            book.sent += 1
            task = asyncio.ensure_future(settle(number, future))
            waiting.add(task)
            task.add_done_callback(waiting.discard)
            if number % 20 == 0:
                await asyncio.sleep(0.01)
        if waiting:
            await asyncio.wait(waiting, timeout=DELIVERY_LIMIT_S)
    finally:
        await producer.stop()


WRITERS: dict[str, Writing] = {
    "confluent": confluent_writes,
    "kafka-python": kafka_python_writes,
    "aiokafka": aiokafka_writes,
}


# --- checking the topic ---------------------------------------------------------------------------------------------


def read_all(bootstrap: str, book: Book) -> dict[int, list[tuple[int, int]]]:
    """Returns (offset, number) of every record by partition, as a consumer reads them from the leaders."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"judge-{book.topic}",
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "check.crcs": True,
            **QUIET,
        }
    )
    consumer.assign([TopicPartition(book.topic, index, 0) for index in range(book.partitions)])
    found: dict[int, list[tuple[int, int]]] = {index: [] for index in range(book.partitions)}
    ended: set[int] = set()
    deadline = time.monotonic() + PROGRESS_LIMIT_S
    while len(ended) < book.partitions:
        assert time.monotonic() < deadline, f"{book.topic}: partitions {ended} read to their end and no more"
        for message in consumer.consume(1_000, timeout=0.5):
            partition, error = message.partition(), message.error()
            assert partition is not None
            if error is not None:
                assert error.name() == "_PARTITION_EOF" or error.retriable(), str(error)
                if error.name() == "_PARTITION_EOF":
                    ended.add(partition)
                continue
            offset, value = message.offset(), message.value()
            assert offset is not None
            assert value is not None
            found[partition].append((offset, int(value)))
    consumer.close()
    return found


def judge(bootstrap: str, book: Book) -> None:
    """Asserts that no acknowledged record is lost, duplicate or out of order, that no offset is missing, and that no
    send failed."""
    assert book.failed == []
    assert len(book.acknowledged) == book.sent, f"{book.sent - len(book.acknowledged)} records were not acknowledged"
    found = read_all(bootstrap, book)
    for partition, records in found.items():
        offsets = [offset for offset, _ in records]
        assert offsets == list(range(len(records))), f"a gap in {book.topic}-{partition}"
        numbers = [number for _, number in records]
        assert len(set(numbers)) == len(numbers), f"a duplicate in {book.topic}-{partition}"
        assert numbers == sorted(numbers), f"records of {book.topic}-{partition} are out of order"
    stored = {number: offset for records in found.values() for offset, number in records}
    lost = [number for number, offset in book.acknowledged.items() if stored.get(number) != offset]
    assert lost == [], f"{len(lost)} acknowledged records of {book.topic} lost or elsewhere: {lost[:10]}"
