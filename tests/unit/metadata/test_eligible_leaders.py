"""Tests which eligible leader replicas are cleared when min.insync.replicas changes.

They are cleared only if the leader may then commit records without them.
"""

from dataclasses import replace
from typing import Any

import pytest

from penstock.metadata.apply import apply
from penstock.metadata.controller import eligible_leaders
from penstock.metadata.controller.eligible_leaders import clear_unsafe_eligible_leaders
from penstock.metadata.controller.partition_change import Rules
from penstock.metadata.image import EMPTY_IMAGE, MetadataImage, PartitionImage, TopicImage
from penstock.protocol.persisted.metadata.clear_elr_record import ClearElrRecord
from penstock.protocol.persisted.metadata.config_record import ConfigRecord
from penstock.protocol.persisted.metadata.partition_change_record import PartitionChangeRecord
from penstock.protocol.vocabulary import ResourceType

RULES = Rules(min_insync_replicas=2)
IDS = {"t": b"t" * 16, "u": b"u" * 16}


def partition(isr: tuple[int, ...], elr: tuple[int, ...], **fields: Any) -> PartitionImage:
    return PartitionImage(replicas=(1, 2, 3), isr=isr, leader=isr[0] if isr else -1, elr=elr, **fields)


def image_of(t: list[PartitionImage], u: list[PartitionImage], elr: int = 1) -> MetadataImage:
    topics = {name: TopicImage(name, IDS[name], dict(enumerate(each))) for name, each in (("t", t), ("u", u)) if each}
    return replace(
        EMPTY_IMAGE,
        topics=topics,
        topics_by_id={topic.topic_id: topic for topic in topics.values()},
        features={"eligible.leader.replicas.version": elr},
    )


def min_isr(value: int | None, topic: str = "t") -> ConfigRecord:
    kind = ResourceType.TOPIC if topic else ResourceType.BROKER
    text = None if value is None else str(value)
    return ConfigRecord(resource_type=kind, resource_name=topic, name="min.insync.replicas", value=text)


def eligible_after(image: MetadataImage, *changes: ConfigRecord) -> dict[str, list[tuple[int, ...]]]:
    after = apply(image, [*changes, *clear_unsafe_eligible_leaders(image, changes, RULES)])
    return {name: [each.elr for each in topic.partitions.values()] for name, topic in after.topics.items()}


@pytest.mark.parametrize(
    ("isr", "value", "kept"),
    [
        ((1,), 1, False),
        ((1,), 2, True),
        ((1,), 3, True),
        ((1,), None, True),
        ((1, 3), 2, False),
        ((1, 3), 3, True),
        ((), 1, True),
        ((), 3, True),
    ],
)
def test_eligible_leaders_are_cleared_only_if_the_isr_reaches_the_new_min_insync_replicas(
    isr: tuple[int, ...], value: int | None, kept: bool
) -> None:
    image = image_of([partition(isr, (2,))], [])
    assert eligible_after(image, min_isr(value)) == {"t": [(2,) if kept else ()]}


def test_change_of_min_isr_does_not_clear_the_last_known_leader_of_a_leaderless_partition() -> None:
    image = image_of([partition((), (), last_known_elr=(2,))], [])
    assert clear_unsafe_eligible_leaders(image, [min_isr(3)], RULES) == []


def test_changing_min_isr_of_a_topic_clears_eligible_leaders_of_that_topic_only() -> None:
    image = image_of([partition((1,), (2,)), partition((), (3,))], [partition((1,), (2,))])
    assert eligible_after(image, min_isr(1)) == {"t": [(), (3,)], "u": [(2,)]}


def test_cluster_wide_change_of_min_isr_affects_only_topics_without_their_own_value() -> None:
    image = apply(image_of([partition((1,), (2,))], [partition((1,), (2,))]), [min_isr(2, "u")])
    assert eligible_after(image, min_isr(1, "")) == {"t": [()], "u": [(2,)]}
    assert eligible_after(image, min_isr(1, ""), min_isr(None, "u")) == {"t": [()], "u": [()]}


def test_eligible_leaders_are_not_cleared_by_a_config_change_other_than_min_insync_replicas() -> None:
    other = ConfigRecord(resource_type=ResourceType.TOPIC, resource_name="t", name="retention.ms", value="1")
    assert clear_unsafe_eligible_leaders(image_of([partition((1,), (2,))], []), [other], RULES) == []
    assert clear_unsafe_eligible_leaders(image_of([partition((1,), (2,))], [], elr=0), [min_isr(1)], RULES) == []


@pytest.mark.parametrize("topic", ["t", ""])
def test_eligible_leaders_of_many_partitions_are_cleared_with_one_clear_elr_record(
    monkeypatch: pytest.MonkeyPatch, topic: str
) -> None:
    monkeypatch.setattr(eligible_leaders, "MAX_RECORDS_PER_REQUEST", 3)
    image = image_of([partition((1,), (2,)) for _ in range(3)], [])
    [record] = clear_unsafe_eligible_leaders(image, [min_isr(1, topic)], RULES)
    assert isinstance(record, ClearElrRecord)
    assert record.topic_name == topic
    assert eligible_after(image, min_isr(1, topic)) == {"t": [(), (), ()]}


def test_eligible_leaders_of_few_partitions_are_cleared_with_partition_change_records(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(eligible_leaders, "MAX_RECORDS_PER_REQUEST", 3)
    records = clear_unsafe_eligible_leaders(image_of([partition((1,), (2,))] * 2, []), [min_isr(1)], RULES)
    assert [type(record) for record in records] == [PartitionChangeRecord] * 2


def test_partition_without_eligible_leaders_is_not_changed() -> None:
    image = image_of([partition((1,), ()), partition((1,), (2,))], [])
    [record] = clear_unsafe_eligible_leaders(image, [min_isr(1)], RULES)
    assert isinstance(record, PartitionChangeRecord)
    assert record.partition_id == 1
