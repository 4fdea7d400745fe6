"""Decodes records for REST in a thread of its own, in steps, and keeps only the records that a caller looks for.

The steps of all readers share this one thread in turn. So reads of batches with very many small records delay each
other, but nothing else of the node, and no reader holds more than the matches of one step. A batch that can't be
decoded is left out: its last step says so, and the reader goes on with the next batch.
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
    """If not empty, says why the rest of the batch is left out."""


class RecordDecoder:
    def __init__(self) -> None:
        self._thread = PacedThread("penstock-http-records")

    def close(self) -> None:
        self._thread.close()

    def read(self, header: BatchHeader, batch: Buffer, wanted: Wanted) -> DecodedBatch:
        """Returns a reader of the wanted records of a batch."""
        return DecodedBatch(self._thread, _steps(header, batch, wanted))


class DecodedBatch:
    def __init__(self, thread: PacedThread, steps: Iterator[Step]) -> None:
        self._thread = thread
        self._steps = steps

    async def next_step(self) -> Step | None:
        """Decodes the next records; returns None after the last ones."""
        return await self._thread.run(next, self._steps, None)


def _steps(header: BatchHeader, batch: Buffer, wanted: Wanted) -> Iterator[Step]:
    """Yields the steps of a batch. The offsets of the steps increase, up to the end of the batch."""
    reached = header.base_offset
    try:
        for matches, reached in excerpt_steps(batch, wanted, BATCH_MAX_BYTES):
            yield Step(matches, reached)
    except KafkaError as error:
        where = f"Offsets {reached} to {header.last_offset}" if reached < header.last_offset else f"Offset {reached}"
        yield Step([], header.next_offset, f"{where} can't be shown: {error.message or error.code.name}")
