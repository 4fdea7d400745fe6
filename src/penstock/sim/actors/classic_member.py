"""Defines a group member with the classic protocol: JoinGroup, SyncGroup, Heartbeat, LeaveGroup; dynamic or static.

The member gives up all partitions before it joins again (eager rebalance). The leader of the group assigns round-robin.
"""

from __future__ import annotations

from penstock.client.client import AsyncClient
from penstock.client.consumer import Consumer
from penstock.protocol.codec import encode
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_11_join_group import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
)
from penstock.protocol.messages.api_12_heartbeat import HeartbeatRequest
from penstock.protocol.messages.api_13_leave_group import LeaveGroupRequest, MemberIdentity
from penstock.protocol.messages.api_14_sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from penstock.protocol.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
)
from penstock.protocol.messages.consumer_protocol import TopicPartition as OfTopic
from penstock.protocol.vocabulary import TopicPartition
from penstock.sim.actors.consumers import Reader, ReaderOptions, record_reads
from penstock.sim.actors.session import Session
from penstock.sim.checks.group_ownership import classic_assignment
from penstock.sim.checks.history import Ownership

SESSION_MS = 6_000
REBALANCE_MS = 6_000
JOIN_TIMEOUT_S = 20.0
VERSION = b"\0\0"
_REJOIN = (ErrorCode.REBALANCE_IN_PROGRESS,)
_LOST = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION, ErrorCode.FENCED_INSTANCE_ID)


class ClassicMember(Reader):
    def __init__(self, session: Session, options: ReaderOptions) -> None:
        super().__init__(session, options)
        self._id = ""
        self._generation = -1
        self._instance = options.instance or None
        self._leaves_at = 0.0

    async def read(self, client: AsyncClient, consumer: Consumer) -> None:
        session, topics = self.session, sorted({topic for topic, _ in self.options.partitions})
        self._leaves_at = session.now + self.options.lives_s
        for topic in topics:
            await client.topic(topic)
        self._id = ""
        while not session.done and session.now < self._leaves_at:
            assigned = await self._join(client, topics)
            await self._consume(client, consumer, assigned)
        if self._instance is None:
            await self._leave(client)

    async def _join(self, client: AsyncClient, topics: list[str]) -> list[TopicPartition]:
        """Joins the group, and repeats this after a rebalance, until the member gets an assignment. Returns it."""
        while True:
            joined = await self._ask_to_join(client, topics)
            self._id, self._generation = joined.member_id, joined.generation_id
            assignments = self._assign(client, joined, topics) if joined.leader == self._id else []
            request = SyncGroupRequest(
                group_id=self.options.group,
                generation_id=self._generation,
                member_id=self._id,
                group_instance_id=self._instance,
                protocol_type="consumer",
                protocol_name=joined.protocol_name,
                assignments=assignments,
            )
            answer = await self.session._coordinated(client, self.options.group, request, timeout_s=JOIN_TIMEOUT_S)
            code = ErrorCode(answer.error_code)
            if code is ErrorCode.NONE:
                found = [(str(topic), index) for topic, index in classic_assignment(answer.assignment)]
                self.session.note(f"generation {self._generation}: assigned {found}")
                return found
            self._check(client, code)

    async def _ask_to_join(self, client: AsyncClient, topics: list[str]) -> JoinGroupResponse:
        subscription = VERSION + encode(ConsumerProtocolSubscription(topics=topics), 0)
        while True:
            request = JoinGroupRequest(
                group_id=self.options.group,
                session_timeout_ms=SESSION_MS,
                rebalance_timeout_ms=REBALANCE_MS,
                member_id=self._id,
                group_instance_id=self._instance,
                protocol_type="consumer",
                protocols=[JoinGroupRequestProtocol(name="range", metadata=subscription)],
            )
            answer: JoinGroupResponse = await self.session._coordinated(
                client, self.options.group, request, timeout_s=JOIN_TIMEOUT_S
            )
            code = ErrorCode(answer.error_code)
            if code is ErrorCode.NONE:
                return answer
            if code is ErrorCode.MEMBER_ID_REQUIRED:
                self._id = answer.member_id
                continue
            self._check(client, code)

    def _check(self, client: AsyncClient, code: ErrorCode) -> None:
        """Raises KafkaError if the member cannot recover from this error code by joining the group again."""
        self.session._notice(client, self.options.group, [code])
        if code in _REJOIN:
            return
        if code in _LOST:
            self._id = ""
        raise KafkaError(code, f"The coordinator of group {self.options.group} refused this member: start it again.")

    def _assign(
        self, client: AsyncClient, joined: JoinGroupResponse, topics: list[str]
    ) -> list[SyncGroupRequestAssignment]:
        """Returns an assignment that gives the partitions of each topic to the members round-robin."""
        members = sorted(member.member_id for member in joined.members)
        shares: dict[str, dict[str, list[int]]] = {member: {} for member in members}
        for topic in topics:
            for slot, index in enumerate(sorted(client.cluster.topics[topic].partitions)):
                shares[members[slot % len(members)]].setdefault(topic, []).append(index)
        return [
            SyncGroupRequestAssignment(
                member_id=member,
                assignment=VERSION
                + encode(
                    ConsumerProtocolAssignment(
                        assigned_partitions=[OfTopic(topic=topic, partitions=each) for topic, each in share.items()]
                    ),
                    0,
                ),
            )
            for member, share in shares.items()
        ]

    async def _consume(self, client: AsyncClient, consumer: Consumer, assigned: list[TopicPartition]) -> None:
        """Reads and commits until the group rebalances. Raises KafkaError if this client is no longer a member."""
        session, options = self.session, self.options
        since = session.now
        owned = Ownership(options.group, self._id, tuple(assigned), since)
        session.history.ownerships.append(owned)
        for partition in sorted(consumer.assignment):
            consumer.unassign(partition)
        if assigned:
            offsets = await session.committed(client, options.group, assigned)
            await consumer.seek({partition: max(offset, 0) for partition, offset in offsets.items()})
        while not session.done and session.now < self._leaves_at:
            asked, code = session.now, await self._heartbeat(client)
            if code in _REJOIN:
                return
            if code is not ErrorCode.NONE:
                self._check(client, code)
            owned.ended = asked
            fetched = await consumer.poll(0.5) if assigned else []
            record_reads(session, fetched, committed_only=options.committed_only, since=since)
            positions = {(part.topic, part.partition): part.next_offset for part in fetched}
            await self.work()
            if positions:
                who = {"member_id": self._id, "generation_id_or_member_epoch": self._generation}
                await session.commit(client, options.group, positions, **who, group_instance_id=self._instance)
            await session.think(options.pause_s)

    async def _heartbeat(self, client: AsyncClient) -> ErrorCode:
        request = HeartbeatRequest(
            group_id=self.options.group,
            generation_id=self._generation,
            member_id=self._id,
            group_instance_id=self._instance,
        )
        answer = await self.session._coordinated(client, self.options.group, request)
        return ErrorCode(answer.error_code)

    async def _leave(self, client: AsyncClient) -> None:
        request = LeaveGroupRequest(group_id=self.options.group, members=[MemberIdentity(member_id=self._id)])
        await self.session._coordinated(client, self.options.group, request)
