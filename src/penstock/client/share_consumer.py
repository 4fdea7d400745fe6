"""Consumes as a member of a share group (KIP-932): the members share the records of a topic, as from a queue.

    async with ShareConsumer(client, "group", ["topic"]) as consumer:
        for delivered in await consumer.poll():
            consumer.acknowledge(delivered)              # or RELEASE, to have it delivered again, or REJECT
        await consumer.commit()

If a record is not acknowledged before its lock expires, it is delivered again, perhaps to another member.
Acknowledgements are sent with the next poll, or with `commit`, which returns the result for each partition.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from uuid import uuid4

from penstock.client.client import AsyncClient
from penstock.client.errors import code_of
from penstock.client.share_acks import PendingAcks, batches_of
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages import api_78_share_fetch as fetching
from penstock.protocol.messages import api_79_share_acknowledge as acknowledging
from penstock.protocol.messages.api_76_share_group_heartbeat import (
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)
from penstock.protocol.vocabulary import Acknowledge, TopicPartition
from penstock.records.batches import iter_batches
from penstock.records.record import Record, read_records

JOIN_EPOCH, LEAVE_EPOCH = 0, -1
FINAL_EPOCH = -1
SESSION_LOST = frozenset(
    {
        ErrorCode.SHARE_SESSION_NOT_FOUND,
        ErrorCode.INVALID_SHARE_SESSION_EPOCH,
        ErrorCode.SHARE_SESSION_LIMIT_REACHED,
    }
)
NOT_A_MEMBER = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH})


@dataclass(frozen=True, slots=True)
class ShareConsumerSettings:
    max_records: int = 500
    """The number of records after which a poll is full; the broker may return more, up to the end of a batch."""
    strict: bool = False
    """True if a poll may never return more than `max_records` (KIP-1206)."""
    max_wait_ms: int = 500
    min_bytes: int = 1
    max_bytes: int = 50 * 1024 * 1024
    batch_size: int = 500


class Delivered(NamedTuple):
    """Holds a record that this member has acquired."""

    topic: str
    partition: int
    record: Record
    deliveries: int
    """How often the record has been delivered, this time included."""


@dataclass(slots=True)
class _Session:
    epoch: int = 0
    partitions: set[TopicPartition] = field(default_factory=set)

    def advanced(self) -> None:
        self.epoch = 1 if self.epoch == 0x7FFFFFFF else self.epoch + 1


class ShareConsumer:
    def __init__(
        self,
        client: AsyncClient,
        group: str,
        topics: Sequence[str],
        settings: ShareConsumerSettings | None = None,
        *,
        member_id: str | None = None,
    ) -> None:
        """Creates the consumer without sending a request: `start` joins the group.

        `member_id` must be unique in the group; the default is a random id.
        """
        self.group = group
        self.member_id = member_id or str(uuid4())
        self.assignment: set[TopicPartition] = set()
        #: The outcome of acknowledgements that were sent with polls: an error, or None if they are stored.
        self.outcomes: list[tuple[TopicPartition, dict[int, int], KafkaError | None]] = []
        self._client = client
        self._topics = list(topics)
        self._settings = settings or ShareConsumerSettings()
        self._epoch = JOIN_EPOCH
        self._acks = PendingAcks()
        self._sessions: dict[int, _Session] = {}
        self._beating: asyncio.Task[None] | None = None
        self._failure: KafkaError | None = None

    async def __aenter__(self) -> "ShareConsumer":
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # Membership

    async def start(self) -> None:
        """Joins the group, and keeps the membership alive with heartbeats."""
        for topic in self._topics:
            await self._client.topic(topic)
        interval_ms = await self._heartbeat()
        self._beating = asyncio.ensure_future(self._beat_forever(interval_ms))

    async def close(self) -> None:
        """Sends acknowledgements, releases all other records that the member has acquired, and leaves the group."""
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.gather(self._beating, return_exceptions=True)
        with suppress(KafkaError):
            await self.commit()
        for node, session in list(self._sessions.items()):
            if session.epoch:
                with suppress(KafkaError):
                    await self._ask(node, self._acknowledge_request(FINAL_EPOCH))
        with suppress(KafkaError):
            request = ShareGroupHeartbeatRequest(
                group_id=self.group, member_id=self.member_id, member_epoch=LEAVE_EPOCH
            )
            await self._client.ask_coordinator(self.group, request)

    async def _beat_forever(self, interval_ms: int) -> None:
        while True:
            await asyncio.sleep(interval_ms / 1000)
            try:
                interval_ms = await self._heartbeat()
            except KafkaError as error:
                if not error.code.retriable:
                    self._failure = error
                    return
                interval_ms = 1000

    async def _heartbeat(self) -> int:
        """Sends a heartbeat and takes over the assignment in the response.

        Returns the time until the next heartbeat.
        """
        joining = self._epoch == JOIN_EPOCH
        request = ShareGroupHeartbeatRequest(
            group_id=self.group,
            member_id=self.member_id,
            member_epoch=self._epoch,
            subscribed_topic_names=self._topics if joining else None,
        )
        answer: ShareGroupHeartbeatResponse = await self._client.ask_coordinator(self.group, request)
        if answer.error_code:
            code = code_of(answer.error_code)
            if code not in NOT_A_MEMBER:
                raise KafkaError(code, answer.error_message)
            self._epoch = JOIN_EPOCH
            self.assignment = set()
            return 0
        self._epoch = answer.member_epoch
        if answer.assignment is not None:
            names = self._client.cluster.names_by_id
            if any(each.topic_id not in names for each in answer.assignment.topic_partitions):
                await self._client.refresh_quietly(self._topics)
                names = self._client.cluster.names_by_id
            self.assignment = {
                (names[each.topic_id], index)
                for each in answer.assignment.topic_partitions
                if each.topic_id in names
                for index in each.partitions
            }
        return answer.heartbeat_interval_ms

    # Records

    async def poll(self) -> list[Delivered]:
        """Returns newly acquired records; an empty list if there are none within the fetch's maximum wait.

        Sends the acknowledgements since the last poll, and adds their results to `outcomes`.
        """
        if self._failure is not None:
            raise self._failure
        wanted = await self._client.by_leader(sorted(self.assignment | set(self._acks.partitions())))
        if not wanted:
            await asyncio.sleep(self._settings.max_wait_ms / 1000)
            return []
        found = await asyncio.gather(*(self._fetch(node, partitions) for node, partitions in wanted.items()))
        return [delivered for some in found for delivered in some]

    def acknowledge(self, delivered: Delivered, kind: Acknowledge = Acknowledge.ACCEPT) -> None:
        self._acks.add((delivered.topic, delivered.partition), delivered.record.offset, kind)

    async def commit(self) -> list[tuple[TopicPartition, dict[int, int], KafkaError | None]]:
        """Sends all acknowledgements.

        Returns the acknowledgement types by offset and the error for each partition. The error is None if the
        acknowledgements are stored. After some errors, such as a lost connection, they may be stored or not.
        """
        wanted = await self._client.by_leader(self._acks.partitions())
        results = await asyncio.gather(*(self._commit(node, partitions) for node, partitions in wanted.items()))
        return [outcome for some in results for outcome in some]

    async def _commit(
        self, node: int, partitions: Sequence[TopicPartition]
    ) -> list[tuple[TopicPartition, dict[int, int], KafkaError | None]]:
        answers = {partition: self._acks.take(partition) for partition in partitions}
        session = self._sessions.setdefault(node, _Session())
        if not session.epoch:
            lost = KafkaError(ErrorCode.SHARE_SESSION_NOT_FOUND, "The share session has ended: fetch again.")
            return [(partition, sent, lost) for partition, sent in answers.items()]
        request = self._acknowledge_request(session.epoch)
        for (topic, index), sent in answers.items():
            batches = batches_of(sent, acknowledging.AcknowledgementBatch)
            part = acknowledging.AcknowledgePartition(partition_index=index, acknowledgement_batches=batches)
            topic_id = self._client.cluster.topic_id(topic)
            request.topics.append(acknowledging.AcknowledgeTopic(topic_id=topic_id, partitions=[part]))
        request.is_renew_ack = any(Acknowledge.RENEW in sent.values() for sent in answers.values())
        try:
            answer = await self._ask(node, request)
        except KafkaError as error:
            self._sessions.pop(node, None)
            return [(partition, sent, error) for partition, sent in answers.items()]
        session.advanced()
        errors = self._errors(answer, "error_code", "error_message")
        return [(partition, sent, errors.get(partition)) for partition, sent in answers.items()]

    def _acknowledge_request(self, epoch: int) -> acknowledging.ShareAcknowledgeRequest:
        return acknowledging.ShareAcknowledgeRequest(
            group_id=self.group, member_id=self.member_id, share_session_epoch=epoch
        )

    async def _fetch(self, node: int, partitions: Sequence[TopicPartition]) -> list[Delivered]:
        session = self._sessions.setdefault(node, _Session())
        wanted = self.assignment.intersection(partitions)
        acks = {each: self._acks.take(each) for each in partitions if session.epoch}
        for partition in [each for each in partitions if not session.epoch]:
            dropped = self._acks.take(partition)
            if dropped:
                error = KafkaError(ErrorCode.SHARE_SESSION_NOT_FOUND, "The share session has ended: fetch again.")
                self.outcomes.append((partition, dropped, error))
        acks = {partition: sent for partition, sent in acks.items() if sent}
        try:
            answer = await self._ask(node, self._fetch_request(session, wanted, acks))
        except KafkaError as error:
            self._sessions.pop(node, None)
            self.outcomes += [(partition, sent, error) for partition, sent in acks.items()]
            await self._client.refresh_quietly(self._topics)
            if not error.code.retriable and error.code not in SESSION_LOST:
                raise
            return []
        session.partitions = set(wanted)
        session.advanced()
        failed = self._errors(answer, "acknowledge_error_code", "acknowledge_error_message")
        self.outcomes += [(partition, sent, failed.get(partition)) for partition, sent in acks.items()]
        if self._errors(answer, "error_code", "error_message"):
            await self._client.refresh_quietly(self._topics)
        return self._records(answer)

    def _fetch_request(
        self, session: _Session, wanted: set[TopicPartition], acks: dict[TopicPartition, dict[int, int]]
    ) -> fetching.ShareFetchRequest:
        settings = self._settings
        request = fetching.ShareFetchRequest(
            group_id=self.group,
            member_id=self.member_id,
            share_session_epoch=session.epoch,
            max_wait_ms=settings.max_wait_ms,
            min_bytes=settings.min_bytes,
            max_bytes=settings.max_bytes,
            max_records=settings.max_records,
            batch_size=settings.batch_size,
            share_acquire_mode=int(settings.strict),
        )
        if any(Acknowledge.RENEW in sent.values() for sent in acks.values()):
            request.is_renew_ack = True
            request.max_wait_ms = request.min_bytes = request.max_bytes = request.max_records = 0
        cluster = self._client.cluster
        for topic, index in sorted((wanted - session.partitions) | acks.keys()):
            batches = batches_of(acks.get((topic, index), {}), fetching.AcknowledgementBatch)
            part = fetching.FetchPartition(partition_index=index, acknowledgement_batches=batches)
            request.topics.append(fetching.FetchTopic(topic_id=cluster.topic_id(topic), partitions=[part]))
        for topic, index in sorted((session.partitions | acks.keys()) - wanted):
            request.forgotten_topics_data.append(
                fetching.ForgottenTopic(topic_id=cluster.topic_id(topic), partitions=[index])
            )
        return request

    def _records(self, answer: fetching.ShareFetchResponse) -> list[Delivered]:
        found: list[Delivered] = []
        for topic in answer.responses:
            name = self._client.cluster.names_by_id.get(topic.topic_id)
            if name is None:
                continue
            for part in topic.partitions:
                held = {
                    offset: each.delivery_count
                    for each in part.acquired_records
                    for offset in range(each.first_offset, each.last_offset + 1)
                }
                if not held:
                    continue
                for header, batch in iter_batches(part.records or b"", allow_partial=True):
                    if header.is_control:
                        continue
                    for record in read_records(batch):
                        deliveries = held.pop(record.offset, None)
                        if deliveries is not None:
                            found.append(Delivered(name, part.partition_index, record, deliveries))
                for offset in held:  # compaction has removed the record
                    self._acks.add((name, part.partition_index), offset, Acknowledge.GAP)
        return found

    def _errors(self, answer: Any, code_field: str, message_field: str) -> dict[TopicPartition, KafkaError]:
        """Returns the errors of a response by partition. Updates the leaders from the hints in the response."""
        errors = {}
        for topic in answer.responses:
            name = self._client.cluster.names_by_id.get(topic.topic_id, "")
            for part in topic.partitions:
                code = getattr(part, code_field)
                if code:
                    errors[name, part.partition_index] = KafkaError(code_of(code), getattr(part, message_field))
                    self._client.cluster.take_hint(
                        (name, part.partition_index), part.current_leader, answer.node_endpoints
                    )
        return errors

    async def _ask(self, node: int, request: Any) -> Any:
        answer = await self._client.request(request, node=node, channel=f"share {self.member_id}")
        if answer.error_code:
            raise KafkaError(code_of(answer.error_code), answer.error_message)
        return answer
