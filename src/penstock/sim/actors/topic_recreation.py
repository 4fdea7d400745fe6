"""Defines the topic recreator, which deletes a topic and creates a new topic with the same name.

A group commits offsets for each new topic, each time in a new range of offsets. So the range of a committed offset
shows whether the offset belongs to the present topic or to a deleted topic with the same name. After a deletion was
requested, the checks ignore records and commits of the deleted topic. After a failed request the state of the topic is
unknown, so the actor continues with another name.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.client.admin import Admin, NewTopic
from penstock.client.client import AsyncClient
from penstock.client.producer import Producer
from penstock.protocol.errors import KafkaError
from penstock.protocol.vocabulary import TopicPartition
from penstock.sim.actors.producers import Writer, WriterOptions
from penstock.sim.actors.session import Session
from penstock.sim.checks.history import Outcome, TopicChange

GROUP = "namesakes"
#: Size of the range of offsets that is reserved for each topic of a name.
OFFSETS_EACH = 1_000


@dataclass(frozen=True, slots=True)
class RecreatorOptions:
    pause_s: float = 1.0
    judge_writes: bool = False
    """False in a cluster: there, a node with old metadata may still accept records for the deleted topic."""
    replication_factor: int = 1


class TopicRecreator:
    def __init__(self, session: Session, options: RecreatorOptions) -> None:
        self.session = session
        self.options = options
        self._names = 0
        self._writer = Writer(session, WriterOptions([]))

    async def run(self) -> None:
        session = self.session
        while not session.done:
            self._names += 1
            name = f"again-{session.name}-{self._names}".replace("#", "-").replace(" ", "-")
            try:
                async with session.client() as client:
                    await self._use_name(client, name)
            except KafkaError as error:
                session.note(f"takes another name: {error.code.name}")
                self._forget((name, 0))
                await session.think(0.5)

    async def _use_name(self, client: AsyncClient, name: str) -> None:
        session, partition, count = self.session, (name, 0), 0
        while not session.done:
            count += 1
            await self._change(client, name, 1)
            await self._write(client, partition)
            if not await self._pause():
                return
            if session.random.random() < 0.7:
                offset = count * OFFSETS_EACH + session.random.randrange(OFFSETS_EACH)
                await session.commit(client, GROUP, {partition: offset})
            if not await self._pause() or session.random.random() < 0.2:
                return  # the topic stays
            offsets = self._forget(partition)
            await self._change(client, name, 0)
            session.history.outlived.setdefault((GROUP, partition), set()).update(offsets)
            await session.think(self.options.pause_s)

    async def _pause(self) -> bool:
        """Waits before the next request. Returns False if the run has ended meanwhile: the caller must then stop,
        because more pauses could exceed the time in which actors must finish."""
        await self.session.think(self.options.pause_s)
        return not self.session.done

    async def _change(self, client: AsyncClient, name: str, partitions: int) -> None:
        change = TopicChange(name, partitions, self.session.now)
        self.session.history.topics.append(change)
        admin = Admin(client)
        if partitions:
            await admin.create_topics([NewTopic(name, partitions, self.options.replication_factor)])
        else:
            await admin.delete_topics([name])
        change.outcome, change.ended = Outcome.DONE, self.session.now
        self.session.note(f"topic {name}: {partitions} partitions")

    async def _write(self, client: AsyncClient, partition: TopicPartition) -> None:
        self._writer.options = WriterOptions([partition])
        producer = Producer(client, self.session.clock, self._writer.producer_settings())
        try:
            await self._writer.write(producer, self.session.random.randint(1, 5))
        finally:
            await producer.close()
            if not self.options.judge_writes:
                self._forget_writes(partition)

    def _forget(self, partition: TopicPartition) -> set[int]:
        """Removes the partition's writes and commits from the history. Returns the committed offsets."""
        history = self.session.history
        self._forget_writes(partition)
        offsets = {commit.offset for commit in history.commits if commit.partition == partition}
        history.commits = [commit for commit in history.commits if commit.partition != partition]
        return offsets

    def _forget_writes(self, partition: TopicPartition) -> None:
        history = self.session.history
        history.writes = [write for write in history.writes if write.partition != partition]
