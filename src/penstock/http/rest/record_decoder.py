"""Decodes records for REST in a thread of its own, in steps, and keeps only the records that a caller looks for.

The steps of all readers share this one thread in turn, and the thread pauses as long as it works. So reads of batches
with very many small records delay each other, but nothing else of the node, and no reader holds more than the matches
of one step.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

from penstock.records.record import Record, record_steps

if TYPE_CHECKING:
    from typing_extensions import Buffer

#: Records that one step decodes: about a millisecond of the thread.
STEP_RECORDS = 1_000
#: Bytes of one batch after decompression; larger batches are left out, because they cost too much memory.
BATCH_MAX_BYTES = 8 * 1024 * 1024


class Step(NamedTuple):
    matches: list[Record]
    next_offset: int
    """The offset after the last record that the step has decoded."""


class RecordDecoder:
    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="penstock-http-records")

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    def read(self, batch: Buffer, first: int, wanted: bytes) -> DecodedBatch:
        """Returns a reader of the records at offset `first` or later that contain `wanted` in their key or value."""
        return DecodedBatch(self._thread, record_steps(batch, STEP_RECORDS, BATCH_MAX_BYTES), first, wanted)


class DecodedBatch:
    def __init__(self, thread: ThreadPoolExecutor, steps: Iterator[list[Record]], first: int, wanted: bytes) -> None:
        self._thread = thread
        self._steps = steps
        self._first = first
        self._wanted = wanted

    async def next_step(self) -> Step | None:
        """Decodes the next records; returns None after the last ones.

        Raises KafkaError(MESSAGE_TOO_LARGE) if the batch is larger than BATCH_MAX_BYTES after decompression.
        """
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._decode)

    def _decode(self) -> Step | None:
        """Decodes one step, then pauses for as long as the step took: meanwhile the event loop has the interpreter."""
        began = time.monotonic()
        step = self._next_step()
        time.sleep(time.monotonic() - began)
        return step

    def _next_step(self) -> Step | None:
        records = next(self._steps, None)
        if not records:
            return None
        first, wanted = self._first, self._wanted
        matches = [each for each in records if each.offset >= first and each.contains(wanted)]
        return Step(matches, records[-1].offset + 1)
