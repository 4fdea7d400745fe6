"""Implements scenario commands for streams groups: members join, run tasks, commit offsets and die."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from penstock.client.client import AsyncClient
from penstock.protocol.errors import ErrorCode
from penstock.protocol.messages.api_08_offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from penstock.protocol.messages.api_88_streams_group_heartbeat import (
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
    Subtopology,
    TaskIds,
    TopicInfo,
    Topology,
)
from penstock.protocol.messages.api_89_streams_group_describe import StreamsGroupDescribeRequest
from penstock.sim.run.share_commands import As, Participant

SUBTOPOLOGY = "0"
LEAVE_EPOCH = -1
COMMIT_VERSION = 9
BEAT_S = 1.0
#: Members whose tasks do not change for this time have their final tasks.
QUIET_S = 8.0
PATIENCE_S = 120.0


class StreamMember:
    """Keeps the state of one member of a streams group: its epoch and its tasks. The group has one subtopology."""

    def __init__(self, name: str, group: str, topic: str, stateful: bool) -> None:
        self.name, self.group, self.topic, self.stateful = name, group, topic, stateful
        self.epoch = 0
        self.active: list[int] = []
        self.standbys: list[int] = []
        self.status = ""

    def _request(self) -> StreamsGroupHeartbeatRequest:
        request = StreamsGroupHeartbeatRequest(
            group_id=self.group,
            member_id=self.name,
            member_epoch=self.epoch,
            active_tasks=_tasks(self.active),
            standby_tasks=_tasks(self.standbys),
            warmup_tasks=[],
        )
        if self.epoch == 0:
            changelog = TopicInfo(name=f"{self.group}-changelog")
            source = Subtopology(
                subtopology_id=SUBTOPOLOGY,
                source_topics=[self.topic],
                state_changelog_topics=[changelog] if self.stateful else [],
            )
            request.topology = Topology(epoch=0, subtopologies=[source])
            request.process_id, request.rebalance_timeout_ms = self.name, 10_000
        return request

    async def beat(self, client: AsyncClient) -> str:
        """Sends a heartbeat. Returns the name of the error in the response; an empty text if there is no error."""
        request = self._request()
        answer: StreamsGroupHeartbeatResponse = await client.ask_coordinator(self.group, request)
        if answer.error_code:
            return ErrorCode(answer.error_code).name
        self.epoch = answer.member_epoch
        self.status = " ".join(each.status_detail for each in answer.status or ())
        if answer.active_tasks is not None:
            self.active, self.standbys = _indexes(answer.active_tasks), _indexes(answer.standby_tasks or [])
        return ""

    def shown(self) -> str:
        standbys = f" standby {_shown(self.standbys)}" if self.standbys else ""
        return f"{self.name}: {_shown(self.active)}{standbys}"


class StreamsCommands:
    """Runs the commands `stream`, `tasks`, `commit-task`, `leave-stream`, `forget` and `streams`."""

    def __init__(self, act_as: As) -> None:
        self._as = act_as
        self._members: dict[str, StreamMember] = {}
        self.commands: dict[str, Callable[..., Awaitable[str]]] = {
            "stream": self.stream,
            "tasks": self.tasks,
            "commit-task": self.commit_task,
            "leave-stream": self.leave_stream,
            "forget": self.forget,
            "streams": self.streams,
        }

    async def stream(self, name: str, group: str, topic: str, stateful: str = "no") -> str:
        """Lets a member join a streams group. The member's subtopology reads one topic, and may be stateful."""
        member = self._members[name] = StreamMember(name, group, topic, stateful == "yes")
        return await self._beat(member) or member.status or "joined"

    async def _beat(self, member: StreamMember) -> str:
        async def work(role: Participant) -> str:
            return await member.beat(await role.connected())

        return await self._as(member.name, work)

    async def tasks(self, *names: str, seconds: str = "0") -> str:
        """Lets the members send heartbeats for some seconds, and then until their tasks no longer change.

        Shows the tasks of each member.
        """
        members = [self._members[name] for name in names]
        quiet = total = 0.0
        while total < float(seconds) or (quiet < QUIET_S and total < PATIENCE_S):
            before = [(member.epoch, member.shown()) for member in members]
            for member in members:
                error = await self._beat(member)
                if error:
                    return f"{member.name}: error {error}"
            await asyncio.sleep(BEAT_S)
            total += BEAT_S
            quiet = quiet + BEAT_S if before == [(member.epoch, member.shown()) for member in members] else 0.0
        return ", ".join(member.shown() for member in members)

    async def commit_task(self, name: str, task: str, offset: str, epochs_ago: str = "0") -> str:
        """Commits the offset of a task's partition, with the member's epoch or an earlier epoch."""
        member = self._members[name]
        part = OffsetCommitRequestPartition(partition_index=int(task), committed_offset=int(offset))
        request = OffsetCommitRequest(
            group_id=member.group,
            member_id=name,
            generation_id_or_member_epoch=member.epoch - int(epochs_ago),
            topics=[OffsetCommitRequestTopic(name=member.topic, partitions=[part])],
        )

        async def work(role: Participant) -> str:
            client = await role.connected()
            answer = await client.ask_coordinator(member.group, request, at_most=COMMIT_VERSION)
            code = ErrorCode(answer.topics[0].partitions[0].error_code)
            return "committed" if code is ErrorCode.NONE else f"error {code.name}"

        return await self._as(name, work)

    async def leave_stream(self, name: str) -> str:
        """Lets a member leave the group."""
        member = self._members.pop(name)
        member.epoch = LEAVE_EPOCH
        member.active, member.standbys = [], []
        return await self._beat(member) or "left"

    async def forget(self, name: str) -> str:
        """Ends a member without a last heartbeat, as if its process had died."""
        del self._members[name]
        return ""

    async def streams(self, group: str) -> str:
        """Shows the state of the group and the number of its members."""

        async def work(role: Participant) -> str:
            request = StreamsGroupDescribeRequest(group_ids=[group])
            [found] = (await (await role.connected()).ask_coordinator(group, request)).groups
            return f"{found.group_state}, {len(found.members)} members"

        return await self._as("operator", work)


def _tasks(indexes: list[int]) -> list[TaskIds]:
    return [TaskIds(subtopology_id=SUBTOPOLOGY, partitions=indexes)] if indexes else []


def _indexes(tasks: list[TaskIds]) -> list[int]:
    return sorted(index for each in tasks for index in each.partitions)


def _shown(indexes: list[int]) -> str:
    return " ".join(map(str, indexes)) or "-"
