"""Compares requests that change partitions with plain models: AlterPartition, reassignments and elections."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from random import Random
from typing import Any

import pytest
from test_partition_change_model import BROKERS, ID, INDEX, Case, Model, random_case, some

from penstock.metadata.apply import apply
from penstock.metadata.controller.alter_partition import alter_partition, refusal
from penstock.metadata.controller.elections import balance_leaders, elect_leaders, elect_unclean
from penstock.metadata.controller.partition_change import Election, Rules
from penstock.metadata.controller.reassignments import alter_reassignments
from penstock.metadata.image import EMPTY_IMAGE, BrokerImage, MetadataImage, PartitionImage, TopicImage
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages import api_43_elect_leaders as api_43
from penstock.protocol.messages import api_45_alter_partition_reassignments as api_45
from penstock.protocol.messages import api_56_alter_partition as api_56

UNCLEAN = "unclean.leader.election.enable"


def rules_of(case: Case, unclean: bool) -> Rules:
    return Rules(case.min_isr, unclean_leader_election=unclean)


def expected(case: Case, **wishes: Any) -> PartitionImage:
    return Model(replace(case, wishes={"election": Election.ONLINE, **wishes})).partition()


def after(image: MetadataImage, records: Any) -> PartitionImage:
    return apply(image, records).topics["t"].partitions[INDEX]


# --- AlterPartition ----------------------------------------------------------------------------------------


def alterable(recovery_state: int = 0, **states: Any) -> MetadataImage:
    """Returns an image in which broker 1 leads a partition of brokers 1 to 3, with leader epoch 5 and epoch 7."""
    brokers = {
        each: replace(BrokerImage(each, 10 + each, ID, {}, fenced=False), **states.get(f"b{each}", {}))
        for each in (1, 2, 3, 4)
    }
    partition = PartitionImage((1, 2, 3), (1, 2), 1, 5, 7, leader_recovery_state=recovery_state)
    topic = TopicImage("t", ID, {0: partition, INDEX: partition})
    return replace(EMPTY_IMAGE, brokers=brokers, topics={"t": topic}, topics_by_id={ID: topic})


STATES: tuple[dict[str, Any], ...] = ({}, {"fenced": True}, {"in_controlled_shutdown": True}, {"epoch": 11})
ISRS = ((), (1,), (1, 2), (2, 1), (2, 3), (1, 1), (1, 4), (1, 2, 3))


def test_answer_to_every_small_alter_partition_request_follows_the_rules_in_their_order() -> None:
    for state, was in product(STATES, (0, 1)):
        image = alterable(was, b2=state)
        partition = image.topics["t"].partitions[0]
        for broker_id, leader_epoch, epoch, isr, recovery, named in product(
            (0, 1, 2), (4, 5, 6), (6, 7, 8), ISRS, (-1, 0, 1, 2), (False, True)
        ):
            wish = api_56.PartitionData(
                leader_epoch=leader_epoch, partition_epoch=epoch, leader_recovery_state=recovery
            )
            if named:
                states = [api_56.BrokerState(broker_id=each, broker_epoch=10 + each) for each in isr]
                wish.new_isr_with_epochs = states
            else:
                wish.new_isr = list(isr)
            is_malformed = isr in ((), (2, 3), (1, 1), (1, 4)) or recovery in (-1, 2)
            is_out = 2 in isr and (state.get("fenced") or state.get("in_controlled_shutdown"))
            is_other = 2 in isr and "epoch" in state and named
            if leader_epoch == 6 or epoch == 8:
                code = ErrorCode.NOT_CONTROLLER
            elif leader_epoch == 4:
                code = ErrorCode.FENCED_LEADER_EPOCH
            elif broker_id != 1:
                code = ErrorCode.INVALID_REQUEST
            elif epoch == 6:
                code = ErrorCode.INVALID_UPDATE_VERSION
            elif is_malformed or (recovery == 1 and (was == 0 or len(isr) > 1)):
                code = ErrorCode.INVALID_REQUEST
            elif is_out or is_other:
                code = ErrorCode.INELIGIBLE_REPLICA
            else:
                code = ErrorCode.NONE
            assert refusal(image, broker_id, partition, wish) is code, (state, was, wish)
    assert refusal(image, 1, None, wish) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_alter_partition_with_granted_and_refused_wishes_changes_only_the_granted_partitions() -> None:
    image = alterable(b3={"fenced": True})
    other = bytes([2] * 16)
    two = TopicImage("u", other, image.topics["t"].partitions)
    image = replace(image, topics={**image.topics, "u": two}, topics_by_id={ID: image.topics["t"], other: two})

    def wish(index: int, *isr: int, **fields: Any) -> api_56.PartitionData:
        epochs = {"leader_epoch": 5, "partition_epoch": 7, **fields}
        return api_56.PartitionData(partition_index=index, new_isr=list(isr), **epochs)

    request = api_56.AlterPartitionRequest(
        broker_id=1,
        broker_epoch=11,
        topics=[
            api_56.TopicData(topic_id=ID, partitions=[wish(0, 1, 2), wish(8, 1), wish(1, 1)]),
            api_56.TopicData(topic_id=bytes([9] * 16), partitions=[wish(0, 1), wish(1, 1)]),
            api_56.TopicData(topic_id=other, partitions=[wish(0, 1, 3), wish(1, 1, partition_epoch=6)]),
        ],
    )
    decision = alter_partition(image, request)
    answers = [
        [(one.partition_index, ErrorCode(one.error_code), one.isr, one.leader_id) for one in topic.partitions]
        for topic in decision.reply.topics
    ]
    unknown = ErrorCode.UNKNOWN_TOPIC_ID
    assert answers == [
        [
            (0, ErrorCode.NONE, [1, 2], 1),
            (8, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, [], 0),
            (1, ErrorCode.NONE, [1], 1),
        ],
        [(0, unknown, [], 0), (1, unknown, [], 0)],
        [(0, ErrorCode.INELIGIBLE_REPLICA, [], 0), (1, ErrorCode.INVALID_UPDATE_VERSION, [], 0)],
    ]
    done = apply(image, decision.records)
    found = {(name, index): (one.isr, one.partition_epoch) for name, index, one in all_of(done)}
    assert found == {("t", 0): ((1, 2), 7), ("t", 1): ((1,), 8), ("u", 0): ((1, 2), 8), ("u", 1): ((1, 2), 7)}
    first, _, last = decision.reply.topics[0].partitions
    assert [(one.leader_epoch, one.partition_epoch) for one in (first, last)] == [(5, 7), (5, 8)]


def all_of(image: MetadataImage) -> Any:
    for name, topic in image.topics.items():
        for index, partition in topic.partitions.items():
            yield name, index, partition


# --- reassignments -------------------------------------------------------------------------------------------


def reassign(case: Case, rules: Rules, target: Any, **fields: Any) -> tuple[ErrorCode, Any]:
    asked = api_45.ReassignablePartition(partition_index=INDEX, replicas=target)
    topics = [api_45.ReassignableTopic(name="t", partitions=[asked])]
    decision = alter_reassignments(
        case.image, api_45.AlterPartitionReassignmentsRequest(topics=topics, **fields), rules
    )
    return ErrorCode(decision.reply.responses[0].partitions[0].error_code), decision.records


@pytest.mark.parametrize("seed", range(2))
def test_every_reassignment_keeps_the_old_replicas_until_the_new_ones_are_in_sync(seed: int) -> None:
    random = Random(seed)
    seen = set()
    for _ in range(800):
        case = random_case(random)
        old, rules = case.partition, rules_of(case, random.random() < 0.5)
        target = random.choice((list(some(random, BROKERS)), list(old.replicas), [1, 1], [7]))
        may_change = random.random() < 0.7
        code, records = reassign(case, rules, target, allow_replication_factor_change=may_change)
        settled = [each for each in old.replicas if each not in old.adding_replicas]
        if not target or len(set(target)) < len(target) or not set(target) <= set(case.image.brokers):
            assert (code, records) == (ErrorCode.INVALID_REPLICA_ASSIGNMENT, [])
        elif not may_change and len(target) != len(settled):
            assert (code, records) == (ErrorCode.INVALID_REPLICATION_FACTOR, [])
        else:
            removing = sorted(set(old.replicas) - set(target))
            adding = sorted((set(target) - set(old.replicas)) | set(old.adding_replicas))
            if not set(removing) <= set(case.image.brokers):
                continue
            wanted = expected(case, replicas=[*target, *removing], removing=removing, adding=adding)
            assert code is ErrorCode.NONE
            assert after(case.image, records) == wanted, (case, target)
        seen.add(code)
    assert len(seen) == 3


@pytest.mark.parametrize("seed", range(2))
def test_every_cancelled_reassignment_restores_the_earlier_replicas_without_losing_records(seed: int) -> None:
    random = Random(seed)
    seen = set()
    for _ in range(1500):
        case = random_case(random)
        old, unclean = case.partition, random.random() < 0.5
        kept = [each for each in old.replicas if each not in old.adding_replicas]
        if not kept:
            continue  # a reassignment never adds all replicas
        code, records = reassign(case, rules_of(case, unclean), None)
        trusted = old.isr or old.elr
        is_lossy = bool(trusted) and not set(trusted) & set(kept)
        if not old.adding_replicas and not old.removing_replicas:
            assert (code, records) == (ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, [])
        elif is_lossy and not unclean:
            assert (code, records) == (ErrorCode.INVALID_REPLICA_ASSIGNMENT, [])
        else:
            isr = kept[:1] if is_lossy else [each for each in old.isr if each in kept]
            election = Election.UNCLEAN if unclean else Election.ONLINE
            wanted = expected(case, election=election, isr=isr, replicas=kept, removing=[], adding=[])
            assert code is ErrorCode.NONE
            assert after(case.image, records) == wanted, case
        seen.add((code, is_lossy))
    assert len(seen) >= 4


# --- elections -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(2))
def test_every_election_changes_the_leader_or_names_the_reason(seed: int) -> None:
    random = Random(seed)
    seen = set()
    for _ in range(1000):
        case = random_case(random)
        old, kind = case.partition, random.choice((0, 1))
        rules = rules_of(case, False)
        asked = [api_43.TopicPartitions(topic="t", partitions=[INDEX])]
        request = api_43.ElectLeadersRequest(election_type=kind, topic_partitions=asked)
        decision = elect_leaders(case.image, request, rules)
        code = ErrorCode(decision.reply.replica_election_results[0].partition_result[0].error_code)
        wanted = expected(case, election=Election.UNCLEAN if kind else Election.PREFERRED)
        if old.leader == old.replicas[0] or (kind and old.leader >= 0):
            assert (code, decision.records) == (ErrorCode.ELECTION_NOT_NEEDED, [])
        elif wanted == old:
            refused = ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE if kind else ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
            assert (code, decision.records) == (refused, [])
        else:
            assert code is ErrorCode.NONE
            assert after(case.image, decision.records) == wanted
        seen.add((kind, code))
    assert len(seen) == 6


def test_periodic_elections_change_up_to_the_limit_and_then_go_on() -> None:
    random = Random(3)
    up = {each: BrokerImage(each, 5, ID, {}, fenced=False) for each in BROKERS}
    for _ in range(150):
        topics = {}
        for number, name in enumerate("tu"):
            parts = {}
            for index in range(3):
                replicas = some(random, BROKERS, least=2)
                kind = random.choice(("preferred", "other", "none"))
                leader = {"preferred": replicas[0], "other": replicas[1], "none": -1}[kind]
                parts[index] = PartitionImage(replicas, () if leader < 0 else replicas, leader)
            topics[name] = TopicImage(name, bytes([number + 1] * 16), parts)
        allowed = random.choice(("", "t", "u", "tu"))
        image = replace(
            EMPTY_IMAGE,
            brokers=up,
            topics=topics,
            topics_by_id={topic.topic_id: topic for topic in topics.values()},
            configs={(2, name): {UNCLEAN: "true"} for name in allowed},
        )
        every = list(all_of(image))
        due = {
            balance_leaders: [(n, i) for n, i, one in every if one.isr and one.leader != one.replicas[0]],
            elect_unclean: [(n, i) for n, i, one in every if one.leader < 0 and n in allowed],
        }
        for elect, wanted in due.items():
            for limit in (1, 2, 3, 6, 7):
                decision = elect(image, Rules(), limit)
                named = [(image.topics_by_id[one.topic_id].name, one.partition_id) for one in decision.records]
                assert named == wanted[:limit]
                assert decision.reply == (len(wanted) >= limit)
                done = apply(image, decision.records)
                assert all(
                    done.topics[n].partitions[i].leader == image.topics[n].partitions[i].replicas[0] for n, i in named
                )


def test_request_with_an_unknown_partition_is_refused_without_a_change() -> None:
    image = alterable()
    for name, index in (("x", 0), ("t", 2)):
        asked = api_45.ReassignableTopic(name=name, partitions=[api_45.ReassignablePartition(partition_index=index)])
        reply = alter_reassignments(image, api_45.AlterPartitionReassignmentsRequest(topics=[asked]))
        assert reply.records == []
        (one,) = reply.reply.responses[0].partitions
        assert (one.partition_index, one.error_code) == (index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    with pytest.raises(KafkaError):
        alter_partition(image, api_56.AlterPartitionRequest(broker_id=1, broker_epoch=12))
