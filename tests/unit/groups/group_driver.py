"""Runs the group coordinator of one partition without a broker: passes requests to it, and keeps its responses and its
journal.

The test moves the clock.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, TypeVar

from penstock.groups import admin, membership, offset_requests
from penstock.groups.config import GroupConfig
from penstock.groups.journal import decode_record, encode_record
from penstock.groups.shard import GroupShard
from penstock.groups.turn import Caller, Turn
from penstock.protocol.errors import ErrorCode
from penstock.protocol.messages.api_08_offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from penstock.protocol.messages.api_09_offset_fetch import OffsetFetchRequestGroup, OffsetFetchRequestTopics
from penstock.protocol.messages.api_11_join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from penstock.protocol.messages.api_13_leave_group import LeaveGroupResponse, MemberIdentity
from penstock.protocol.messages.api_14_sync_group import (
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)

R = TypeVar("R")

WALL_START_MS = 1_700_000_000_000
SESSION_MS = 10_000
REBALANCE_MS = 60_000
MOST_CHECKED_RECORDS = 100  # a longer journal is not replayed after each request
RANGE = (("range", b"range-metadata"),)


class Waiting:
    """Represents a client whose request is parked; `answer` is set when the coordinator responds."""

    def __init__(self) -> None:
        self.answer: Any = None

    @property
    def joined(self) -> JoinGroupResponse:
        assert isinstance(self.answer, JoinGroupResponse), "no answer to the join yet"
        return self.answer

    @property
    def synced(self) -> SyncGroupResponse:
        assert isinstance(self.answer, SyncGroupResponse), "no answer to the sync yet"
        return self.answer

    @property
    def error(self) -> ErrorCode:
        return ErrorCode((self.answer).error_code)


class Driver:
    def __init__(self, config: GroupConfig | None = None, shard: GroupShard | None = None) -> None:
        self.config = config or GroupConfig(initial_rebalance_delay_ms=0)
        self.shard = shard or GroupShard(self.config, Random(7))
        self.now_ms = 0
        self.journal: list[tuple[bytes, bytes | None]] = []
        self.refuse_records = False  # the log takes no records
        self.hold_commits = False  # records are written, but the high watermark does not advance
        self._uncommitted: list[Turn] = []

    # --- the runtime's part

    def run(self, decide: Callable[[Turn], R]) -> R:
        turn = self.shard.turn(self.now_ms, WALL_START_MS + self.now_ms)
        result = decide(turn)
        if self.refuse_records and turn.records:
            for undo in reversed(turn.undo):
                undo()
            self._settle(turn, ErrorCode.UNKNOWN_SERVER_ERROR)
            return result
        for record in turn.records:
            self.journal.append(encode_record(record))
            self.shard.apply(record, len(self.journal) - 1, turn.producer[0] if turn.producer else -1)
        if turn.records and len(self.journal) <= MOST_CHECKED_RECORDS:
            self._check_compacted_journal()
        if self.hold_commits and turn.records:
            self._uncommitted.append(turn)
        else:
            self._settle(turn, ErrorCode.NONE)
        return result

    def release_commits(self, code: ErrorCode = ErrorCode.NONE) -> None:
        self.hold_commits = False
        turns, self._uncommitted = self._uncommitted, []
        for turn in turns:
            self._settle(turn, code)

    def _settle(self, turn: Turn, code: ErrorCode) -> None:
        for token, response in turn.replies:
            assert isinstance(token, Waiting)
            assert token.answer is None, "answered twice"
            token.answer = response
        for after in turn.after:
            self.run(lambda later, after=after: after(later, code))  # type: ignore[misc]

    def advance(self, milliseconds: int) -> None:
        """Moves the clock forward and fires every timer at its deadline."""
        end = self.now_ms + milliseconds
        while (deadline := self.shard.timers.next_deadline()) is not None and deadline <= end:
            self.now_ms = max(self.now_ms, deadline)
            self.run(self.shard.on_timers)
        self.now_ms = end

    def reload(self) -> Driver:
        """Replays the journal, as another broker does when it becomes the leader of the partition."""
        other = Driver(self.config)
        other.now_ms = self.now_ms
        other.replay(self.journal)
        other.run(other.shard.loaded)
        return other

    def replay(self, journal: list[tuple[bytes, bytes | None]]) -> None:
        for offset, (key, value) in enumerate(journal):
            record = decode_record(key, value)
            assert record is not None
            self.shard.apply(record, offset)
        self.journal = list(journal)

    def abandon(self) -> None:
        """Takes the partition away from the coordinator. The journal then belongs to the next coordinator."""
        self.run(self.shard.abandon)
        self.journal = []

    def _check_compacted_journal(self) -> None:
        """Checks that the last record of each key, without tombstones, restores the same groups as all records.

        A missing tombstone shows only here: after compaction no later record hides the older one.
        """
        latest: dict[bytes, bytes | None] = {}
        for key, value in self.journal:
            latest.pop(key, None)
            latest[key] = value
        other = Driver(self.config)
        other.replay([(key, value) for key, value in latest.items() if value is not None])
        assert _recorded(other.shard) == _recorded(self.shard)

    # --- requests

    def join(
        self,
        member_id: str = "",
        *,
        group: str = "g",
        instance: str | None = None,
        protocols: tuple[tuple[str, bytes], ...] = RANGE,
        protocol_type: str = "consumer",
        session_ms: int = SESSION_MS,
        rebalance_ms: int = REBALANCE_MS,
        version: int = 3,
        client: str = "client",
    ) -> Waiting:
        """Sends JoinGroup; by default version 3, in which a member can join before it has a member id."""
        waiting = Waiting()
        request = JoinGroupRequest(
            group_id=group,
            session_timeout_ms=session_ms,
            rebalance_timeout_ms=rebalance_ms,
            member_id=member_id,
            group_instance_id=instance,
            protocol_type=protocol_type,
            protocols=[JoinGroupRequestProtocol(name=name, metadata=metadata) for name, metadata in protocols],
        )
        caller = Caller(client, "/127.0.0.1", version)
        self.run(lambda turn: membership.join(self.shard, turn, request, caller, waiting))
        return waiting

    def sync(
        self,
        member_id: str,
        generation: int,
        assignments: dict[str, bytes] | None = None,
        *,
        group: str = "g",
        instance: str | None = None,
        protocol_type: str | None = None,
        protocol_name: str | None = None,
    ) -> Waiting:
        waiting = Waiting()
        request = SyncGroupRequest(
            group_id=group,
            generation_id=generation,
            member_id=member_id,
            group_instance_id=instance,
            protocol_type=protocol_type,
            protocol_name=protocol_name,
            assignments=[
                SyncGroupRequestAssignment(member_id=member, assignment=assignment)
                for member, assignment in (assignments or {}).items()
            ],
        )
        self.run(lambda turn: membership.sync(self.shard, turn, request, waiting))
        return waiting

    def heartbeat(self, member_id: str, generation: int, *, group: str = "g", instance: str | None = None) -> ErrorCode:
        return membership.heartbeat(self.shard, group, generation, member_id, instance, self.now_ms)

    def leave(self, *members: str | tuple[str, str | None], group: str = "g") -> LeaveGroupResponse:
        identities = [
            MemberIdentity(member_id=member)
            if isinstance(member, str)
            else MemberIdentity(member_id=member[0], group_instance_id=member[1])
            for member in members
        ]
        return self.run(lambda turn: membership.leave(self.shard, turn, group, identities))

    def stable(self, count: int = 1, *, group: str = "g", **options: Any) -> list[str]:
        """Returns the member ids of a stable group of the given size. The first member is the leader."""
        waiting = [self.join(group=group, **options)]
        while len(waiting) < count:
            waiting.append(self.join(group=group, **options))
            # The join of the next member started a rebalance, so the earlier members rejoin.
            waiting = [
                self.join(each.joined.member_id, group=group, **options) if each.answer is not None else each
                for each in waiting
            ]
        members = [each.joined.member_id for each in waiting]
        generation = waiting[0].joined.generation_id
        assert waiting[0].joined.leader == members[0]
        self.sync(members[0], generation, {member: b"to " + member.encode() for member in members}, group=group)
        for member in members[1:]:
            assert self.sync(member, generation, group=group).error is ErrorCode.NONE
        return members

    def commit(
        self,
        offsets: dict[tuple[str, int], int],
        *,
        group: str = "g",
        member_id: str = "",
        generation: int = -1,
        instance: str | None = None,
        metadata: str | None = "",
        version: int = 9,
        retention_ms: int = -1,
        topic_id: bytes = bytes(16),
    ) -> list[ErrorCode]:
        request = OffsetCommitRequest(
            group_id=group,
            generation_id_or_member_epoch=generation,
            member_id=member_id,
            group_instance_id=instance,
            retention_time_ms=retention_ms,
            topics=[
                OffsetCommitRequestTopic(
                    name=topic,
                    topic_id=topic_id,
                    partitions=[
                        OffsetCommitRequestPartition(
                            partition_index=partition, committed_offset=offset, committed_metadata=metadata
                        )
                    ],
                )
                for (topic, partition), offset in offsets.items()
            ],
        )
        response = self.run(lambda turn: offset_requests.commit(self.shard, turn, request, version))
        return [ErrorCode(partition.error_code) for topic in response.topics for partition in topic.partitions]

    def fetch(
        self,
        *partitions: tuple[str, int],
        group: str = "g",
        require_stable: bool = False,
        topic_id: bytes = bytes(16),
    ) -> dict[tuple[str, int], int | ErrorCode]:
        topics = [
            OffsetFetchRequestTopics(name=topic, topic_id=topic_id, partition_indexes=[partition])
            for topic, partition in partitions
        ]
        request = OffsetFetchRequestGroup(group_id=group, topics=topics or None)
        response = offset_requests.fetch(self.shard, request, require_stable)
        return {
            (topic.name, each.partition_index): ErrorCode(each.error_code) if each.error_code else each.committed_offset
            for topic in response.topics
            for each in topic.partitions
        }

    def delete(self, group: str = "g") -> ErrorCode:
        return self.run(lambda turn: admin.delete_group(self.shard, turn, group))

    def state(self, group: str = "g") -> str:
        return admin.describe(self.shard, group, 5).group_state


def _recorded(shard: GroupShard) -> dict[str, Any]:
    """Returns the durable state of each group that has records of its own, not only committed offsets."""
    return {name: state for name, state in shard.remembered()["groups"].items() if state is not None}
