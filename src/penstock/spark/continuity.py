"""Finds topics and partitions from which a stream can't continue. Pure code.

A stream can't continue if a topic was recreated, if a partition was deleted, or if a partition now ends before the
offset that the stream would read next.

Topics are identified by id. A checkpoint stores each topic's id beside the offsets, as one more key of the JSON, with
no partitions: `{"orders": {"0": 1200}, "orders id=kZ3y…": {}}`. Spark's own Kafka source can continue such a
checkpoint, because it reads the additional key as a topic without partitions. A checkpoint that Spark's own source
wrote has no topic ids: then only the offsets are compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.protocol.vocabulary import TopicPartition
from penstock.spark.ranges import Offsets, from_json, to_json

#: Separates a topic's name from its id; no topic's name has a space.
_ID = " id="

Json = dict[str, dict[str, int]]


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """Holds the next offset of each partition that a stream reads, and the ids of its topics."""

    offsets: Offsets = field(default_factory=dict)
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    """Topic ids by topic name. A topic has no entry if its brokers or its checkpoint have no topic ids."""

    def to_json(self) -> Json:
        topics = {topic for topic, _ in self.offsets}
        ids: Json = {f"{topic}{_ID}{each}": {} for topic, each in self.topic_ids.items() if topic in topics}
        return dict(sorted((to_json(self.offsets) | ids).items()))

    @classmethod
    def from_json(cls, found: Mapping[str, Mapping[str, int]] | None) -> StreamOffset:
        named = (key.partition(_ID) for key in found or {})
        return cls(from_json(found), {topic: topic_id for topic, sign, topic_id in named if sign})

    def without(self, topics: set[str]) -> StreamOffset:
        kept = {each: offset for each, offset in self.offsets.items() if each[0] not in topics}
        return StreamOffset(kept, {name: each for name, each in self.topic_ids.items() if name not in topics})


@dataclass(frozen=True, slots=True)
class Changes:
    """Lists the topics that were recreated, and the partitions that were deleted or became shorter."""

    made_again: tuple[str, ...]
    """Topics that were deleted and created again: the new topic has a new id, and old offsets do not apply to it."""
    gone: tuple[TopicPartition, ...]
    behind: tuple[TopicPartition, ...]
    """Partitions that end before the next offset that the stream would read."""


def changes(start: StreamOffset, newest: StreamOffset) -> Changes:
    again = made_again(start, newest)
    still = [each for each in sorted(start.offsets) if each[0] not in again]
    return Changes(
        tuple(sorted(again)),
        tuple(each for each in still if each not in newest.offsets),
        tuple(each for each in still if newest.offsets.get(each, start.offsets[each]) < start.offsets[each]),
    )


def made_again(before: StreamOffset, after: StreamOffset) -> set[str]:
    """Returns the topics that were recreated: their ids in `before` and `after` differ."""
    return {topic for topic, topic_id in before.topic_ids.items() if after.topic_ids.get(topic, topic_id) != topic_id}
