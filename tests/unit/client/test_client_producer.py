"""Tests the producer with a broker that loses state, refuses batches, moves leaders and closes connections."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from fake_broker import FAST, TOPIC_ID, Answer, FakeBroker, fake_broker, run

from penstock.client.client import AsyncClient
from penstock.client.partitioner import partition_for_key
from penstock.client.producer import Producer, ProducerSettings
from penstock.client.retry import Retry
from penstock.clock import ManualClock
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_00_produce import (
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionProduceResponse,
    ProduceResponse,
    TopicProduceResponse,
)
from penstock.protocol.messages.api_03_metadata import MetadataRequest
from penstock.protocol.messages.api_22_init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from penstock.records.header import BatchHeader, parse_header
from penstock.records.record import read_records


class Partitions:
    """Answers the Produce requests of a fake broker: keeps batches by partition, and first returns the given error
    codes."""

    def __init__(self, broker: FakeBroker) -> None:
        self.logs: dict[int, list[bytes]] = {}
        self.tried: list[bytes] = []
        self.refusals: list[int] = []
        self.ids = 0
        self.hold: asyncio.Future[None] | None = None
        broker.on[0] = self.produce
        broker.on[22] = self.init_producer_id

    def init_producer_id(self, request: Any, version: int) -> Answer:
        self.ids += 1
        return InitProducerIdResponse(producer_id=1000 + self.ids, producer_epoch=0)

    async def produce(self, request: Any, version: int) -> Answer:
        if self.hold is not None:
            await self.hold
        (topic,) = request.topic_data
        assert topic.topic_id == TOPIC_ID
        answers = []
        for part in topic.partition_data:
            batch = bytes(part.records)
            self.tried.append(batch)
            code = self.refusals.pop(0) if self.refusals else 0
            answer = PartitionProduceResponse(index=part.index, error_code=code, base_offset=-1)
            if not code:
                log = self.logs.setdefault(part.index, [])
                answer.base_offset = sum(parse_header(each).records_count for each in log)
                log.append(batch)
            answers.append(answer)
        if request.acks == 0:
            return None
        return ProduceResponse(responses=[TopicProduceResponse(topic_id=TOPIC_ID, partition_responses=answers)])

    def values(self, partition: int = 0) -> list[bytes | None]:
        return [record.value for batch in self.logs[partition] for record in read_records(batch)]

    def headers(self, partition: int = 0) -> list[BatchHeader]:
        return [parse_header(batch) for batch in self.logs[partition]]


@asynccontextmanager
async def producing(
    settings: ProducerSettings | None = None, partitions: int = 1
) -> AsyncIterator[tuple[Producer, Partitions, FakeBroker]]:
    async with fake_broker() as broker, AsyncClient(broker.address, retry=FAST) as client:
        broker.leaders = dict.fromkeys(range(partitions), 1)
        logs = Partitions(broker)
        producer = Producer(client, ManualClock(5000), settings or ProducerSettings(linger_s=0.001))
        try:
            yield producer, logs, broker
        finally:
            await producer.close()


def test_send_returns_the_offset_and_timestamp_of_a_record() -> None:
    async def scenario() -> None:
        async with producing() as (producer, logs, _):
            first = await producer.send("t", b"one", b"key", headers=(("h", b"x"),))
            second = await producer.send("t", None, timestamp_ms=7)
            assert tuple(await second) == ("t", 0, 1, 7)
            assert tuple(await first) == ("t", 0, 0, 5000)
            (record, tombstone) = read_records(logs.logs[0][0])
            assert (record.key, record.value, record.headers) == (b"key", b"one", (("h", b"x"),))
            assert (tombstone.key, tombstone.value) == (None, None)

    run(scenario())


def test_producer_sends_many_records_in_few_batches_and_in_order() -> None:
    async def scenario() -> None:
        settings = ProducerSettings(linger_s=60, batch_bytes=1000)
        async with producing(settings) as (producer, logs, _):
            values = [b"%03d" % number for number in range(200)]
            for value in values:
                await producer.send("t", value)
            await producer.flush()
            assert logs.values() == values
            assert len(logs.logs[0]) < 10
            headers = logs.headers()
            assert [h.base_sequence for h in headers] == [
                sum(h.records_count for h in headers[:index]) for index in range(len(headers))
            ]
            assert {h.producer_id for h in headers} == {1001}

    run(scenario())


def test_producer_sends_all_records_of_a_key_to_one_partition_and_spreads_records_without_a_key() -> None:
    async def scenario() -> None:
        async with producing(partitions=3) as (producer, logs, _):
            for _ in range(3):
                await producer.send("t", b"keyed", b"abc")
            await producer.send("t", b"told", partition=2)
            await producer.flush()
            assert set(logs.logs) == {479470107 % 3, 2}
            for _ in range(3):
                await producer.send("t", b"anywhere")
                await producer.flush()
            assert sum(len(log) for log in logs.logs.values()) >= 4

    run(scenario())


def test_send_many_delivers_all_records_with_far_fewer_partition_lookups_than_records(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    records: list[Any] = [(None, b"value %d" % each, (), 7) for each in range(1000)]
    records += [(b"key %d" % (each % 50), b"", (("h", None),) if each % 2 else (), None) for each in range(1000)]
    places = 0
    whole = Producer._place

    async def counted(*words: Any) -> Any:
        nonlocal places
        places += 1
        return await whole(*words)

    monkeypatch.setattr(Producer, "_place", counted)

    async def scenario() -> None:
        settings = ProducerSettings(batch_bytes=4096, buffer_bytes=16_384)
        async with producing(settings, partitions=3) as (producer, logs, _):
            batches = await producer.send_many("t", records)
            await producer.flush()
            assert all(batch.done.done() for batch in batches)
            assert places < 150, "for 2,000 records in batches of 4 KiB"
            written = {index: [r for batch in log for r in read_records(batch)] for index, log in logs.logs.items()}
        assert sum(map(len, written.values())) == 2000
        for key in {record[0] for record in records[1000:]}:
            assert [r[1:] for r in written[partition_for_key(key, 3)] if r.key == key] == [
                (5000, key, value, headers) for each, value, headers, _ in records if each == key
            ]
        keyless = [(r.timestamp, r.value) for log in written.values() for r in log if r.key is None]
        assert sorted(keyless) == sorted((7, value) for _, value, _, _ in records[:1000])

    run(scenario())


def test_producer_retries_a_batch_with_the_same_bytes_and_keeps_the_order() -> None:
    async def scenario() -> None:
        async with producing(ProducerSettings(linger_s=0.001, batch_bytes=200)) as (producer, logs, _):
            logs.refusals = [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_ENOUGH_REPLICAS]
            values = [b"%03d" % number for number in range(50)]
            for value in values:
                await producer.send("t", value)
            await producer.flush()
            assert logs.values() == values
            assert logs.tried[0] == logs.tried[1] == logs.tried[2]

    run(scenario())


def test_producer_retries_a_batch_after_a_lost_connection() -> None:
    async def scenario() -> None:
        async with producing() as (producer, logs, broker):
            answer = broker.on[0]

            def hang_up(request: Any, version: int) -> Answer:
                broker.on[0] = answer
                for connection in list(broker.server.connections.values()):
                    connection.abort()
                return None

            broker.on[0] = hang_up
            await (await producer.send("t", b"one"))
            assert logs.values() == [b"one"]

    run(scenario())


def test_producer_gets_a_new_id_and_restarts_its_sequence_after_unknown_producer_id() -> None:
    async def scenario() -> None:
        async with producing() as (producer, logs, broker):
            await (await producer.send("t", b"one"))
            logs.refusals = [ErrorCode.UNKNOWN_PRODUCER_ID]
            await (await producer.send("t", b"two"))
            assert [(h.producer_id, h.base_sequence) for h in logs.headers()] == [(1001, 0), (1002, 0)]
            assert len(broker.requests(InitProducerIdRequest)) == 2

    run(scenario())


def test_producer_continues_to_send_records_after_a_batch_was_refused() -> None:
    async def scenario() -> None:
        async with producing() as (producer, logs, _):
            logs.refusals = [ErrorCode.MESSAGE_TOO_LARGE]
            refused = await producer.send("t", b"huge")
            with pytest.raises(KafkaError, match="Records for t-0") as raised:
                await producer.flush()
            assert raised.value.code is ErrorCode.MESSAGE_TOO_LARGE
            with pytest.raises(KafkaError):
                await refused
            await (await producer.send("t", b"small"))
            assert [(h.producer_id, h.base_sequence) for h in logs.headers()] == [(1002, 0)]

    run(scenario())


def test_duplicate_sequence_error_counts_as_a_successful_write() -> None:
    async def scenario() -> None:
        async with producing() as (producer, logs, _):
            logs.refusals = [ErrorCode.DUPLICATE_SEQUENCE_NUMBER]
            assert (await (await producer.send("t", b"again"))).offset == -1

    run(scenario())


def test_send_fails_after_the_delivery_timeout() -> None:
    async def scenario() -> None:
        settings = ProducerSettings(linger_s=0, delivery_timeout_s=0.02)
        async with producing(settings) as (producer, logs, _):
            logs.refusals = [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 10_000
            with pytest.raises(KafkaError) as raised:
                await (await producer.send("t", b"never"))
            assert raised.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER

    run(scenario())


def test_send_fails_after_the_delivery_timeout_even_if_the_partition_has_no_leader() -> None:
    """Without the delivery timeout, the client would wait much longer for an election."""

    async def scenario() -> None:
        patient = Retry(attempts=10_000, first_pause_s=0.01, longest_pause_s=0.01)
        async with fake_broker() as broker, AsyncClient(broker.address, retry=patient) as client:
            broker.leaders = {0: -1}
            Partitions(broker)
            producer = Producer(client, ManualClock(5000), ProducerSettings(linger_s=0, delivery_timeout_s=0.05))
            async with asyncio.timeout(20):
                with pytest.raises(KafkaError) as raised:
                    await (await producer.send("t", b"never", partition=0))
            assert raised.value.code is ErrorCode.LEADER_NOT_AVAILABLE
            await producer.close()

    run(scenario())


@pytest.mark.parametrize("acks", [0, 1])
def test_producer_without_idempotence_requests_no_producer_id(acks: int) -> None:
    async def scenario() -> None:
        async with producing(ProducerSettings(acks=acks, linger_s=0)) as (producer, logs, broker):
            sent = await producer.send("t", b"one")
            assert (await sent).offset == (0 if acks else -1)
            while not logs.logs:  # noqa: ASYNC110
                await asyncio.sleep(0)
            assert logs.headers()[0].producer_id == -1
            assert not broker.requests(InitProducerIdRequest)

    run(scenario())


def test_send_waits_for_buffer_space() -> None:
    async def scenario() -> None:
        settings = ProducerSettings(linger_s=60, buffer_bytes=3000, batch_bytes=1500)
        async with producing(settings) as (producer, logs, _):
            logs.hold = asyncio.get_running_loop().create_future()
            for _ in range(3):
                await producer.send("t", bytes(1000))
            waiting = asyncio.ensure_future(producer.send("t", bytes(1000)))
            await asyncio.sleep(0)
            assert not waiting.done()
            logs.hold.set_result(None)
            await waiting
            await producer.flush()
            assert len(logs.values()) == 4

    run(scenario())


@pytest.mark.parametrize("compression", range(5))
def test_batches_are_compressed_with_the_configured_codec(compression: int) -> None:
    async def scenario() -> None:
        async with producing(ProducerSettings(linger_s=0, compression=compression)) as (producer, logs, _):
            await (await producer.send("t", b"abc" * 100))
            assert logs.headers()[0].compression == compression
            assert logs.values() == [b"abc" * 100]

    run(scenario())


def test_closing_the_producer_fails_undelivered_records() -> None:
    async def scenario() -> None:
        async with producing(ProducerSettings(linger_s=60)) as (producer, _, _):
            sent = await producer.send("t", b"one")
            await producer.close()
            with pytest.raises(KafkaError, match="closed before delivery"):
                await sent

    run(scenario())


def test_closing_a_producer_with_acks_0_first_sends_its_buffered_records() -> None:
    async def scenario() -> None:
        async with fake_broker() as broker:
            logs = Partitions(broker)
            settings = ProducerSettings(acks=0)
            async with (
                AsyncClient(broker.address, retry=FAST) as client,
                Producer(client, ManualClock(), settings) as producer,
            ):
                await producer.send("t", bytes(5_000_000))
            while not logs.logs:  # noqa: ASYNC110
                await asyncio.sleep(0)
            assert len(logs.values()[0] or b"") == 5_000_000

    run(scenario())


def test_producer_uses_the_new_leader_in_an_error_response_without_a_metadata_request() -> None:
    async def scenario() -> None:
        async with fake_broker(1) as one, fake_broker(2) as two:
            one.nodes = [one]
            logs = Partitions(two)

            def moved(request: Any, version: int) -> Answer:
                hint = LeaderIdAndEpoch(leader_id=2, leader_epoch=6)
                code = ErrorCode.NOT_LEADER_OR_FOLLOWER
                part = PartitionProduceResponse(index=0, error_code=code, base_offset=-1, current_leader=hint)
                return ProduceResponse(
                    responses=[TopicProduceResponse(topic_id=TOPIC_ID, partition_responses=[part])],
                    node_endpoints=[NodeEndpoint(node_id=2, host="127.0.0.1", port=two.port)],
                )

            one.on[0] = moved
            one.on[22] = logs.init_producer_id
            async with (
                AsyncClient(one.address, retry=FAST) as client,
                Producer(client, ManualClock(), ProducerSettings(linger_s=0)) as producer,
            ):
                await (await producer.send("t", b"x"))
                asked = len(one.requests(MetadataRequest))
                await (await producer.send("t", b"y"))
            assert logs.values() == [b"x", b"y"]
            assert len(one.requests(MetadataRequest)) == asked == 1
            assert not two.requests(MetadataRequest)

    run(scenario())
