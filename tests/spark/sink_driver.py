"""Simulates Spark's part in an exactly-once write: tasks, their attempts, the driver's commit, a checkpoint."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa

from penstock.client.consumer import ConsumerSettings
from penstock.client.sync import Client
from penstock.protocol.vocabulary import EARLIEST, LATEST, READ_COMMITTED
from penstock.spark import sink_steps
from penstock.spark.sink import StreamWriter
from penstock.spark.sink_options import SinkOptions
from penstock.spark.sink_write import SinkMessage, Task, write_prepared
from penstock.testing import Broker
from penstock.testing.cluster import Cluster

Rows = list[tuple[str, str]]


class Killed(BaseException):
    """Raised to simulate the death of the process. It is a BaseException, so no handler of Exception catches it."""


@contextmanager
def killed_at(step: str, occurrence: int = 1) -> Iterator[None]:
    """Raises Killed when a step is reached for the n-th time."""
    seen = 0

    def look(reached: str) -> None:
        nonlocal seen
        if reached == step:
            seen += 1
            if seen == occurrence:
                raise Killed(step)

    sink_steps.on_step = look
    try:
        yield
    finally:
        sink_steps.on_step = None


class Query:
    """The state that survives a driver: the query's id and the completed batches."""

    def __init__(self, broker: Broker | Cluster, topic: str) -> None:
        self.id = str(uuid.uuid4())
        self.done = 0
        self.options = SinkOptions(broker.bootstrap, topic, exactly_once=True)

    def attempt(self, batch: int, slot: int, rows: Rows) -> SinkMessage:
        columns = pa.record_batch(
            {"key": pa.array([key for key, _ in rows]), "value": pa.array([value for _, value in rows])}
        )
        halves = [columns.slice(0, len(rows) // 2), columns.slice(len(rows) // 2)]
        return write_prepared(self.options, Task(self.id, batch, slot), iter(halves), two_phase=True)

    def commit(self, batch: int, messages: Sequence[SinkMessage | None]) -> None:
        StreamWriter(self.options).commit(messages, batch)

    def abort(self, batch: int, messages: Sequence[SinkMessage | None]) -> None:
        StreamWriter(self.options).abort(messages, batch)

    def run(self, batches: Sequence[Rows], tasks: int = 3) -> None:
        """Runs a driver from the first batch that is not completed to the last."""
        while self.done < len(batches):
            rows = batches[self.done]
            messages = [self.attempt(self.done, slot, rows[slot::tasks]) for slot in range(tasks)]
            self.commit(self.done, messages)
            self.done += 1


def committed_rows(broker: Broker | Cluster, topic: str, *, up_to_the_end: bool = True) -> list[tuple[str, str]]:
    """Returns the rows that a read_committed reader sees. Reads to the end, so an open transaction fails the test."""
    found: list[tuple[str, str]] = []
    settings = ConsumerSettings(isolation_level=READ_COMMITTED, max_wait_ms=50)
    with Client(broker.bootstrap) as client, client.consumer(settings) as consumer:
        partitions = [(topic, index) for index in client.describe_topics([topic])[0].partitions]
        level = 0 if up_to_the_end else READ_COMMITTED
        ends = client.list_offsets(dict.fromkeys(partitions, LATEST), isolation_level=level)
        consumer.assign(dict.fromkeys(partitions, EARLIEST))
        while any(consumer.position(key) < ends[key].offset for key in partitions):
            for fetched in consumer.poll(5.0):
                found += [((each.key or b"").decode(), (each.value or b"").decode()) for each in fetched.records()]
    return found
