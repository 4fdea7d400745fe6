"""Defines members of share groups: a member accepts, releases or rejects each record, or keeps it unacknowledged.

Each delivery and each acknowledgement is added to the history.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from penstock.client.client import AsyncClient
from penstock.client.consumer import Consumer, ConsumerSettings
from penstock.client.offsets import list_offsets
from penstock.client.share_consumer import Delivered, ShareConsumer, ShareConsumerSettings
from penstock.protocol.errors import KafkaError
from penstock.protocol.messages.api_44_incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from penstock.protocol.vocabulary import LATEST, Acknowledge, ResourceType, TopicPartition
from penstock.records.record import Record
from penstock.sim.actors.session import Session
from penstock.sim.checks.history import DeadLetterSeen, History, Outcome, ShareAnswer, ShareDelivery, value_of

#: The final member has got everything if it gets nothing for this long: longer than a lock and a session last.
QUIET_S = 15.0
#: Longer than the longest pause after a failed write of dead letters.
DEAD_LETTERS_S = 45.0


@dataclass(frozen=True, slots=True)
class ShareMemberOptions:
    group: str
    topics: Sequence[str]
    pause_s: float = 0.3
    max_records: int = 500
    strict: bool = False
    piggyback: bool = True
    """True if acknowledgements are sent with the next fetch, False if each is sent in a request of its own."""
    keeps: float = 0.0
    """Share of records that the member never acknowledges."""
    releases: float = 0.1
    rejects: float = 0.0
    configs: Mapping[str, str] = field(default_factory=dict)
    """Group configs, which all members of the group set."""


class ShareMember:
    def __init__(self, session: Session, options: ShareMemberOptions) -> None:
        self.session = session
        self.options = options
        self._answers: dict[tuple[TopicPartition, int], ShareAnswer] = {}

    async def run(self) -> None:
        session = self.session
        while not session.done:
            try:
                async with session.client() as client:
                    await start_at_earliest(client, self.options.group, self.options.configs)
                    await self._consume(client)
            except KafkaError as error:
                session.note(f"starts again: {error.code.name}")
                await session.think(0.5)

    async def _consume(self, client: AsyncClient) -> None:
        session, options = self.session, self.options
        settings = ShareConsumerSettings(max_records=options.max_records, strict=options.strict, max_wait_ms=300)
        name = f"{session.name}-{session.random.randrange(10**6)}"
        consumer = ShareConsumer(client, options.group, options.topics, settings, member_id=name)
        self._answers = {}
        try:
            await consumer.start()
            while not session.done:
                began = session.now
                delivered = await consumer.poll()
                self._settle(consumer)
                for each in delivered:
                    record_delivery(session, consumer, each, began)
                    self._answer(consumer, each)
                if delivered:
                    where = [(each.partition, each.record.offset, each.deliveries) for each in delivered]
                    session.note(f"gets {where[:8]}")
                if not options.piggyback:
                    consumer.outcomes += await consumer.commit()
                    self._settle(consumer)
                await session.think(options.pause_s)
        finally:
            await consumer.close()

    def _answer(self, consumer: ShareConsumer, delivered: Delivered) -> None:
        session, options = self.session, self.options
        draw = session.random.random()
        if draw < options.keeps:
            return
        kind = Acknowledge.ACCEPT
        if draw < options.keeps + options.releases:
            kind = Acknowledge.RELEASE
        elif draw < options.keeps + options.releases + options.rejects:
            kind = Acknowledge.REJECT
        partition = (delivered.topic, delivered.partition)
        answer = ShareAnswer(
            options.group,
            consumer.member_id,
            partition,
            delivered.record.offset,
            kind,
            delivered.deliveries,
            session.now,
        )
        session.history.share_answers.append(answer)
        self._answers[partition, delivered.record.offset] = answer
        consumer.acknowledge(delivered, kind)

    def _settle(self, consumer: ShareConsumer) -> None:
        """Records the answers to acknowledgements in the history. If the answer is an error, the outcome stays
        unknown."""
        outcomes, consumer.outcomes = consumer.outcomes, []
        for partition, sent, error in outcomes:
            for offset in sent:
                answer = self._answers.pop((partition, offset), None)
                if answer is not None and error is None:
                    answer.outcome, answer.ended = Outcome.DONE, self.session.now


def record_delivery(session: Session, consumer: ShareConsumer, delivered: Delivered, began: float) -> None:
    session.history.share_deliveries.append(
        ShareDelivery(
            consumer.group,
            consumer.member_id,
            (delivered.topic, delivered.partition),
            delivered.record.offset,
            value_of(delivered.record),
            delivered.deliveries,
            began,
            session.now,
        )
    )


async def start_at_earliest(client: AsyncClient, group: str, more: Mapping[str, str] | None = None) -> None:
    wanted = {"share.auto.offset.reset": "earliest", **(more or {})}
    configs = [AlterableConfig(name=name, config_operation=0, value=value) for name, value in wanted.items()]
    resource = AlterConfigsResource(resource_type=ResourceType.GROUP, resource_name=group, configs=configs)
    await client.retrying(lambda: client.request(IncrementalAlterConfigsRequest(resources=[resource])))


async def drain_shares(session: Session, client: AsyncClient, history: History) -> None:
    """Reads the remaining records of every share group after all faults have ended.

    Each record that is not yet accepted, rejected or archived must be delivered.
    """
    groups = dict.fromkeys(each.group for each in history.share_deliveries)
    topics = dict.fromkeys(each.partition[0] for each in history.share_deliveries)
    for group in groups:
        consumer = ShareConsumer(client, group, list(topics), member_id=f"final-{group}")
        await consumer.start()
        quiet_since = session.now
        while session.now - quiet_since < QUIET_S:
            began = session.now
            delivered = await consumer.poll()
            for each in delivered:
                record_delivery(session, consumer, each, began)
                consumer.acknowledge(each)
            if delivered:
                quiet_since = session.now
        await consumer.close()


async def read_dead_letters(session: Session, client: AsyncClient, topic: str, partitions: int) -> list[DeadLetterSeen]:
    """Reads the dead letters of a group. Waits first, so that leaders can write the dead letters that they could not
    write during the faults."""
    await asyncio.sleep(DEAD_LETTERS_S)
    found = []
    ends = await list_offsets(client, {(topic, index): LATEST for index in range(partitions)})
    for partition, end in ends.items():
        async with Consumer(client, ConsumerSettings(max_wait_ms=100)) as consumer:
            await consumer.assign({partition: 0})
            while consumer.position(partition) < end.offset:
                for part in await consumer.poll(5.0):
                    found += [_dead_letter(record) for record in part.records()]
    return found


def _dead_letter(record: Record) -> DeadLetterSeen:
    told = {name.removeprefix("__dlq.errors."): (text or b"").decode() for name, text in record.headers}
    return DeadLetterSeen(
        told["group"],
        (told["topic"], int(told["partition"])),
        int(told["offset"]),
        int(told["delivery.count"]),
        told["message"],
    )
