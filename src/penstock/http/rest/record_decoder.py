"""Decodes the records of a batch for REST in a separate thread, and keeps only the records that a request searches for.

A batch is decoded in parts, and each part gives a `Step` with its matching records. All requests share the thread: a
batch with very many records delays only other requests that decode records. If a batch can't be decoded, its last
`Step` has the reason, and the request continues with the next batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from penstock.http.rest.paced_thread import PacedThread
from penstock.protocol.errors import KafkaError
from penstock.records.excerpts import Excerpt, Wanted, excerpt_steps

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from penstock.records.header import BatchHeader

#: Bytes of one batch after decompression; larger batches are left out, because they cost too much memory.
BATCH_MAX_BYTES = 8 * 1024 * 1024


class Step(NamedTuple):
    matches: list[Excerpt]
    next_offset: int
    """The offset after the last record of the step."""
    problem: str = ""
    """The reason why the rest of the batch is left out; empty if there is no problem."""


class RecordDecoder:
    def __init__(self) -> None:
        self._thread = PacedThread("penstock-http-records")

    def close(self) -> None:
        self._thread.close()

    def read(self, header: BatchHeader, batch: Buffer, wanted: Wanted) -> DecodedBatch:
        """Returns an object that decodes the wanted records of a batch, part by part."""
        return DecodedBatch(self._thread, _steps(header, batch, wanted))


class DecodedBatch:
    def __init__(self, thread: PacedThread, steps: Iterator[Step]) -> None:
        self._thread = thread
        self._steps = steps

    async def next_step(self) -> Step | None:
        """Decodes the next part of the batch. Returns None after the last part."""
        return await self._thread.run(next, self._steps, None)


def _steps(header: BatchHeader, batch: Buffer, wanted: Wanted) -> Iterator[Step]:
    """Decodes a batch and yields a `Step` for each part, in offset order. After a failure, the last `Step` has the
    reason."""
    reached = header.base_offset
    try:
        for matches, reached in excerpt_steps(batch, wanted, BATCH_MAX_BYTES):
            yield Step(matches, reached)
    except KafkaError as error:
        where = f"Offsets {reached} to {header.last_offset}" if reached < header.last_offset else f"Offset {reached}"
        yield Step([], header.next_offset, f"{where} can't be shown: {error.message or error.code.name}")
