"""Defines members of a streams group (KIP-1071), which read and commit the partitions of their active tasks.

Subtopology 0 reads the topic `t0` and has a store. So its tasks have standbys and a changelog topic, which the
coordinator has to create. Subtopology 1 reads `t1`.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.client.client import AsyncClient
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_88_streams_group_heartbeat import (
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
    Subtopology,
    TaskIds,
    TopicInfo,
    Topology,
)
from penstock.sim.actors.consumers import LEAVES, Member, ReaderOptions
from penstock.sim.actors.session import Session

SOURCES = {"0": "t0", "1": "t1"}
STATEFUL = "0"


@dataclass(frozen=True, slots=True)
class StreamsMemberOptions(ReaderOptions):
    replication_factor: int = 1
    """The replication factor of the changelog topic."""
    process: str = ""
    """Members of one process never hold the same task."""


class StreamsMember(Member):
    options: StreamsMemberOptions

    def __init__(self, session: Session, options: StreamsMemberOptions) -> None:
        super().__init__(session, options)
        self._standbys: list[TaskIds] = []

    def _topology(self) -> Topology:
        changelog = TopicInfo(
            name=f"{self.options.group}-changelog", replication_factor=self.options.replication_factor
        )
        return Topology(
            epoch=0,
            subtopologies=[
                Subtopology(
                    subtopology_id=name,
                    source_topics=[topic],
                    state_changelog_topics=[changelog] if name == STATEFUL else [],
                )
                for name, topic in SOURCES.items()
            ],
        )

    def _active(self) -> list[TaskIds]:
        owned = {name: [index for of, index in self._assigned if of == topic] for name, topic in SOURCES.items()}
        return [TaskIds(subtopology_id=name, partitions=sorted(indexes)) for name, indexes in owned.items() if indexes]

    async def _heartbeat(self, client: AsyncClient) -> bool:
        """Sends a heartbeat. Returns True if the active tasks have changed."""
        joining = self._epoch == 0
        if joining:
            self._assigned, self._standbys = {}, []
        request = StreamsGroupHeartbeatRequest(
            group_id=self.options.group,
            member_id=self._id,
            member_epoch=self._epoch,
            rebalance_timeout_ms=10_000 if joining else -1,
            topology=self._topology() if joining else None,
            process_id=self.options.process if joining else None,
            active_tasks=self._active(),
            standby_tasks=self._standbys,
            warmup_tasks=[],
        )
        answer = await client.retrying(lambda: self._beat(client, request))
        self._epoch = answer.member_epoch
        if answer.active_tasks is None:
            return False
        self._standbys = answer.standby_tasks or []
        assigned = {
            (SOURCES[each.subtopology_id], index): None for each in answer.active_tasks for index in each.partitions
        }
        changed = assigned != self._assigned
        if changed:
            self.session.note(f"epoch {self._epoch}: active tasks {list(assigned)}")
        self._assigned = assigned
        return changed

    async def _beat(self, client: AsyncClient, request: StreamsGroupHeartbeatRequest) -> StreamsGroupHeartbeatResponse:
        answer: StreamsGroupHeartbeatResponse = await self.session._coordinated(client, self.options.group, request)
        if answer.error_code:
            code = ErrorCode(answer.error_code)
            self.session._notice(client, self.options.group, [code])
            raise KafkaError(code, answer.error_message)
        return answer

    async def _leave(self, client: AsyncClient) -> None:
        request = StreamsGroupHeartbeatRequest(group_id=self.options.group, member_id=self._id, member_epoch=LEAVES)
        await self.session._coordinated(client, self.options.group, request)
        self.session.note("leaves")
