"""Defines the directory mover, which moves replicas between log directories of a machine, and throttles these moves.

Some requests arrive while a replica moves. A request to move the replica to its present directory cancels the move. A
request to move it to a third directory replaces the move.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.client.admin import Admin
from penstock.client.client import AsyncClient
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_34_alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopic,
)
from penstock.protocol.messages.api_35_describe_log_dirs import DescribeLogDirsRequest, DescribeLogDirsResponse
from penstock.protocol.messages.api_44_incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from penstock.protocol.vocabulary import ResourceType, TopicPartition
from penstock.sim.actors.session import Session

THROTTLE = "replica.alter.log.dirs.io.max.bytes.per.second"
SET, DELETE = 0, 1


@dataclass(frozen=True, slots=True)
class DirectoryMoverOptions:
    partitions: Sequence[TopicPartition]
    directories: Sequence[str]
    rates: Sequence[int] = ()
    """Throttles in bytes per second that the actor sets now and then."""
    pause_s: float = 0.5


class DirectoryMover:
    def __init__(self, session: Session, options: DirectoryMoverOptions) -> None:
        self.session = session
        self.options = options

    async def run(self) -> None:
        session = self.session
        while not session.done:
            try:
                async with session.client() as client:
                    await Admin(client).describe_topics([self.options.partitions[0][0]])  # learns the nodes
                    while not session.done:
                        await self._act(client)
                        await session.think(self.options.pause_s)
            except KafkaError as error:
                session.note(f"starts again: {error.code.name}")
                await session.think(0.5)

    async def _act(self, client: AsyncClient) -> None:
        random, rates = self.session.random, self.options.rates
        choice = random.random()
        if rates and choice < 0.1:
            await self._throttle(client, random.choice((None, *rates)))
        elif choice < 0.3:
            await self._describe(client, random.choice(sorted(client.cluster.nodes)))
        else:
            node = random.choice(sorted(client.cluster.nodes))
            await self._move(client, node, random.choice(self.options.partitions))

    async def _move(self, client: AsyncClient, node: int, partition: TopicPartition) -> None:
        topic, index = partition
        path = self.session.random.choice(self.options.directories)
        asked = AlterReplicaLogDirTopic(name=topic, partitions=[index])
        request = AlterReplicaLogDirsRequest(dirs=[AlterReplicaLogDir(path=path, topics=[asked])])
        answer: AlterReplicaLogDirsResponse = await client.request(request, node=node)
        code = ErrorCode(answer.results[0].partitions[0].error_code)
        self.session.note(f"moves {topic}-{index} on node {node} to {path}: {code.name}")

    async def _describe(self, client: AsyncClient, node: int) -> None:
        """Asks a node for its logs (DescribeLogDirs). Reports a contradiction if the node lists two current logs or two
        future logs of the same partition."""
        answer: DescribeLogDirsResponse = await client.request(DescribeLogDirsRequest(topics=None), node=node)
        seen: set[tuple[str, int, bool]] = set()
        for directory in answer.results:
            for topic in directory.topics:
                for part in topic.partitions:
                    log = (topic.name, part.partition_index, part.is_future_key)
                    if log in seen:
                        kind = "future" if part.is_future_key else "current"
                        what = f"node {node} lists two {kind} logs of {topic.name}-{part.partition_index}"
                        self.session.history.contradictions.append(what)
                    seen.add(log)

    async def _throttle(self, client: AsyncClient, rate: int | None) -> None:
        value = None if rate is None else str(rate)
        operation = AlterableConfig(name=THROTTLE, config_operation=SET if rate else DELETE, value=value)
        resource = AlterConfigsResource(resource_type=ResourceType.BROKER, resource_name="", configs=[operation])
        await client.request(IncrementalAlterConfigsRequest(resources=[resource]))
        self.session.note(f"throttles moves to {rate or 'any'} bytes per second")
