"""Holds one replica of a partition on a disk in memory. The test plays the followers and the controller."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from parked_fetch import ParkedFetch
from replica_cluster import NOW_MS, TOPIC, TOPIC_ID, batch

from penstock.broker.replicas.partition import Partition
from penstock.broker.replicas.partition_host import PartitionHost
from penstock.clock import ManualClock
from penstock.disk.memory import MemoryDisk
from penstock.log.log import Log
from penstock.log.manager import LogManager
from penstock.metadata.configs.topic import LogConfig
from penstock.metadata.image import BrokerImage, PartitionImage
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.replication.leader import Proposal

ME, EPOCH = 1, 7
LED = PartitionImage(replicas=(1, 2, 3), isr=(1, 2, 3), leader=ME, leader_epoch=1)
SOLE = PartitionImage(replicas=(1,), isr=(1,), leader=ME, leader_epoch=1)


class Replica:
    """Holds one partition on a disk in memory. The brokers 1, 2 and 3 are registered with epoch 7."""

    def __init__(self, image: PartitionImage, config: LogConfig | None = None) -> None:
        self.logs = LogManager(MemoryDisk(), ("/logs",), ManualClock())
        self.config = config or LogConfig()
        self.proposals: list[Proposal | None] = []
        self.host: PartitionHost[Partition] = PartitionHost(
            ME,
            self._open,
            max_lag_ms=1000,
            broker_epoch=lambda: EPOCH,
            propose=lambda partition: self.proposals.append(
                None if partition.leading is None else partition.leading.proposal
            ),
            brokers={each: BrokerImage(each, EPOCH, bytes(16), {}, fenced=False) for each in (1, 2, 3)},
        )
        self.partition = Partition(TOPIC, TOPIC_ID, 0, image, self.host)
        self.consumer, self.follower = ParkedFetch(), ParkedFetch()

    def _open(self, partition: Partition) -> Log:
        return self.logs.create(partition.topic, partition.topic_id, partition.index, self.config)

    async def start(self) -> Replica:
        await self.logs.open(node_id=ME, cluster_id="c")
        _ = self.partition.log
        return self

    def park(self) -> None:
        """Parks a fetch of a consumer and a fetch of a follower."""
        self.consumer, self.follower = ParkedFetch(), ParkedFetch()
        self.partition.waiters.park(self.consumer, from_follower=False)
        self.partition.waiters.park(self.follower, from_follower=True)

    def append(self, *values: bytes) -> int:
        return self.partition.append(batch(*values), now_ms=NOW_MS).last_offset + 1

    def fetch(self, replica_id: int, offset: int, log_start: int = 0) -> None:
        self.partition.on_replica_fetch(replica_id, EPOCH, offset, log_start)

    def change(self, **fields: Any) -> None:
        old = self.partition.image
        self.partition.follow_image(replace(old, partition_epoch=old.partition_epoch + 1, **fields))


def code_of(work: Any) -> ErrorCode:
    try:
        work()
    except KafkaError as error:
        return error.code
    return ErrorCode.NONE
