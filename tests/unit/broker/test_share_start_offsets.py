"""Tests start offsets of share groups that are above the end of the log, over connections to one node."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from share_client import client_of, configure, consumer, produce, run, settle, take, values

from penstock.client.client import AsyncClient
from penstock.protocol.errors import ErrorCode
from penstock.protocol.messages import api_78_share_fetch as fetching
from penstock.protocol.messages import api_90_describe_share_group_offsets as describing
from penstock.protocol.messages import api_91_alter_share_group_offsets as altering
from penstock.testing import Broker

UNKNOWN_LAG = -1  # until the share-partition leader writes a state


@pytest.fixture(scope="module")
def node() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


async def alter(client: AsyncClient, topic: str, offset: int) -> ErrorCode:
    part = altering.AlterShareGroupOffsetsRequestPartition(partition_index=0, start_offset=offset)
    wanted = altering.AlterShareGroupOffsetsRequestTopic(topic_name=topic, partitions=[part])
    answer = await client.ask_coordinator(
        topic, altering.AlterShareGroupOffsetsRequest(group_id=topic, topics=[wanted])
    )
    assert not answer.error_code
    return ErrorCode(answer.responses[0].partitions[0].error_code)


async def offset_and_lag(client: AsyncClient, topic: str) -> tuple[int, int]:
    asked = describing.DescribeShareGroupOffsetsRequestGroup(group_id=topic, topics=None)
    answer = await client.ask_coordinator(topic, describing.DescribeShareGroupOffsetsRequest(groups=[asked]))
    part = answer.groups[0].topics[0].partitions[0]
    assert not part.error_code
    return part.start_offset, part.lag


def test_share_group_with_a_start_offset_above_the_log_gets_the_records_from_this_offset_on(node: Broker) -> None:
    topic = "above"
    node.create_topics({topic: 1})

    async def scenario() -> None:
        async with client_of(node) as client:
            await configure(client, topic)
            await produce(client, topic, *"ab")
            assert await alter(client, topic, 4) is ErrorCode.NONE
            assert await offset_and_lag(client, topic) == (4, UNKNOWN_LAG)
            async with consumer(node, topic) as member:
                while not member.assignment:
                    await member.poll()
                assert await member.poll() == []
                await produce(client, topic, *"cd")
                assert await member.poll() == []
                await produce(client, topic, *"ef")
                records = await take(member, 2)
                assert values(records) == ["e", "f"]
                assert await settle(member, records) == [ErrorCode.NONE]
            assert await offset_and_lag(client, topic) == (6, 0)

    run(scenario)


def test_share_group_with_the_largest_start_offset_gets_no_records_until_it_is_moved_back(node: Broker) -> None:
    topic = "largest"
    node.create_topics({topic: 1})

    async def scenario() -> None:
        async with client_of(node) as client:
            await configure(client, topic)
            await produce(client, topic, *"ab")
            assert await alter(client, topic, 2**63 - 1) is ErrorCode.NONE
            assert await offset_and_lag(client, topic) == (2**63 - 1, UNKNOWN_LAG)
            async with consumer(node, topic) as member:
                while not member.assignment:
                    await member.poll()
                assert await member.poll() == []
            assert await alter(client, topic, 1) is ErrorCode.NONE
            assert await offset_and_lag(client, topic) == (1, UNKNOWN_LAG)
            async with consumer(node, topic) as member:
                assert values(await take(member, 1)) == ["b"]

    run(scenario)


def test_share_fetch_above_the_log_is_answered_without_records_and_without_an_error(node: Broker) -> None:
    topic = "empty-above"
    node.create_topics({topic: 1})

    async def scenario() -> None:
        async with client_of(node) as client:
            await configure(client, topic)
            await produce(client, topic, *"ab")
            assert await alter(client, topic, 4) is ErrorCode.NONE
            await client.topic(topic)
            wanted = fetching.FetchTopic(
                topic_id=client.cluster.topic_id(topic), partitions=[fetching.FetchPartition(partition_index=0)]
            )
            for epoch in range(2):
                request = fetching.ShareFetchRequest(
                    group_id=topic,
                    member_id="m",
                    share_session_epoch=epoch,
                    max_wait_ms=1,
                    max_records=10,
                    batch_size=10,
                    topics=[wanted],
                )
                answer = await client.request(request, channel="share")
                assert not answer.error_code
                for each in answer.responses:
                    [part] = each.partitions
                    assert (part.error_code, part.acquired_records) == (0, [])

    run(scenario)
