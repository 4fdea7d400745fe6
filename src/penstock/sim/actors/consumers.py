"""Defines the simulated readers: readers that seek at random, group members, and a copier that copies records exactly
once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from penstock.client.client import AsyncClient
from penstock.client.consumer import Consumer, ConsumerSettings
from penstock.client.fetched import Fetched
from penstock.client.offsets import list_offsets
from penstock.client.producer import Producer
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_68_consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)
from penstock.protocol.vocabulary import EARLIEST, LATEST, READ_COMMITTED, READ_UNCOMMITTED, TopicPartition
from penstock.sim.actors.producers import Writer, WriterOptions, end
from penstock.sim.actors.session import Session
from penstock.sim.checks.history import OffsetCommit, Outcome, Ownership, Read, Transaction, copy_of, value_of

#: Longer than the session of a member, in workloads with slow members.
SLOW_WORK_S = 8.0
#: Member epochs with which a member leaves its group, for good or until it comes back.
LEAVES = -1
LEAVES_FOR_A_WHILE = -2


@dataclass(frozen=True, slots=True)
class ReaderOptions:
    partitions: Sequence[TopicPartition]
    committed_only: bool = False
    pause_s: float = 0.5
    seek: float = 0.2
    """Share of polls after which a reader seeks to a random offset."""
    max_bytes: int = 4_096
    group: str = ""
    target: TopicPartition | None = None
    instance: str = ""
    """The group instance id of a static member; empty: a dynamic member."""
    lives_s: float = float("inf")
    """Seconds after which a member leaves its group, and joins it again as a new member."""
    rack: str = ""
    slow: float = 0.0
    """Share of polls after which a member works on the records for longer than its session timeout,
    before it commits."""


def record_reads(session: Session, fetched: Sequence[Fetched], *, committed_only: bool, since: float) -> int:
    count = 0
    for part in fetched:
        partition = (part.topic, part.partition)
        for record in part.records():
            session.history.reads.append(
                Read(session.name, partition, record.offset, value_of(record), committed_only, since, session.now)
            )
            count += 1
    return count


class Reader:
    def __init__(self, session: Session, options: ReaderOptions) -> None:
        self.session = session
        self.options = options

    def consumer(self, client: AsyncClient) -> Consumer:
        return Consumer(
            client,
            ConsumerSettings(
                isolation_level=READ_COMMITTED if self.options.committed_only else READ_UNCOMMITTED,
                max_wait_ms=300,
                partition_max_bytes=self.options.max_bytes,
                rack=self.options.rack,
                reset=EARLIEST,
            ),
        )

    async def run(self) -> None:
        while not self.session.done:
            try:
                async with self.session.client() as client, self.consumer(client) as consumer:
                    await self.read(client, consumer)
            except KafkaError as error:
                self.session.note(f"starts again: {error.code.name}")
                await self.session.think(0.5)

    async def read(self, client: AsyncClient, consumer: Consumer) -> None:
        session, options = self.session, self.options
        since = session.now
        await consumer.assign(dict.fromkeys(options.partitions, EARLIEST))
        while not session.done:
            fetched = await consumer.poll(1.0)
            if record_reads(session, fetched, committed_only=options.committed_only, since=since):
                session.note(f"reads to {[(part.topic, part.partition, part.next_offset) for part in fetched]}")
            if session.random.random() < options.seek:
                partition = session.random.choice(options.partitions)
                since = session.now
                await consumer.seek({partition: await self._random_offset(client, partition)})
            await session.think(options.pause_s)

    async def work(self) -> None:
        """Simulates work on the polled records, which sometimes takes longer than the member's session timeout."""
        if self.options.slow and self.session.random.random() < self.options.slow:
            await asyncio.sleep(SLOW_WORK_S)

    async def _random_offset(self, client: AsyncClient, partition: TopicPartition) -> int:
        start = (await list_offsets(client, {partition: EARLIEST}))[partition].offset
        stop = (await list_offsets(client, {partition: LATEST}))[partition].offset
        return self.session.random.randint(start, max(start, stop))


class Member(Reader):
    """Consumes as a member of a consumer group (KIP-848)."""

    def __init__(self, session: Session, options: ReaderOptions) -> None:
        super().__init__(session, options)
        self._id = ""
        self._epoch = 0
        self._assigned: dict[TopicPartition, None] = {}

    async def read(self, client: AsyncClient, consumer: Consumer) -> None:
        session, options = self.session, self.options
        for topic in dict.fromkeys(topic for topic, _ in options.partitions):
            await client.topic(topic)
        self._id, self._epoch, self._assigned = f"{session.name}-{session.random.randrange(10**6)}", 0, {}
        since = session.now
        leaves_at = session.now + options.lives_s
        owned = Ownership(options.group, self._id, (), session.now)
        try:
            while not session.done:
                if session.now > leaves_at:
                    await self._leave(client)
                    return
                asked = session.now
                changed = await self._heartbeat(client)
                owned.ended = asked
                if changed:
                    owned = Ownership(options.group, self._id, tuple(self._assigned), session.now)
                    session.history.ownerships.append(owned)
                    since = session.now
                    await self._follow(client, consumer)
                fetched = await consumer.poll(0.5) if self._assigned else []
                record_reads(session, fetched, committed_only=options.committed_only, since=since)
                positions = {(part.topic, part.partition): part.next_offset for part in fetched}
                await self.work()
                if positions:
                    await session.commit(
                        client, options.group, positions, member_id=self._id, generation_id_or_member_epoch=self._epoch
                    )
                await session.think(options.pause_s)
        except KafkaError as error:
            if error.code not in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH):
                raise
            session.note(f"is no longer a member: {error.code.name}")

    async def _leave(self, client: AsyncClient) -> None:
        """Leaves the group. A static member leaves temporarily, because it will join again."""
        options = self.options
        epoch = LEAVES_FOR_A_WHILE if options.instance else LEAVES
        request = ConsumerGroupHeartbeatRequest(
            group_id=options.group, member_id=self._id, member_epoch=epoch, instance_id=options.instance or None
        )
        await self.session._coordinated(client, options.group, request)
        self.session.note("leaves")

    async def _heartbeat(self, client: AsyncClient) -> bool:
        """Sends a heartbeat. Returns True if the assignment has changed."""
        options = self.options
        joining = self._epoch == 0
        topics = list(dict.fromkeys(topic for topic, _ in options.partitions))
        owned: dict[str, list[int]] = {}
        for topic, partition in self._assigned:
            owned.setdefault(topic, []).append(partition)
        request = ConsumerGroupHeartbeatRequest(
            group_id=options.group,
            member_id=self._id,
            member_epoch=self._epoch,
            instance_id=options.instance or None,
            rebalance_timeout_ms=10_000 if joining else -1,
            subscribed_topic_names=topics if joining else None,
            topic_partitions=[
                TopicPartitions(topic_id=client.cluster.topic_id(topic), partitions=each)
                for topic, each in owned.items()
            ],
        )
        answer: ConsumerGroupHeartbeatResponse = await client.retrying(lambda: self._ask(client, request))
        self._epoch = answer.member_epoch
        if answer.assignment is None:
            return False
        names = client.cluster.names_by_id
        assigned = {
            (names[each.topic_id], index): None
            for each in answer.assignment.topic_partitions
            if each.topic_id in names
            for index in each.partitions
        }
        changed = assigned != self._assigned
        if changed:
            self.session.note(f"epoch {self._epoch}: assigned {list(assigned)}")
        self._assigned = assigned
        return changed

    async def _ask(self, client: AsyncClient, request: ConsumerGroupHeartbeatRequest) -> ConsumerGroupHeartbeatResponse:
        answer: ConsumerGroupHeartbeatResponse = await self.session._coordinated(client, self.options.group, request)
        if answer.error_code:
            code = ErrorCode(answer.error_code)
            self.session._notice(client, self.options.group, [code])
            raise KafkaError(code, answer.error_message)
        return answer

    async def _follow(self, client: AsyncClient, consumer: Consumer) -> None:
        for partition in sorted(consumer.assignment - self._assigned.keys()):
            consumer.unassign(partition)
        new = [partition for partition in self._assigned if partition not in consumer.assignment]
        if new:
            offsets = await self.session.committed(client, self.options.group, new)
            await consumer.seek({partition: max(offset, 0) for partition, offset in offsets.items()})


class Copier(Writer):
    """Reads committed records, and writes their copies and its read offsets in one transaction."""

    def __init__(self, session: Session, options: ReaderOptions, writing: WriterOptions) -> None:
        super().__init__(session, writing)
        self.reading = options

    async def _produce(self, client: AsyncClient) -> None:
        session, options = self.session, self.reading
        producer = Producer(client, session.clock, self.producer_settings())
        settings = ConsumerSettings(
            isolation_level=READ_COMMITTED, max_wait_ms=300, partition_max_bytes=options.max_bytes
        )
        consumer = Consumer(client, settings)
        try:
            await producer.start()
            offsets = await session.committed(client, options.group, list(options.partitions), stable=True)
            await consumer.assign({partition: max(offset, 0) for partition, offset in offsets.items()})
            session.note(f"copies from {offsets}")
            while not session.done:
                fetched = await consumer.poll(1.0)
                if fetched:
                    await self._copy(producer, fetched)
                await session.think(options.pause_s)
        finally:
            await asyncio.gather(producer.close(), consumer.close())

    async def _copy(self, producer: Producer, fetched: Sequence[Fetched]) -> None:
        session, target = self.session, self.reading.target
        assert target is not None
        transaction = Transaction(f"{session.name}:{self.count}", session.now)
        session.history.transactions.append(transaction)
        producer.begin()
        sent = []
        for part in fetched:
            for record in part.records():
                self.count += 1
                value = copy_of((part.topic, part.partition), record.value or b"")
                write = self._recorded(target, value, transaction)
                sent.append((write, await producer.send(target[0], value, partition=target[1])))
        whole = True
        for write, promise in sent:
            whole = await self._settle(write, promise) and whole
        positions = {(part.topic, part.partition): part.next_offset for part in fetched}
        commits = [OffsetCommit(self.reading.group, each, to, session.now) for each, to in positions.items()]
        if not whole:
            await end(session, producer, transaction, commit=False)
            raise KafkaError(
                ErrorCode.NETWORK_EXCEPTION, "A copy was lost: the copier starts again at its last commit."
            )
        session.history.commits.extend(commits)
        for commit in commits:
            commit.transaction = transaction
        await producer.send_offsets(self.reading.group, positions)
        await end(session, producer, transaction, commit=True)
        for commit in commits:
            commit.outcome, commit.ended = Outcome.DONE, session.now
