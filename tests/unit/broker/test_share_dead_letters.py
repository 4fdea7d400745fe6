"""Tests dead letters of share groups on one node: which records get a dead letter, and failed writes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from share_client import SET, client_of, configure, consumer, produce, run, settle, take, until, values

from penstock.client.admin import Admin
from penstock.client.client import AsyncClient
from penstock.protocol.errors import ErrorCode
from penstock.protocol.messages import api_79_share_acknowledge as acknowledging
from penstock.protocol.vocabulary import SHARE_OPERATOR, Acknowledge, ResourceType
from penstock.records.record import Record
from penstock.share.states import RecordState
from penstock.testing import Broker

LOCK_MS = 1000
RELEASE, REJECT = Acknowledge.RELEASE, Acknowledge.REJECT
TOPIC, COPY = "errors_deadletterqueue_topic_name", "errors_deadletterqueue_copy_record_enable"
ENABLE = "errors.deadletterqueue.group.enable"


@pytest.fixture(scope="module")
def node() -> Iterator[Broker]:
    properties = {
        "group.share.min.record.lock.duration.ms": str(LOCK_MS),
        "errors.deadletterqueue.auto.create.topics.enable": "true",
    }
    with Broker(config=properties) as broker:
        yield broker


@pytest.fixture
def topic(node: Broker, request: pytest.FixtureRequest) -> str:
    name: str = request.node.name.replace("[", "-").replace("]", "")[:200]
    node.create_topics({name: 1})
    return name


async def letters(node: Broker, topic: str, count: int) -> list[Record]:
    """Waits until a group has `count` dead letters, and returns them. The group has the name of its topic."""
    name = f"dlq.{topic}"
    await until(lambda: name in node.node.broker.metadata.image.topics and len(node.records(name)) >= count)
    return node.records(name)


async def allow(client: AsyncClient, topic: str) -> None:
    await Admin(client).alter_configs(ResourceType.TOPIC, topic, [(ENABLE, SET, "true")])


def told(letter: Record) -> dict[str, str]:
    return {
        name.removeprefix("__dlq.errors."): (text or b"").decode()
        for name, text in letter.headers
        if name.startswith("__dlq.errors.")
    }


def totals(node: Broker, group: str) -> list[int]:
    [led] = [led for led in node.node.broker.share_partitions if led.key.group == group]
    assert led.state is not None
    return led.state.window.totals


def test_rejected_record_gets_a_dead_letter_that_names_its_topic_partition_and_offset(node: Broker, topic: str) -> None:
    async def scenario() -> None:
        async with client_of(node) as client, consumer(node, topic) as member:
            await configure(client, topic, **{TOPIC: f"dlq.{topic}"})
            await produce(client, topic, "a", "b", "c")
            records = await take(member, 3)
            assert await settle(member, records[1:2], REJECT) == [ErrorCode.NONE]
            [letter] = await letters(node, topic, 1)
            assert (letter.key, letter.value) == (None, None)
            assert told(letter) == {
                "topic": topic,
                "partition": "0",
                "offset": "1",
                "group": topic,
                "delivery.count": "1",
                "message": "Offset rejected by client.",
                "timestamp": str(records[1].record.timestamp),
            }
            assert await settle(member, [records[0], records[2]]) == [ErrorCode.NONE]

    run(scenario)


def test_record_above_its_delivery_limit_gets_a_dead_letter_with_a_copy_of_the_record(node: Broker, topic: str) -> None:
    async def scenario() -> None:
        async with client_of(node) as client, consumer(node, topic) as member:
            limits = {"share_record_lock_duration_ms": str(LOCK_MS), "share_delivery_count_limit": "2"}
            await configure(client, topic, **{TOPIC: f"dlq.{topic}", COPY: "true"}, **limits)
            await produce(client, topic, "kept", "released")
            records = await take(member, 2)
            assert await settle(member, records, RELEASE) == [ErrorCode.NONE]
            again = await take(member, 1)
            again += await take(member, 2 - len(again))
            released = [each for each in again if each.record.value == b"released"]
            assert await settle(member, released, RELEASE) == [ErrorCode.NONE]
            found = await letters(node, topic, 2)
            assert {letter.value for letter in found} == {b"kept", b"released"}
            assert {told(letter)["delivery.count"] for letter in found} == {"2"}
            assert {told(letter)["message"] for letter in found} == {"Offset delivery count exceeded the threshold."}
            await produce(client, topic, "next")
            assert values(await take(member, 1)) == ["next"]

    run(scenario)


def test_records_are_not_archived_while_their_dead_letters_cannot_be_written(node: Broker, topic: str) -> None:
    async def scenario() -> None:
        node.create_topics({f"dlq.{topic}": 1})
        async with client_of(node) as client, consumer(node, topic) as member:
            await configure(client, topic, **{TOPIC: f"dlq.{topic}"})
            await produce(client, topic, "a", "b")
            figures = node.node.broker.share_partitions.figures
            failed = figures.failed_dead_letters
            records = await take(member, 2)
            assert await settle(member, records, REJECT) == [ErrorCode.NONE]
            await until(lambda: figures.failed_dead_letters >= failed + 2)
            assert totals(node, topic)[RecordState.ARCHIVING] == 2
            assert node.records(f"dlq.{topic}") == []
            await allow(client, f"dlq.{topic}")
            assert [told(letter)["offset"] for letter in await letters(node, topic, 2)] == ["0", "1"]
            await until(lambda: not totals(node, topic)[RecordState.ARCHIVING])

    run(scenario)


def test_dead_letters_that_were_not_written_before_a_restart_are_written_after_it(node: Broker, topic: str) -> None:
    async def scenario() -> None:
        node.create_topics({f"dlq.{topic}": 1})
        async with client_of(node) as client:
            await configure(client, topic, **{TOPIC: f"dlq.{topic}"})
            await produce(client, topic, "a")
            async with consumer(node, topic) as member:
                assert await settle(member, await take(member, 1), REJECT) == [ErrorCode.NONE]
            await asyncio.to_thread(node.restart)
        async with client_of(node) as client:
            await allow(client, f"dlq.{topic}")
            await produce(client, topic, "b")
            async with consumer(node, topic) as member:
                assert values(await take(member, 1)) == ["b"]
                [letter] = await letters(node, topic, 1)
                assert (told(letter)["offset"], told(letter)["delivery.count"]) == ("0", "1")

    run(scenario)


def test_a_record_that_an_operator_archives_gets_a_dead_letter(node: Broker, topic: str) -> None:
    async def scenario() -> None:
        async with client_of(node) as client, consumer(node, topic) as member:
            await configure(client, topic, **{TOPIC: f"dlq.{topic}"})
            await produce(client, topic, "a")
            [held] = await take(member, 1)
            topic_id = node.node.broker.metadata.image.topics[topic].topic_id
            batch = acknowledging.AcknowledgementBatch(first_offset=0, last_offset=0, acknowledge_types=[REJECT])
            partition = acknowledging.AcknowledgePartition(partition_index=0, acknowledgement_batches=[batch])
            request = acknowledging.ShareAcknowledgeRequest(
                group_id=topic,
                member_id=SHARE_OPERATOR,
                share_session_epoch=-1,
                topics=[acknowledging.AcknowledgeTopic(topic_id=topic_id, partitions=[partition])],
            )
            answer = await client.request(request)
            assert not answer.responses[0].partitions[0].error_code
            [letter] = await letters(node, topic, 1)
            assert told(letter)["message"] == "Offset archived by an operator."
            await until(lambda: not totals(node, topic)[RecordState.ARCHIVING])
            assert await settle(member, [held]) == [ErrorCode.NONE], "the offset is before the start offset"

    run(scenario)


def test_a_group_that_reads_its_own_dead_letter_topic_writes_no_dead_letters(node: Broker) -> None:
    async def scenario() -> None:
        node.create_topics({"dlq.own": 1}, configs={ENABLE: "true"})
        async with client_of(node) as client, consumer(node, "dlq.own") as member:
            await configure(client, "dlq.own", **{TOPIC: "dlq.own"})
            await produce(client, "dlq.own", "a")
            assert await settle(member, await take(member, 1), REJECT) == [ErrorCode.NONE]
            await produce(client, "dlq.own", "b")
            assert values(await take(member, 1)) == ["b"]
            assert [record.value for record in node.records("dlq.own")] == [b"a", b"b"]

    run(scenario)
