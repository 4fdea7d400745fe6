"""Tests the creation of internal topics of streams groups: several requests, and one log line for all refusals."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import cast

import pytest
from plain_coordinator import in_virtual_time

from penstock.broker.controlplane.auto_topics import TopicCreator
from penstock.broker.coordinators import internal_topics
from penstock.broker.coordinators.internal_topics import MAX_PARTITIONS_AT_ONCE, InternalTopics
from penstock.broker.tasks import Tasks
from penstock.groups.streams.topics import InternalTopic
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_19_create_topics import CreatableTopic


class Creator:
    """Replaces the topic creator: notes the partition counts of each request, and refuses every request."""

    def __init__(self) -> None:
        self.asked: list[list[int]] = []

    async def create(self, topics: list[CreatableTopic]) -> dict[str, KafkaError]:
        self.asked.append([topic.num_partitions for topic in topics])
        if len(self.asked) > 1:
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "No controller: retry.")
        return {topic.name: KafkaError(ErrorCode.POLICY_VIOLATION, "no") for topic in topics}


def test_many_internal_topics_are_requested_in_several_requests_and_refusals_are_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    large = MAX_PARTITIONS_AT_ONCE
    counts = [large // 2, large // 2, large // 2, 5 * large, 1]
    topics = {f"t{number}": InternalTopic(f"t{number}", count, 1, {}) for number, count in enumerate(counts)}
    creator = Creator()

    async def scenario() -> None:
        tasks = Tasks()
        internal = InternalTopics(cast(TopicCreator, creator), tasks)
        assert internal.create(topics, 60.0) == {}
        await tasks.ended()
        refused = internal.create(topics, 60.0)
        assert set(refused.values()) == {"no", "No controller: retry."}

    with caplog.at_level(logging.WARNING):
        asyncio.run(scenario())
    assert creator.asked == [[large // 2, large // 2], [large // 2], [5 * large], [1]]
    assert len(caplog.records) == 1
    assert "5 internal topics can't be created, such as t0" in caplog.text


def test_refused_internal_topic_is_requested_again_after_its_pause() -> None:
    creator = Creator()
    topics = {"t": InternalTopic("t", 3, 1, {})}

    async def scenario() -> None:
        tasks = Tasks()
        internal = InternalTopics(cast(TopicCreator, creator), tasks)
        for _ in range(2):
            assert internal.create(topics, 0.0) == {}
            assert internal.create(topics, 0.0) == {}, "one request at a time"
            await tasks.ended()

    asyncio.run(scenario())
    assert creator.asked == [[3], [3]]


@dataclass
class Scripted:
    """Replaces the topic creator: refuses the topics in `refused`, and notes the names of each request."""

    refused: dict[str, KafkaError] = field(default_factory=dict)
    asked: list[list[str]] = field(default_factory=list)
    created: list[CreatableTopic] = field(default_factory=list)

    async def create(self, topics: list[CreatableTopic]) -> dict[str, KafkaError]:
        await asyncio.sleep(1)
        self.asked.append([topic.name for topic in topics])
        self.created += topics
        return {topic.name: self.refused[topic.name] for topic in topics if topic.name in self.refused}


def some(*names: str, partitions: int = 1) -> dict[str, InternalTopic]:
    return {name: InternalTopic(name, partitions, 1, {}) for name in names}


def test_each_refused_internal_topic_has_its_reason_exactly_until_its_pause_ends() -> None:
    creator = Scripted(
        {"a": KafkaError(ErrorCode.POLICY_VIOLATION, "no a"), "b": KafkaError(ErrorCode.INVALID_PARTITIONS)}
    )

    async def scenario() -> None:
        tasks = Tasks()
        internal = InternalTopics(cast(TopicCreator, creator), tasks)
        assert internal.create(some("a", "b", "c"), 10.0) == {}
        await tasks.ended()  # at 1.0
        for _ in range(2):
            await asyncio.sleep(4.5)
            assert internal.create(some("a", "b"), 10.0) == {"a": "no a", "b": "INVALID_PARTITIONS"}
        del creator.refused["a"]
        await asyncio.sleep(1)  # at 11.0
        assert internal.create(some("a", "b"), 10.0) == {}
        await tasks.ended()
        assert internal.create(some("a"), 10.0) == {}
        assert internal.create(some("b"), 10.0) == {"b": "INVALID_PARTITIONS"}
        await tasks.ended()

    in_virtual_time(scenario)
    assert creator.asked == [["a", "b", "c"], ["a", "b"], ["a"]]


def test_internal_topic_whose_creation_is_in_progress_is_not_requested_again() -> None:
    creator = Scripted()

    async def scenario() -> None:
        tasks = Tasks()
        internal = InternalTopics(cast(TopicCreator, creator), tasks)
        internal.create(some("a"), 10.0)
        internal.create(some("a", "b"), 10.0)
        await tasks.ended()
        internal.create(some("b"), 10.0)
        await tasks.ended()

    in_virtual_time(scenario)
    assert creator.asked == [["a"], ["b"], ["b"]]


def test_oldest_refusals_are_forgotten_beyond_their_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(internal_topics, "MAX_REFUSALS", 3)
    names = "abcde"
    creator = Scripted({name: KafkaError(ErrorCode.POLICY_VIOLATION, f"no {name}") for name in names})

    async def scenario() -> list[dict[str, str]]:
        tasks = Tasks()
        internal = InternalTopics(cast(TopicCreator, creator), tasks)
        kept = []
        for number, name in enumerate(names, 1):
            internal.create(some(name), 1000.0)
            await tasks.ended()
            kept.append({one: reason for one in names[:number] if (reason := _reason(internal, one))})
        return kept

    def _reason(internal: InternalTopics, name: str) -> str | None:
        refusal = internal._refused.get(name)
        return None if refusal is None else refusal.reason

    kept = in_virtual_time(scenario)
    assert ["".join(one) for one in kept] == ["a", "ab", "abc", "bcd", "cde"]


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ([1000], [[1000]]),
        ([600, 400], [[600, 400]]),
        ([600, 401], [[600], [401]]),
        ([999, 1, 1], [[999, 1], [1]]),
        ([1001, 1, 999, 1], [[1001], [1, 999], [1]]),
    ],
)
def test_a_request_for_internal_topics_has_at_most_the_limit_of_partitions(
    counts: list[int], expected: list[list[int]]
) -> None:
    assert MAX_PARTITIONS_AT_ONCE == 1000
    creator = Scripted()
    topics = {f"t{number}": InternalTopic(f"t{number}", count, 3, {"k": "v"}) for number, count in enumerate(counts)}

    async def scenario() -> None:
        tasks = Tasks()
        InternalTopics(cast(TopicCreator, creator), tasks).create(topics, 1.0)
        await tasks.ended()

    in_virtual_time(scenario)
    assert [[topics[name].partitions for name in names] for names in creator.asked] == expected
    assert [(one.num_partitions, one.replication_factor) for one in creator.created] == [(each, 3) for each in counts]
    assert all([(each.name, each.value) for each in one.configs] == [("k", "v")] for one in creator.created)
