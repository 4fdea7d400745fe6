"""Tests the creation of internal topics of streams groups: several requests, and one log line for all refusals."""

from __future__ import annotations

import asyncio
import logging
from typing import cast

import pytest

from penstock.broker.controlplane.auto_topics import TopicCreator
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
