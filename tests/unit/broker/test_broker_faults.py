"""Tests fault rules with a handler that only records its requests."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.broker.requests.encoded_responses import Encoded
from penstock.broker.requests.fault_rules import FaultRule, Faults
from penstock.net.reply import Close
from penstock.protocol.codec import encode
from penstock.protocol.errors import ErrorCode
from penstock.protocol.messages.api_00_produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from penstock.protocol.messages.api_01_fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from penstock.protocol.messages.api_03_metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)

TOPIC_ID = b"\x01" * 16
TOPIC_NAMES = {TOPIC_ID: "t"}


class FakeConnection:
    def __init__(self) -> None:
        self.reason: str | None = None
        self.callbacks: list[Any] = []
        self.watched = asyncio.Event()

    def close(self, reason: str) -> None:
        self.reason = reason

    def on_close(self, callback: Any) -> None:
        self.callbacks.append(callback)
        self.watched.set()


def context(api_key: int, version: int, client_id: str = "c") -> Any:
    return SimpleNamespace(api_key=api_key, api_version=version, client_id=client_id, connection=FakeConnection())


def produce_request(*partitions: int, topic: str = "t") -> ProduceRequest:
    data = [PartitionProduceData(index=index, records=b"r") for index in partitions]
    return ProduceRequest(acks=-1, topic_data=[TopicProduceData(name=topic, partition_data=data)])


class Log:
    """Replaces the Produce handler: notes every requested partition, and accepts it."""

    def __init__(self) -> None:
        self.taken: list[tuple[str, int]] = []

    def __call__(self, _ctx: Any, request: ProduceRequest) -> ProduceResponse:
        answer = ProduceResponse()
        for topic in request.topic_data:
            said = TopicProduceResponse(name=topic.name)
            for partition in topic.partition_data:
                self.taken.append((topic.name, partition.index))
                said.partition_responses.append(PartitionProduceResponse(index=partition.index, base_offset=7))
            answer.responses.append(said)
        return answer


def produce(faults: Faults, log: Log, request: ProduceRequest, **about: Any) -> Any:
    return asyncio.run(faults.apply(context(0, 9, **about), request, log, TOPIC_NAMES.get))


def codes(response: Any) -> dict[int, int]:
    return {p.index: p.error_code for topic in response.responses for p in topic.partition_responses}


def test_fault_rule_applies_to_the_next_n_requests_only() -> None:
    faults, log = Faults(), Log()
    rule = faults.add(api="Produce", times=2, error=ErrorCode.NOT_LEADER_OR_FOLLOWER)
    seen = [codes(produce(faults, log, produce_request(0)))[0] for _ in range(3)]
    assert seen == [6, 6, 0]
    assert log.taken == [("t", 0)]
    assert rule.hits == 2


def test_fault_rule_for_a_partition_does_not_affect_other_partitions() -> None:
    faults, log = Faults(), Log()
    faults.add(api="Produce", topic="t", partition=1, error="KAFKA_STORAGE_ERROR")
    assert codes(produce(faults, log, produce_request(0, 1, 2))) == {0: 0, 2: 0, 1: 56}
    assert log.taken == [("t", 0), ("t", 2)]


@pytest.mark.parametrize(
    "about",
    [{"topic": "other"}, {"api": "Fetch"}, {"client_id": "someone"}, {"topic": "t", "partition": 5}],
)
def test_fault_rule_for_one_api_does_not_affect_other_apis(about: dict[str, Any]) -> None:
    faults, log = Faults(), Log()
    rule = faults.add(**about, error=ErrorCode.UNKNOWN_SERVER_ERROR)
    assert codes(produce(faults, log, produce_request(0))) == {0: 0}
    assert rule.hits == 0


def test_fault_rule_for_a_topic_name_also_matches_requests_by_topic_id() -> None:
    faults, log = Faults(), Log()
    faults.add(api="Produce", topic="t", error=ErrorCode.NOT_LEADER_OR_FOLLOWER)
    data = [TopicProduceData(topic_id=TOPIC_ID, partition_data=[PartitionProduceData(index=0, records=b"r")])]
    response = asyncio.run(faults.apply(context(0, 13), ProduceRequest(acks=-1, topic_data=data), log, TOPIC_NAMES.get))
    assert (response.responses[0].topic_id, codes(response)) == (TOPIC_ID, {0: 6})


def test_close_fault_closes_the_connection_before_the_request_is_handled() -> None:
    faults, log, ctx = Faults(), Log(), context(0, 9)
    faults.add(close=True)
    ended = asyncio.run(faults.apply(ctx, produce_request(0), log, TOPIC_NAMES.get))
    assert isinstance(ended, Close)
    assert ended.reason == "a fault rule closed the connection"
    assert log.taken == []


def test_lost_reply_fault_with_close_handles_the_request_and_then_closes_the_connection() -> None:
    faults, log = Faults(), Log()
    faults.add(lose_reply=True, close=True)
    assert isinstance(produce(faults, log, produce_request(0)), Close)
    assert log.taken == [("t", 0)]


def test_lost_reply_fault_handles_the_request_and_keeps_the_client_waiting_without_a_response() -> None:
    async def scenario() -> None:
        faults, log, ctx = Faults(), Log(), context(0, 9)
        faults.add(lose_reply=True)
        waiting = asyncio.create_task(faults.apply(ctx, produce_request(0), log, TOPIC_NAMES.get))
        await ctx.connection.watched.wait()
        assert log.taken == [("t", 0)]
        assert not waiting.done()
        ctx.connection.callbacks[0]()
        assert await waiting is None

    asyncio.run(scenario())


def test_release_of_fault_rules_ends_requests_that_wait_because_of_a_lost_reply() -> None:
    async def scenario() -> None:
        faults, ctx = Faults(), context(0, 9)
        faults.add(lose_reply=True)
        waiting = asyncio.create_task(faults.apply(ctx, produce_request(0), Log(), TOPIC_NAMES.get))
        await ctx.connection.watched.wait()
        faults.release()
        assert await waiting is None

    asyncio.run(scenario())


def test_a_delayed_request_is_handled_after_the_delay() -> None:
    faults, log = Faults(), Log()
    faults.add(delay=0.001, times=1)
    assert codes(produce(faults, log, produce_request(0))) == {0: 0}
    assert log.taken == [("t", 0)]


def fetch(faults: Faults, request: FetchRequest) -> Any:
    def handle(_ctx: Any, asked: FetchRequest) -> FetchResponse:
        partitions = [PartitionData(partition_index=p, records=b"data") for p in (0, 1)]
        return FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=partitions)])

    return asyncio.run(faults.apply(context(1, 12), request, handle, TOPIC_NAMES.get))


def test_error_fault_on_a_fetch_sets_the_error_code_of_the_partition() -> None:
    faults = Faults()
    faults.add(api="Fetch", topic="t", partition=1, error=ErrorCode.NOT_LEADER_OR_FOLLOWER)
    request = FetchRequest(session_epoch=0, max_wait_ms=500)
    first, second = fetch(faults, request).responses[0].partitions
    assert (first.error_code, first.records) == (0, b"data")
    assert (second.error_code, second.records) == (6, None)
    assert request.max_wait_ms == 0


def test_error_fault_refuses_an_incremental_fetch_and_applies_to_the_full_fetch_that_follows() -> None:
    faults = Faults()
    rule = faults.add(api="Fetch", topic="t", error=ErrorCode.NOT_LEADER_OR_FOLLOWER, times=1)
    assert fetch(faults, FetchRequest(session_id=3, session_epoch=4)).error_code == 70
    assert rule.hits == 0


def test_error_fault_on_a_produce_with_acks_0_closes_the_connection() -> None:
    faults, log = Faults(), Log()
    faults.add(api="Produce", topic="t", partition=0, error=ErrorCode.NOT_LEADER_OR_FOLLOWER)
    request = produce_request(0, 1)
    request.acks = 0
    assert isinstance(produce(faults, log, request), Close)
    assert log.taken == [("t", 1)]


def test_error_fault_can_change_a_cached_encoded_response() -> None:
    faults = Faults()
    faults.add(api="Metadata", topic="t", error=ErrorCode.LEADER_NOT_AVAILABLE)
    kept = Encoded(encode(MetadataResponse(topics=[MetadataResponseTopic(name="t")]), 9))
    request = MetadataRequest(topics=[MetadataRequestTopic(name="t")])
    response = asyncio.run(faults.apply(context(3, 9), request, lambda *_: kept, TOPIC_NAMES.get))
    assert [topic.error_code for topic in response.topics] == [5]


def test_fault_rule_is_removed_by_remove_or_clear_or_at_the_end_of_its_with_block() -> None:
    faults = Faults()
    faults.add(close=True).remove()
    assert not faults.rules
    with faults.add(close=True) as rule:
        assert isinstance(rule, FaultRule)
        assert list(faults.rules) == [rule]
    assert not faults.rules
    faults.add(close=True)
    faults.clear()
    assert not faults.rules


def test_used_up_fault_rules_are_dropped_when_the_next_rule_is_added() -> None:
    faults = Faults()
    faults.add(close=True, times=1).hits = 1
    kept = faults.add(close=True)
    assert faults.rules == (kept,)


@pytest.mark.parametrize(
    "wrong",
    [{}, {"api": "Nonsense", "close": True}, {"partition": 1, "close": True}, {"times": 0, "close": True}],
)
def test_invalid_fault_rule_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        Faults().add(**wrong)
