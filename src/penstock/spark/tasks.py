"""Reads the offset range of a Spark task as Arrow batches. The range is a part of one partition."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.client.sync import Client
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.uuid import uuid_from_str
from penstock.protocol.vocabulary import EARLIEST, LATEST
from penstock.spark.brokers import connect, fetch_settings
from penstock.spark.decode import Batch, Decoded, decode_batches
from penstock.spark.errors import SourceError, sentence_of
from penstock.spark.files import partition_directory, read_files
from penstock.spark.options import SourceOptions
from penstock.spark.planner import ReadTask
from penstock.spark.wire import WireReader

logger = logging.getLogger(__name__)


def read_task(options: SourceOptions, schema: Any, task: ReadTask) -> Iterator[Any]:
    """Yields the task's records as Arrow batches. `schema` is their Arrow schema. Raises SourceError."""
    decoder = None
    if options.value.format != "binary":
        from penstock.spark.values import ValueDecoder

        decoder = ValueDecoder(options, schema)
    headers = "headers" in schema.names or (decoder is not None and decoder.needs_headers)
    try:
        for start, batches in _batches(options, task):
            for decoded in decode_batches(
                batches,
                start=start,
                end=task.end,
                headers=headers,
                min_timestamp_ms=task.min_timestamp_ms,
            ):
                columns = columns_of(task, decoded, schema)
                if decoder is not None:
                    columns = decoder.decode(columns, decoded)
                if len(columns["offset"]):
                    yield pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)
    except KafkaError as error:
        raise SourceError(f"{task.topic}-{task.partition} could not be read: {sentence_of(error)}") from None
    finally:
        if decoder is not None:
            decoder.close()


def columns_of(task: ReadTask, decoded: Decoded, schema: Any) -> dict[str, Any]:
    """Returns the Arrow columns by name: the decoded columns, and the columns `topic` and `partition`."""
    count = len(decoded)
    columns = {
        "key": decoded.key,
        "value": decoded.value,
        "offset": pa.array(decoded.offset),
        "timestampType": pa.array(decoded.timestamp_type),
        "headers": decoded.headers,
    }
    # Only the columns of the schema are made: a user's own schema may omit some.
    if "topic" in schema.names:
        columns["topic"] = pa.repeat(pa.scalar(task.topic), count)
    if "partition" in schema.names:
        columns["partition"] = pa.array(np.full(count, task.partition, dtype=np.int32))
    if "timestamp" in schema.names:
        columns["timestamp"] = pa.array(decoded.timestamp_ms * 1000).cast(schema.field("timestamp").type)
    return columns


def _batches(options: SourceOptions, task: ReadTask) -> Iterator[tuple[int, list[Batch]]]:
    """Yields pairs (offset, batches). The caller skips records before this offset, which the first batch may contain.

    The batches are read from segment files as far as possible, and then from the broker.
    """
    position = task.start
    for batches, after in _from_files(options, task):
        yield position, batches
        position = after
    if position < task.end:
        with connect(options) as client:
            yield from _from_wire(client, options, task, position)


def directory_of(options: SourceOptions, task: ReadTask) -> str | None:
    """Returns the partition's directory if the task reads files; None if the task fetches from the broker.

    Raises SourceError if read.mode=files and the directory is not on this machine.
    """
    if options.read_mode == "wire":
        return None
    directory = partition_directory(task.hint, task.topic, task.partition) if task.hint is not None else None
    if directory is None and options.read_mode == "files":
        where = f"{task.hint.log_dir} of node {task.hint.node_id}" if task.hint is not None else "its directory"
        raise SourceError(
            f"{task.topic}-{task.partition} can't be read from {where}, which is not on this machine: "
            "run where the broker's files are, or use read.mode=auto."
        )
    return directory


def _from_files(options: SourceOptions, task: ReadTask) -> Iterator[tuple[list[Batch], int]]:
    directory = directory_of(options, task)
    if directory is None:
        return
    yield from read_files(
        directory,
        task.start,
        task.end,
        read_committed=options.read_committed,
        check_crc=fetch_settings(options).check_crc,
    )


def wire_reader(client: Client, options: SourceOptions, task: ReadTask, position: int) -> WireReader:
    """Returns a reader that fetches the task's records from the partition's leader, beginning at offset `position`."""
    patience_s = options.poll_timeout_ms / 1000
    settings = fetch_settings(options)
    return WireReader(
        client.asynchronous,
        task.topic,
        task.partition,
        position,
        task.end,
        settings,
        patience_s,
        topic_id=uuid_from_str(task.topic_id) if task.topic_id else None,
    )


def _from_wire(
    client: Client, options: SourceOptions, task: ReadTask, position: int
) -> Iterator[tuple[int, list[Batch]]]:
    while position < task.end:
        reader = wire_reader(client, options, task, position)
        try:
            while (fetched := client.run(reader.next())) is not None:
                position = fetched.next_offset
                yield fetched.fetch_offset, fetched.batches
            return
        except KafkaError as error:
            if error.code is not ErrorCode.OFFSET_OUT_OF_RANGE:
                raise
        finally:
            client.run(reader.close())
        position = after_loss(client, options, task, position)


def after_loss(client: Client, options: SourceOptions, task: ReadTask, position: int) -> int:
    """Returns the offset at which to continue after OFFSET_OUT_OF_RANGE: the record at `position` was deleted.

    With failOnDataLoss, raises SourceError instead. Gaps inside the log do not cause OFFSET_OUT_OF_RANGE.
    """
    key = (task.topic, task.partition)
    first = client.list_offsets({key: EARLIEST})[key].offset
    last = client.list_offsets({key: LATEST})[key].offset
    lost = f"{task.topic}-{task.partition} holds offsets {first} to {last} now, and {position} was deleted"
    if options.fail_on_data_loss:
        raise SourceError(f"{lost}: set failOnDataLoss=false to skip the missing records.")
    logger.warning("%s: the missing records are skipped (failOnDataLoss=false)", lost)
    return first if position < first else task.end
