"""Runs the state machine of a share coordinator without a broker, and keeps its journal in a list."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from penstock.metadata.image import MetadataImage, PartitionImage, TopicImage
from penstock.share.state_journal import ShareKey
from penstock.share.state_shard import ShareStateShard, Turn

R = TypeVar("R")
TOPIC_ID = bytes(15) + b"\x07"
KEY = ShareKey("g", TOPIC_ID, 0)


def image_with(*topic_ids: bytes) -> MetadataImage:
    topics = {}
    for number, topic_id in enumerate(topic_ids):
        partition = PartitionImage(replicas=(1,), isr=(1,), leader=1, leader_epoch=0, partition_epoch=0)
        topics[f"t{number}"] = TopicImage(f"t{number}", topic_id, {0: partition, 1: partition})
    return MetadataImage(topics=topics, topics_by_id={topic.topic_id: topic for topic in topics.values()})


class StateDriver:
    def __init__(self, updates_per_snapshot: int = 500) -> None:
        self.shard = ShareStateShard(updates_per_snapshot)
        self.shard.see(image_with(TOPIC_ID))
        self.journal: list[tuple[bytes, bytes | None]] = []

    def run(self, decide: Callable[[ShareStateShard, Turn], R]) -> R:
        turn = self.shard.turn(0, 1000)
        result = decide(self.shard, turn)
        for record in turn.records:
            self.journal.append(self.shard.encode(record))
            self.shard.apply(record, len(self.journal) - 1)
        return result

    def reloaded(self, since: int = 0) -> ShareStateShard:
        """Returns a new state machine that has replayed the journal from an offset on."""
        shard = ShareStateShard(self.shard.updates_per_snapshot)
        shard.see(self.shard.image)
        for offset, (key, value) in enumerate(self.journal):
            record = shard.decode(key, value)
            assert record is not None
            if offset >= since:
                shard.apply(record, offset)
        return shard
