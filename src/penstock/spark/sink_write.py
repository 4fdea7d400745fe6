"""What a Spark task does: its rows into topics, idempotent, or in a transaction that is prepared and left so."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import Any

from pyspark.sql.datasource import WriterCommitMessage

from penstock.client.prepared import NOTHING_PREPARED, PreparedTxnState
from penstock.client.producer import ProducerSettings
from penstock.client.sync import Client, SyncProducer
from penstock.client.transactions import Transactions
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.spark.brokers import connect
from penstock.spark.errors import SourceError
from penstock.spark.options import SourceOptions
from penstock.spark.sink_commit import give_up_slot
from penstock.spark.sink_decisions import DecisionLog, slot_prefix
from penstock.spark.sink_encode import build, cuts
from penstock.spark.sink_options import SinkOptions
from penstock.spark.sink_rows import Router, chunks
from penstock.spark.sink_steps import reached

#: Attempts of one task whose transactions may be open at once. A driver that decides aborts all but one; a task that
#: finds none free gives the others up.
PLACES = 32


@dataclass(frozen=True, slots=True)
class Task:
    query: str
    batch: int
    slot: int
    """Which of the batch's tasks it is; another attempt of it has the same."""


@dataclass(slots=True)
class SinkMessage(WriterCommitMessage):
    task: Task
    rows: int = 0
    transactional_id: str = ""
    """Empty: there is nothing to commit."""
    prepared: str = ""
    decided: bool = False
    """The batch had been decided before: nothing was written again."""


def connect_sink(options: SinkOptions) -> Client:
    """Raises SourceError. Everything is retried, the first connection too, for about the delivery timeout."""
    attempts = max(8, options.delivery_timeout_ms // 1000)
    return connect(SourceOptions(options.bootstrap, client=options.client), attempts=attempts)


def write_plain(options: SinkOptions, task: Task, batches: Iterator[Any]) -> SinkMessage:
    with connect_sink(options) as client, client.producer(_settings(options)) as producer:
        return SinkMessage(task, _pour(client, producer, options, task.slot, batches))


def write_prepared(options: SinkOptions, task: Task, batches: Iterator[Any], *, two_phase: bool) -> SinkMessage:
    """`two_phase`: the transaction stays until somebody ends it, else until its timeout."""
    first = next((batch for batch in batches if batch.num_rows), None)
    if first is None:
        return SinkMessage(task)
    reached("task-begins")
    with connect_sink(options) as client:
        if two_phase and _decided(client, task):
            return SinkMessage(task, decided=True)
        producer, name = _take_a_place(client, options, task, two_phase)
        try:
            reached("task-owns")
            producer.begin()
            rows = _pour(client, producer, options, task.slot, chain([first], batches))
            reached("task-wrote")
            state = producer.transaction
            if two_phase:
                _hold(client, options, name, state)
        except Exception:
            with suppress(KafkaError):
                producer.abort()  # nobody knows of it
            raise
        finally:
            producer.close()
        reached("task-prepared")
        return SinkMessage(task, rows, name, str(state))


def _decided(client: Client, task: Task) -> bool:
    last = DecisionLog(client, task.query).last()
    if last is not None and last.batch > task.batch:
        raise SourceError(f"Batch {task.batch} is late: another run of this query has written batch {last.batch}.")
    return last is not None and last.batch == task.batch


def _take_a_place(client: Client, options: SinkOptions, task: Task, two_phase: bool) -> tuple[SyncProducer, str]:
    """The first transactional id of the slot without an open transaction: what is open may be prepared and decided on.

    Whoever had the id and has written nothing yet is fenced.
    """
    found = _free_place(client, options, task, two_phase)
    if found is None:  # as many drivers have died between prepare and decide
        give_up_slot(client, task.query, task.slot)
        found = _free_place(client, options, task, two_phase)
    if found is None:
        raise SourceError(
            f"Task {task.slot} has {PLACES} transactions open that are decided and not completed: "
            "restart the query, or end them with `penstock txn terminate`."
        )
    return found


def _free_place(client: Client, options: SinkOptions, task: Task, two_phase: bool) -> tuple[SyncProducer, str] | None:
    for place in range(PLACES):
        name = f"{slot_prefix(task.query, task.slot)}{place}"
        producer = client.producer(_settings(options, name))
        if producer.start(keep_prepared=two_phase) == NOTHING_PREPARED:
            return producer, name
        producer.close()
    return None


def _hold(client: Client, options: SinkOptions, name: str, state: PreparedTxnState) -> None:
    """Prepares it: from here on it has no timeout. An attempt that dies before leaves nothing open for long."""
    keeper = Transactions(client.asynchronous, name, options.transaction_timeout_ms, two_phase=True)
    client.run(keeper.start(keep_prepared=True))
    if keeper.prepared != state:
        raise KafkaError(ErrorCode.TRANSACTION_ABORTABLE, "The transaction has timed out: write less in one batch.")


def _settings(options: SinkOptions, transactional_id: str | None = None) -> ProducerSettings:
    return ProducerSettings(
        acks=options.acks,
        idempotent=options.idempotent,
        linger_s=0.0,
        request_max_bytes=max(options.batch_bytes, 1024 * 1024),
        buffer_bytes=options.buffer_bytes,
        delivery_timeout_s=options.delivery_timeout_ms / 1000,
        transactional_id=transactional_id,
        transaction_timeout_ms=options.transaction_timeout_ms,
    )


def _pour(client: Client, producer: SyncProducer, options: SinkOptions, slot: int, batches: Iterator[Any]) -> int:
    """How many rows went out. All are there when it returns. Raises KafkaError, SourceError."""
    router = Router(options, partition_counts(client, create=options.create_topics), _now_ms, slot)
    count = 0
    for chunk in chunks(batches):
        count += chunk.num_rows
        for topic, partition, rows in router.route(chunk):
            for start, end in cuts(rows, options.batch_bytes):
                built = build(rows.slice(start, end), options.compression, options.compression_level)
                producer.send_built(topic, partition, built)
    producer.flush()
    return count


class partition_counts:
    """How many partitions a topic has, asked once. Raises SourceError.

    With `create` a topic that is not there is asked for as producers do it: the broker creates it if it is set to.
    """

    def __init__(self, client: Client, *, create: bool) -> None:
        self._client = client
        self._create = create
        self._known: dict[str, int] = {}

    def __call__(self, topic: str) -> int:
        if topic not in self._known:
            self._known[topic] = self._asked(topic)
        return self._known[topic]

    def _asked(self, topic: str) -> int:
        try:
            return len(self._client.run(self._client.asynchronous.topic(topic, create=self._create)).partitions)
        except KafkaError as error:
            if error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                why = ", and the brokers create none (auto.create.topics.enable)" if self._create else ""
                raise SourceError(
                    f"There is no topic {topic!r}{why}: create it with `penstock topic create {topic}`."
                ) from None
            raise SourceError(f"Topic {topic!r} can't be written to: {error.code.name}.") from None


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
