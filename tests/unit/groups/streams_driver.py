"""Sends the requests of a streams group's members to the coordinator of `group_driver`, without a broker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from consumer_driver import ConsumerDriver

from penstock.groups import streams_requests
from penstock.groups.config import GroupConfig
from penstock.groups.streams.group import StreamsGroup
from penstock.groups.streams.heartbeat import Answer
from penstock.groups.turn import Caller
from penstock.protocol.errors import ErrorCode
from penstock.protocol.messages.api_88_streams_group_heartbeat import (
    CopartitionGroup,
    KeyValue,
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
    Subtopology,
    TaskIds,
    TopicInfo,
    Topology,
)
from penstock.protocol.messages.api_89_streams_group_describe import DescribedGroup

REVOKE_MS = 5000
EAGER = GroupConfig(
    initial_rebalance_delay_ms=0, streams_initial_rebalance_delay_ms=0, streams_assignment_interval_ms=0
)
Listed = dict[str, list[int]]


def internal(name: str, partitions: int = 0, **configs: str) -> TopicInfo:
    return TopicInfo(
        name=name,
        partitions=partitions,
        topic_configs=[KeyValue(key=key.replace("_", "."), value=value) for key, value in configs.items()],
    )


def topology(*subtopologies: Subtopology, epoch: int = 0) -> Topology:
    return Topology(epoch=epoch, subtopologies=list(subtopologies) or [plain()])


def plain(name: str = "0", source: str = "t") -> Subtopology:
    """Returns a subtopology that reads one topic and has no state."""
    return Subtopology(subtopology_id=name, source_topics=[source])


def counting() -> Topology:
    """Returns two subtopologies: the first writes to a repartition topic, and the second counts the records of that
    topic."""
    first = Subtopology(subtopology_id="0", source_topics=["t"], repartition_sink_topics=["g-repartition"])
    second = Subtopology(
        subtopology_id="1",
        repartition_source_topics=[internal("g-repartition", cleanup_policy="delete")],
        state_changelog_topics=[internal("g-changelog", cleanup_policy="compact")],
        copartition_groups=[CopartitionGroup(repartition_source_topics=[0])],
    )
    return Topology(epoch=0, subtopologies=[first, second])


def stateful() -> Topology:
    each = Subtopology(subtopology_id="0", source_topics=["t"], state_changelog_topics=[internal("g-changelog")])
    return Topology(epoch=0, subtopologies=[each])


class StreamsDriver(ConsumerDriver):
    def __init__(self, config: GroupConfig = EAGER, topics: dict[str, int] | None = None) -> None:
        super().__init__(config, topics)
        self.answers: dict[str, Answer] = {}

    @property
    def group(self) -> StreamsGroup:
        group = self.shard.groups["g"]
        assert isinstance(group, StreamsGroup)
        return group

    def stream_beat(self, member: str, epoch: int, **fields: Any) -> StreamsGroupHeartbeatResponse:
        fields.setdefault("group_id", "g")
        request = StreamsGroupHeartbeatRequest(member_id=member, member_epoch=epoch, **fields)
        caller = Caller("client", "/127.0.0.1", 0)
        answer = self.run(lambda turn: streams_requests.streams_heartbeat(self.shard, turn, request, caller))
        self.answers[member] = answer
        return answer.response

    def come(self, member: str, given: Topology | None = None, **fields: Any) -> StreamsGroupHeartbeatResponse:
        """Sends the join heartbeat of a member. The member's process has the same name."""
        fields.setdefault("process_id", member)
        fields.setdefault("rebalance_timeout_ms", REVOKE_MS)
        fields.setdefault("active_tasks", [])
        fields.setdefault("standby_tasks", [])
        fields.setdefault("warmup_tasks", [])
        return self.stream_beat(member, 0, topology=given or topology(), **fields)

    def stay(self, member: str, **fields: Any) -> StreamsGroupHeartbeatResponse:
        """Sends a heartbeat of a member that owns exactly its assigned tasks."""
        known = self.group.members[member]
        owned: dict[int, list[TaskIds]] = {0: [], 1: [], 2: []}
        for key, indexes in sorted(known.assigned.items()):
            owned[key.role].append(TaskIds(subtopology_id=key.subtopology, partitions=sorted(indexes)))
        return self.stream_beat(
            member, known.epoch, active_tasks=owned[0], standby_tasks=owned[1], warmup_tasks=owned[2], **fields
        )

    def settle(self, rounds: int = 6) -> None:
        """Sends several heartbeats of every member, so that every task reaches its assigned member."""
        for _ in range(rounds):
            for member in list(self.group.members):
                self.stay(member)

    def streams_description(self, group: str = "g") -> DescribedGroup:
        return self.run(lambda turn: streams_requests.describe_streams_group(self.shard, turn, group))


def listed(tasks: list[TaskIds] | None) -> Listed | None:
    return None if tasks is None else {each.subtopology_id: each.partitions for each in tasks}


def statuses(response: StreamsGroupHeartbeatResponse) -> list[int]:
    return [each.status_code for each in response.status or ()]


def code(response: StreamsGroupHeartbeatResponse) -> ErrorCode:
    return ErrorCode(response.error_code)


def active(driver: StreamsDriver) -> dict[str, Mapping[str, list[int]]]:
    return {
        name: {key.subtopology: sorted(indexes) for key, indexes in member.assigned.items() if key.role == 0}
        for name, member in driver.group.members.items()
    }
