"""Tests Penstock's own client, as the command line and Spark use it. The same tests pass against Apache Kafka."""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections.abc import Callable, Iterator

import pytest

from penstock.client.admin import NewTopic
from penstock.client.connection import ConnectionSettings
from penstock.client.consumer import ConsumerSettings, Position, Since
from penstock.client.producer import ProducerSettings
from penstock.client.sync import Client, SyncConsumer
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.vocabulary import EARLIEST, LATEST, MAX_TIMESTAMP, READ_COMMITTED, ConfigOperation, ResourceType
from penstock.records.record import Record

END_TXN = 26
TEN_MEGABYTES = 10 * 1024 * 1024

NewTopicName = Callable[..., str]


@pytest.fixture
def client(bootstrap: str) -> Iterator[Client]:
    with Client(bootstrap, settings=ConnectionSettings(client_id="own")) as client:
        yield client


def read(consumer: SyncConsumer, count: int) -> list[Record]:
    """Reads `count` records and returns them in the order of partitions and offsets.

    If records are missing, the time limit of the test ends the wait.
    """
    found: dict[tuple[int, int], Record] = {}
    while len(found) < count:
        for got in consumer.poll():
            found |= {(got.partition, record.offset): record for record in got.records()}
    return [found[key] for key in sorted(found)]


@pytest.mark.parametrize("codec", range(5))
@pytest.mark.parametrize("acks", [-1, 0, 1])
def test_penstocks_client_reads_records_as_they_were_sent(
    client: Client, topic: NewTopicName, codec: int, acks: int
) -> None:
    name = topic(partitions=3)
    # Records with acks=0 are lost if the leader doesn't know the topic yet: wait until it does.
    client.list_offsets({(name, partition): LATEST for partition in range(3)})
    with client.producer(ProducerSettings(acks=acks, compression=codec)) as producer:
        for number in range(100):
            headers = (("number", b"%d" % number), ("nothing", None))
            producer.send(name, b"value %d" % number, b"key %d" % number, headers=headers, timestamp_ms=1000 + number)
        producer.send(name, None, b"tombstone", partition=0, timestamp_ms=5)
        producer.send(name, b"", None, partition=1, timestamp_ms=5)
    with client.consumer() as consumer:
        consumer.assign({(name, partition): EARLIEST for partition in range(3)})
        records = read(consumer, 102)
    by_key = {record.key: record for record in records}
    assert len(by_key) == 102
    for number in range(100):
        record = by_key[b"key %d" % number]
        assert (record.value, record.timestamp) == (b"value %d" % number, 1000 + number)
        assert record.headers == (("number", b"%d" % number), ("nothing", None))
    assert by_key[b"tombstone"].value is None
    assert by_key[None].value == b""


def test_offsets_of_records_that_penstocks_client_sends_are_consecutive(client: Client, topic: NewTopicName) -> None:
    name = topic()
    with client.producer() as producer:
        sent = [producer.send(name, b"%d" % number) for number in range(50)]
        assert [each.result().offset for each in sent] == list(range(50))
        producer.send_many(name, [(None, b"%d" % number, (), None) for number in range(50, 5000)])
    with client.consumer() as consumer:
        consumer.assign({(name, 0): 0})
        assert [record.value for record in read(consumer, 5000)] == [b"%d" % number for number in range(5000)]
        assert consumer.position((name, 0)) == 5000


def test_penstocks_client_reads_a_message_of_ten_megabytes_as_it_was_sent(client: Client, topic: NewTopicName) -> None:
    name = topic(**{"max.message.bytes": str(TEN_MEGABYTES + 1000)})
    value = secrets.token_bytes(TEN_MEGABYTES)
    with client.producer() as producer:
        producer.send(name, b"small")
        producer.flush()
        producer.send(name, value)
        producer.flush()
        producer.send(name, b"small")
    with client.consumer() as consumer:
        consumer.assign({(name, 0): 0})
        assert [record.value for record in read(consumer, 3)] == [b"small", value, b"small"]


def test_penstocks_client_gets_an_error_for_a_too_large_message_and_can_send_the_next_one(
    client: Client, topic: NewTopicName
) -> None:
    name = topic(**{"max.message.bytes": "1000"})
    with client.producer() as producer:
        refused = producer.send(name, bytes(2000))
        with pytest.raises(KafkaError) as raised:
            refused.result()
        assert raised.value.code is ErrorCode.MESSAGE_TOO_LARGE
        assert producer.send(name, b"small").result().offset == 0


def test_penstocks_consumer_starts_at_an_offset_or_at_a_time(client: Client, topic: NewTopicName) -> None:
    name = topic()
    with client.producer() as producer:
        for number in range(20):
            producer.send(name, b"%d" % number, timestamp_ms=10_000 + number * 10)
            producer.flush()
    found = client.list_offsets({(name, 0): 10_055})[name, 0]
    assert (found.offset, found.timestamp) == (6, 10_060)
    assert client.list_offsets({(name, 0): LATEST})[name, 0].offset == 20
    assert client.list_offsets({(name, 0): EARLIEST})[name, 0].offset == 0
    assert client.list_offsets({(name, 0): MAX_TIMESTAMP})[name, 0].offset == 19
    assert client.list_offsets({(name, 0): 99_999})[name, 0].offset == -1
    with client.consumer() as consumer:
        positions: list[tuple[Position, int]] = [(7, 7), (Since(10_100), 10), (Since(10_101), 11)]
        for position, first in positions:
            consumer.assign({(name, 0): position})
            assert read(consumer, 20 - first)[0].offset == first
        consumer.assign({(name, 0): LATEST})
        assert consumer.position((name, 0)) == 20


def test_position_out_of_range_is_an_error_unless_the_consumer_has_a_reset_policy(
    client: Client, topic: NewTopicName
) -> None:
    name = topic()
    with client.producer() as producer:
        producer.send_many(name, [(None, b"x", (), None)] * 10)
    assert client.delete_records({(name, 0): 4}) == {(name, 0): 4}
    with client.consumer() as consumer:
        consumer.assign({(name, 0): 1})
        with pytest.raises(KafkaError, match="holds offsets 4 to 10, not offset 1"):
            read(consumer, 1)
    with client.consumer(ConsumerSettings(reset=EARLIEST)) as consumer:
        consumer.assign({(name, 0): 1})
        assert read(consumer, 6)[0].offset == 4


def test_penstocks_client_creates_and_describes_and_extends_and_deletes_topics(client: Client) -> None:
    name = f"own-{secrets.token_hex(6)}"
    client.create_topics([NewTopic(name, 2, 1)], validate_only=True)
    client.create_topic(name, 2, 1, retention_ms="1000000")
    with pytest.raises(KafkaError) as raised:
        client.create_topic(name, 2, 1)
    assert raised.value.code is ErrorCode.TOPIC_ALREADY_EXISTS
    (described,) = client.describe_topics([name])
    assert sorted(described.partitions) == [0, 1]
    client.create_partitions(name, 4)
    client.leader(name, 3)
    assert name in {each.name for each in client.list_topics()}
    client.delete_topics(ids=[described.topic_id])
    while name in {each.name for each in client.list_topics()}:
        pass
    with pytest.raises(KafkaError, match="There is no topic"):
        client.describe_topics([name])


def test_penstocks_client_changes_single_configs_of_a_topic(client: Client, topic: NewTopicName) -> None:
    name = topic(**{"retention.ms": "1000000"})

    def own() -> dict[str, str | None]:
        return {
            each.name: each.value
            for each in client.describe_configs(ResourceType.TOPIC, name)
            if each.config_source == 1
        }

    assert own() == {"retention.ms": "1000000"}
    client.alter_configs(
        ResourceType.TOPIC,
        name,
        [
            ("retention.ms", ConfigOperation.DELETE, None),
            ("max.message.bytes", ConfigOperation.SET, "2000"),
            ("cleanup.policy", ConfigOperation.APPEND, "compact"),
        ],
    )
    expected = {"max.message.bytes": "2000", "cleanup.policy": "delete,compact"}
    while own() != expected:
        pass
    with pytest.raises(KafkaError) as raised:
        client.alter_configs(ResourceType.TOPIC, name, [("max.message.bytes", ConfigOperation.SET, "many")])
    assert raised.value.code is ErrorCode.INVALID_CONFIG


def test_describe_cluster_lists_the_nodes_that_the_client_knows(client: Client) -> None:
    described = client.describe_cluster()
    assert {each.broker_id for each in described.brokers} == {node.node_id for node in client.nodes()}


def test_several_threads_can_use_one_client(client: Client, topic: NewTopicName) -> None:
    name = topic(partitions=4)

    def produce(partition: int) -> None:
        with client.producer() as producer:
            for number in range(100):
                producer.send(name, b"%d" % number, partition=partition)

    threads = [threading.Thread(target=produce, args=(partition,)) for partition in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ends = client.list_offsets({(name, partition): LATEST for partition in range(4)})
    assert [ends[name, partition].offset for partition in range(4)] == [100] * 4


def test_sync_client_can_be_used_inside_a_running_event_loop(bootstrap: str, topic: NewTopicName) -> None:
    name = topic()

    async def notebook() -> int:
        with Client(bootstrap) as client, client.producer() as producer:
            return producer.send(name, b"x").result().offset

    assert asyncio.run(notebook()) == 0


def test_read_committed_consumers_read_only_committed_transactions(client: Client, topic: NewTopicName) -> None:
    connection = client.run(client.asynchronous.connection())
    if END_TXN not in connection.versions:
        pytest.skip("the broker has no transactions yet")
    name = topic(partitions=2)
    settings = ProducerSettings(transactional_id=f"own-{secrets.token_hex(6)}")
    with client.producer(settings) as producer:
        for round_number in range(4):
            producer.begin()
            for number in range(10):
                producer.send(name, b"%d %d" % (round_number, number), b"%d" % number)
            if round_number % 2:
                producer.abort()
            else:
                producer.commit()
    partitions = {(name, partition): EARLIEST for partition in range(2)}
    with client.consumer(ConsumerSettings(isolation_level=READ_COMMITTED)) as consumer:
        consumer.assign(partitions)
        assert {(record.value or b"")[:1] for record in read(consumer, 20)} == {b"0", b"2"}
    with client.consumer() as consumer:
        consumer.assign(partitions)
        assert len(read(consumer, 40)) == 40
