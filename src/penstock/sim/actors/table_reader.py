"""Defines the table reader, which reads a compacted partition from start to end, again and again.

It keeps the last record of each key.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.client.client import AsyncClient
from penstock.client.consumer import Consumer, ConsumerSettings
from penstock.client.offsets import list_offsets
from penstock.protocol.vocabulary import EARLIEST, LATEST, READ_COMMITTED, READ_UNCOMMITTED, TopicPartition
from penstock.sim.actors.consumers import record_reads
from penstock.sim.actors.session import Session
from penstock.sim.checks.history import TablePass


@dataclass(frozen=True, slots=True)
class TableReaderOptions:
    partitions: Sequence[TopicPartition]
    committed_only: bool = True
    pause_s: float = 0.5
    step_s: float = 0.0
    """Mean pause between two polls while a partition is read from start to end."""
    max_bytes: int = 4_096
    seconds: float = 2.0
    """Seconds after which a reading from start to end is given up, because a longer one may miss tombstones."""


class TableReader:
    def __init__(self, session: Session, options: TableReaderOptions) -> None:
        self.session = session
        self.options = options
        self._isolation = READ_COMMITTED if options.committed_only else READ_UNCOMMITTED

    async def run(self) -> None:
        await self.session.repeat(
            lambda client: self._read(client, self.session.random.choice(self.options.partitions)), self.options.pause_s
        )

    async def _read(self, client: AsyncClient, partition: TopicPartition) -> None:
        session, options = self.session, self.options
        began = session.now
        found = await list_offsets(client, {partition: LATEST}, isolation_level=self._isolation)
        end = found[partition].offset
        table: dict[bytes, tuple[int, bytes]] = {}
        settings = ConsumerSettings(
            isolation_level=self._isolation, max_wait_ms=300, partition_max_bytes=options.max_bytes
        )
        async with Consumer(client, settings) as consumer:
            await consumer.assign({partition: EARLIEST})
            while (position := consumer.position(partition)) < end:
                fetched = await consumer.poll(1.0)
                record_reads(session, fetched, committed_only=options.committed_only, since=began)
                for part in fetched:
                    for record in part.records():
                        if record.key is not None:
                            table[record.key] = (record.offset, record.value or b"")
                if session.now - began > options.seconds or session.done:
                    return
                if options.step_s:
                    await session.think(options.step_s)
        if session.now - began <= options.seconds:
            done = TablePass(session.name, partition, began, session.now, position, options.committed_only, table)
            session.history.passes.append(done)
            session.note(f"has read {partition[0]}-{partition[1]} to {position}: {len(table)} keys")
