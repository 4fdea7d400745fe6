"""Defines the deleter, which lists log start offsets and deletes records, including records of open transactions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.client.admin import Admin
from penstock.client.client import AsyncClient
from penstock.client.offsets import list_offsets
from penstock.protocol.vocabulary import EARLIEST, LATEST, READ_COMMITTED, TopicPartition
from penstock.sim.actors.session import Session
from penstock.sim.checks.history import Deletion, LogStart


@dataclass(frozen=True, slots=True)
class DeleterOptions:
    partitions: Sequence[TopicPartition]
    pause_s: float = 1.0
    deletes: float = 0.5
    """Share of the actor's actions in which it deletes records; in the others it only lists offsets."""


class Deleter:
    def __init__(self, session: Session, options: DeleterOptions) -> None:
        self.session = session
        self.options = options

    async def run(self) -> None:
        await self.session.repeat(
            lambda client: self._delete(client, self.session.random.choice(self.options.partitions)),
            self.options.pause_s,
        )

    async def _delete(self, client: AsyncClient, partition: TopicPartition) -> None:
        session = self.session
        start, end = await self._start(client, partition), await self._offset(client, partition, LATEST)
        if session.random.random() >= self.options.deletes:
            return
        offset = session.random.randint(start, max(start, end))
        session.history.deletions.append(Deletion(partition, offset))
        await Admin(client).delete_records({partition: offset})
        session.note(f"deletes {partition} before {offset}")
        # Asked in this order, the start may only be lower than the stable offset, which never goes back.
        start = await self._start(client, partition)
        stable = await self._offset(client, partition, LATEST, READ_COMMITTED)
        if stable < start:
            where = f"{partition[0]}-{partition[1]}"
            session.history.contradictions.append(f"{where} starts at {start} and is stable up to {stable} only")

    async def _start(self, client: AsyncClient, partition: TopicPartition) -> int:
        start = await self._offset(client, partition, EARLIEST)
        self.session.history.log_starts.append(LogStart(partition, start, self.session.now))
        return start

    async def _offset(self, client: AsyncClient, partition: TopicPartition, position: int, isolation: int = 0) -> int:
        return (await list_offsets(client, {partition: position}, isolation_level=isolation))[partition].offset
