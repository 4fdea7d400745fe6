"""AlterReplicaLogDirs v1-2: moves replicas of this broker to other log directories (KIP-113).

The response is sent when the moves have begun; DescribeLogDirs shows their progress. A move to the current directory
cancels a running move. A partition that does not exist gets UNKNOWN_TOPIC_OR_PARTITION. A partition without a replica
on this node gets REPLICA_NOT_AVAILABLE; if its replica is created here later, it is created in the requested directory.
A path may contain links, `..`, or slashes at its end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.requests.slices import SLICE_PARTITIONS
from penstock.log.directories import PathLookup
from penstock.protocol.messages.api_34_alter_replica_log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.requests.context import RequestContext

#: A new future log takes half a millisecond, so that a slice has fewer partitions than those of other requests.
SLICE_MOVES = SLICE_PARTITIONS // 20


async def handle(
    broker: Broker, ctx: RequestContext, request: AlterReplicaLogDirsRequest
) -> AlterReplicaLogDirsResponse:
    topics: dict[str, AlterReplicaLogDirTopicResult] = {}
    lookup = PathLookup(broker.logs.dirs)
    taken = 0
    for asked in request.dirs:
        target = await lookup.find(asked.path)
        taken += 1
        if taken % SLICE_MOVES == 0:
            await broker.slices.turn()
        for topic in asked.topics:
            result = topics.setdefault(topic.name, AlterReplicaLogDirTopicResult(topic_name=topic.name))
            for index in topic.partitions:
                partition = broker.partitions.find(topic.name, index)
                exists = partition is not None or broker.metadata.image.partition(topic.name, index) is not None
                code = broker.moves.request(topic.name, index, target, partition, exists=exists)
                result.partitions.append(AlterReplicaLogDirPartitionResult(partition_index=index, error_code=code))
                taken += 1
                if taken % SLICE_MOVES == 0:
                    await broker.slices.turn()
    return AlterReplicaLogDirsResponse(results=list(topics.values()))
