"""Tests how the client finds brokers, topics and leaders, and how often it retries."""

import asyncio
from random import Random

import pytest
from fake_broker import FAST, fake_broker, offset_answer, run

from penstock.client.admin import Admin
from penstock.client.client import UNKNOWN_TOPIC_ATTEMPTS, AsyncClient, parse_bootstrap
from penstock.client.connection import BrokerConnection
from penstock.client.offsets import list_offsets
from penstock.client.retry import Retry
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_00_produce import LeaderIdAndEpoch, NodeEndpoint
from penstock.protocol.messages.api_02_list_offsets import ListOffsetsRequest
from penstock.protocol.messages.api_03_metadata import MetadataRequest
from penstock.protocol.messages.api_32_describe_configs import DescribeConfigsResponse, DescribeConfigsResult
from penstock.protocol.messages.api_60_describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from penstock.protocol.vocabulary import LATEST, MAX_TIMESTAMP, ResourceType


def test_bootstrap_addresses_are_parsed_into_hosts_and_ports() -> None:
    assert parse_bootstrap("a:1, b:2") == [("a", 1), ("b", 2)]
    assert parse_bootstrap(["[::1]:9093", "host", "[::1]"]) == [("::1", 9093), ("host", 9092), ("::1", 9092)]
    for wrong, reason in (
        ("", "names no host"),
        (":1", "names no host"),
        ("a:", "names no port: write a:9092"),
        ("a:b", "'b' is not a port"),
        ("a:0", "'0' is not a port"),
        ("a:70000", "'70000' is not a port"),
        ("::1", "an IPv6 address in brackets"),
        ("fe80::1:9092", "an IPv6 address in brackets"),
    ):
        with pytest.raises(ValueError, match=reason):
            parse_bootstrap(wrong)


def test_retry_pauses_have_jitter_and_double_up_to_a_maximum() -> None:
    retry = Retry(first_pause_s=0.1, longest_pause_s=1.0)
    random = Random(3)
    for failures, expected in [(1, 0.1), (2, 0.2), (3, 0.4), (4, 0.8), (5, 1.0), (1000, 1.0)]:
        assert expected * 0.8 <= retry.pause_s(failures, random) <= expected * 1.2


class FakeConnection:
    closed = False

    def close(self) -> None:
        self.closed = True

    async def wait_closed(self) -> None:
        assert self.closed


@pytest.mark.parametrize("turns", range(1, 12))
def test_closing_a_client_during_its_connect_leaves_no_open_connection(
    turns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[FakeConnection] = []

    async def come_up(network: object, host: str, port: int, settings: object) -> FakeConnection:
        for _ in range(port):
            await asyncio.sleep(0)
        opened.append(FakeConnection())
        return opened[-1]

    monkeypatch.setattr(BrokerConnection, "open", come_up)

    async def scenario() -> None:
        client = AsyncClient(["a:3", "b:1000"], retry=FAST)
        connecting = asyncio.ensure_future(client.connection())
        for _ in range(turns):
            await asyncio.sleep(0)
        await client.close()
        await asyncio.wait([connecting])
        await asyncio.sleep(0)
        assert [each for each in opened if not each.closed] == []

    run(scenario())


def test_client_skips_a_bootstrap_address_that_refuses_connections() -> None:
    async def scenario() -> None:
        async with fake_broker() as gone:
            dead = gone.address
        async with fake_broker() as broker, AsyncClient([dead, broker.address], retry=FAST) as client:
            await client.metadata()
            assert client.cluster.cluster_id == "fake"
        with pytest.raises(KafkaError, match="Can't connect"):
            await AsyncClient([dead], retry=FAST).connection()

    run(scenario())


def test_client_replaces_a_lost_connection() -> None:
    async def scenario() -> None:
        async with fake_broker() as broker, AsyncClient(broker.address, retry=FAST) as client:
            broker.on[60] = lambda request, version: DescribeClusterResponse(cluster_id="c")
            await client.request(DescribeClusterRequest())
            (await client.connection()).close()
            assert (await client.request(DescribeClusterRequest())).cluster_id == "c"

    run(scenario())


def test_client_has_one_connection_for_fetches_and_one_for_other_requests_to_each_node() -> None:
    async def scenario() -> None:
        async with fake_broker() as broker, AsyncClient(broker.address, retry=FAST) as client:
            await client.refresh([])
            first = await client.connection(1)
            assert await client.connection(1) is first
            assert await client.connection(1, "fetch") is not first
            with pytest.raises(KafkaError, match="Node 9 is not among the cluster's live brokers"):
                await client.connection(9)

    run(scenario())


def test_client_sends_requests_to_the_new_leader_after_the_leader_moves() -> None:
    async def scenario() -> None:
        async with fake_broker(1) as one, fake_broker(2) as two:
            one.nodes = two.nodes = [one, two]
            async with AsyncClient(one.address, retry=FAST) as client:
                one.on[2] = lambda request, version: offset_answer(10)
                assert (await list_offsets(client, {("t", 0): LATEST}))["t", 0].offset == 10

                def moved(request: object, version: int) -> object:
                    one.leaders = two.leaders = {0: 2}
                    return offset_answer(-1, ErrorCode.NOT_LEADER_OR_FOLLOWER)

                one.on[2] = moved  # type: ignore[assignment]
                two.on[2] = lambda request, version: offset_answer(20)
                assert (await list_offsets(client, {("t", 0): LATEST}))["t", 0].offset == 20
                assert len(two.requests(ListOffsetsRequest)) == 1
                assert two.requests(ListOffsetsRequest)[0].topics[0].partitions[0].current_leader_epoch == 5

    run(scenario())


def test_client_gives_up_after_a_limited_number_of_retries() -> None:
    async def scenario() -> None:
        async with fake_broker() as broker, AsyncClient(broker.address, retry=FAST) as client:
            broker.on[2] = lambda request, version: offset_answer(-1, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            with pytest.raises(KafkaError) as raised:
                await list_offsets(client, {("t", 0): LATEST})
            assert raised.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
            assert len(broker.requests(ListOffsetsRequest)) == FAST.attempts
            broker.seen.clear()
            broker.on[2] = lambda request, version: offset_answer(-1, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
            with pytest.raises(KafkaError, match="The offset of t-0"):
                await list_offsets(client, {("t", 0): LATEST})
            assert len(broker.requests(ListOffsetsRequest)) == 1

    run(scenario())


def test_list_offsets_by_max_timestamp_fails_if_the_broker_is_too_old_to_support_it() -> None:
    async def scenario() -> None:
        async with fake_broker() as broker:
            broker.versions[2] = (1, 6)
            async with AsyncClient(broker.address, retry=FAST) as client:
                with pytest.raises(KafkaError, match="too old"):
                    await list_offsets(client, {("t", 0): MAX_TIMESTAMP})

    run(scenario())


def test_request_for_a_missing_topic_fails_after_a_few_metadata_requests() -> None:
    async def scenario() -> None:
        async with fake_broker() as broker, AsyncClient(broker.address, retry=FAST) as client:
            broker.unknown_topics.add("nope")
            with pytest.raises(KafkaError, match="There is no topic 'nope'"):
                await client.topic("nope")
            assert len(broker.requests(MetadataRequest)) == UNKNOWN_TOPIC_ATTEMPTS
            assert not broker.requests(MetadataRequest)[0].allow_auto_topic_creation
            with pytest.raises(KafkaError, match="has 1 partition and no partition 3"):
                await client.leader("t", 3)

    run(scenario())


def test_leader_lookup_fails_without_a_leader_and_succeeds_after_an_election() -> None:
    async def scenario() -> None:
        async with fake_broker() as broker, AsyncClient(broker.address, retry=FAST) as client:
            broker.leaders = {0: -1}
            with pytest.raises(KafkaError) as raised:
                await client.leader("t", 0)
            assert raised.value.code is ErrorCode.LEADER_NOT_AVAILABLE
            broker.leaders = {0: 1}
            assert await client.leader("t", 0) == 1

    run(scenario())


def test_client_requests_the_configs_of_a_broker_from_the_same_broker() -> None:
    async def scenario() -> None:
        async with fake_broker(1) as one, fake_broker(2) as two:
            one.nodes = two.nodes = [one, two]
            two.on[32] = lambda request, version: DescribeConfigsResponse(
                results=[
                    DescribeConfigsResult(resource_type=ResourceType.BROKER, resource_name="2", error_message=None)
                ]
            )
            async with AsyncClient(one.address, retry=FAST) as client:
                assert await Admin(client).describe_configs(ResourceType.BROKER, "2") == []

    run(scenario())


def test_unknown_error_code_of_a_newer_broker_is_reported_as_an_error() -> None:
    async def scenario() -> None:
        async with fake_broker() as broker, AsyncClient(broker.address, retry=FAST) as client:
            broker.on[2] = lambda request, version: offset_answer(-1, 30_000)
            with pytest.raises(KafkaError) as raised:
                await list_offsets(client, {("t", 0): LATEST})
            assert raised.value.code is ErrorCode.UNKNOWN_SERVER_ERROR

    run(scenario())


def test_leader_in_an_error_response_is_used_only_if_its_epoch_is_newer_than_the_known_epoch() -> None:
    async def scenario() -> None:
        async with fake_broker() as broker, AsyncClient(broker.address, retry=FAST) as client:
            await client.topic("t")
            new_node = [NodeEndpoint(node_id=2, host="elsewhere", port=9, rack=None)]
            cluster = client.cluster
            assert not cluster.take_hint(("t", 0), LeaderIdAndEpoch(leader_id=2, leader_epoch=5), new_node)
            assert not cluster.take_hint(("t", 0), LeaderIdAndEpoch(leader_id=-1, leader_epoch=6), new_node)
            assert not cluster.take_hint(("t", 0), LeaderIdAndEpoch(leader_id=2, leader_epoch=6), [])
            assert not cluster.take_hint(("t", 9), LeaderIdAndEpoch(leader_id=2, leader_epoch=6), new_node)
            assert cluster.leader("t", 0) == 1
            assert cluster.take_hint(("t", 0), LeaderIdAndEpoch(leader_id=2, leader_epoch=6), new_node)
            assert cluster.leader("t", 0) == 2
            assert cluster.nodes[2].host == "elsewhere"

    run(scenario())
