"""Defines the shared recreator, which deletes topics that other actors use, and creates them again with the same names.

Before each deletion, a group commits offsets for the topic in a new range of offsets. So the range of a committed
offset shows whether the offset belongs to the present topic or to a deleted topic with the same name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from penstock.client.admin import Admin, NewTopic
from penstock.client.client import AsyncClient
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.sim.actors.session import Session
from penstock.sim.actors.topic_recreation import GROUP, OFFSETS_EACH
from penstock.sim.checks.history import Outcome, TopicChange


@dataclass(frozen=True, slots=True)
class SharedRecreatorOptions:
    topics: Sequence[tuple[str, int, Mapping[str, str]]]
    """The topics that the actor recreates: name, number of partitions and configs of each."""
    pause_s: float = 1.0
    replication_factor: int = 1


class SharedRecreator:
    def __init__(self, session: Session, options: SharedRecreatorOptions) -> None:
        self.session = session
        self.options = options

    async def run(self) -> None:
        await self.session.repeat(self._act, None)

    async def _act(self, client: AsyncClient) -> None:
        await self._recreate(client, *self.session.random.choice(self.options.topics))
        await self._goes_on()

    async def _recreate(self, client: AsyncClient, name: str, partitions: int, configs: Mapping[str, str]) -> None:
        session, admin, offsets = self.session, Admin(client), set[int]()
        if session.random.random() < 0.7:
            offset = session.history.next_range() * OFFSETS_EACH + session.random.randrange(OFFSETS_EACH)
            if await session.commit(client, GROUP, {(name, 0): offset}):
                offsets.add(offset)
        if not await self._goes_on():
            return
        change = TopicChange(name, 0, session.now)
        session.history.topics.append(change)
        try:
            await admin.delete_topics([name])
        except KafkaError as error:
            if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
        else:
            change.outcome = Outcome.DONE
            change.ended = session.now
            session.history.outlived.setdefault((GROUP, (name, 0)), set()).update(offsets)
        session.note(f"deleted {name}: {change.outcome.value}")
        if not await self._goes_on():
            return  # the topic stays deleted
        change = TopicChange(name, partitions, session.now)
        session.history.topics.append(change)
        factor = self.options.replication_factor
        await admin.create_topics([NewTopic(name, partitions, factor, configs=configs)])
        change.outcome, change.ended = Outcome.DONE, session.now
        session.note(f"created {name} again")

    async def _goes_on(self) -> bool:
        """Waits before the next request. Returns False if the run has ended meanwhile. Some waits are long, so that the
        topic grows, or stays deleted, for some time."""
        await self.session.think(self.options.pause_s * self.session.random.choice((0.5, 0.5, 0.5, 8.0)))
        return not self.session.done
