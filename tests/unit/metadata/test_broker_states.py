"""Tests the decisions on registrations, heartbeats, sessions, AlterPartition and directories: (image, request) →
(records, reply)."""

from dataclasses import replace
from typing import Any

import pytest

from penstock.metadata.apply import apply
from penstock.metadata.configs.settings import Settings
from penstock.metadata.controller.alter_partition import alter_partition, assign_replicas
from penstock.metadata.controller.assignments import DIRECTORIES_SINCE
from penstock.metadata.controller.broker_states import State, fence_broker, heartbeat
from penstock.metadata.controller.brokers import Registration, check_cluster, register_broker, register_controller
from penstock.metadata.controller.configs import incremental_alter_configs
from penstock.metadata.controller.elections import balance_leaders, elect_unclean
from penstock.metadata.controller.partition_change import Rules
from penstock.metadata.features import SUPPORTED_FEATURES, default_features
from penstock.metadata.image import (
    EMPTY_IMAGE,
    METADATA_VERSION,
    BrokerImage,
    Endpoint,
    MetadataImage,
    PartitionImage,
    TopicImage,
)
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages import api_44_incremental_alter_configs as api_44
from penstock.protocol.messages import api_56_alter_partition as api_56
from penstock.protocol.messages import api_73_assign_replicas_to_dirs as api_73
from penstock.protocol.messages.api_63_broker_heartbeat import BrokerHeartbeatRequest

ID = bytes([1] * 16)
LIFE, NEXT_LIFE = bytes([4] * 16), bytes([5] * 16)
ENDPOINTS = {"PLAINTEXT": Endpoint("h", 9092, 0)}
OFFSET = 100


def disk(broker_id: int, number: int = 1) -> bytes:
    return bytes([9, broker_id, number] + [0] * 13)


def broker(broker_id: int, **fields: Any) -> BrokerImage:
    fields.setdefault("fenced", False)
    fields.setdefault("log_dirs", (disk(broker_id), disk(broker_id, 2)))
    return BrokerImage(broker_id, 10 + broker_id, LIFE, ENDPOINTS, features=dict(SUPPORTED_FEATURES), **fields)


def image_of(*partitions: PartitionImage, brokers: tuple[BrokerImage, ...] = (), **fields: Any) -> MetadataImage:
    topic = TopicImage("t", ID, dict(enumerate(partitions)))
    fields.setdefault("configs", {(2, "t"): {"min.insync.replicas": "2"}})
    return replace(
        EMPTY_IMAGE,
        offset=OFFSET,
        features=default_features(30),
        brokers={one.broker_id: one for one in brokers or tuple(map(broker, (1, 2, 3)))},
        topics={"t": topic},
        topics_by_id={ID: topic},
        **fields,
    )


def partition(replicas: str, isr: str | None = None, leader: int = -2, **fields: Any) -> PartitionImage:
    ids = tuple(map(int, replicas))
    in_sync = ids if isr is None else tuple(map(int, isr))
    fields.setdefault("directories", tuple(disk(each) for each in ids))
    return PartitionImage(replicas=ids, isr=in_sync, leader=ids[0] if leader == -2 else leader, **fields)


def only(image: MetadataImage, records: Any) -> PartitionImage:
    return apply(image, records).topics["t"].partitions[0]


# --- registration ---------------------------------------------------------------------------------------


def registration(broker_id: int = 1, **fields: Any) -> Registration:
    fields.setdefault("log_dirs", [disk(broker_id), disk(broker_id, 2)])
    fields.setdefault("incarnation_id", NEXT_LIFE)
    fields.setdefault("features", SUPPORTED_FEATURES)
    return Registration(broker_id, endpoints=ENDPOINTS, **fields)


def test_new_incarnation_of_a_broker_gets_a_new_epoch_and_is_fenced() -> None:
    image = image_of(partition("123"))
    decision = register_broker(image, registration())
    after = apply(image, decision.records).brokers[1]
    assert (decision.reply, after.epoch, after.fenced, after.incarnation_id) == (101, 101, True, NEXT_LIFE)


def test_broker_that_registers_again_in_the_same_incarnation_keeps_its_epoch_and_state() -> None:
    image = image_of(partition("123"))
    again = register_broker(image, registration(incarnation_id=LIFE), is_live=True)
    assert (again.records, again.reply) == ([], 11)
    moved = register_broker(image, registration(incarnation_id=LIFE, log_dirs=[disk(1)]), is_live=True)
    after = apply(image, moved.records)
    assert (after.brokers[1].fenced, after.brokers[1].log_dirs, moved.reply) == (False, (disk(1),), 11)
    assert after.topics == image.topics


@pytest.mark.parametrize(
    ("previous", "expected"),
    [(11, ((3,), (1, 2), 3)), (10, ((3,), (2,), 3)), (-1, ((3,), (2,), 3))],
    ids=["clean", "an older life's", "unclean"],
)
def test_broker_stays_an_eligible_leader_only_after_a_clean_shutdown(previous: int, expected: Any) -> None:
    image = image_of(partition("123", "3", 3, elr=(1, 2)), brokers=(broker(1, fenced=True), broker(2), broker(3)))
    after = only(image, register_broker(image, registration(previous_broker_epoch=previous)).records)
    assert (after.isr, after.elr, after.leader) == expected


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        (partition("123", "3", 3, elr=(1, 2)), ((3,), (2,), 3)),
        (partition("123", "", -1, elr=(1, 2)), ((2,), (), 2)),
        (partition("123", "1", 1, elr=(2,)), ((2,), (), 2)),
        (partition("123", "3", 3, elr=(1, 2), directories=(disk(1, 2), disk(2), disk(3))), ((3,), (1, 2), 3)),
        (partition("123", "3", 3, elr=(1, 2), directories=(bytes(16), disk(2), disk(3))), ((3,), (1, 2), 3)),
    ],
    ids=["eligible", "nobody in sync", "last in sync", "in the other directory", "in no directory yet"],
)
def test_replica_stays_eligible_leader_only_if_its_broker_registers_the_directory_of_the_replica(
    before: PartitionImage, expected: Any
) -> None:
    image = image_of(before, brokers=(broker(1, fenced=True), broker(2), broker(3)))
    decision = register_broker(image, registration(previous_broker_epoch=11, log_dirs=[disk(1, 2)]))
    after = only(image, decision.records)
    assert (after.isr, after.elr, after.leader) == expected


def test_restarted_broker_loses_its_leaderships_when_it_registers() -> None:
    image = image_of(partition("123"))
    after = only(image, register_broker(image, registration()).records)
    assert (after.leader, after.isr, after.leader_epoch) == (2, (2, 3), 1)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"log_dirs": []}, ErrorCode.INVALID_REGISTRATION),
        ({"log_dirs": [bytes(16)]}, ErrorCode.INVALID_REGISTRATION),
        ({"log_dirs": [disk(1), disk(1)]}, ErrorCode.INVALID_REGISTRATION),
        ({"log_dirs": [disk(2)]}, ErrorCode.INVALID_REGISTRATION),
        ({"features": {}}, ErrorCode.INVALID_REGISTRATION),
        ({"features": {**SUPPORTED_FEATURES, "metadata.version": (7, 29)}}, ErrorCode.UNSUPPORTED_VERSION),
        ({"features": {"metadata.version": (7, 30)}}, ErrorCode.UNSUPPORTED_VERSION),
    ],
    ids=["no directory", "reserved", "a copy", "another's", "says no version", "too old", "knows no feature"],
)
def test_broker_registration_with_invalid_directories_or_features_is_refused(
    fields: dict[str, Any], code: ErrorCode
) -> None:
    with pytest.raises(KafkaError) as refusal:
        register_broker(image_of(partition("123")), registration(**fields))
    assert refusal.value.code is code


@pytest.mark.parametrize("features", [{}, {METADATA_VERSION: DIRECTORIES_SINCE - 1}])
def test_old_metadata_version_accepts_a_broker_registration_without_directories(
    features: dict[str, int],
) -> None:
    image = replace(EMPTY_IMAGE, features=features)
    assert register_broker(image, registration(log_dirs=[])).reply == image.offset + 1


def test_a_second_process_with_the_same_id_is_refused_while_the_first_runs() -> None:
    with pytest.raises(KafkaError) as refusal:
        register_broker(image_of(partition("123")), registration(), is_live=True)
    assert refusal.value.code is ErrorCode.DUPLICATE_BROKER_REGISTRATION


def test_a_broker_with_a_directory_of_another_cluster_is_refused() -> None:
    check_cluster("a", "a", 1)
    with pytest.raises(KafkaError) as refusal:
        check_cluster("a", "b", 1)
    assert refusal.value.code is ErrorCode.INCONSISTENT_CLUSTER_ID


def test_an_unchanged_controller_registration_writes_no_record() -> None:
    once = apply(EMPTY_IMAGE, register_controller(EMPTY_IMAGE, 1, LIFE, ENDPOINTS).records)
    assert register_controller(once, 1, LIFE, ENDPOINTS).records == []
    assert register_controller(once, 1, NEXT_LIFE, ENDPOINTS).records


# --- heartbeats -----------------------------------------------------------------------------------------


def beat(image: MetadataImage, broker_id: int = 1, offset: int = OFFSET, **fields: Any) -> Any:
    shutdown = {name: fields.pop(name) for name in ("shutdown_offset", "lowest_active_offset") if name in fields}
    epoch = image.brokers[broker_id].epoch
    request = BrokerHeartbeatRequest(broker_id=broker_id, broker_epoch=epoch, current_metadata_offset=offset, **fields)
    return heartbeat(image, request, **shutdown)


FENCED = (broker(1, fenced=True), broker(2), broker(3))
LED, FOLLOWED = partition("123"), partition("213", leader=2)


@pytest.mark.parametrize(
    ("brokers", "leads", "fields", "state", "caught_up"),
    [
        (FENCED, False, {"offset": 5}, State.FENCED, False),
        (FENCED, False, {"offset": 10}, State.FENCED, False),
        (FENCED, False, {"offset": 11}, State.UNFENCED, True),
        (FENCED, False, {"want_fence": True}, State.FENCED, True),
        (FENCED, False, {"want_shut_down": True}, State.SHUTDOWN_NOW, True),
        ((), True, {}, State.UNFENCED, True),
        ((), True, {"want_fence": True}, State.FENCED, True),
        ((), True, {"want_fence": True, "want_shut_down": True}, State.SHUTDOWN_NOW, True),
        ((), True, {"want_shut_down": True}, State.CONTROLLED_SHUTDOWN, True),
        ((), False, {"want_shut_down": True}, State.SHUTDOWN_NOW, True),
        ((), True, {"shutdown_offset": 90, "lowest_active_offset": 99}, State.CONTROLLED_SHUTDOWN, True),
        ((), False, {"shutdown_offset": 90, "lowest_active_offset": 80}, State.CONTROLLED_SHUTDOWN, True),
        ((), False, {"shutdown_offset": 90, "lowest_active_offset": 90}, State.SHUTDOWN_NOW, True),
        ((), False, {"shutdown_offset": 90, "lowest_active_offset": None}, State.SHUTDOWN_NOW, True),
    ],
)
def test_heartbeat_response_reports_the_new_state_of_the_broker(
    brokers: Any, leads: bool, fields: dict[str, Any], state: State, caught_up: bool
) -> None:
    decision = beat(image_of(LED if leads else FOLLOWED, brokers=brokers), **fields)
    assert (decision.reply.state, decision.reply.is_caught_up) == (state, caught_up)


def test_controlled_shutdown_moves_leaders_and_waits_until_other_brokers_know_the_new_leaders() -> None:
    image = image_of(LED)
    decision = beat(image, want_shut_down=True)
    moved = apply(image, decision.records)
    assert moved.brokers[1].in_controlled_shutdown
    assert (moved.topics["t"].partitions[0].leader, moved.topics["t"].partitions[0].isr) == (2, (2, 3))
    assert decision.reply.shutdown_offset == moved.offset
    waiting = beat(moved, want_shut_down=True, shutdown_offset=moved.offset, lowest_active_offset=moved.offset - 1)
    assert (waiting.records, waiting.reply.state) == ([], State.CONTROLLED_SHUTDOWN)
    done = beat(moved, want_shut_down=True, shutdown_offset=moved.offset, lowest_active_offset=moved.offset)
    assert done.reply.state is State.SHUTDOWN_NOW
    assert apply(moved, done.records).brokers[1].fenced


def test_a_broker_in_controlled_shutdown_joins_no_isr() -> None:
    image = image_of(partition("231", "23", 2), brokers=(broker(1, in_controlled_shutdown=True), broker(2), broker(3)))
    assert alter(image, 2, [2, 3, 1]).error_code == ErrorCode.INELIGIBLE_REPLICA


def test_heartbeat_with_a_stale_broker_epoch_is_refused_so_that_the_broker_registers_again() -> None:
    image = image_of(LED)
    for broker_id, epoch in [(1, 10), (7, 17)]:
        with pytest.raises(KafkaError) as refusal:
            heartbeat(image, BrokerHeartbeatRequest(broker_id=broker_id, broker_epoch=epoch))
        assert refusal.value.code is ErrorCode.STALE_BROKER_EPOCH


def test_a_failed_directory_removes_only_its_own_replicas_from_isrs() -> None:
    elsewhere = partition("123", directories=(disk(1, 2), disk(2), disk(3)))
    image = image_of(LED, elsewhere)
    decision = beat(image, offline_log_dirs=[disk(1), disk(1)])
    after = apply(image, decision.records)
    assert after.brokers[1].log_dirs == (disk(1, 2),)
    assert [(one.leader, one.isr) for one in after.topics["t"].partitions.values()] == [(2, (2, 3)), (1, (1, 2, 3))]
    assert beat(after, offline_log_dirs=[disk(1)]).records == []


def test_broker_that_reports_all_its_directories_as_failed_again_and_again_writes_records_only_once() -> None:
    image, every = image_of(partition("123")), [disk(1), disk(1, 2)]
    after = apply(image, beat(image, offline_log_dirs=every).records)
    assert (after.topics["t"].partitions[0].isr, after.topics["t"].partitions[0].leader) == ((2, 3), 2)
    assert beat(after, offline_log_dirs=every).records == []


def test_old_metadata_version_records_no_failed_directories() -> None:
    old = replace(image_of(LED), features={METADATA_VERSION: DIRECTORIES_SINCE - 1})
    assert beat(old, offline_log_dirs=[disk(1)]).records == []


def test_directories_are_cordoned_and_uncordoned_by_heartbeats() -> None:
    image = image_of(LED)
    closed = apply(image, beat(image, cordoned_log_dirs=[disk(1)]).records)
    assert closed.brokers[1].cordoned_log_dirs == (disk(1),)
    assert beat(closed).records == []
    opened = apply(closed, beat(closed, cordoned_log_dirs=[]).records)
    assert opened.brokers[1].cordoned_log_dirs == ()


def test_unchanged_set_of_cordoned_directories_writes_no_record() -> None:
    image = image_of(LED, brokers=(broker(1, cordoned_log_dirs=(disk(1), disk(1, 2))), broker(2)))
    assert beat(image, cordoned_log_dirs=[disk(1, 2), disk(1)]).records == []
    assert len(beat(image, cordoned_log_dirs=[disk(1)]).records) == 1


def test_heartbeat_that_unfences_a_broker_also_cordons_its_directories() -> None:
    image = image_of(LED, brokers=FENCED)
    after = apply(image, beat(image, cordoned_log_dirs=[disk(1)]).records)
    assert not after.brokers[1].fenced
    assert after.brokers[1].cordoned_log_dirs == (disk(1),)


def test_fencing_a_fenced_broker_changes_nothing() -> None:
    image = image_of(LED)
    decision = fence_broker(image, 1)
    assert decision.reply == 1
    after = apply(image, decision.records)
    assert after.brokers[1].fenced
    assert fence_broker(after, 1).records == []
    assert fence_broker(after, 9).records == []


# --- AlterPartition -------------------------------------------------------------------------------------


def wish(image: MetadataImage, isr: list[int], **fields: Any) -> api_56.PartitionData:
    now = image.topics["t"].partitions[0]
    fields.setdefault("leader_epoch", now.leader_epoch)
    fields.setdefault("partition_epoch", now.partition_epoch)
    epochs = fields.pop("epochs", {})
    states = [api_56.BrokerState(broker_id=each, broker_epoch=epochs.get(each, 10 + each)) for each in isr]
    return api_56.PartitionData(partition_index=fields.pop("index", 0), new_isr_with_epochs=states, **fields)


def decide(image: MetadataImage, broker_id: int, asked: api_56.PartitionData, topic_id: bytes = ID) -> Any:
    topics = [api_56.TopicData(topic_id=topic_id, partitions=[asked])]
    request = api_56.AlterPartitionRequest(broker_id=broker_id, broker_epoch=10 + broker_id, topics=topics)
    return alter_partition(image, request)


def alter(image: MetadataImage, broker_id: int, isr: list[int], **fields: Any) -> Any:
    return decide(image, broker_id, wish(image, isr, **fields)).reply.topics[0].partitions[0]


def test_a_leader_shrinks_and_expands_its_isr() -> None:
    image = image_of(partition("123", leader_epoch=3, partition_epoch=7))
    decision = decide(image, 1, wish(image, [1, 2]))
    told = decision.reply.topics[0].partitions[0]
    assert (told.error_code, told.leader_id, told.leader_epoch, told.isr, told.partition_epoch) == (0, 1, 3, [1, 2], 8)
    smaller = apply(image, decision.records)
    again = decide(smaller, 1, wish(smaller, [1, 2, 3]))
    assert only(smaller, again.records).isr == (1, 2, 3)


@pytest.mark.parametrize(
    ("broker_id", "isr", "fields", "code"),
    [
        (1, [1, 2], {"index": 5}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (1, [1, 2], {"leader_epoch": 4}, ErrorCode.NOT_CONTROLLER),
        (1, [1, 2], {"partition_epoch": 8}, ErrorCode.NOT_CONTROLLER),
        (1, [1, 2], {"leader_epoch": 2}, ErrorCode.FENCED_LEADER_EPOCH),
        (2, [1, 2], {}, ErrorCode.INVALID_REQUEST),
        (1, [1, 2], {"partition_epoch": 6}, ErrorCode.INVALID_UPDATE_VERSION),
        (2, [1, 2], {"partition_epoch": 6}, ErrorCode.INVALID_REQUEST),
        (1, [], {}, ErrorCode.INVALID_REQUEST),
        (1, [1, 1], {}, ErrorCode.INVALID_REQUEST),
        (1, [1, 9], {}, ErrorCode.INVALID_REQUEST),
        (1, [2, 3], {}, ErrorCode.INVALID_REQUEST),
        (1, [1], {"leader_recovery_state": 1}, ErrorCode.INVALID_REQUEST),
        (1, [1], {"leader_recovery_state": 5}, ErrorCode.INVALID_REQUEST),
        (1, [1, 2], {"epochs": {2: -1}}, ErrorCode.NONE),
    ],
)
def test_invalid_alter_partition_request_gets_an_error_code_and_changes_no_isr(
    broker_id: int, isr: list[int], fields: dict[str, Any], code: ErrorCode
) -> None:
    image = image_of(
        partition("123", "12", leader_epoch=3, partition_epoch=7),
        brokers=(broker(1), broker(2), broker(3, fenced=True)),
    )
    decision = decide(image, broker_id, wish(image, isr, **fields))
    assert decision.reply.topics[0].partitions[0].error_code == code
    assert decision.records == []


@pytest.mark.parametrize(("isr", "fields"), [([1, 2], {"epochs": {2: 11}}), ([1, 3], {})])
def test_refusal_with_ineligible_replica_raises_the_partition_epoch_so_that_a_repeated_request_is_refused(
    isr: list[int], fields: dict[str, Any]
) -> None:
    before = partition("123", "12", leader_epoch=3, partition_epoch=7)
    image = image_of(before, brokers=(broker(1), broker(2), broker(3, fenced=True)))
    asked = wish(image, isr, **fields)
    decision = decide(image, 1, asked)
    assert decision.reply.topics[0].partitions[0].error_code == ErrorCode.INELIGIBLE_REPLICA
    assert only(image, decision.records) == replace(before, partition_epoch=8)
    unfenced = replace(image, brokers={each: broker(each) for each in (1, 2, 3)})
    late = decide(apply(unfenced, decision.records), 1, asked)
    assert late.reply.topics[0].partitions[0].error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert late.records == []


def test_alter_partition_with_an_unknown_topic_or_a_stale_broker_epoch_is_refused() -> None:
    image = image_of(LED)
    reply = decide(image, 1, wish(image, [1, 2]), bytes([8] * 16)).reply
    assert reply.topics[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID
    with pytest.raises(KafkaError) as refusal:
        alter_partition(image, api_56.AlterPartitionRequest(broker_id=1, broker_epoch=10))
    assert refusal.value.code is ErrorCode.STALE_BROKER_EPOCH


def test_alter_partition_before_version_3_may_send_an_isr_without_broker_epochs() -> None:
    image = image_of(LED)
    asked = api_56.PartitionData(partition_index=0, new_isr=[1, 2])
    assert only(image, decide(image, 1, asked).records).isr == (1, 2)


def test_alter_partition_ends_the_recovery_of_an_uncleanly_elected_leader() -> None:
    image = image_of(partition("123", "1", leader_recovery_state=1))
    assert alter(image, 1, [1, 2], leader_recovery_state=1).error_code == ErrorCode.INVALID_REQUEST
    assert only(image, decide(image, 1, wish(image, [1])).records).leader_recovery_state == 0


def test_alter_partition_from_a_recovering_leader_is_refused_if_it_adds_a_follower_to_the_isr() -> None:
    image = image_of(partition("12", "1", leader_recovery_state=1))
    assert alter(image, 1, [1], leader_recovery_state=1).error_code == ErrorCode.NONE
    assert alter(image, 1, [1, 2], leader_recovery_state=1).error_code == ErrorCode.INVALID_REQUEST


def test_an_isr_change_that_completes_a_reassignment_may_elect_another_leader() -> None:
    moving = partition("321", "12", 1, adding_replicas=(3,), removing_replicas=(1,))
    image = image_of(moving)
    decision = decide(image, 1, wish(image, [1, 2, 3]))
    assert decision.reply.topics[0].partitions[0].error_code == ErrorCode.NEW_LEADER_ELECTED
    after = only(image, decision.records)
    assert (after.replicas, after.leader, after.removing_replicas) == ((3, 2), 3, ())


# --- directories ----------------------------------------------------------------------------------------


def assign(image: MetadataImage, directory: bytes, topic_id: bytes = ID, index: int = 0, broker_id: int = 1) -> Any:
    placed = api_73.TopicData(topic_id=topic_id, partitions=[api_73.PartitionData(partition_index=index)])
    request = api_73.AssignReplicasToDirsRequest(
        broker_id=broker_id,
        broker_epoch=10 + broker_id,
        directories=[api_73.DirectoryData(id=directory, topics=[placed])],
    )
    decision = assign_replicas(image, request)
    return decision, decision.reply.directories[0].topics[0].partitions[0].error_code


def test_a_broker_assigns_a_directory_to_its_replica() -> None:
    image = image_of(LED)
    decision, code = assign(image, disk(1, 2))
    after = only(image, decision.records)
    assert (code, after.directories, after.leader, after.leader_epoch) == (0, (disk(1, 2), disk(2), disk(3)), 1, 0)


def test_a_replica_in_a_failed_directory_leaves_the_isr() -> None:
    image = image_of(LED)
    decision, code = assign(image, disk(1, 3))
    after = only(image, decision.records)
    assert (code, after.directories[0], after.leader, after.isr) == (0, disk(1, 3), 2, (2, 3))


@pytest.mark.parametrize(
    ("topic_id", "index", "broker_id", "code"),
    [
        (bytes([8] * 16), 0, 1, ErrorCode.UNKNOWN_TOPIC_ID),
        (ID, 9, 1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (ID, 0, 3, ErrorCode.NOT_LEADER_OR_FOLLOWER),
    ],
)
def test_assign_replicas_to_dirs_is_refused_for_replicas_that_do_not_exist(
    topic_id: bytes, index: int, broker_id: int, code: ErrorCode
) -> None:
    decision, told = assign(image_of(partition("12")), disk(broker_id), topic_id, index, broker_id)
    assert (told, decision.records) == (code, [])


# --- periodic elections ---------------------------------------------------------------------------------


def test_each_preferred_election_of_the_controller_changes_a_limited_number_of_leaders() -> None:
    image = image_of(
        partition("123", leader=2), partition("213", leader=2), partition("321", "12", 2), partition("312", leader=1)
    )
    first = balance_leaders(image, Rules(), limit=1)
    assert first.reply
    image = apply(image, first.records)
    assert [one.leader for one in image.topics["t"].partitions.values()] == [1, 2, 2, 1]
    rest = balance_leaders(image, Rules(), limit=10)
    assert not rest.reply
    image = apply(image, rest.records)
    assert [one.leader for one in image.topics["t"].partitions.values()] == [1, 2, 2, 3]


@pytest.mark.parametrize(("allowed", "leader"), [("true", 2), ("false", -1)])
def test_unclean_elections_happen_only_for_topics_that_allow_them(allowed: str, leader: int) -> None:
    configs = {(2, "t"): {"unclean.leader.election.enable": allowed}}
    brokers = (broker(1, fenced=True), broker(2), broker(3))
    image = image_of(partition("123", "", -1, elr=(1,), last_known_elr=(1,)), brokers=brokers, configs=configs)
    after = only(image, elect_unclean(image, Rules()).records)
    assert (after.leader, after.leader_recovery_state) == (leader, 1 if leader >= 0 else 0)


def test_lowering_min_insync_replicas_to_the_isr_size_clears_the_eligible_leaders() -> None:
    image = image_of(partition("123", "1", elr=(2,)), configs={})
    config = api_44.AlterableConfig(name="min.insync.replicas", config_operation=0, value="1")
    for kind, name in [(2, "t"), (4, "")]:
        resource = api_44.AlterConfigsResource(resource_type=kind, resource_name=name, configs=[config])
        request = api_44.IncrementalAlterConfigsRequest(resources=[resource])
        after = only(image, incremental_alter_configs(image, request, Settings({"node.id": "1"}), {}).records)
        assert (after.isr, after.elr) == ((1,), ())
