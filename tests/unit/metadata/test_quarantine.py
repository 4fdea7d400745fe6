"""Tests the quarantine of brokers: a broker in quarantine is fenced, in no ISR, and the cluster stays available."""

from dataclasses import replace
from typing import Any

import pytest

from penstock.metadata.apply import apply
from penstock.metadata.configs.settings import Settings
from penstock.metadata.controller.alter_partition import is_eligible
from penstock.metadata.controller.broker_states import State, heartbeat
from penstock.metadata.controller.brokers import Registration, register_broker
from penstock.metadata.controller.configs import incremental_alter_configs
from penstock.metadata.controller.elections import elect_unclean
from penstock.metadata.controller.partition_change import Rules
from penstock.metadata.controller.quarantine import quarantine_broker
from penstock.metadata.features import SUPPORTED_FEATURES, default_features
from penstock.metadata.image import EMPTY_IMAGE, BrokerImage, Endpoint, MetadataImage, PartitionImage, TopicImage
from penstock.metadata.quarantine import QUARANTINED, quarantine_reason, quarantined
from penstock.metadata.snapshot import records_of
from penstock.protocol.messages import api_44_incremental_alter_configs as api_44
from penstock.protocol.messages.api_63_broker_heartbeat import BrokerHeartbeatRequest

ID = bytes([1] * 16)
ENDPOINTS = {"PLAINTEXT": Endpoint("h", 9092, 0)}
RULES = Rules(min_insync_replicas=2)


def broker(broker_id: int, **fields: Any) -> BrokerImage:
    directory = bytes([9, broker_id] + [0] * 14)
    fields.setdefault("fenced", False)
    return BrokerImage(
        broker_id,
        10 + broker_id,
        bytes(16),
        ENDPOINTS,
        log_dirs=(directory,),
        features=dict(SUPPORTED_FEATURES),
        **fields,
    )


def image_of(*partitions: PartitionImage, brokers: int = 5, **fields: Any) -> MetadataImage:
    topic = TopicImage("t", ID, dict(enumerate(partitions)))
    return replace(
        EMPTY_IMAGE,
        offset=100,
        features=default_features(30),
        brokers={number: broker(number) for number in range(1, brokers + 1)},
        topics={"t": topic},
        topics_by_id={ID: topic},
        **fields,
    )


WHOLE = PartitionImage((3, 1, 2), (3, 1, 2), 3)


def beat(image: MetadataImage, broker_id: int, **fields: Any) -> State:
    request = BrokerHeartbeatRequest(
        broker_id=broker_id, broker_epoch=10 + broker_id, current_metadata_offset=200, **fields
    )
    return heartbeat(image, request, RULES).reply.state


def after_quarantine(image: MetadataImage, broker_id: int = 3) -> MetadataImage:
    decision = quarantine_broker(image, broker_id, "lies", RULES)
    assert decision.reply is None
    return apply(image, decision.records)


def test_quarantine_fences_the_broker_and_moves_its_leaderships_in_one_commit() -> None:
    after = after_quarantine(image_of(WHOLE))
    assert quarantined(after) == {3: "lies"}
    assert after.brokers[3].fenced
    partition = after.topics["t"].partitions[0]
    assert (partition.leader, partition.isr) == (1, (1, 2))
    assert not is_eligible(after, 3, -1)


def test_heartbeats_do_not_unfence_a_broker_in_quarantine() -> None:
    after = after_quarantine(image_of(WHOLE))
    assert beat(after, 3) is State.FENCED
    assert beat(after, 1) is State.UNFENCED


def test_a_broker_in_quarantine_may_shut_down() -> None:
    assert beat(after_quarantine(image_of(WHOLE)), 3, want_shut_down=True) is State.SHUTDOWN_NOW


def test_a_broker_that_the_operator_puts_in_quarantine_is_fenced_by_its_next_heartbeat() -> None:
    config = {(4, "3"): {QUARANTINED: "by hand"}}
    assert beat(image_of(WHOLE, configs=config), 3) is State.FENCED


def test_broker_with_an_empty_quarantine_reason_is_not_in_quarantine() -> None:
    assert quarantine_reason(image_of(WHOLE, configs={(4, "3"): {QUARANTINED: ""}}), 3) is None


def test_broker_in_quarantine_stays_in_quarantine_after_it_registers_again() -> None:
    after = after_quarantine(image_of(WHOLE))
    registration = Registration(3, bytes([7] * 16), ENDPOINTS, after.brokers[3].log_dirs)
    again = apply(after, register_broker(after, registration, RULES).records)
    assert quarantine_reason(again, 3) == "lies"
    request = BrokerHeartbeatRequest(broker_id=3, broker_epoch=again.brokers[3].epoch, current_metadata_offset=500)
    assert heartbeat(again, request, RULES).reply.state is State.FENCED


def test_a_snapshot_of_the_metadata_keeps_the_quarantine() -> None:
    after = after_quarantine(image_of(WHOLE))
    rebuilt = apply(EMPTY_IMAGE, list(records_of(after)))
    assert quarantined(rebuilt) == {3: "lies"}


def test_broker_in_quarantine_is_not_elected_even_in_an_unclean_election() -> None:
    alone = PartitionImage((3, 1, 2), (3,), -1, last_known_elr=(3,))
    image = after_quarantine(image_of(WHOLE))
    topic = TopicImage("t", ID, {0: alone})
    image = replace(image, topics={"t": topic}, topics_by_id={ID: topic})
    image = replace(image, brokers={**image.brokers, 1: broker(1, fenced=True), 2: broker(2, fenced=True)})
    decision = elect_unclean(image, replace(RULES, unclean_leader_election=True))
    assert decision.records == []


def test_a_second_quarantine_of_the_same_broker_changes_nothing() -> None:
    after = after_quarantine(image_of(WHOLE))
    assert quarantine_broker(after, 3, "again", RULES).records == []


def test_at_most_a_minority_of_the_brokers_is_in_quarantine() -> None:
    image = image_of(PartitionImage((1,), (1,), 1))
    image = after_quarantine(after_quarantine(image, 5), 4)
    decision = quarantine_broker(image, 3, "lies", RULES)
    assert decision.records == []
    assert decision.reply == "2 of 5 brokers are in quarantine, and a majority has to stay in use"


@pytest.mark.parametrize("count", [1, 2])
def test_quarantine_is_refused_in_a_cluster_of_one_or_two_brokers(count: int) -> None:
    image = image_of(PartitionImage((9,), (9,), 9), brokers=count)
    assert quarantine_broker(image, 1, "lies", RULES).reply is not None


def test_quarantine_is_refused_if_it_would_leave_no_majority_of_unfenced_brokers() -> None:
    image = image_of(PartitionImage((1, 2), (1, 2), 1), brokers=3)
    image = replace(image, brokers={**image.brokers, 2: broker(2, fenced=True)})
    assert quarantine_broker(image, 3, "lies", RULES).reply == "without it, only 1 of 3 brokers are in use"


@pytest.mark.parametrize("isr", [(3, 1), (3,)])
def test_quarantine_is_refused_if_a_partition_would_fall_below_min_insync_replicas(isr: tuple[int, ...]) -> None:
    image = image_of(WHOLE, PartitionImage((3, 1, 2), isr, 3))
    decision = quarantine_broker(image, 3, "lies", RULES)
    assert decision.records == []
    assert decision.reply == f"t-1 would have {len(isr) - 1} replicas in sync, but min.insync.replicas=2"


def test_quarantine_of_an_unregistered_broker_is_refused() -> None:
    assert quarantine_broker(image_of(WHOLE), 9, "lies", RULES).reply == "broker 9 is not registered"


def test_long_quarantine_reason_is_shortened_to_500_characters() -> None:
    image = image_of(WHOLE)
    after = apply(image, quarantine_broker(image, 3, "x" * 10_000, RULES).records)
    assert len(quarantine_reason(after, 3) or "") == 500


def test_deleting_the_quarantine_config_releases_the_broker() -> None:
    after = after_quarantine(image_of(WHOLE))
    config = api_44.AlterableConfig(name=QUARANTINED, config_operation=1, value=None)
    resource = api_44.AlterConfigsResource(resource_type=4, resource_name="3", configs=[config])
    request = api_44.IncrementalAlterConfigsRequest(resources=[resource])
    decision = incremental_alter_configs(after, request, Settings({"node.id": "1"}), {})
    assert decision.reply.responses[0].error_code == 0
    released = apply(after, decision.records)
    assert quarantined(released) == {}
    assert beat(released, 3) is State.UNFENCED
