"""Defines the mover, which reassigns replicas to other machines, cancels reassignments, and elects preferred
leaders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.client.admin import Admin
from penstock.client.client import AsyncClient
from penstock.protocol.errors import ErrorCode
from penstock.protocol.messages.api_43_elect_leaders import ElectLeadersRequest, ElectLeadersResponse, TopicPartitions
from penstock.protocol.messages.api_45_alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
)
from penstock.protocol.vocabulary import TopicPartition
from penstock.sim.actors.session import Session
from penstock.sim.checks.history import Outcome, Reassignment

PREFERRED = 0
TIMEOUT_MS = 4_000


@dataclass(frozen=True, slots=True)
class MoverOptions:
    partitions: Sequence[TopicPartition]
    pause_s: float = 3.0
    elects: bool = True
    """True if the mover also elects preferred leaders."""


class Mover:
    def __init__(self, session: Session, options: MoverOptions) -> None:
        self.session = session
        self.options = options

    async def run(self) -> None:
        await self.session.repeat(self._act, self.options.pause_s)

    async def _act(self, client: AsyncClient) -> None:
        random = self.session.random
        topic, index = random.choice(self.options.partitions)
        choice = random.random()
        if self.options.elects and choice < 0.35:
            await self._elect(client, topic, index)
        elif choice < 0.5:
            await self._reassign(client, topic, index, None)
        else:
            info = (await Admin(client).describe_topics([topic]))[0]
            nodes = sorted(client.cluster.nodes)
            replicas = list(info.partitions[index].replicas)
            count = len(replicas)
            if choice < 0.65:
                wanted = random.sample(replicas, count)  # another replica becomes the preferred leader
            else:
                wanted = random.sample(nodes, min(count, len(nodes)))
            if len(wanted) == count:  # the client knows fewer nodes while some are down
                await self._reassign(client, topic, index, wanted)

    async def _reassign(self, client: AsyncClient, topic: str, index: int, replicas: list[int] | None) -> None:
        """Reassigns a partition to `replicas`; None cancels a reassignment under way."""
        part = ReassignablePartition(partition_index=index, replicas=replicas)
        request = AlterPartitionReassignmentsRequest(
            topics=[ReassignableTopic(name=topic, partitions=[part])], timeout_ms=TIMEOUT_MS
        )
        session = self.session
        wanted = None if replicas is None else tuple(replicas)
        move = Reassignment((topic, index), wanted, session.now)
        session.history.reassignments.append(move)
        answer: AlterPartitionReassignmentsResponse = await client.request(request)
        codes = [answer.error_code, *(part.error_code for each in answer.responses for part in each.partitions)]
        told = next((code for code in codes if code), 0)
        if not told:
            move.outcome = Outcome.DONE
        move.ended = session.now
        session.note(f"moves {topic}-{index} to {replicas}: {ErrorCode(told).name}")

    async def _elect(self, client: AsyncClient, topic: str, index: int) -> None:
        request = ElectLeadersRequest(
            election_type=PREFERRED,
            topic_partitions=[TopicPartitions(topic=topic, partitions=[index])],
            timeout_ms=TIMEOUT_MS,
        )
        answer: ElectLeadersResponse = await client.request(request)
        codes = [answer.error_code]
        codes += [part.error_code for each in answer.replica_election_results for part in each.partition_result]
        told = next((code for code in codes if code), 0)
        self.session.note(f"elects the preferred leader of {topic}-{index}: {ErrorCode(told).name}")
