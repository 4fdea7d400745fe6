"""Reads archived segments as rows, with the decoder of `format("penstock")`."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

from penstock.pipelines.segments import Batch, Catalog, Part, directory_of, gaps_in, manifest
from penstock.pipelines.stores import Place, Store
from penstock.protocol.errors import KafkaError
from penstock.records.batches import crc_ok, iter_batches
from penstock.records.header import HEADER_SIZE, LOG_OVERHEAD
from penstock.spark.errors import SourceError, sentence_of

SCHEMA = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int, "
    "headers array<struct<key: string, value: binary>>"
)
READ_BYTES = 8 * 1024 * 1024
#: The largest possible batch; a greater length means a corrupt file.
MAX_BATCH_BYTES = 1 << 30

Stretch = tuple[int, Sequence[Part]]
"""A partition, and the parts of its archive that one task reads in order."""


def archived_rows(spark: Any, place: Place, topic: str, stretches: Sequence[Stretch]) -> Any:
    """Returns a DataFrame of archived records. One Spark task reads each element of `stretches`.

    An element is a partition with some of its archived parts.
    """

    def read(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            for at in batch.column(0).to_pylist():
                yield from read_stretch(place, topic, *stretches[at])

    if not stretches:
        return spark.createDataFrame([], SCHEMA)
    return spark.range(0, len(stretches), 1, len(stretches)).mapInArrow(read, SCHEMA)


def whole(found: Catalog, *, lossy: bool = False) -> dict[int, list[Part]]:
    """Returns the archived parts of each partition. Raises SourceError if offsets are missing between two parts.

    With `lossy`, missing offsets are allowed.
    """
    for partition, parts in found.parts.items():
        for end, start in [] if lossy else gaps_in(parts):
            raise SourceError(
                f"The archive of {found.topic}-{partition} lacks the offsets {end} to {start - 1}: set "
                "failOnDataLoss=false to skip them."
            )
    return found.parts


def read_stretch(place: Place, topic: str, partition: int, parts: Sequence[Part]) -> Iterator[Any]:
    """Yields the records in these parts of a partition's archive, as Arrow batches.

    Raises SourceError if a file has changed since it was archived.
    """
    import pyarrow as pa

    from penstock.spark.decode import decode_batches
    from penstock.spark.planner import ReadTask
    from penstock.spark.tasks import columns_of

    schema = arrow_schema()
    store = place.open()
    for part in parts:
        task = ReadTask(topic, partition, part.start, part.piece.end)
        try:
            for batches in visible(store, topic, partition, part):
                for decoded in decode_batches(batches, start=task.start, end=task.end, headers=True):
                    columns = columns_of(task, decoded, schema)
                    yield pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)
        except KafkaError as error:  # a producer sent invalid records, and the broker accepted them
            name = f"{directory_of(topic, partition)}/{part.piece.stem}.log"
            raise _damaged(store, name, sentence_of(error)) from None


def arrow_schema() -> Any:
    """Returns `SCHEMA` as an Arrow schema."""
    import pyarrow as pa

    from penstock.spark.decode import HEADERS_TYPE

    return pa.schema(
        [
            ("key", pa.binary()),
            ("value", pa.binary()),
            ("topic", pa.string()),
            ("partition", pa.int32()),
            ("offset", pa.int64()),
            ("timestamp", pa.timestamp("us", tz="UTC")),
            ("timestampType", pa.int32()),
            ("headers", HEADERS_TYPE),
        ]
    )


def visible(store: Store, topic: str, partition: int, part: Part) -> Iterator[list[Batch]]:
    """Yields the committed data batches of an archive file, some megabytes at a time.

    Raises SourceError.
    """
    described = manifest(store, topic, partition, part.piece)
    hidden = set(described["hidden"])
    name = f"{directory_of(topic, partition)}/{part.piece.stem}.log"
    digest = hashlib.sha256()
    size = 0
    with store.reading(name) as file:
        try:
            for data in _portions(file):
                digest.update(data)
                size += len(data)
                found = []
                for header, batch in iter_batches(data):
                    if not crc_ok(batch):
                        raise _damaged(
                            store, name, f"the checksum of the batch at offset {header.base_offset} is wrong"
                        )
                    if not header.is_control and header.base_offset not in hidden:
                        found.append((header, batch))
                yield found
        except KafkaError:
            raise _damaged(store, name, "the file is cut off, or has bytes that are not a batch") from None
    if size != described["bytes"]:
        raise _damaged(store, name, f"the file has {size} bytes instead of {described['bytes']}")
    if digest.hexdigest() != described["sha256"]:
        raise _damaged(store, name, "the file's digest differs from the digest in its .json file")


def _portions(file: Any) -> Iterator[bytes]:
    """Yields the bytes of an archive file in chunks that contain only whole batches.

    An incomplete batch at the end of the file is yielded last.
    """
    rest = b""
    wanted = READ_BYTES
    while data := file.read(wanted):
        data = rest + data
        used = _whole(data)
        if used:
            yield data[:used]
        rest = data[used:]
        wanted = READ_BYTES
        if len(rest) >= HEADER_SIZE:  # a batch that is larger than a portion: the next read takes all of it
            length = int.from_bytes(rest[8:12], "big") + LOG_OVERHEAD
            wanted = max(READ_BYTES, min(length, MAX_BATCH_BYTES) - len(rest))
    if rest:
        yield rest


def _whole(data: bytes) -> int:
    at = 0
    while at + LOG_OVERHEAD <= len(data):
        length = int.from_bytes(data[at + 8 : at + LOG_OVERHEAD], "big", signed=True)
        if length < 0 or at + LOG_OVERHEAD + length > len(data):
            break
        at += LOG_OVERHEAD + length
    return at


def _damaged(store: Store, name: str, why: str) -> SourceError:
    return SourceError(f"{store.uri}/{name} is damaged: {why.rstrip('.')}.")
