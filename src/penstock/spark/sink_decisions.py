"""Stores the decision to commit a query's newest batch, as the last record of a topic that belongs to the query.

Decisions are in a topic for three reasons: executors and every later driver can read the topic on any machine; a topic
is as durable as the data; and a topic needs no file system that Python can write to. Each query has its own topic, so
that the query's last decision is at the topic's end. All drivers write with one transactional id, which fences a driver
that has been replaced.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from penstock.client.admin import NewTopic
from penstock.client.consumer import ConsumerSettings
from penstock.client.errors import code_of
from penstock.client.prepared import PreparedTxnState
from penstock.client.producer import ProducerSettings
from penstock.client.sync import Client, SyncProducer
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.vocabulary import EARLIEST, LATEST, READ_COMMITTED
from penstock.records.record import Record

PREFIX = "__penstock_spark_commits"
#: Only the last decision counts: segments are small, so that compaction soon removes earlier decisions.
CONFIGS = {"cleanup.policy": "compact", "segment.bytes": "1048576", "min.cleanable.dirty.ratio": "0.1"}
KEY = b"decision"
VERSION = 1
#: Number of offsets before the topic's end that are read first: several, because markers and aborted decisions may
#: follow the last decision.
FIRST_READ_OFFSETS = 4


Prepared = tuple[str, PreparedTxnState]
"""A transactional id, and the producer id and epoch that identify one of its transactions."""


@dataclass(frozen=True, slots=True)
class Decision:
    """Records the decision to commit all transactions of a batch."""

    batch: int
    transactions: tuple[Prepared, ...]
    aborted: tuple[Prepared, ...] = ()
    """Transactions that may be aborted from now on: no later decision commits them."""

    def to_bytes(self) -> bytes:
        named = {"transactions": self.transactions, "aborted": self.aborted}
        texts = {field: {name: str(state) for name, state in each} for field, each in named.items()}
        return json.dumps({"version": VERSION, "batch": self.batch, **texts}).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Decision:
        found = json.loads(data)
        if found.get("version") != VERSION:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION,
                "The last decision was written by a newer Penstock: run this query with that version.",
            )
        return cls(int(found["batch"]), _parsed(found["transactions"]), _parsed(found.get("aborted", {})))


def _parsed(named: Mapping[str, str]) -> tuple[Prepared, ...]:
    return tuple((name, PreparedTxnState.parse(text)) for name, text in named.items())


def topic_of(query: str) -> str:
    return f"{PREFIX}-{query}"


def transactional_prefix(query: str) -> str:
    """Returns the prefix of the transactional ids of all tasks of a query."""
    return f"penstock-spark-{query}-"


def slot_prefix(query: str, slot: int) -> str:
    """Returns the prefix of the transactional ids of one task of a query."""
    return f"{transactional_prefix(query)}{slot}-"


class DecisionLog:
    def __init__(self, client: Client, query: str) -> None:
        self._client = client
        self._topic = topic_of(query)
        self._driver_id = f"penstock-spark.{query}.driver"

    def last(self) -> Decision | None:
        """Returns the last decision whose transaction is committed; None if there is none."""
        if not self._exists():
            return None
        key = (self._topic, 0)
        start = self._client.list_offsets({key: EARLIEST})[key].offset
        end = self._client.list_offsets({key: LATEST}, isolation_level=READ_COMMITTED)[key].offset
        span = FIRST_READ_OFFSETS
        while True:
            found = self._read(max(start, end - span), end)
            if found:
                return Decision.from_bytes(found[-1].value or b"")
            if end - span <= start:
                return None
            span *= 4

    def _exists(self) -> bool:
        [topic] = self._client.metadata([self._topic]).topics
        code = code_of(topic.error_code)
        if code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            return False
        if code not in (ErrorCode.NONE, ErrorCode.LEADER_NOT_AVAILABLE):
            raise KafkaError(code, f"Topic {self._topic}, which records the sink's commits, can't be read.")
        return True

    def _read(self, start: int, end: int) -> list[Record]:
        key = (self._topic, 0)
        found: list[Record] = []
        if start >= end:
            return found
        with self._client.consumer(ConsumerSettings(isolation_level=READ_COMMITTED, max_wait_ms=100)) as consumer:
            consumer.assign({key: start})
            while consumer.position(key) < end:
                for fetched in consumer.poll():
                    found += [record for record in fetched.records() if record.offset < end]
        return found

    def own(self, timeout_ms: int = 60_000) -> SyncProducer:
        """Fences all other drivers of the query. Returns the producer that records decisions from now on.

        A decision that another driver was writing is then either committed or aborted.
        """
        if not self._exists():
            try:
                self._client.create_topics([NewTopic(self._topic, 1, configs=dict(CONFIGS))])
            except KafkaError as error:
                if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                    raise
        settings = ProducerSettings(transactional_id=self._driver_id, transaction_timeout_ms=timeout_ms)
        producer = self._client.producer(settings)
        producer.start()
        return producer

    def decide(self, owner: SyncProducer, decision: Decision) -> None:
        """Writes a decision in a transaction, and returns when the transaction is committed."""
        owner.begin()
        owner.send(self._topic, decision.to_bytes(), KEY, partition=0)
        owner.commit()
