"""Tests limits of the controller's decisions that a request could get around, and rules for unusual partitions."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from random import Random
from typing import Any

import pytest
from test_broker_states import alter, partition
from test_broker_states import image_of as image_with
from test_configs_quotas import change as change_quotas
from test_controller_tokens import NOW, RULES, created
from test_quarantine import broker
from test_quarantine import image_of as image_of_brokers
from test_topic_requests_model import image_of as image_of_topics

from penstock.metadata.apply import apply
from penstock.metadata.controller import tokens, topics
from penstock.metadata.controller.partition_change import Rules
from penstock.metadata.controller.partitions import create_partitions
from penstock.metadata.controller.quarantine import quarantine_broker
from penstock.metadata.controller.reassignments import list_reassignments
from penstock.metadata.controller.tokens import expire_token, remove_expired, renew_token
from penstock.metadata.controller.topics import TopicDefaults, create_topics
from penstock.metadata.image import METADATA_VERSION, MetadataImage, PartitionImage
from penstock.metadata.quarantine import QUARANTINED
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages import api_19_create_topics as api_19
from penstock.protocol.messages import api_37_create_partitions as api_37
from penstock.protocol.messages import api_46_list_partition_reassignments as api_46
from penstock.protocol.messages.api_39_renew_delegation_token import RenewDelegationTokenRequest
from penstock.protocol.messages.api_40_expire_delegation_token import ExpireDelegationTokenRequest
from penstock.security.delegation_tokens import TokenMacs


def test_quarantine_leaves_more_than_half_of_the_brokers_in_use_and_out_of_quarantine() -> None:
    states = ("in use", "fenced", "in quarantine", "in quarantine, not fenced yet")
    for count in (1, 2, 3, 4, 5):
        for others in product(states, repeat=count - 1):
            listed = dict(enumerate(others, start=2))
            brokers = {each: broker(each, fenced=state in states[1:3]) for each, state in listed.items()}
            configs = {(4, str(each)): {QUARANTINED: "x"} for each, state in listed.items() if "quara" in state}
            image = replace(image_of_brokers(), brokers={1: broker(1), **brokers}, configs=configs)
            decision = quarantine_broker(image, 1, "its data is wrong", Rules())
            quarantined = sum("quara" in state for state in others) + 1
            in_use = sum(state in (states[0], states[3]) for state in others)
            is_allowed = 2 * quarantined < count and 2 * in_use > count
            assert (decision.reply is None) == bool(decision.records) == is_allowed, others


@pytest.mark.parametrize("negative", [-1000, -2])
def test_topic_with_a_negative_size_does_not_make_room_for_others_in_the_same_request(
    monkeypatch: pytest.MonkeyPatch, negative: int
) -> None:
    monkeypatch.setattr(topics, "MAX_RECORDS_PER_REQUEST", 5)
    asked = [
        api_19.CreatableTopic(name=name, num_partitions=size, replication_factor=1)
        for name, size in (("x", 4), ("y", 2), ("z", negative))
    ]
    request = api_19.CreateTopicsRequest(topics=asked)
    decision = create_topics(image_of_topics(), request, TopicDefaults(1, 1), Random(1))
    assert decision.records == []
    assert {each.error_code for each in decision.reply.topics} == {ErrorCode.POLICY_VIOLATION}


def test_new_partitions_have_as_many_replicas_as_the_first_partition() -> None:
    parts = {0: PartitionImage((1, 2), (1, 2), 1), 1: PartitionImage((1, 2, 3), (1, 2, 3), 1)}
    image = image_of_topics(parts)
    asked = [api_37.CreatePartitionsTopic(name="a", count=4, assignments=None)]
    decision = create_partitions(image, api_37.CreatePartitionsRequest(topics=asked), Random(1))
    after = apply(image, decision.records).topics["a"].partitions
    assert [len(after[index].replicas) for index in range(4)] == [2, 3, 2, 2]


def test_reassignment_is_listed_whether_it_adds_or_removes_replicas() -> None:
    parts = {
        0: PartitionImage((1, 2, 3), (1,), 1, adding_replicas=(3,)),
        1: PartitionImage((1, 2, 3), (1,), 1, removing_replicas=(2,)),
        2: PartitionImage((1, 2, 3), (1,), 1, adding_replicas=(3,), removing_replicas=(2,)),
        3: PartitionImage((1, 2, 3), (1,), 1),
    }
    image = image_of_topics(parts)
    named = [api_46.ListPartitionReassignmentsTopics(name="a", partition_indexes=[0, 1, 2, 3, 4])]
    for asked in (None, named):
        request = api_46.ListPartitionReassignmentsRequest(topics=asked)
        (topic,) = list_reassignments(image, request).topics
        found = [(one.partition_index, one.adding_replicas, one.removing_replicas) for one in topic.partitions]
        assert found == [(0, [3], []), (1, [], [2]), (2, [3], [2])]


@pytest.mark.parametrize("version", [11, 12])
def test_leader_that_shrinks_its_isr_stays_the_leader_also_in_a_new_epoch(version: int) -> None:
    image = image_with(partition("123", leader_epoch=3, partition_epoch=7))
    image = replace(image, features={METADATA_VERSION: version})
    told = alter(image, 1, [1, 2])
    assert (told.error_code, told.leader_id, told.isr) == (ErrorCode.NONE, 1, [1, 2])
    assert told.leader_epoch == (4 if version == 11 else 3)


@pytest.mark.parametrize(("value", "code"), [(5.0, "NONE"), (5.0005, "INVALID_REQUEST"), (4.99, "INVALID_REQUEST")])
def test_byte_rate_must_be_a_whole_number(value: float, code: str) -> None:
    outcomes, _ = change_quotas(MetadataImage(), ([("user", "a")], [("producer_byte_rate", value)]))
    assert [name for name, _ in outcomes] == [code]


# --- delegation tokens -----------------------------------------------------------------------------------------------


def test_expired_tokens_beyond_the_limit_of_one_decision_are_removed_by_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tokens, "MAX_RECORDS_PER_REQUEST", 2)
    image = MetadataImage(features={METADATA_VERSION: tokens.TOKENS_SINCE})
    for _ in range(3):
        _, image = created(image)
    removed = []
    for _ in range(3):
        decision = remove_expired(image, NOW * 9)
        image = apply(image, decision.records)
        removed.append((decision.reply, len(decision.records)))
    assert removed == [(2, 2), (1, 1), (0, 0)]


def test_token_is_neither_renewed_nor_expired_while_tokens_are_disabled() -> None:
    answer, image = created()
    disabled: Any = RULES._replace(secret=None)
    macs = TokenMacs(RULES.secret)
    renewal, expiry = (
        RenewDelegationTokenRequest(hmac=answer.hmac, renew_period_ms=5),
        ExpireDelegationTokenRequest(hmac=answer.hmac, expiry_time_period_ms=5),
    )
    with pytest.raises(KafkaError) as refused:
        renew_token(image, renewal, disabled, "User:ann", NOW, macs)
    assert refused.value.code is ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
    with pytest.raises(KafkaError) as refused:
        expire_token(image, expiry, disabled, "User:ann", NOW, macs)
    assert refused.value.code is ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
