"""Tests the consumer: positions, fetches ahead of `poll`, and refused fetches."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from fake_broker import FAST, TOPIC_ID, Answer, FakeBroker, fake_broker, fetched, offset_answer, run

from penstock.client.client import AsyncClient
from penstock.client.consumer import Consumer, ConsumerSettings, Since
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_01_fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
)
from penstock.protocol.messages.api_02_list_offsets import ListOffsetsRequest
from penstock.protocol.vocabulary import EARLIEST, LATEST, READ_COMMITTED
from penstock.records.build import build_batch

T0 = ("t", 0)


class Log:
    """Answers the fetches of a fake broker: one record per offset up to `end`, with long polls."""

    def __init__(self, broker: FakeBroker, end: int) -> None:
        self.start = 0
        self.end = end
        self.grown = asyncio.Event()
        self.refusals: list[int] = []
        broker.on[1] = self.fetch
        broker.on[2] = self.list_offsets

    def grow(self, count: int) -> None:
        self.end += count
        self.grown.set()

    async def fetch(self, request: Any, version: int) -> Answer:
        if self.refusals:
            return fetched(code=self.refusals.pop(0))
        offset = request.topics[0].partitions[0].fetch_offset
        if not self.start <= offset <= self.end:
            return fetched(code=ErrorCode.OFFSET_OUT_OF_RANGE)
        if offset == self.end:
            self.grown.clear()
            await self.grown.wait()
        upto = min(self.end, offset + 5)
        records = [(1000 + at, None, b"%d" % at, ()) for at in range(offset, upto)]
        return fetched(build_batch(records, base_offset=offset), offset=self.end)

    def list_offsets(self, request: Any, version: int) -> Answer:
        timestamp = request.topics[0].partitions[0].timestamp
        if timestamp == EARLIEST:
            return offset_answer(self.start)
        if timestamp == LATEST:
            return offset_answer(self.end)
        offset = timestamp - 1000
        return offset_answer(offset if offset < self.end else -1)


@asynccontextmanager
async def consuming(
    end: int, settings: ConsumerSettings | None = None
) -> AsyncIterator[tuple[Consumer, Log, FakeBroker]]:
    async with fake_broker() as broker:
        log = Log(broker, end)
        async with AsyncClient(broker.address, retry=FAST) as client, Consumer(client, settings) as consumer:
            yield consumer, log, broker


async def read(consumer: Consumer, count: int) -> list[bytes | None]:
    values: list[bytes | None] = []
    while len(values) < count:
        for got in await consumer.poll():
            values += [record.value for record in got.records()]
    return values


def test_consumer_reads_all_records_in_order_from_the_beginning() -> None:
    async def scenario() -> None:
        async with consuming(23) as (consumer, _, _):
            await consumer.assign({T0: EARLIEST})
            assert await read(consumer, 23) == [b"%d" % at for at in range(23)]
            assert consumer.position(T0) == 23

    run(scenario())


def test_consumer_sends_the_next_fetch_before_the_next_poll() -> None:
    async def scenario() -> None:
        async with consuming(10) as (consumer, _, broker):
            await consumer.assign({T0: 0})
            assert len(await consumer.poll()) == 1
            while len(broker.requests(FetchRequest)) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0)
            assert broker.requests(FetchRequest)[1].topics[0].partitions[0].fetch_offset == 5

    run(scenario())


def test_poll_returns_no_records_if_none_arrive_before_its_timeout() -> None:
    async def scenario() -> None:
        async with consuming(0) as (consumer, log, _):
            await consumer.assign({T0: LATEST})
            assert await consumer.poll(timeout_s=0.01) == []
            log.grow(2)
            assert await read(consumer, 2) == [b"0", b"1"]

    run(scenario())


@pytest.mark.parametrize(
    ("position", "first"), [(EARLIEST, 0), (LATEST, 20), (7, 7), (Since(1012), 12), (Since(9999), 20)]
)
def test_consumer_starts_at_an_assigned_offset_at_an_assigned_time_or_at_the_log_end(
    position: int | Since, first: int
) -> None:
    async def scenario() -> None:
        async with consuming(20) as (consumer, _, _):
            await consumer.assign({T0: position})
            assert consumer.position(T0) == first

    run(scenario())


def test_consumer_drops_data_fetched_before_a_seek() -> None:
    async def scenario() -> None:
        async with consuming(20) as (consumer, _, _):
            await consumer.assign({T0: 0})
            await consumer.poll()
            await consumer.seek({T0: 15})
            assert await read(consumer, 5) == [b"15", b"16", b"17", b"18", b"19"]

    run(scenario())


def test_error_for_a_consumer_position_out_of_range_names_the_available_offsets() -> None:
    async def scenario() -> None:
        async with consuming(20) as (consumer, log, _):
            log.start = 5
            await consumer.assign({T0: 2})
            with pytest.raises(KafkaError, match="t-0 holds offsets 5 to 20, not offset 2") as raised:
                await read(consumer, 1)
            assert raised.value.code is ErrorCode.OFFSET_OUT_OF_RANGE

    run(scenario())


def test_consumer_with_reset_policy_earliest_continues_at_the_log_start_after_offset_out_of_range() -> None:
    async def scenario() -> None:
        async with consuming(20, ConsumerSettings(reset=EARLIEST)) as (consumer, log, _):
            log.start = 15
            await consumer.assign({T0: 2})
            assert (await read(consumer, 1))[0] == b"15"

    run(scenario())


def test_a_retriable_fetch_error_is_retried() -> None:
    async def scenario() -> None:
        async with consuming(5) as (consumer, log, broker):
            log.refusals = [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_ID]
            await consumer.assign({T0: 0})
            assert len(await read(consumer, 5)) == 5
            assert len(broker.requests(FetchRequest)) >= 3

    run(scenario())


def test_a_fatal_fetch_error_is_raised() -> None:
    async def scenario() -> None:
        async with consuming(5) as (consumer, log, _):
            log.refusals = [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 100
            await consumer.assign({T0: 0})
            with pytest.raises(KafkaError) as raised:
                await read(consumer, 1)
            assert raised.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
            log.refusals = [ErrorCode.TOPIC_AUTHORIZATION_FAILED]
            with pytest.raises(KafkaError, match="t-0 can't be read"):
                await read(consumer, 1)

    run(scenario())


def test_a_batch_with_a_wrong_length_raises_an_error_and_is_not_fetched_again() -> None:
    async def scenario() -> None:
        async with consuming(5) as (consumer, _, broker):
            rotten = bytearray(build_batch([(1000, None, b"0", ())], base_offset=0))
            rotten[9] ^= 0x80  # a byte of the batch length, which no checksum covers
            broker.on[1] = lambda request, version: fetched(bytes(rotten), offset=5)
            await consumer.assign({T0: 0})
            with pytest.raises(KafkaError, match="offset 0 of t-0 came damaged"):
                await read(consumer, 1)

    run(scenario())


def test_fetch_requests_contain_the_isolation_level() -> None:
    async def scenario() -> None:
        async with consuming(5, ConsumerSettings(isolation_level=READ_COMMITTED)) as (consumer, _, broker):
            await consumer.assign({T0: EARLIEST})
            await read(consumer, 5)
            assert broker.requests(FetchRequest)[0].isolation_level == READ_COMMITTED
            assert broker.requests(ListOffsetsRequest)[0].isolation_level == READ_COMMITTED

    run(scenario())


def test_consumer_does_not_read_a_partition_after_it_is_unassigned() -> None:
    async def scenario() -> None:
        async with consuming(5) as (consumer, _, _):
            await consumer.assign({T0: 0})
            consumer.unassign(T0)
            assert await consumer.poll(timeout_s=5) == []
            with pytest.raises(KafkaError, match="has 1 partition and no partition 1"):
                await consumer.assign({("t", 1): EARLIEST})

    run(scenario())


def test_consumer_fetches_from_the_leader_that_an_error_response_names() -> None:
    async def scenario() -> None:
        async with fake_broker(1) as one, fake_broker(2) as two:
            one.nodes = [one]
            Log(two, 5)

            def moved(request: Any, version: int) -> Answer:
                hint = LeaderIdAndEpoch(leader_id=2, leader_epoch=6)
                code = ErrorCode.NOT_LEADER_OR_FOLLOWER
                part = PartitionData(partition_index=0, error_code=code, current_leader=hint)
                return FetchResponse(
                    responses=[FetchableTopicResponse(topic_id=TOPIC_ID, partitions=[part])],
                    node_endpoints=[NodeEndpoint(node_id=2, host="127.0.0.1", port=two.port)],
                )

            one.on[1] = moved
            async with AsyncClient(one.address, retry=FAST) as client, Consumer(client) as consumer:
                await consumer.assign({T0: 0})
                assert len(await read(consumer, 5)) == 5
            assert len(one.requests(FetchRequest)) == 1

    run(scenario())
