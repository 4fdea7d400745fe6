"""Clears eligible leader replicas (KIP-966) that a change of min.insync.replicas has made unsafe.

While a partition's ISR is below min.insync.replicas, no record is committed. So replicas that left the ISR still have
all committed records: they are eligible leaders. A lower min.insync.replicas may let the leader commit records again.
The eligible leaders lack these records, so the eligible leaders of this partition are cleared.

All other partitions keep their eligible leaders. Kafka clears these eligible leaders too, so that such a partition can
stay without a leader although a replica with all committed records is alive.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from penstock.metadata.apply import apply
from penstock.metadata.controller.partition_change import ELIGIBLE_LEADER_REPLICAS, Rules
from penstock.metadata.decision import MAX_RECORDS_PER_REQUEST
from penstock.metadata.image import MetadataImage, TopicImage
from penstock.protocol.persisted.metadata.clear_elr_record import ClearElrRecord
from penstock.protocol.persisted.metadata.config_record import ConfigRecord
from penstock.protocol.persisted.metadata.partition_change_record import PartitionChangeRecord
from penstock.protocol.vocabulary import ResourceType

MIN_ISR = "min.insync.replicas"


def clear_unsafe_eligible_leaders(
    image: MetadataImage, changes: Sequence[ConfigRecord], rules: Rules
) -> list[ClearElrRecord | PartitionChangeRecord]:
    """Returns the records that clear unsafe eligible leaders. The caller commits them together with `changes`.

    Returns one record for each affected partition. If these are too many records for one request, returns one record
    for each changed resource instead. Such a record clears the eligible leaders of all partitions of the resource, as
    in Kafka.
    """
    if image.features.get(ELIGIBLE_LEADER_REPLICAS, 0) < 1:
        return []
    changed = [(each.resource_type, each.resource_name) for each in changes if each.name == MIN_ISR]
    topics = [name for kind, name in changed if kind == ResourceType.TOPIC]
    all_topics = any(kind == ResourceType.BROKER for kind, _ in changed)
    if not topics and not all_topics:
        return []
    affected = list(image.topics.values()) if all_topics else [image.topics[name] for name in topics]
    records: list[ClearElrRecord | PartitionChangeRecord] = []
    for record in _unsafe(apply(image, changes), affected, rules):
        records.append(record)
        if len(records) + len(changes) > MAX_RECORDS_PER_REQUEST:
            return [ClearElrRecord(topic_name=name) for name in ([""] if all_topics else topics)]
    return records


def _unsafe(after: MetadataImage, topics: Sequence[TopicImage], rules: Rules) -> Iterator[PartitionChangeRecord]:
    for topic in topics:
        needed = rules.min_isr(after, topic)
        for index, partition in topic.partitions.items():
            if partition.elr and len(partition.isr) >= needed:
                yield PartitionChangeRecord(partition_id=index, topic_id=topic.topic_id, eligible_leader_replicas=[])
