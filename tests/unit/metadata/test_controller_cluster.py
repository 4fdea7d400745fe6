"""Tests the decisions on brokers, producer ids, features, elections and reassignments: (image, request) → (records,
reply)."""

from dataclasses import replace
from typing import Any

import pytest

from penstock.metadata.apply import apply
from penstock.metadata.controller.broker_states import unfence_broker, unregister_broker
from penstock.metadata.controller.brokers import (
    Registration,
    allocate_producer_ids,
    register_broker,
    register_controller,
)
from penstock.metadata.controller.elections import elect_leaders
from penstock.metadata.controller.feature_updates import update_features
from penstock.metadata.controller.reassignments import alter_reassignments, list_reassignments
from penstock.metadata.features import (
    SUPPORTED_FEATURES,
    default_features,
    metadata_version_level,
    metadata_version_name,
)
from penstock.metadata.image import (
    EMPTY_IMAGE,
    BrokerImage,
    Endpoint,
    MetadataImage,
    PartitionImage,
    TopicImage,
)
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_43_elect_leaders import ElectLeadersRequest, TopicPartitions
from penstock.protocol.messages.api_45_alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from penstock.protocol.messages.api_46_list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
)
from penstock.protocol.messages.api_57_update_features import FeatureUpdateKey, UpdateFeaturesRequest

ID = bytes([1] * 16)
ENDPOINTS = {"PLAINTEXT": Endpoint("h", 9092, 0)}


def image_of(*partitions: PartitionImage, brokers: str = "123", **fields: Any) -> MetadataImage:
    """Returns an image of topic `t` with these partitions; brokers are digits, a fenced broker is followed by `!`."""
    registered = {}
    for digit, mark in zip(brokers, brokers[1:] + " ", strict=True):
        if digit != "!":
            registered[int(digit)] = BrokerImage(
                int(digit), 5, bytes(16), {}, fenced=mark == "!", features=dict(SUPPORTED_FEATURES)
            )
    topic = TopicImage("t", ID, dict(enumerate(partitions)))
    return replace(
        EMPTY_IMAGE,
        brokers=registered,
        topics={"t": topic} if partitions else {},
        topics_by_id={ID: topic} if partitions else {},
        partition_count=len(partitions),
        **fields,
    )


def partition(replicas: str, isr: str | None = None, leader: int = -2, **fields: Any) -> PartitionImage:
    ids = tuple(map(int, replicas))
    in_sync = ids if isr is None else tuple(map(int, isr))
    return PartitionImage(replicas=ids, isr=in_sync, leader=ids[0] if leader == -2 else leader, **fields)


# --- brokers --------------------------------------------------------------------------------------


def test_broker_epoch_is_the_offset_of_the_registration_record() -> None:
    image = replace(EMPTY_IMAGE, offset=41)
    decision = register_broker(image, Registration(1, bytes(16), ENDPOINTS, [ID], rack="r"))
    assert decision.reply == 42
    after = apply(image, decision.records)
    assert after.brokers[1] == BrokerImage(
        1, 42, bytes(16), ENDPOINTS, "r", fenced=True, log_dirs=(ID,), features=dict(SUPPORTED_FEATURES)
    )


def test_a_broker_that_is_too_old_for_the_cluster_is_refused() -> None:
    image = replace(EMPTY_IMAGE, features={"metadata.version": 30})
    old = Registration(1, bytes(16), ENDPOINTS, [ID], features={"metadata.version": (7, 29)})
    with pytest.raises(KafkaError) as refusal:
        register_broker(image, old)
    assert refusal.value.code is ErrorCode.UNSUPPORTED_VERSION


def test_a_controller_registers_with_its_listeners() -> None:
    after = apply(EMPTY_IMAGE, register_controller(EMPTY_IMAGE, 1, ID, ENDPOINTS).records)
    assert after.controllers[1].endpoints == ENDPOINTS


def test_controller_registration_is_refused_below_metadata_version_15() -> None:
    with pytest.raises(KafkaError) as refusal:
        register_controller(replace(EMPTY_IMAGE, features={"metadata.version": 14}), 1, ID, ENDPOINTS)
    assert refusal.value.code is ErrorCode.UNSUPPORTED_VERSION
    assert register_controller(replace(EMPTY_IMAGE, features={"metadata.version": 15}), 1, ID, ENDPOINTS).records


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (partition("12", leader=2), None),
        (partition("12", "1", leader=-1), partition("12", "1", 1, leader_epoch=1, partition_epoch=1)),
        (partition("1", "", leader=-1, elr=(1,)), partition("1", leader_epoch=1, partition_epoch=1)),
        (
            partition("123", "", leader=-1, elr=(2, 1)),
            partition("123", "1", 1, leader_epoch=1, partition_epoch=1, elr=(2,)),
        ),
        (
            partition("1", "", leader=-1, last_known_elr=(1,)),
            partition("1", leader_epoch=1, partition_epoch=1, leader_recovery_state=1),
        ),
        (partition("12", "", leader=-1, elr=(2,)), None),
        (partition("23"), None),
    ],
    ids=[
        "led by another",
        "in sync",
        "eligible",
        "eligible with another",
        "last known",
        "not eligible",
        "foreign",
    ],
)
def test_unfenced_broker_becomes_leader_of_leaderless_partitions_if_it_is_eligible(
    before: PartitionImage, after: PartitionImage | None
) -> None:
    configs = {(2, "t"): {"min.insync.replicas": "2"}}
    image = image_of(before, brokers="1!2!3!", features={"eligible.leader.replicas.version": 1}, configs=configs)
    changed = apply(image, unfence_broker(image, 1, 5).records)
    assert changed.brokers[1].usable
    assert changed.topics["t"].partitions[0] == (before if after is None else after)


def test_unfencing_with_a_stale_broker_epoch_is_refused_and_repeated_unfencing_writes_no_record() -> None:
    image = image_of(brokers="1!")
    with pytest.raises(KafkaError) as refusal:
        unfence_broker(image, 1, 4)
    assert refusal.value.code is ErrorCode.STALE_BROKER_EPOCH
    ready = apply(image, unfence_broker(image, 1, 5).records)
    assert unfence_broker(ready, 1, 5).records == []


@pytest.mark.parametrize("brokers", ["1!2", "12"], ids=["fenced", "running"])
def test_partitions_of_an_unregistered_broker_get_other_leaders(brokers: str) -> None:
    image = image_of(partition("12", leader=1), brokers=brokers)
    after = apply(image, unregister_broker(image, 1).records)
    assert set(after.brokers) == {2}
    assert (after.topics["t"].partitions[0].leader, after.topics["t"].partitions[0].isr) == (2, (2,))
    with pytest.raises(KafkaError) as refusal:
        unregister_broker(image, 7)
    assert refusal.value.code is ErrorCode.BROKER_ID_NOT_REGISTERED


def test_blocks_of_producer_ids_never_overlap() -> None:
    image = image_of(brokers="1")
    blocks = []
    for _ in range(3):
        decision = allocate_producer_ids(image, 1, 5)
        blocks.append(decision.reply)
        image = apply(image, decision.records)
    assert blocks == [(0, 1000), (1000, 1000), (2000, 1000)]


@pytest.mark.parametrize(
    ("broker_id", "epoch", "code"), [(1, 4, ErrorCode.STALE_BROKER_EPOCH), (9, 5, ErrorCode.BROKER_ID_NOT_REGISTERED)]
)
def test_producer_ids_are_refused_to_unregistered_brokers_and_stale_epochs(
    broker_id: int, epoch: int, code: ErrorCode
) -> None:
    with pytest.raises(KafkaError) as refusal:
        allocate_producer_ids(image_of(brokers="1"), broker_id, epoch)
    assert refusal.value.code is code


# --- features -------------------------------------------------------------------------------------

UP, SAFE, UNSAFE = 1, 2, 3


def update(image: MetadataImage, *updates: tuple[str, int, int], validate_only: bool = False) -> Any:
    keys = [FeatureUpdateKey(feature=name, max_version_level=level, upgrade_type=kind) for name, level, kind in updates]
    return update_features(image, UpdateFeaturesRequest(feature_updates=keys, validate_only=validate_only), 1)


def test_one_update_features_request_changes_several_features() -> None:
    image = image_of(features=default_features(30))
    decision = update(image, ("group.version", 0, SAFE), ("transaction.version", 1, UNSAFE), ("kraft.version", 1, UP))
    assert decision.reply.error_code == ErrorCode.NONE
    after = apply(image, decision.records).features
    assert "group.version" not in after
    assert after["transaction.version"] == 1
    assert len(decision.records) == 2


def test_a_validate_only_request_changes_no_features() -> None:
    image = image_of(features=default_features(30))
    decision = update(image, ("group.version", 0, SAFE), validate_only=True)
    assert (decision.records, decision.reply.error_code) == ([], ErrorCode.NONE)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("metadata.version", 31, UP), "Controller 1 supports levels 7 to 30: give one of these levels."),
        (("metadata.version", 29, UP), "The feature is at 30: request a safe or an unsafe downgrade"),
        (("metadata.version", 29, SAFE), "could be lost: keep the level."),
        (("metadata.version", 29, UNSAFE), "metadata.version can't go back from 30 to 29. Penstock doesn't rewrite"),
        (("metadata.version", 6, UNSAFE), "supports levels 7 to 30"),
        (("nosuch", 1, UP), "Controller 1 doesn't support this feature: upgrade the node first."),
        (("group.version", 2, UP), "supports levels 0 to 1"),
        (("group.version", 0, UP), "The feature is at 1: request"),
        (("group.version", -1, UP), "group.version can't be set to level -1. The level is negative"),
        (("group.version", 1, 0), "0 is not an upgrade type"),
        (("group.version", 1, 9), "9 is not an upgrade type"),
        (("kraft.version", 0, SAFE), "can't be lowered: keep the level."),
    ],
)
def test_all_feature_updates_of_a_request_are_refused_if_one_update_is_invalid(
    change: tuple[str, int, int], message: str
) -> None:
    image = image_of(features=default_features(30))
    decision = update(image, ("eligible.leader.replicas.version", 0, SAFE), change)
    assert decision.records == []
    assert decision.reply.error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert message in decision.reply.error_message


def test_share_and_streams_groups_are_enabled_by_default_and_can_be_disabled() -> None:
    image = image_of(features=default_features(30))
    assert (image.features["share.version"], image.features["streams.version"]) == (1, 1)
    decision = update(image, ("share.version", 0, SAFE), ("streams.version", 0, SAFE))
    assert decision.reply.error_code == ErrorCode.NONE
    assert not apply(image, decision.records).features.keys() & {"share.version", "streams.version"}


def test_metadata_version_can_be_lowered_if_the_record_formats_did_not_change() -> None:
    image = image_of(features=default_features(29))
    decision = update(image, ("metadata.version", 26, SAFE))
    assert decision.reply.error_code == ErrorCode.NONE
    assert apply(image, decision.records).features["metadata.version"] == 26


def test_elr_feature_is_refused_if_the_metadata_version_is_too_low_for_elr() -> None:
    image = image_of(features={"metadata.version": 22})
    decision = update(image, ("eligible.leader.replicas.version", 1, UP))
    assert decision.reply.error_code == ErrorCode.INVALID_UPDATE_VERSION


def test_requirements_of_a_disabled_feature_do_not_block_the_update_of_another_feature() -> None:
    image = image_of(features={"metadata.version": 22})
    decision = update(image, ("group.version", 1, UP))
    assert (decision.reply.error_code, len(decision.records)) == (ErrorCode.NONE, 1)


def test_a_release_name_maps_to_its_metadata_level_and_default_features() -> None:
    assert metadata_version_level("4.3") == metadata_version_level("4.3-IV0") == 30
    assert metadata_version_level("4.0") == 25
    assert metadata_version_level("9.9") is None
    assert metadata_version_name(25) == "4.0-IV3"
    assert default_features(20) == {"metadata.version": 20}
    assert default_features(25) == {
        "metadata.version": 25,
        "kraft.version": 1,
        "transaction.version": 2,
        "group.version": 1,
    }


# --- elections ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "before", "brokers", "code", "leader"),
    [
        (0, partition("12", leader=2), "12", ErrorCode.NONE, 1),
        (0, partition("12", leader=1), "12", ErrorCode.ELECTION_NOT_NEEDED, 1),
        (0, partition("12", "2", leader=2), "12", ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, 2),
        (0, partition("12", leader=2), "1!2", ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, 2),
        (1, partition("12", leader=1), "12", ErrorCode.ELECTION_NOT_NEEDED, 1),
        (1, partition("12", "1", leader=-1), "1!2", ErrorCode.NONE, 2),
        (1, partition("12", "2", leader=-1), "12", ErrorCode.NONE, 2),
        (1, partition("12", "1", leader=-1), "1!2!", ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, -1),
    ],
)
def test_elect_leaders_changes_the_leader_or_returns_an_error_code_for_the_partition(
    kind: int, before: PartitionImage, brokers: str, code: ErrorCode, leader: int
) -> None:
    image = image_of(before, brokers=brokers)
    request = ElectLeadersRequest(election_type=kind, topic_partitions=[TopicPartitions(topic="t", partitions=[0])])
    decision = elect_leaders(image, request)
    assert decision.reply.replica_election_results[0].partition_result[0].error_code == code
    assert apply(image, decision.records).topics["t"].partitions[0].leader == leader


def test_uncleanly_elected_leader_is_marked_as_recovering() -> None:
    image = image_of(partition("12", "1", leader=-1), brokers="1!2")
    request = ElectLeadersRequest(election_type=1, topic_partitions=[TopicPartitions(topic="t", partitions=[0])])
    after = apply(image, elect_leaders(image, request).records).topics["t"].partitions[0]
    assert (after.isr, after.leader_recovery_state) == ((2,), 1)


def test_elect_leaders_for_all_partitions_returns_only_partitions_that_changed() -> None:
    image = image_of(partition("12"), partition("21", leader=1), brokers="12")
    decision = elect_leaders(image, ElectLeadersRequest(topic_partitions=None))
    results = decision.reply.replica_election_results
    assert [(one.partition_id, one.error_code) for one in results[0].partition_result] == [(1, 0)]


def test_elect_leaders_for_all_partitions_returns_an_error_for_each_refused_election() -> None:
    image = image_of(partition("21", "1", leader=1), brokers="12!3")
    other = TopicImage("u", bytes([2] * 16), {0: partition("31", leader=1)})
    image = replace(image, topics={**image.topics, "u": other})
    decision = elect_leaders(image, ElectLeadersRequest(topic_partitions=None))
    results = decision.reply.replica_election_results
    assert [(one.topic, one.partition_result[0].error_code) for one in results] == [
        ("t", ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE),
        ("u", ErrorCode.NONE),
    ]


def test_election_of_an_unknown_type_is_refused_and_changes_no_leader() -> None:
    image = image_of(partition("12", leader=2), brokers="12")
    asked = [TopicPartitions(topic="t", partitions=[0])]
    decision = elect_leaders(image, ElectLeadersRequest(election_type=5, topic_partitions=asked))
    assert decision.records == []
    [result] = decision.reply.replica_election_results[0].partition_result
    assert result.error_code == ErrorCode.INVALID_REQUEST


def test_election_for_an_unknown_topic_or_partition_or_type_is_refused() -> None:
    image = image_of(partition("1"), brokers="1")
    asked = [TopicPartitions(topic="t", partitions=[7]), TopicPartitions(topic="x", partitions=[0])]
    reply = elect_leaders(image, ElectLeadersRequest(topic_partitions=asked)).reply
    codes = [one.partition_result[0].error_code for one in reply.replica_election_results]
    assert codes == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 2
    odd = elect_leaders(image, ElectLeadersRequest(election_type=5, topic_partitions=asked[:1])).reply
    assert odd.error_code == ErrorCode.INVALID_REQUEST


# --- reassignments --------------------------------------------------------------------------------


def move(image: MetadataImage, replicas: list[int] | None, topic: str = "t", index: int = 0, **fields: Any) -> Any:
    asked = ReassignableTopic(name=topic, partitions=[ReassignablePartition(partition_index=index, replicas=replicas)])
    decision = alter_reassignments(image, AlterPartitionReassignmentsRequest(topics=[asked], **fields))
    return decision, decision.reply.responses[0].partitions[0]


@pytest.mark.parametrize(
    ("replicas", "topic", "index", "code"),
    [
        ([1, 2], "t", 0, ErrorCode.NONE),
        (None, "t", 0, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS),
        ([], "t", 0, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ([1, 1], "t", 0, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ([9], "t", 0, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ([-1], "t", 0, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ([1], "t", 7, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ([1], "x", 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
def test_reassignment_to_the_current_replicas_or_to_invalid_replicas_writes_no_record(
    replicas: list[int] | None, topic: str, index: int, code: ErrorCode
) -> None:
    decision, result = move(image_of(partition("12")), replicas, topic, index)
    assert (result.error_code, decision.records) == (code, [])


def test_cancelled_reassignment_restores_the_old_replicas_of_the_partition() -> None:
    image = image_of(partition("12"))
    decision, _ = move(image, [3, 2])
    moving = apply(image, decision.records)
    now = moving.topics["t"].partitions[0]
    assert (now.replicas, now.adding_replicas, now.removing_replicas) == ((3, 2, 1), (3,), (1,))
    listed = list_reassignments(moving, ListPartitionReassignmentsRequest(topics=None)).topics
    assert [(one.name, one.partitions[0].adding_replicas) for one in listed] == [("t", [3])]
    asked = [ListPartitionReassignmentsTopics(name="t", partition_indexes=[5])]
    assert list_reassignments(moving, ListPartitionReassignmentsRequest(topics=asked)).topics == []
    decision, _ = move(moving, None)
    back = apply(moving, decision.records).topics["t"].partitions[0]
    assert (set(back.replicas), back.adding_replicas, back.removing_replicas) == ({1, 2}, (), ())


def test_reassignment_may_not_add_a_replica_if_allow_replication_factor_change_is_false() -> None:
    _, result = move(image_of(partition("12")), [1, 2, 3], allow_replication_factor_change=False)
    assert result.error_code == ErrorCode.INVALID_REPLICATION_FACTOR


def test_reassignment_may_replace_a_replica_if_allow_replication_factor_change_is_false() -> None:
    decision, result = move(image_of(partition("12")), [1, 3], allow_replication_factor_change=False)
    assert (result.error_code, len(decision.records)) == (ErrorCode.NONE, 1)


@pytest.mark.parametrize("replicas", [[2], [1, 2, 3]])
def test_reassignment_that_only_removes_or_only_adds_replicas_can_be_cancelled(replicas: list[int]) -> None:
    started = image_of(partition("12", "1"))
    image = apply(started, move(started, replicas)[0].records)
    decision, result = move(image, None)
    after = apply(image, decision.records).topics["t"].partitions[0]
    assert result.error_code == ErrorCode.NONE
    assert (set(after.replicas), after.adding_replicas, after.removing_replicas) == ({1, 2}, (), ())


def test_reassignments_of_all_topics_are_listed() -> None:
    moving = partition("123", "12", adding_replicas=(3,))
    topics = {name: TopicImage(name, name.encode() * 16, {0: moving}) for name in ("t", "u")}
    image = replace(image_of(), topics=topics)
    listed = list_reassignments(image, ListPartitionReassignmentsRequest(topics=None)).topics
    assert [one.name for one in listed] == ["t", "u"]


@pytest.mark.parametrize("unclean", ["true", "false"])
def test_cancelling_a_reassignment_needs_unclean_elections_if_only_a_new_replica_is_in_sync(
    unclean: str,
) -> None:
    moving = partition("321", "3", adding_replicas=(3,), removing_replicas=(1,))
    image = image_of(moving, configs={(2, "t"): {"unclean.leader.election.enable": unclean}})
    decision, result = move(image, None)
    allowed = unclean == "true"
    assert result.error_code == (ErrorCode.NONE if allowed else ErrorCode.INVALID_REPLICA_ASSIGNMENT)
    after = apply(image, decision.records).topics["t"].partitions[0]
    assert after.replicas == ((2, 1) if allowed else (3, 2, 1))
    assert after.isr == ((2,) if allowed else (3,))


def test_broker_without_features_is_registered_if_the_cluster_has_no_features() -> None:
    assert register_broker(EMPTY_IMAGE, Registration(1, bytes(16), ENDPOINTS, [ID], features={})).records
