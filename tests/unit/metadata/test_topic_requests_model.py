"""Compares requests for topics, partitions and eligible leaders with plain models of all small inputs."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import product
from random import Random
from typing import Any

import pytest

from penstock.metadata.apply import apply
from penstock.metadata.controller import eligible_leaders, partitions, topics
from penstock.metadata.controller.eligible_leaders import clear_unsafe_eligible_leaders
from penstock.metadata.controller.partition_change import Rules
from penstock.metadata.controller.partitions import create_partitions
from penstock.metadata.controller.topics import TopicDefaults, create_topics, delete_topics
from penstock.metadata.image import EMPTY_IMAGE, BrokerImage, MetadataImage, PartitionImage, TopicImage
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages import api_19_create_topics as api_19
from penstock.protocol.messages import api_37_create_partitions as api_37
from penstock.protocol.messages.api_20_delete_topics import DeleteTopicState
from penstock.protocol.persisted.metadata.config_record import ConfigRecord

IDS = {name: name.encode() * 16 for name in "abc"}
ZERO, UNKNOWN = bytes(16), b"x" * 16
MIN_ISR = "min.insync.replicas"


def image_of(*partitions_of: dict[int, PartitionImage], **fields: Any) -> MetadataImage:
    listed = partitions_of or ({0: PartitionImage((1, 2), (1, 2), 1)},) * 3
    made = {name: TopicImage(name, IDS[name], parts) for name, parts in zip("abc", listed)}
    brokers = {each: BrokerImage(each, 5, ZERO, {}, fenced=False) for each in (1, 2, 3)}
    base = replace(EMPTY_IMAGE, brokers=brokers, topics=made, partition_count=sum(map(len, listed)))
    return replace(base, topics_by_id={one.topic_id: one for one in made.values()}, **fields)


# --- deletions -------------------------------------------------------------------------------------------------


def test_topic_is_deleted_only_if_a_request_names_it_once() -> None:
    image = image_of()
    entries = [("a", ZERO), ("b", ZERO), (None, IDS["a"]), (None, IDS["b"]), ("x", ZERO), (None, UNKNOWN)]
    entries += [(None, ZERO), ("a", IDS["a"]), ("a", IDS["b"])]
    for count in range(1, 5):
        for asked in product(entries, repeat=count) if count < 4 else product(entries[:4], repeat=4):
            decision = delete_topics(image, [DeleteTopicState(name=name, topic_id=each) for name, each in asked])
            named = Counter()  # type: ignore[var-annotated]
            for name, each in asked:
                if (name is None) != (each == ZERO):
                    named[IDS.get(name, name) if name is not None else each] += 1
            once = {each for each, number in named.items() if number == 1 and each in IDS.values()}
            assert sorted(one.topic_id for one in decision.records) == sorted(once), asked
            replies = decision.reply.responses
            assert {one.topic_id for one in replies if not one.error_code} == once
            codes = Counter(one.error_code for one in replies if one.error_code)
            twice = sum(number > 1 for number in named.values())
            both = sum(name is not None and each != ZERO for name, each in asked)
            expected = {
                ErrorCode.INVALID_REQUEST: twice + both + ((None, ZERO) in asked),
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: named["x"] == 1,
                ErrorCode.UNKNOWN_TOPIC_ID: named[UNKNOWN] == 1,
            }
            assert codes == {code: number for code, number in expected.items() if number}, asked


def test_each_deleted_topic_is_charged_with_its_partitions_and_refused_if_the_quota_is_used_up() -> None:
    part = PartitionImage((1,), (1,), 1)
    image = image_of({0: part}, {0: part, 1: part}, {0: part, 1: part, 2: part})
    for room in range(8):
        left = [room]

        def charge(count: int, left: list[int] = left) -> None:
            if count > left[0]:
                raise KafkaError(ErrorCode.THROTTLING_QUOTA_EXCEEDED)
            left[0] -= count

        decision = delete_topics(image, [DeleteTopicState(name=name) for name in "cab"], charge)
        expected, rest = [], room
        for name, count in (("c", 3), ("a", 1), ("b", 2)):
            expected.append((name, count <= rest))
            rest -= count if count <= rest else 0
        replies = [(one.name, not one.error_code) for one in decision.reply.responses]
        assert replies == expected
        assert {one.topic_id for one in decision.records} == {IDS[name] for name, is_done in expected if is_done}


# --- new topics and partitions -----------------------------------------------------------------------------------


def test_new_topics_are_created_up_to_the_limit_of_partitions_in_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics, "MAX_RECORDS_PER_REQUEST", 6)
    image = image_of()
    defaults = TopicDefaults(num_partitions=2, replication_factor=1)
    for counts in product((-1, 1, 3, 4, 6, 7), repeat=2):
        for manual in (0, 1, 2):
            asked = [
                api_19.CreatableTopic(name=f"n{number}", num_partitions=count, replication_factor=1)
                for number, count in enumerate(counts)
            ]
            if manual:
                one = [api_19.CreatableReplicaAssignment(partition_index=i, broker_ids=[1]) for i in range(manual)]
                asked.append(api_19.CreatableTopic(name="m", num_partitions=-1, replication_factor=-1, assignments=one))
            decision = create_topics(image, api_19.CreateTopicsRequest(topics=asked), defaults, Random(1))
            wanted = [2 if count == -1 else count for count in counts] + [manual] * bool(manual)
            is_refused = sum(wanted) > 6
            code = ErrorCode.POLICY_VIOLATION if is_refused else ErrorCode.NONE
            assert [one.error_code for one in decision.reply.topics] == [code] * len(asked)
            if not is_refused:
                assert [one.num_partitions for one in decision.reply.topics] == wanted
                done = apply(image, decision.records)
                assert [len(done.topics[one.name].partitions) for one in asked] == wanted
            else:
                assert decision.records == []


def test_topic_that_a_request_creates_twice_is_refused_once_and_the_others_are_created() -> None:
    image = image_of()
    for names in product(("n", "o", "a"), repeat=3):
        asked = [api_19.CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in names]
        charged: list[int] = []
        defaults = TopicDefaults(1, 1)
        request = api_19.CreateTopicsRequest(topics=asked)
        decision = create_topics(image, request, defaults, Random(1), charged.append)
        expected = {}
        for name, count in Counter(names).items():
            once = ErrorCode.TOPIC_ALREADY_EXISTS if name == "a" else ErrorCode.NONE
            expected[name] = once if count == 1 else ErrorCode.INVALID_REQUEST
        assert {one.name: one.error_code for one in decision.reply.topics} == expected
        assert len(decision.reply.topics) == len(expected)
        created = {name for name, code in expected.items() if code is ErrorCode.NONE}
        assert apply(image, decision.records).topics.keys() == {*"abc", *created}
        assert charged == [1] * len(created)


def test_manual_assignments_are_taken_as_given_or_refused() -> None:
    image = image_of()
    for first, second, indexes in product(
        ([1], [1, 2], [2, 1], [], [4], [1, 1]), ([3], [3, 1], [2, 3]), ((0, 1), (1, 0), (0, 0), (0, 2), (1, 2))
    ):
        listed = [
            api_19.CreatableReplicaAssignment(partition_index=index, broker_ids=ids)
            for index, ids in zip(indexes, (first, second))
        ]
        topic = api_19.CreatableTopic(name="n", num_partitions=-1, replication_factor=-1, assignments=listed)
        decision = create_topics(image, api_19.CreateTopicsRequest(topics=[topic]), TopicDefaults(1, 1), Random(1))
        is_valid = first in ([1], [1, 2], [2, 1]) and len(first) == len(second) and set(indexes) == {0, 1}
        (result,) = decision.reply.topics
        assert result.error_code == (0 if is_valid else ErrorCode.INVALID_REPLICA_ASSIGNMENT), (first, second, indexes)
        if is_valid:
            made = apply(image, decision.records).topics["n"].partitions
            assert {index: list(made[index].replicas) for index in made} == dict(zip(indexes, (first, second)))


@pytest.mark.parametrize("limit", [2, 3, 4, 100])
def test_new_partitions_are_added_up_to_the_limit_of_one_request(monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    monkeypatch.setattr(partitions, "MAX_RECORDS_PER_REQUEST", limit)
    image = image_of()
    for counts in product(range(6), repeat=2):
        asked = [
            api_37.CreatePartitionsTopic(name=name, count=count, assignments=None) for name, count in zip("ab", counts)
        ]
        charged: list[int] = []
        request = api_37.CreatePartitionsRequest(topics=asked)
        decision = create_partitions(image, request, Random(1), charged.append)
        codes, used = [], 0
        for count in counts:
            if count <= 1:
                codes.append(ErrorCode.INVALID_PARTITIONS)
            elif used + count - 1 > limit:
                codes.append(ErrorCode.POLICY_VIOLATION)
            else:
                codes.append(ErrorCode.NONE)
                used += count - 1
        assert [one.error_code for one in decision.reply.results] == codes, counts
        assert sum(charged) == len(decision.records) == used
        done = apply(image, decision.records)
        for name, count, code in zip("ab", counts, codes):
            found = done.topics[name].partitions
            assert sorted(found) == list(range(1 if code else count))
            assert all(len(set(one.replicas)) == 2 for one in found.values())


def test_assignments_of_new_partitions_must_match_their_number_and_replication_factor() -> None:
    image = image_of()
    for count, lists in product((2, 3), ([[1, 2]], [[1, 2], [2, 3]], [[1]], [[1, 2], [1]], [[1, 2], [1, 4]], [])):
        listed = [api_37.CreatePartitionsAssignment(broker_ids=ids) for ids in lists]
        asked = [api_37.CreatePartitionsTopic(name="a", count=count, assignments=listed)]
        decision = create_partitions(image, api_37.CreatePartitionsRequest(topics=asked), Random(1))
        is_valid = len(lists) == count - 1 and lists in ([[1, 2]], [[1, 2], [2, 3]])
        (result,) = decision.reply.results
        assert result.error_code == (0 if is_valid else ErrorCode.INVALID_REPLICA_ASSIGNMENT)
        found = apply(image, decision.records).topics["a"].partitions
        assert [list(found[index].replicas) for index in sorted(found)] == [[1, 2], *(lists if is_valid else [])]


# --- eligible leaders --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [2, 3, 100])
def test_change_of_min_isr_clears_the_eligible_leaders_of_exactly_the_affected_partitions(
    monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    monkeypatch.setattr(eligible_leaders, "MAX_RECORDS_PER_REQUEST", limit)
    random = Random(limit)
    for _ in range(400):
        listed = []
        for _name in "abc":
            parts = {}
            for index in range(2):
                isr = (1, 2, 3)[: random.randint(0, 3)]
                elr = tuple(each for each in (1, 2, 3) if each not in isr and random.random() < 0.6)
                parts[index] = PartitionImage((1, 2, 3), isr, isr[0] if isr else -1, elr=elr)
            listed.append(parts)
        configs = {(2, name): {MIN_ISR: str(random.randint(1, 3))} for name in "ab" if random.random() < 0.4}
        level = random.choice((0, 1, 1, 1))
        image = image_of(*listed, features={"eligible.leader.replicas.version": level}, configs=configs)
        changed = random.sample([(2, "a"), (2, "b"), (2, "c"), (4, "")], random.randint(1, 2))
        key = random.choice((MIN_ISR, MIN_ISR, "retention.ms"))
        changes = [
            ConfigRecord(resource_type=kind, resource_name=name, name=key, value=str(random.randint(1, 3)))
            for kind, name in changed
        ]
        records = clear_unsafe_eligible_leaders(image, changes, Rules(2))
        if key != MIN_ISR or not level:
            assert records == []
            continue
        after = apply(image, changes)
        everywhere = (4, "") in changed
        affected = "abc" if everywhere else [name for kind, name in changed if kind == 2]
        unsafe = set()
        for name in affected:
            own = after.config(2, name).get(MIN_ISR) or after.config(4, "").get(MIN_ISR)
            needed = 2 if own is None else int(own)
            found = image.topics[name].partitions.items()
            unsafe |= {(name, index) for index, one in found if one.elr and len(one.isr) >= needed}
        if len(unsafe) + len(changes) > limit:
            named = [getattr(one, "topic_name", None) for one in records]
            assert sorted(map(str, named)) == ([""] if everywhere else sorted(affected))
            continue
        done = apply(after, records)
        for name, topic in image.topics.items():
            for index, one in topic.partitions.items():
                elr = () if (name, index) in unsafe else one.elr
                assert done.topics[name].partitions[index].elr == elr
        assert len(records) == len(unsafe)
