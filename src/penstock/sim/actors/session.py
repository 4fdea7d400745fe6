"""Defines a session: the Kafka client of a simulated process from its start until its death.

A session adds offset commits and offset fetches to the history.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import TYPE_CHECKING, Any

from penstock.client.client import AsyncClient
from penstock.client.connection import ConnectionSettings
from penstock.client.retry import Retry
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_08_offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from penstock.protocol.messages.api_09_offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)
from penstock.protocol.vocabulary import GROUP_COORDINATOR, TopicPartition
from penstock.sim.checks.history import History, OffsetAnswer, OffsetCommit, Outcome

if TYPE_CHECKING:
    from penstock.net.network import Network
    from penstock.sim.engine.clock import SimClock
    from penstock.sim.engine.environment import Environment
    from penstock.sim.engine.loop import ProcessLoop

#: Shorter timeouts than Kafka's defaults: clients meet more faults.
SETTINGS = ConnectionSettings(client_id="sim", connect_timeout_s=3.0, request_timeout_s=5.0)
RETRY = Retry(attempts=6, first_pause_s=0.05, longest_pause_s=1.0)

_OFFSETS_BY_NAME = 9
#: Longest pause of an actor; shorter than the time that actors have to finish after healing.
LONGEST_PAUSE_S = 40.0
_COORDINATOR_MOVED = (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NETWORK_EXCEPTION)


@dataclass(slots=True)
class Clients:
    """Holds the objects that all clients of a run share: the history, and the signal to finish."""

    environment: Environment
    history: History = field(default_factory=History)
    stopping: bool = False

    def session(self, name: str, host: str, loop: ProcessLoop) -> Session:
        """Returns a session, which runs the Kafka client of a process on `host`."""
        return Session(name, self, self.environment.network(host, loop), self.environment.random(name))


@dataclass(slots=True)
class Session:
    """Runs the Kafka client of a simulated process from its start until its death."""

    name: str
    clients: Clients
    network: Network
    random: Random

    @property
    def history(self) -> History:
        return self.clients.history

    @property
    def clock(self) -> SimClock:
        return self.clients.environment.clock

    @property
    def now(self) -> float:
        return self.clients.environment.timeline.now

    @property
    def done(self) -> bool:
        """Returns True once the run has signalled its clients to finish."""
        return self.clients.stopping

    def client(self) -> AsyncClient:
        return AsyncClient(
            self.clients.environment.bootstrap,
            settings=replace(SETTINGS, login=self.clients.environment.login),
            retry=RETRY,
            random=self.random,
            network=self.network,
        )

    def note(self, what: str) -> None:
        self.clients.environment.trace.note(self.name, what)

    async def think(self, mean_s: float) -> None:
        """Waits for a random time with the mean `mean_s`."""
        await asyncio.sleep(min(self.random.expovariate(1 / mean_s), 20 * mean_s, LONGEST_PAUSE_S))

    # Offsets of groups.

    async def repeat(self, act: Callable[[AsyncClient], Awaitable[None]], pause_s: float | None) -> None:
        """Calls `act` with a client until the run ends, with pauses of `pause_s` seconds on average (None: no pauses).

        After an error of the client or the cluster, opens a new client and continues.
        """
        while not self.done:
            try:
                async with self.client() as client:
                    while not self.done:
                        await act(client)
                        if pause_s is not None:
                            await self.think(pause_s)
            except KafkaError as error:
                self.note(f"starts again: {error.code.name}")
                await self.think(0.5)

    async def commit(
        self, client: AsyncClient, group: str, positions: Mapping[TopicPartition, int], **who: Any
    ) -> bool:
        """Commits offsets and adds the commit to the history.

        Returns False if the commit was refused. Raises KafkaError if no answer came.
        """
        commits = {
            partition: OffsetCommit(group, partition, offset, self.now, member=who.get("member_id", ""))
            for partition, offset in positions.items()
        }
        self.history.commits.extend(commits.values())
        topics: dict[str, OffsetCommitRequestTopic] = {}
        for (name, index), offset in positions.items():
            topic = topics.setdefault(name, OffsetCommitRequestTopic(name=name, partitions=[]))
            topic.partitions.append(OffsetCommitRequestPartition(partition_index=index, committed_offset=offset))
        request = OffsetCommitRequest(group_id=group, topics=list(topics.values()), **who)
        answer: OffsetCommitResponse = await self._coordinated(client, group, request)
        codes = {
            (topic.name, part.partition_index): ErrorCode(part.error_code)
            for topic in answer.topics
            for part in topic.partitions
        }
        for partition, commit in commits.items():
            commit.ended = self.now
            commit.outcome = Outcome.DONE if codes.get(partition) is ErrorCode.NONE else Outcome.REFUSED
        self._notice(client, group, list(codes.values()))
        self.note(f"commits {group} {dict(positions)} → {[code.name for code in codes.values()]}")
        return all(code is ErrorCode.NONE for code in codes.values())

    async def committed(
        self, client: AsyncClient, group: str, partitions: list[TopicPartition], *, stable: bool = False
    ) -> dict[TopicPartition, int]:
        """Fetches the group's committed offsets, adds them to the history and returns them. The offset -1 means that
        the group has no committed offset. Raises KafkaError if the offsets can't be fetched."""
        topics: dict[str, list[int]] = {}
        for name, index in partitions:
            topics.setdefault(name, []).append(index)
        wanted = [OffsetFetchRequestTopics(name=name, partition_indexes=each) for name, each in topics.items()]
        request = OffsetFetchRequest(
            groups=[OffsetFetchRequestGroup(group_id=group, topics=wanted)], require_stable=stable
        )

        async def ask() -> dict[TopicPartition, int]:
            began = self.now
            answer: OffsetFetchResponse = await self._coordinated(client, group, request)
            told = answer.groups[0]
            codes = [ErrorCode(told.error_code)]
            offsets: dict[TopicPartition, int] = {}
            for topic in told.topics:
                for part in topic.partitions:
                    codes.append(ErrorCode(part.error_code))
                    offsets[topic.name, part.partition_index] = part.committed_offset
            self._notice(client, group, codes)
            for code in codes:
                if code is not ErrorCode.NONE:
                    raise KafkaError(
                        code, f"The coordinator of group {group} refused to return the committed offsets: ask again."
                    )
            for partition, offset in offsets.items():
                self.history.committed.append(OffsetAnswer(group, partition, offset, began, self.now))
            return offsets

        found = await client.retrying(ask)
        self.note(f"is told {group} {found}")
        return found

    async def _coordinated(
        self, client: AsyncClient, group: str, request: Any, *, timeout_s: float | None = None
    ) -> Any:
        node = await client.coordinator(group, GROUP_COORDINATOR)
        try:
            connection = await client.connection(node)
            version = connection.version_of(request.API_KEY, _OFFSETS_BY_NAME)
            return await connection.request(request, version=version, timeout_s=timeout_s)
        except KafkaError as error:
            self._notice(client, group, [error.code])
            raise

    @staticmethod
    def _notice(client: AsyncClient, group: str, codes: list[ErrorCode]) -> None:
        if any(code in _COORDINATOR_MOVED for code in codes):
            client.forget_coordinator(group, GROUP_COORDINATOR)
