"""Sends the requests of a consumer group's members to the coordinator of `group_driver`, without a broker."""

from __future__ import annotations

from typing import Any, Self

from group_driver import Driver

from penstock.groups import consumer_requests
from penstock.groups.config import GroupConfig
from penstock.groups.consumer.group import ConsumerGroup
from penstock.groups.turn import Caller
from penstock.metadata.image import BrokerImage, MetadataImage, PartitionImage, TopicImage
from penstock.protocol.errors import ErrorCode
from penstock.protocol.messages.api_68_consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)
from penstock.protocol.messages.api_69_consumer_group_describe import DescribedGroup

SESSION_MS = 45_000
REVOKE_MS = 5000


def topic_id(name: str) -> bytes:
    return name.encode().ljust(16, b".")


def image_of(topics: dict[str, int], racks: dict[int, str] | None = None, version: int = 1) -> MetadataImage:
    """Returns an image in which partition i of every topic is on broker i modulo the number of brokers."""
    racks = racks or {0: ""}
    images = {
        name: TopicImage(
            name,
            topic_id(name),
            {
                index: PartitionImage(replicas=(index % len(racks),), isr=(index % len(racks),), leader=0)
                for index in range(count)
            },
        )
        for name, count in topics.items()
    }
    brokers = {
        broker_id: BrokerImage(broker_id, 1, bytes(16), {}, rack=rack or None, fenced=False)
        for broker_id, rack in racks.items()
    }
    return MetadataImage(
        version=version,
        topics=images,
        topics_by_id={topic.topic_id: topic for topic in images.values()},
        brokers=brokers,
    )


class ConsumerDriver(Driver):
    def __init__(self, config: GroupConfig | None = None, topics: dict[str, int] | None = None) -> None:
        super().__init__(config or GroupConfig(initial_rebalance_delay_ms=0, consumer_assignment_interval_ms=0))
        self.shard.see(image_of(topics or {"t": 4}))

    def see(self, topics: dict[str, int], racks: dict[int, str] | None = None) -> None:
        self.shard.see(image_of(topics, racks, version=self.shard.image.version + 1))

    def reload(self) -> Self:
        other = type(self)(self.config)
        other.shard.see(self.shard.image)
        other.now_ms = self.now_ms
        other.replay(self.journal)
        other.run(other.shard.loaded)
        return other

    @property
    def consumers(self) -> ConsumerGroup:
        group = self.shard.groups["g"]
        assert isinstance(group, ConsumerGroup)
        return group

    def beat(self, member_id: str, epoch: int, *, version: int = 1, **fields: Any) -> ConsumerGroupHeartbeatResponse:
        owned = fields.pop("owned", None)
        if owned is not None:
            fields["topic_partitions"] = [
                TopicPartitions(topic_id=topic_id(name), partitions=sorted(indexes)) for name, indexes in owned.items()
            ]
        fields.setdefault("group_id", "g")
        request = ConsumerGroupHeartbeatRequest(member_id=member_id, member_epoch=epoch, **fields)
        caller = Caller("client", "/127.0.0.1", version)
        return self.run(lambda turn: consumer_requests.consumer_heartbeat(self.shard, turn, request, caller))

    def enter(self, member_id: str, *topics: str, **fields: Any) -> ConsumerGroupHeartbeatResponse:
        fields.setdefault("subscribed_topic_names", list(topics or ("t",)))
        fields.setdefault("rebalance_timeout_ms", REVOKE_MS)
        return self.beat(member_id, 0, owned={}, **fields)

    def describe(self, group: str = "g") -> DescribedGroup:
        return self.run(lambda turn: consumer_requests.describe_consumer_group(self.shard, turn, group))


def shares(response: ConsumerGroupHeartbeatResponse) -> dict[str, list[int]] | None:
    """Returns the partitions that a response assigns; None if the response has no assignment."""
    if response.assignment is None:
        return None
    return {each.topic_id.rstrip(b".").decode(): each.partitions for each in response.assignment.topic_partitions}


def error(response: ConsumerGroupHeartbeatResponse) -> ErrorCode:
    return ErrorCode(response.error_code)
