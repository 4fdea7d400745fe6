"""Tests the controller's rules for registrations, producer ids and feature levels with all small inputs."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from penstock.metadata.apply import apply
from penstock.metadata.controller.assignments import DIRECTORIES_SINCE
from penstock.metadata.controller.brokers import (
    MAX_PRODUCER_ID,
    PRODUCER_ID_BLOCK_SIZE,
    Registration,
    allocate_producer_ids,
    epoch_to_name,
    register_broker,
    register_controller,
)
from penstock.metadata.controller.feature_updates import update_features
from penstock.metadata.features import SUPPORTED_FEATURES
from penstock.metadata.framing import encode_record
from penstock.metadata.image import (
    EMPTY_IMAGE,
    BrokerImage,
    ControllerImage,
    Endpoint,
    MetadataImage,
    PartitionImage,
    TopicImage,
)
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_57_update_features import FeatureUpdateKey, UpdateFeaturesRequest

LIFE, NEXT_LIFE = bytes([4] * 16), bytes([5] * 16)
ENDPOINTS = {"A": Endpoint("h", 1, 0), "B": Endpoint("i", 2, 1)}
ALL: dict[str, tuple[int, int]] = {"metadata.version": (1, 99), "x": (0, 99), "y": (0, 99)}


def disk(number: int) -> bytes:
    return number.to_bytes(16, "big")


def image_of(**fields: Any) -> MetadataImage:
    """Returns an image with brokers 1 to 3. Broker n has epoch 10 n and the directories 1000 n and 1000 n + 1."""
    brokers = {
        each: BrokerImage(
            each,
            10 * each,
            LIFE,
            ENDPOINTS,
            "rack",
            fenced=False,
            log_dirs=(disk(1000 * each), disk(1000 * each + 1)),
            features=dict(SUPPORTED_FEATURES),
        )
        for each in (1, 2, 3)
    }
    known = {"offset": 100, "features": {"metadata.version": 30}, "brokers": brokers}
    return replace(EMPTY_IMAGE, **{**known, **fields})


def registration(**fields: Any) -> Registration:
    known: dict[str, Any] = {
        "broker_id": 2,
        "incarnation_id": NEXT_LIFE,
        "endpoints": ENDPOINTS,
        "log_dirs": [disk(2000), disk(2001)],
        "rack": "rack",
        "features": ALL,
    }
    return Registration(**{**known, **fields})


def refusal(image: MetadataImage, asked: Registration, **fields: Any) -> ErrorCode:
    try:
        register_broker(image, asked, **fields)
    except KafkaError as error:
        return error.code
    return ErrorCode.NONE


# --- brokers -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["metadata.version", "x", "y"])
def test_broker_must_support_the_level_of_every_finalized_feature(name: str) -> None:
    image = image_of(features={"metadata.version": 30, "x": 3, "y": 3})
    level = image.features[name]
    for low, high in product(range(level - 2, level + 3), repeat=2):
        code = refusal(image, registration(features={**ALL, name: (low, high)}))
        assert code is (ErrorCode.NONE if low <= level <= high else ErrorCode.UNSUPPORTED_VERSION), (low, high)


def test_broker_registers_only_directories_that_no_other_broker_and_no_other_use_has() -> None:
    image = image_of()
    for first, second, is_refused in (
        (2000, 2001, False),
        (2000, 5000, False),
        (5000, 5001, False),
        (5000, 5000, True),
        (5000, 99, True),
        (5000, 100, False),
        (0, 5000, True),
        *((5000, 1000 * other + index, True) for other in (1, 3) for index in (0, 1)),
    ):
        code = refusal(image, registration(log_dirs=[disk(first), disk(second)]))
        assert code is (ErrorCode.INVALID_REGISTRATION if is_refused else ErrorCode.NONE), (first, second)


def test_only_the_epoch_of_a_clean_shutdown_keeps_a_restarted_broker_eligible() -> None:
    """The epoch that a refusal named proves that the request is not late, but not that the broker has its records."""
    topic = TopicImage("t", disk(7), {0: PartitionImage((1, 2, 3), (3,), 3, elr=(1, 2))})
    features = {"metadata.version": 30, "eligible.leader.replicas.version": 1}
    configs = {(2, "t"): {"min.insync.replicas": "2"}}
    image = image_of(topics={"t": topic}, topics_by_id={topic.topic_id: topic}, features=features, configs=configs)
    supported = {**ALL, "eligible.leader.replicas.version": (0, 1)}
    for previous, ended in product((-1, 19, 20, 21), repeat=2):
        asked = registration(previous_broker_epoch=previous, ended_broker_epoch=ended, features=supported)
        decision = register_broker(image, asked)
        after = apply(image, decision.records).topics["t"].partitions[0]
        assert after.elr == ((1, 2) if previous == 20 else (1,)), (previous, ended)


def test_directories_are_recorded_only_at_a_metadata_version_that_has_them() -> None:
    for version in range(14, 21):
        image = image_of(features={"metadata.version": version})
        decision = register_broker(image, registration())
        expected = [disk(2000), disk(2001)] if version >= DIRECTORIES_SINCE else []
        assert decision.records[0].log_dirs == expected, version
        encode_record(decision.records[0], version)


def test_same_incarnation_keeps_its_epoch_and_state_and_writes_only_what_changed() -> None:
    changes: tuple[dict[str, Any], ...] = (
        {},
        {"log_dirs": [disk(2001), disk(2000)]},
        {"log_dirs": [disk(2000)]},
        {"rack": "other"},
        {"rack": None},
        {"endpoints": {"A": ENDPOINTS["A"]}},
        {"endpoints": {**ENDPOINTS, "B": Endpoint("i", 3, 1)}},
    )
    for (number, change), fenced, stopping, is_live in product(
        enumerate(changes), (False, True), (False, True), (False, True)
    ):
        image = image_of()
        known = replace(image.brokers[2], fenced=fenced, in_controlled_shutdown=stopping)
        image = replace(image, brokers={**image.brokers, 2: known})
        asked = registration(incarnation_id=LIFE, **change)
        decision = register_broker(image, asked, is_live=is_live)
        assert decision.reply == 20
        assert len(decision.records) == (fenced or number > 1)
        after = apply(image, decision.records).brokers[2]
        assert (after.epoch, after.fenced, after.in_controlled_shutdown) == (20, fenced, stopping)
        assert (after.endpoints, after.rack) == (asked.endpoints, asked.rack)
        assert sorted(after.log_dirs) == sorted(asked.log_dirs)


def test_other_incarnation_is_refused_while_the_registered_one_may_run() -> None:
    image = image_of()
    for is_live, life, broker_id in product((False, True), (LIFE, NEXT_LIFE), (2, 4)):
        asked = registration(incarnation_id=life, broker_id=broker_id, log_dirs=[disk(9000)])
        is_same = broker_id == 2 and life == LIFE
        code = ErrorCode.DUPLICATE_BROKER_REGISTRATION if is_live and not is_same else ErrorCode.NONE
        assert refusal(image, asked, is_live=is_live) is code


def test_registration_of_another_incarnation_must_name_the_epoch_that_it_replaces() -> None:
    image = image_of()
    for broker_id, life, previous, ended in product((2, 4), (LIFE, NEXT_LIFE), (-1, 19, 20, 21), (-1, 19, 20, 21)):
        asked = registration(
            broker_id=broker_id, incarnation_id=life, previous_broker_epoch=previous, ended_broker_epoch=ended
        )
        is_free = broker_id == 4 or life == LIFE or 20 in (previous, ended)
        assert epoch_to_name(image, asked) == (None if is_free else 20)


def test_registered_features_and_endpoints_of_a_broker_are_all_recorded() -> None:
    image = image_of()
    after = apply(image, register_broker(image, registration()).records).brokers[2]
    assert (after.features, after.endpoints, after.rack) == (ALL, ENDPOINTS, "rack")
    assert (after.epoch, after.fenced, after.incarnation_id) == (101, True, NEXT_LIFE)


def test_controller_is_registered_again_only_if_its_incarnation_or_endpoints_changed() -> None:
    for version in (14, 15, 16):
        image = image_of(features={"metadata.version": version})
        if version < 15:
            with pytest.raises(KafkaError) as refused:
                register_controller(image, 7, LIFE, ENDPOINTS)
            assert refused.value.code is ErrorCode.UNSUPPORTED_VERSION
            continue
        image = apply(image, register_controller(image, 7, LIFE, ENDPOINTS).records)
        for life, endpoints in product((LIFE, NEXT_LIFE), (ENDPOINTS, {"A": ENDPOINTS["A"]})):
            decision = register_controller(image, 7, life, endpoints)
            assert bool(decision.records) == ((life, endpoints) != (LIFE, ENDPOINTS))
            after = apply(image, decision.records).controllers[7]
            assert (after.incarnation_id, after.endpoints) == (life, endpoints)
            assert after.features == dict(SUPPORTED_FEATURES)


# --- producer ids ----------------------------------------------------------------------------------------------


def test_last_block_of_producer_ids_is_the_last_one_that_fits() -> None:
    last = MAX_PRODUCER_ID - PRODUCER_ID_BLOCK_SIZE
    for first in (0, 1, last - 1, last, last + 1, MAX_PRODUCER_ID):
        image = image_of(next_producer_id=first)
        if first > last:
            with pytest.raises(KafkaError, match="All producer ids"):
                allocate_producer_ids(image, 2, 20)
            continue
        decision = allocate_producer_ids(image, 2, 20)
        assert decision.reply == (first, PRODUCER_ID_BLOCK_SIZE)
        assert apply(image, decision.records).next_producer_id == first + PRODUCER_ID_BLOCK_SIZE


@pytest.mark.parametrize(
    ("broker_id", "epoch", "code"),
    [
        (2, 19, ErrorCode.STALE_BROKER_EPOCH),
        (2, 21, ErrorCode.STALE_BROKER_EPOCH),
        (4, 20, ErrorCode.BROKER_ID_NOT_REGISTERED),
    ],
)
def test_producer_ids_are_allocated_only_for_the_registered_epoch(broker_id: int, epoch: int, code: ErrorCode) -> None:
    with pytest.raises(KafkaError) as refused:
        allocate_producer_ids(image_of(), broker_id, epoch)
    assert refused.value.code is code


# --- features --------------------------------------------------------------------------------------------------


def update(image: MetadataImage, *updates: tuple[str, int, int], validate_only: bool = False) -> Any:
    keys = [FeatureUpdateKey(feature=name, max_version_level=level, upgrade_type=how) for name, level, how in updates]
    request = UpdateFeaturesRequest(feature_updates=keys, validate_only=validate_only)
    return update_features(image, request, controller_id=1)


CHANGED_AT = (7, 8, 11, 13, 14, 15, 17, 23, 30)


@pytest.mark.parametrize("how", [0, 1, 2, 3, 4])
def test_metadata_version_changes_to_every_level_that_loses_no_metadata(how: int) -> None:
    for current, wanted in product(range(7, 31), range(5, 33)):
        decision = update(image_of(features={"metadata.version": current}), ("metadata.version", wanted, how))
        crosses = any(wanted < level <= current for level in CHANGED_AT)
        is_lower = wanted < current
        refused = how in (0, 4) or not 7 <= wanted <= 30 or (is_lower and (how == 1 or crosses))
        assert decision.reply.error_code == (ErrorCode.INVALID_UPDATE_VERSION if refused else 0), (current, wanted)
        records = [(one.name, one.feature_level) for one in decision.records]
        assert records == ([] if refused or wanted == current else [("metadata.version", wanted)])


def test_feature_level_is_set_if_all_brokers_and_controllers_support_it() -> None:
    for low, high, wanted, current, where in product((0, 1), (1, 2), range(-1, 4), (0, 1, 2), ("none", "b", "c")):
        image = image_of(features={"metadata.version": 30, "transaction.version": current})
        levels = {**SUPPORTED_FEATURES, "transaction.version": (low, high)}
        if where == "b":
            image = replace(image, brokers={**image.brokers, 2: replace(image.brokers[2], features=levels)})
        elif where == "c":
            plain = ControllerImage(7, LIFE, {}, dict(SUPPORTED_FEATURES))
            image = replace(image, controllers={7: plain, 8: replace(plain, features=levels), 9: plain})
        is_supported = 0 <= wanted <= 2 and (where == "none" or low <= wanted <= high)
        for how in (1, 3):
            decision = update(image, ("transaction.version", wanted, how))
            refused = not is_supported or (how == 1 and wanted < current)
            assert bool(decision.reply.error_code) == refused, (low, high, wanted, current, where)
            assert bool(decision.records) == (not refused and wanted != current)


def test_all_updates_of_a_request_are_made_together_and_depend_on_each_other() -> None:
    elr = "eligible.leader.replicas.version"
    for before, after, level in product((21, 22, 23), (22, 23, 24), (0, 1)):
        image = image_of(features={"metadata.version": before})
        decision = update(image, (elr, level, 1), ("metadata.version", after, 1), ("group.version", 1, 1))
        refused = (level == 1 and after < 23) or after < before
        assert bool(decision.reply.error_code) == refused, (before, after, level)
        if refused:
            assert (decision.records, decision.reply.results) == ([], [])
            continue
        features = {"metadata.version": after, elr: level, "group.version": 1}
        assert apply(image, decision.records).features == {name: one for name, one in features.items() if one}
        assert [one.feature for one in decision.reply.results] == [elr, "metadata.version", "group.version"]
        checked = update(image, (elr, level, 1), ("metadata.version", after, 1), validate_only=True)
        assert (checked.records, checked.reply.error_code) == ([], 0)


@pytest.mark.parametrize("how", [1, 2, 3])
def test_kraft_version_stays_as_it_is(how: int) -> None:
    for current, wanted in product((0, 1), (0, 1)):
        image = image_of(features={"metadata.version": 30, "kraft.version": current})
        decision = update(image, ("kraft.version", wanted, how))
        assert bool(decision.reply.error_code) == (wanted != current)
        assert decision.records == []
