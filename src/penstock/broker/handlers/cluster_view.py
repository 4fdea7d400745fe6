"""Shows the cluster to the clients of one listener: brokers and leaders are shown only if they have this listener."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from penstock.metadata.image import Endpoint, MetadataImage, PartitionImage
from penstock.protocol.errors import ErrorCode
from penstock.protocol.vocabulary import NO_LEADER

NOT_ASKED = -0x80000000

# Without an authorizer every client is allowed every operation of the resource: one bit per operation.
READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE = 3, 4, 5, 6, 7, 8
CLUSTER_ACTION, DESCRIBE_CONFIGS, ALTER_CONFIGS, IDEMPOTENT_WRITE = 9, 10, 11, 12
TOPIC_OPERATIONS = sum(
    1 << bit for bit in (READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS)
)
CLUSTER_OPERATIONS = sum(
    1 << bit for bit in (CREATE, ALTER, DESCRIBE, CLUSTER_ACTION, DESCRIBE_CONFIGS, ALTER_CONFIGS, IDEMPOTENT_WRITE)
)


class PartitionView(NamedTuple):
    error: ErrorCode
    leader: int
    offline: list[int]


@dataclass(frozen=True, slots=True)
class ClusterView:
    """Shows a metadata image to the clients of one listener."""

    image: MetadataImage
    listener: str
    alive: dict[int, Endpoint]

    @staticmethod
    def of(image: MetadataImage, listener: str) -> ClusterView:
        alive = {
            broker_id: broker.endpoints[listener]
            for broker_id, broker in sorted(image.brokers.items())
            if not broker.fenced and listener in broker.endpoints
        }
        return ClusterView(image, listener, alive)

    def partition(self, partition: PartitionImage) -> PartitionView:
        alive = self.alive
        offline = [broker_id for broker_id in partition.replicas if not self._serves(broker_id, partition)]
        if partition.leader in alive:
            return PartitionView(ErrorCode.NONE, partition.leader, offline)
        broker = self.image.brokers.get(partition.leader)
        if broker is not None and not broker.fenced:
            return PartitionView(ErrorCode.LISTENER_NOT_FOUND, NO_LEADER, offline)
        return PartitionView(ErrorCode.LEADER_NOT_AVAILABLE, NO_LEADER, offline)

    def _serves(self, broker_id: int, partition: PartitionImage) -> bool:
        if broker_id not in self.alive:
            return False
        return self.image.brokers[broker_id].has_online(partition.directory(broker_id))
