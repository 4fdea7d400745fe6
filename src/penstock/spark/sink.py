"""Defines the writers that Spark calls, for batches and for streams.

The writers take Arrow data. With exactlyOnce they write the data in transactions.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter

from penstock.client.prepared import PreparedTxnState
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.spark.brokers import connect
from penstock.spark.errors import SourceError, in_one_sentence, warn_of_options
from penstock.spark.options import SourceOptions
from penstock.spark.shipping import Shipped
from penstock.spark.sink_commit import abort_batch, commit_batch, commit_run
from penstock.spark.sink_options import SinkOptions, parse_sink_options
from penstock.spark.sink_rows import check_columns
from penstock.spark.sink_write import SinkMessage, Task, connect_sink, partition_counts, write_plain, write_prepared
from penstock.spark.workers import settle

logger = logging.getLogger(__name__)

QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"
INIT_PRODUCER_ID, TWO_PHASE_SINCE = 22, 6


def batch_writer(options: Mapping[str, str], schema: Any, overwrite: bool) -> BatchWriter:
    """Checks the options and the columns, and returns the writer of a batch query. Raises SourceError."""
    if overwrite:
        raise SourceError("A topic can't be overwritten: write with mode('append').")
    return BatchWriter(_checked(options, schema, streaming=False))


def stream_writer(options: Mapping[str, str], schema: Any, overwrite: bool) -> StreamWriter:
    """Checks the options and the columns, and returns the writer of a streaming query. Raises SourceError.

    `overwrite` is True for outputMode('complete'): every batch writes all rows of the result, as with Spark's own sink,
    and readers use the newest row of each key.
    """
    return StreamWriter(_checked(options, schema, streaming=True))


def _checked(options: Mapping[str, str], schema: Any, *, streaming: bool) -> SinkOptions:
    """Checks the options, the columns and the brokers before any task runs. Returns the parsed options.

    Raises SourceError.
    """
    chosen = parse_sink_options(options, streaming=streaming)
    extra = check_columns({field.name: field.dataType.simpleString() for field in schema.fields}, chosen)
    if extra:
        logger.warning(
            "The sink does not write these columns, because extraColumns=ignore is set: %s", ", ".join(extra)
        )
    warn_of_options(chosen.without_effect)
    # The user waits for this check at the start of a query, so an unreachable broker is reported at once.
    with (
        in_one_sentence("The sink's brokers could not be checked"),
        connect(SourceOptions(chosen.bootstrap, client=chosen.client)) as client,
    ):
        if chosen.topic is not None:
            partition_counts(client, create=chosen.create_topics)(chosen.topic)
        if chosen.exactly_once and streaming:
            versions = client.run(client.asynchronous.connection()).versions
            if versions.get(INIT_PRODUCER_ID, (0, 0))[1] < TWO_PHASE_SINCE:
                raise SourceError(
                    "The brokers do not allow two-phase commit, which exactlyOnce needs: set "
                    "transaction.two.phase.commit.enable=true on the brokers, or option exactlyOnce=false."
                )
    return chosen


class BatchWriter(Shipped, DataSourceArrowWriter):
    """Writes a batch job's rows.

    With exactlyOnce, only the driver commits, so failed attempts leave no visible rows.
    """

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._run = uuid.uuid4().hex  # made on the driver and sent to executors, which have the same

    def write(self, iterator: Iterator[Any]) -> SinkMessage:
        from pyspark import TaskContext

        settle()
        context = TaskContext.get()
        slot = context.partitionId() if context is not None else 0
        attempt = context.taskAttemptId() if context is not None else 0
        with in_one_sentence("Rows could not be written"):
            if not self._options.exactly_once:
                return write_plain(self._options, Task(self._run, 0, slot), iterator)
            # Each attempt has its own transactional id, so that no attempt ends the transaction of another.
            return write_prepared(self._options, Task(f"{self._run}-{attempt}", 0, slot), iterator, two_phase=False)

    def commit(self, messages: Sequence[SinkMessage | None]) -> None:
        self._end(messages, commit=True)

    def abort(self, messages: Sequence[SinkMessage | None]) -> None:
        self._end(messages, commit=False)

    def _end(self, messages: Sequence[SinkMessage | None], *, commit: bool) -> None:
        prepared = _prepared(messages)
        if prepared:
            ending = "committed" if commit else "aborted"
            with in_one_sentence(f"The write could not be {ending}"), connect_sink(self._options) as client:
                commit_run(client, prepared, commit=commit)


class StreamWriter(Shipped, DataSourceStreamArrowWriter):
    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[Any]) -> SinkMessage:
        settle()
        task = _this_task()
        with in_one_sentence("Rows could not be written"):
            if self._options.exactly_once:
                return write_prepared(self._options, task, iterator, two_phase=True)
            return write_plain(self._options, task, iterator)

    def commit(self, messages: Sequence[SinkMessage | None], batchId: int) -> None:
        """Commits the batch of a stream, even if the batch has no rows.

        Also commits or aborts transactions that an earlier attempt of the batch has left.
        """
        told = [message for message in messages if message is not None]
        prepared, replayed = _prepared(told), any(message.decided for message in told)
        if told and self._options.exactly_once:
            with in_one_sentence(f"Batch {batchId} could not be committed"), connect_sink(self._options) as client:
                commit_batch(client, told[0].task.query, batchId, prepared, replayed=replayed)

    def abort(self, messages: Sequence[SinkMessage | None], batchId: int) -> None:
        told = [message for message in messages if message is not None]
        prepared = _prepared(told)
        if prepared:
            with in_one_sentence(f"Batch {batchId} could not be aborted"), connect_sink(self._options) as client:
                abort_batch(client, told[0].task.query, batchId, prepared)


def _prepared(messages: Sequence[SinkMessage | None]) -> list[tuple[str, PreparedTxnState]]:
    return [
        (message.transactional_id, PreparedTxnState.parse(message.prepared))
        for message in messages
        if message is not None and message.transactional_id
    ]


def _this_task() -> Task:
    from pyspark import TaskContext

    context = TaskContext.get()
    query = context.getLocalProperty(QUERY_ID) if context is not None else None
    batch = context.getLocalProperty(BATCH_ID) if context is not None else None
    if context is None or query is None or batch is None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Spark gave this task no query id or no batch id.")
    return Task(query, int(batch), context.partitionId())
