"""Tests that the controller decides every item of a request with several topics, partitions, directories or nodes."""

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from penstock.metadata.apply import apply
from penstock.metadata.controller.alter_partition import alter_partition, assign_replicas
from penstock.metadata.controller.brokers import Registration, epoch_to_name
from penstock.metadata.controller.elections import elect_leaders
from penstock.metadata.controller.feature_updates import update_features
from penstock.metadata.controller.partitions import create_partitions
from penstock.metadata.controller.reassignments import alter_reassignments, list_reassignments
from penstock.metadata.features import SUPPORTED_FEATURES, default_features
from penstock.metadata.image import (
    EMPTY_IMAGE,
    BrokerImage,
    ControllerImage,
    MetadataImage,
    PartitionImage,
    TopicImage,
)
from penstock.protocol.errors import ErrorCode
from penstock.protocol.messages import api_43_elect_leaders as elections
from penstock.protocol.messages import api_45_alter_partition_reassignments as moves
from penstock.protocol.messages import api_46_list_partition_reassignments as listing
from penstock.protocol.messages import api_56_alter_partition as isrs
from penstock.protocol.messages import api_73_assign_replicas_to_dirs as assigning
from penstock.protocol.messages.api_37_create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from penstock.protocol.messages.api_57_update_features import FeatureUpdateKey, UpdateFeaturesRequest

IDS = {"t": b"t" * 16, "u": b"u" * 16}
DISKS = tuple(bytes([9, number] + [0] * 14) for number in range(4))
BOTH = [0, 1]
OLD = {**SUPPORTED_FEATURES, "group.version": (0, 0)}


def image_of(**fields: Any) -> MetadataImage:
    """Returns an image of topics `t` and `u`, with two partitions each, on brokers 1 to 3. Broker 1 leads."""
    one = PartitionImage((2, 1), (2, 1), 1, directories=DISKS[:2])
    topics = {name: TopicImage(name, topic_id, dict.fromkeys(BOTH, one)) for name, topic_id in IDS.items()}
    brokers = {
        number: BrokerImage(number, 5, bytes(16), {}, fenced=False, log_dirs=DISKS, features=dict(SUPPORTED_FEATURES))
        for number in (1, 2, 3)
    }
    base = replace(EMPTY_IMAGE, brokers=brokers, topics=topics, features=default_features(30), partition_count=4)
    return replace(base, topics_by_id={topic.topic_id: topic for topic in topics.values()}, **fields)


def after(image: MetadataImage, decision: Any) -> list[PartitionImage]:
    changed = apply(image, decision.records)
    return [part for topic in changed.topics.values() for part in topic.partitions.values()]


def test_alter_partition_changes_every_partition_of_a_request() -> None:
    image = image_of()
    wishes = [
        isrs.PartitionData(partition_index=index, new_isr_with_epochs=[isrs.BrokerState(broker_id=1, broker_epoch=5)])
        for index in BOTH
    ]
    topics = [isrs.TopicData(topic_id=topic_id, partitions=wishes) for topic_id in IDS.values()]
    decision = alter_partition(image, isrs.AlterPartitionRequest(broker_id=1, broker_epoch=5, topics=topics))
    assert [part.error_code for topic in decision.reply.topics for part in topic.partitions] == [0] * 4
    assert [part.isr for part in after(image, decision)] == [(1,)] * 4


def test_assign_replicas_to_dirs_assigns_every_replica_of_the_request() -> None:
    image = image_of()
    asked = [
        assigning.DirectoryData(
            id=DISKS[2 + index],
            topics=[
                assigning.TopicData(topic_id=topic_id, partitions=[assigning.PartitionData(partition_index=index)])
                for topic_id in IDS.values()
            ],
        )
        for index in BOTH
    ]
    request = assigning.AssignReplicasToDirsRequest(broker_id=1, broker_epoch=5, directories=asked)
    decision = assign_replicas(image, request)
    assert [part.directory(1) for part in after(image, decision)] == [DISKS[2], DISKS[3]] * 2


def test_assign_replicas_to_dirs_removes_every_replica_in_a_failed_directory_from_its_isr() -> None:
    image, gone = image_of(), b"gone" * 4
    partitions = [assigning.PartitionData(partition_index=index) for index in BOTH]
    topics = [assigning.TopicData(topic_id=topic_id, partitions=partitions) for topic_id in IDS.values()]
    request = assigning.AssignReplicasToDirsRequest(
        broker_id=1, broker_epoch=5, directories=[assigning.DirectoryData(id=gone, topics=topics)]
    )
    assert [part.isr for part in after(image, assign_replicas(image, request))] == [(2,)] * 4


def test_alter_partition_reassignments_moves_every_partition_of_the_request() -> None:
    image = image_of()
    partitions = [moves.ReassignablePartition(partition_index=index, replicas=[1, 3]) for index in BOTH]
    topics = [moves.ReassignableTopic(name=name, partitions=partitions) for name in IDS]
    decision = alter_reassignments(image, moves.AlterPartitionReassignmentsRequest(topics=topics))
    assert [part.adding_replicas for part in after(image, decision)] == [(3,)] * 4
    asked = [listing.ListPartitionReassignmentsTopics(name=name, partition_indexes=BOTH) for name in ("unknown", *IDS)]
    listed = list_reassignments(
        apply(image, decision.records), listing.ListPartitionReassignmentsRequest(topics=asked)
    ).topics
    assert [(topic.name, len(topic.partitions)) for topic in listed] == [("t", 2), ("u", 2)]


def test_alter_partition_reassignments_without_topics_gets_an_empty_response() -> None:
    decision = alter_reassignments(image_of(), moves.AlterPartitionReassignmentsRequest(topics=[]))
    assert (decision.records, decision.reply.responses, decision.reply.error_code) == ([], [], 0)


def test_elect_leaders_elects_the_preferred_leader_of_every_partition_of_the_request() -> None:
    image = image_of()
    asked = [elections.TopicPartitions(topic=name, partitions=BOTH) for name in IDS]
    decision = elect_leaders(image, elections.ElectLeadersRequest(topic_partitions=asked))
    assert [part.leader for part in after(image, decision)] == [2] * 4


def test_create_partitions_adds_partitions_to_every_topic_of_the_request() -> None:
    image = image_of()
    topics = [CreatePartitionsTopic(name=name, count=3, assignments=None) for name in IDS]
    decision = create_partitions(image, CreatePartitionsRequest(topics=topics), Random(1))
    assert [each.error_code for each in decision.reply.results] == [0, 0]
    assert len(after(image, decision)) == 6


def upgraded(image: MetadataImage) -> tuple[ErrorCode, str]:
    asked = [FeatureUpdateKey(feature="group.version", max_version_level=1, upgrade_type=1)]
    reply = update_features(image, UpdateFeaturesRequest(feature_updates=asked), 1).reply
    return ErrorCode(reply.error_code), reply.error_message or ""


@pytest.mark.parametrize("late", [1, 2, 3])
def test_feature_level_is_refused_if_any_broker_does_not_support_it(late: int) -> None:
    image = image_of()
    brokers = {
        number: replace(one, features=OLD if number == late else one.features) for number, one in image.brokers.items()
    }
    code, message = upgraded(replace(image, brokers=brokers, features={"metadata.version": 30}))
    assert code is ErrorCode.INVALID_UPDATE_VERSION
    assert f"Broker {late} supports levels 0 to 0" in message


@pytest.mark.parametrize("late", [7, 8])
def test_feature_level_is_refused_if_any_controller_does_not_support_it(late: int) -> None:
    controllers = {
        number: ControllerImage(number, bytes(16), {}, features=OLD if number == late else dict(SUPPORTED_FEATURES))
        for number in (7, 8)
    }
    code, message = upgraded(replace(image_of(), controllers=controllers, features={"metadata.version": 30}))
    assert code is ErrorCode.INVALID_UPDATE_VERSION
    assert f"Controller {late} supports levels 0 to 0" in message


def test_feature_level_is_accepted_if_the_required_feature_has_exactly_the_required_level() -> None:
    asked = [FeatureUpdateKey(feature="eligible.leader.replicas.version", max_version_level=1, upgrade_type=1)]
    image = image_of(features={"metadata.version": 23})
    assert update_features(image, UpdateFeaturesRequest(feature_updates=asked), 1).reply.error_code == 0


@pytest.mark.parametrize(
    ("broker_id", "incarnation", "previous", "ended", "missing"),
    [
        (9, b"n" * 16, -1, -1, None),
        (1, bytes(16), -1, -1, None),
        (1, b"n" * 16, 5, -1, None),
        (1, b"n" * 16, -1, 5, None),
        (1, b"n" * 16, 4, 4, 5),
    ],
    ids=["new broker", "same incarnation", "clean shutdown", "ended", "late request"],
)
def test_registration_of_a_restarted_broker_must_contain_its_previous_broker_epoch(
    broker_id: int, incarnation: bytes, previous: int, ended: int, missing: int | None
) -> None:
    registration = Registration(
        broker_id, incarnation, {}, [DISKS[0]], previous_broker_epoch=previous, ended_broker_epoch=ended
    )
    assert epoch_to_name(image_of(), registration) == missing
