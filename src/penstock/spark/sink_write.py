"""Writes the rows of a Spark task to topics.

Uses an idempotent producer, or a transaction that is prepared and left open.
"""

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

#: Number of transactional ids per task. So many attempts of a task may have open transactions at once. A driver that
#: decides a batch aborts all except one; a task that finds no free id aborts those of its earlier attempts.
PLACES = 32


@dataclass(frozen=True, slots=True)
class Task:
    query: str
    batch: int
    slot: int
    """The index of the task in its batch; all attempts of a task have the same index."""


@dataclass(slots=True)
class SinkMessage(WriterCommitMessage):
    task: Task
    rows: int = 0
    transactional_id: str = ""
    """The transactional id of the task's open transaction; empty if the task has no transaction to commit."""
    prepared: str = ""
    decided: bool = False
    """True if the batch had been decided before, so that the task wrote nothing."""


def connect_sink(options: SinkOptions) -> Client:
    """Returns a client that repeats failed connections and requests for about the delivery timeout.

    Raises SourceError.
    """
    attempts = max(8, options.delivery_timeout_ms // 1000)
    return connect(SourceOptions(options.bootstrap, client=options.client), attempts=attempts)


def write_plain(options: SinkOptions, task: Task, batches: Iterator[Any]) -> SinkMessage:
    with connect_sink(options) as client, client.producer(_settings(options)) as producer:
        return SinkMessage(task, _send_rows(client, producer, options, task.slot, batches))


def write_prepared(options: SinkOptions, task: Task, batches: Iterator[Any], *, two_phase: bool) -> SinkMessage:
    """Writes rows in a transaction and leaves it open. Returns a message that names the transaction, for the driver.

    The driver ends the transaction. Without `two_phase`, the broker aborts it if its timeout expires first.
    """
    first = next((batch for batch in batches if batch.num_rows), None)
    if first is None:
        return SinkMessage(task)
    reached("task-begins")
    with connect_sink(options) as client:
        if two_phase and _decided(client, task):
            return SinkMessage(task, decided=True)
        producer, name = _take_free_id(client, options, task, two_phase)
        try:
            reached("task-owns")
            producer.begin()
            rows = _send_rows(client, producer, options, task.slot, chain([first], batches))
            reached("task-wrote")
            state = producer.transaction
            if two_phase:
                _prepare(client, options, name, state)
        except Exception:
            with suppress(KafkaError):
                producer.abort()  # the driver does not know this transaction yet
            raise
        finally:
            producer.close()
        reached("task-prepared")
        return SinkMessage(task, rows, name, str(state))


def _decided(client: Client, task: Task) -> bool:
    last = DecisionLog(client, task.query).last()
    if last is not None and last.batch > task.batch:
        raise SourceError(
            f"Batch {task.batch} is late: another run of this query has written batch {last.batch}. "
            "Stop one of the two runs, or give each its own checkpointLocation."
        )
    return last is not None and last.batch == task.batch


def _take_free_id(client: Client, options: SinkOptions, task: Task, two_phase: bool) -> tuple[SyncProducer, str]:
    """Returns a producer and its transactional id: the first id of the task without an open transaction.

    An id with an open transaction is skipped, because a recorded decision may commit this transaction. An earlier
    producer that has the chosen id, and no open transaction, is fenced. Raises SourceError if no id is free.
    """
    found = _first_free_id(client, options, task, two_phase)
    if found is None:  # as many drivers have died between prepare and decide
        give_up_slot(client, task.query, task.slot)
        found = _first_free_id(client, options, task, two_phase)
    if found is None:
        raise SourceError(
            f"Task {task.slot} has {PLACES} open transactions that the query decided to commit but has not committed: "
            "restart the query, or end these transactions with `penstock txn terminate`."
        )
    return found


def _first_free_id(
    client: Client, options: SinkOptions, task: Task, two_phase: bool
) -> tuple[SyncProducer, str] | None:
    for place in range(PLACES):
        name = f"{slot_prefix(task.query, task.slot)}{place}"
        producer = client.producer(_settings(options, name))
        if producer.start(keep_prepared=two_phase) == NOTHING_PREPARED:
            return producer, name
        producer.close()
    return None


def _prepare(client: Client, options: SinkOptions, name: str, state: PreparedTxnState) -> None:
    """Prepares a transaction. A prepared transaction can't time out.

    If the task dies before the transaction is prepared, the transaction times out and is aborted.
    """
    keeper = Transactions(client.asynchronous, name, options.transaction_timeout_ms, two_phase=True)
    client.run(keeper.start(keep_prepared=True))
    if keeper.prepared != state:
        raise KafkaError(
            ErrorCode.TRANSACTION_ABORTABLE,
            f"Transaction {name} timed out: write fewer rows per batch, or raise kafka.transaction.timeout.ms.",
        )


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


def _send_rows(client: Client, producer: SyncProducer, options: SinkOptions, slot: int, batches: Iterator[Any]) -> int:
    """Sends all rows, waits for their acknowledgement, and returns their number. Raises KafkaError, SourceError."""
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
    """Returns the number of partitions of a topic. Asks the brokers once per topic.

    Raises SourceError. With `create`, requests a missing topic as producers do, so that a broker with
    auto.create.topics.enable creates the topic.
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
                why = ", and the brokers do not create it (auto.create.topics.enable)" if self._create else ""
                raise SourceError(
                    f"There is no topic {topic!r}{why}: create it with `penstock topic create {topic}`."
                ) from None
            raise SourceError(f"Topic {topic!r} can't be written to: {error.code.name}.") from None


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
