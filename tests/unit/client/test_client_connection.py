"""Tests one connection of the client: versions, the order of responses, and failures of the broker."""

import asyncio
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from fake_broker import Answer, FakeBroker, fake_broker, run

from penstock.client.connection import BrokerConnection, ConnectionSettings
from penstock.net.network import RealNetwork
from penstock.protocol.codec import encode
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_01_fetch import FetchableTopicResponse, FetchResponse, PartitionData
from penstock.protocol.messages.api_18_api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from penstock.protocol.messages.api_60_describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from penstock.protocol.messages.headers import ResponseHeader
from penstock.protocol.schema import Message

FETCH_VERSION = 13


@asynccontextmanager
async def connected(broker: FakeBroker, settings: ConnectionSettings | None = None) -> AsyncIterator[BrokerConnection]:
    connection = await BrokerConnection.open(RealNetwork(), "127.0.0.1", broker.port, settings)
    try:
        yield connection
    finally:
        connection.close()


def named(name: str) -> DescribeClusterResponse:
    return DescribeClusterResponse(cluster_id=name)


def test_client_uses_the_highest_version_that_broker_and_client_support() -> None:
    async def scenario() -> None:
        async with fake_broker() as broker:
            broker.versions[60] = (0, 1)
            used: list[int] = []

            def answer(request: object, version: int) -> Message:
                used.append(version)
                return named("c")

            broker.on[60] = answer
            async with connected(broker) as connection:
                assert (await connection.request(DescribeClusterRequest())).cluster_id == "c"
                assert (await connection.request(DescribeClusterRequest(), version=0)).cluster_id == "c"
            assert used == [1, 0]

    run(scenario())


def test_client_connects_to_a_broker_that_supports_only_older_versions_of_apiversions() -> None:
    async def scenario() -> None:
        async with fake_broker() as broker:
            known = ApiVersionsResponse(error_code=35, api_keys=[ApiVersion(api_key=18, min_version=0, max_version=2)])

            def answer(request: object, version: int) -> Answer:
                if version > 2:
                    # The correlation id of a connection's first request is zero.
                    return [bytes(4), encode(known, 0)]
                return ApiVersionsResponse(api_keys=[ApiVersion(api_key=60, min_version=0, max_version=0)])

            broker.on[18] = answer
            async with connected(broker) as connection:
                assert connection.versions == {60: (0, 0)}
                assert connection.version_of(60) == 0

    run(scenario())


def test_request_of_an_api_that_the_broker_does_not_support_fails_before_it_is_sent() -> None:
    async def scenario() -> None:
        async with fake_broker() as broker:
            del broker.versions[60]
            async with connected(broker) as connection:
                with pytest.raises(KafkaError, match="supports no version of DescribeCluster") as raised:
                    await connection.request(DescribeClusterRequest())
                assert raised.value.code is ErrorCode.UNSUPPORTED_VERSION
                broker.versions[60] = (0, 0)
                async with connected(broker) as second:
                    with pytest.raises(KafkaError, match="serves only DescribeCluster v0"):
                        await second.request(DescribeClusterRequest(include_fenced_brokers=True))
                    assert not second.closed

    run(scenario())


def test_request_with_a_value_out_of_range_for_its_field_raises_an_error() -> None:
    async def scenario() -> None:
        async with fake_broker() as broker:
            broker.versions[60] = (1, 1)
            async with connected(broker) as connection:
                with pytest.raises(KafkaError, match="DescribeCluster can't be sent") as raised:
                    await connection.request(DescribeClusterRequest(endpoint_type=1000))
                assert raised.value.code is ErrorCode.INVALID_REQUEST
                assert not connection.closed

    run(scenario())


def test_each_concurrent_request_on_a_connection_gets_its_own_response() -> None:
    async def scenario() -> None:
        async with fake_broker() as broker:
            count = 0

            def answer(request: object, version: int) -> Message:
                nonlocal count
                count += 1
                return named(str(count))

            broker.on[60] = answer
            async with connected(broker) as connection:
                asked = [connection.request(DescribeClusterRequest()) for _ in range(50)]
                assert [a.cluster_id for a in await asyncio.gather(*asked)] == [str(n + 1) for n in range(50)]

    run(scenario())


def test_request_timeout_closes_the_connection_and_fails_all_its_requests() -> None:
    async def scenario() -> None:
        async with fake_broker() as broker:
            never: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
            broker.on[60] = lambda request, version: never
            async with connected(broker) as connection:
                results = await asyncio.gather(
                    connection.request(DescribeClusterRequest(), timeout_s=0.02),
                    connection.request(DescribeClusterRequest()),
                    return_exceptions=True,
                )
                for result in results:
                    assert isinstance(result, KafkaError)
                    assert result.code is ErrorCode.REQUEST_TIMED_OUT
                assert connection.closed
                with pytest.raises(KafkaError, match=r"didn't answer within 0\.02 s"):
                    await connection.request(DescribeClusterRequest())
            never.cancel()

    run(scenario())


def test_waiting_request_fails_when_the_broker_closes_the_connection() -> None:
    async def scenario() -> None:
        async with fake_broker() as broker:

            def hang_up(request: object, version: int) -> Answer:
                for open_connection in list(broker.server.connections.values()):
                    open_connection.abort()
                return None

            broker.on[60] = hang_up
            async with connected(broker) as connection:
                with pytest.raises(KafkaError, match="closed the connection") as raised:
                    await connection.request(DescribeClusterRequest())
                assert raised.value.code is ErrorCode.NETWORK_EXCEPTION

    run(scenario())


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        ([b"\x00\x00\x00\x63", b"\x00" * 20], "sent an answer without a request"),
        ([b"\x00"], "sent an answer without a request"),
        ([b"\x00\x00\x00\x01", b"\x00", b"\xff" * 20], "invalid answer to DescribeCluster v2"),
        (
            [b"\x00\x00\x00\x01", b"\x00" * 5000],
            "did not answer like a Kafka broker: the peer announced a frame of 5004 bytes",
        ),
    ],
)
def test_invalid_response_fails_the_request_and_closes_the_connection(answer: list[bytes], sentence: str) -> None:
    async def scenario() -> None:
        async with fake_broker() as broker:
            broker.on[60] = lambda request, version: answer
            async with connected(broker, ConnectionSettings(max_response_bytes=4000)) as connection:
                with pytest.raises(KafkaError, match=sentence):
                    await connection.request(DescribeClusterRequest())
                assert connection.closed

    run(scenario())


def test_client_sends_no_request_on_a_closing_connection() -> None:
    async def scenario() -> None:
        async with fake_broker() as broker, connected(broker) as connection:
            transport = connection._stream.transport
            assert transport is not None
            transport.abort()  # as a failed read does; the protocol hears of it in the next pass of the loop
            assert not connection.closed
            with pytest.raises(KafkaError) as refused:
                connection.post(DescribeClusterRequest(), 1)
            assert refused.value.code is ErrorCode.NETWORK_EXCEPTION
            assert connection.in_flight == 0

    run(scenario())


def test_refused_connection_raises_a_network_exception_with_the_address() -> None:
    async def scenario() -> None:
        async with fake_broker() as broker:
            port = broker.port
        with pytest.raises(KafkaError, match=f"Can't connect to 127.0.0.1:{port}") as raised:
            await BrokerConnection.open(RealNetwork(), "127.0.0.1", port)
        assert raised.value.code is ErrorCode.NETWORK_EXCEPTION

    run(scenario())


def test_response_of_32_kb_is_decoded_completely() -> None:
    async def scenario() -> None:
        async with fake_broker() as broker:
            broker.on[60] = lambda request, version: named("x" * 32_000 if version else "")
            async with connected(broker) as connection:
                for _ in range(10):
                    assert len((await connection.request(DescribeClusterRequest())).cluster_id) == 32_000

    run(scenario())


def test_client_decodes_a_fetch_response_without_copying_its_records() -> None:
    async def go() -> None:
        async with fake_broker() as broker, connected(broker) as connection:
            part = PartitionData(partition_index=0, records=bytes(8_000_000))
            topic = FetchableTopicResponse(topic_id=bytes(16), partitions=[part])
            body = encode(FetchResponse(responses=[topic]), FETCH_VERSION)
            frame = memoryview(b"".join((encode(ResponseHeader(correlation_id=1), 1), body)))
            tracemalloc.start()
            try:
                answer = connection.decoded(frame, FetchResponse.API_KEY, FETCH_VERSION)
                _, peak = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            assert len(answer.responses[0].partitions[0].records) == 8_000_000
            assert peak < 4_000_000

    run(go())


def test_requests_carry_the_client_id() -> None:
    async def scenario() -> None:
        async with fake_broker() as broker, connected(broker):
            (hello,) = broker.requests(ApiVersionsRequest)
            assert hello.client_software_name == "penstock"

    run(scenario())
