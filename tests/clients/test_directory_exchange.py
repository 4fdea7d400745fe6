"""Tests one data directory that Apache Kafka creates, Penstock continues, and Kafka takes over again."""

from __future__ import annotations

import asyncio
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic

from penstock.client.connection import BrokerConnection
from penstock.net.network import RealNetwork
from penstock.protocol.errors import ErrorCode
from penstock.protocol.messages.api_88_streams_group_heartbeat import (
    StreamsGroupHeartbeatRequest,
    Subtopology,
    TaskIds,
    TopicInfo,
    Topology,
)
from penstock.protocol.messages.api_89_streams_group_describe import StreamsGroupDescribeRequest
from penstock.protocol.schema import Message
from tools import kafka

pytestmark = [pytest.mark.java, pytest.mark.slow]


@contextmanager
def penstock_on(directory: Path) -> Iterator[str]:
    command = [sys.executable, "-m", "penstock.cli.main", "up", "--port", "0", "--data", str(directory)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    said: list[str] = []
    for line in process.stdout:
        said.append(line)
        if found := re.match(r"ready (\S+)", line):
            break
    else:
        pytest.fail(f"the broker did not start: {''.join(said)}")
    try:
        yield found[1]
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=120)


def create(bootstrap: str, name: str, partitions: int = 1, configs: dict[str, str] | None = None) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(name, partitions, 1, config=configs or {})])[name].result(timeout=120)


def produce(bootstrap: str, topic: str, *values: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "compression.type": "zstd"})
    outcomes: list[object] = []
    for value in values:
        producer.produce(
            topic, value.encode(), key=b"k", partition=0, on_delivery=lambda error, _: outcomes.append(error)
        )
    assert producer.flush(30) == 0
    assert outcomes == [None] * len(values)


def consume(bootstrap: str, topic: str, count: int) -> list[str]:
    settings = {"bootstrap.servers": bootstrap, "group.id": "unused", "auto.offset.reset": "earliest"}
    consumer = Consumer({**settings, "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, 0)])
    try:
        values: list[str] = []
        while len(values) < count:
            messages = consumer.consume(count - len(values), timeout=120)
            assert messages, f"only {values} of {count} records came"
            for message in messages:
                assert message.error() is None
                values.append((message.value() or b"").decode())
        return values
    finally:
        consumer.close()


def commit(bootstrap: str, topic: str, offset: int) -> None:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "readers", "enable.auto.commit": False})
    while True:
        try:
            consumer.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)
            break
        except KafkaException as problem:  # the coordinator is not available at once after its topic is created
            if problem.args[0].code() not in (KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_LOAD_IN_PROGRESS):
                raise
    consumer.close()


def committed(bootstrap: str, topic: str) -> int:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "readers"})
    (found,) = consumer.committed([TopicPartition(topic, 0)], timeout=120)
    consumer.close()
    return int(found.offset)


def config_of(bootstrap: str, topic: str, name: str) -> str:
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    described = admin.describe_configs([resource])[resource].result(timeout=120)
    return str(described[name].value)


def test_kafka_and_penstock_use_the_same_data_directory_one_after_the_other(kafka_jars: None, tmp_path: Path) -> None:
    cluster = kafka.KafkaCluster(data=tmp_path, heap=("-Xmx512M", "-Xms256M"))
    with cluster:
        create(cluster.bootstrap, "kafkas", configs={"retention.ms": "123456789"})
        produce(cluster.bootstrap, "kafkas", "a", "b", "c")
        commit(cluster.bootstrap, "kafkas", 2)
    with penstock_on(cluster.members[0].log_dir) as bootstrap:
        assert consume(bootstrap, "kafkas", 3) == ["a", "b", "c"]
        assert config_of(bootstrap, "kafkas", "retention.ms") == "123456789"
        assert committed(bootstrap, "kafkas") == 2
        commit(bootstrap, "kafkas", 3)
        produce(bootstrap, "kafkas", "d", "e")
        create(bootstrap, "penstocks", configs={"cleanup.policy": "compact"})
        produce(bootstrap, "penstocks", "x")
    cluster.start()
    try:
        assert consume(cluster.bootstrap, "kafkas", 5) == ["a", "b", "c", "d", "e"]
        assert consume(cluster.bootstrap, "penstocks", 1) == ["x"]
        assert committed(cluster.bootstrap, "kafkas") == 3
        assert config_of(cluster.bootstrap, "penstocks", "cleanup.policy") == "compact"
    finally:
        cluster.stop()


LOADING = (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE)


class StreamsMember:
    """Represents a member of a streams group that owns all active tasks assigned to it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.epoch = 0
        self.owned: list[TaskIds] = []

    def beat(self, bootstrap: str) -> None:
        joins = self.epoch == 0
        part = Subtopology(subtopology_id="0", source_topics=["in"], state_changelog_topics=[TopicInfo(name="kept")])
        request = StreamsGroupHeartbeatRequest(
            group_id="streams",
            member_id=self.name,
            member_epoch=self.epoch,
            rebalance_timeout_ms=60_000 if joins else -1,
            topology=Topology(epoch=0, subtopologies=[part]) if joins else None,
            process_id=self.name if joins else None,
            active_tasks=self.owned,
            standby_tasks=[],
            warmup_tasks=[],
        )
        answer = asyncio.run(ask(bootstrap, request))
        assert answer.error_code in (0, *LOADING), answer
        if answer.error_code == 0:
            self.epoch = answer.member_epoch
            self.owned = self.owned if answer.active_tasks is None else answer.active_tasks

    def tasks(self) -> list[int]:
        return sorted(index for each in self.owned for index in each.partitions)


async def ask(bootstrap: str, request: Message) -> Any:
    host, _, port = bootstrap.rpartition(":")
    connection = await BrokerConnection.open(RealNetwork(), host, int(port))
    try:
        return await connection.request(request, version=0)
    finally:
        connection.close()
        await connection.wait_closed()


def described_streams(bootstrap: str) -> dict[str, tuple[int, list[int]]]:
    """Waits until the coordinator has loaded the group, and returns the epoch and the active tasks of each member."""
    while True:
        [group] = asyncio.run(ask(bootstrap, StreamsGroupDescribeRequest(group_ids=["streams"]))).groups
        if group.error_code not in LOADING:
            break
    assert group.error_code == 0, group
    return {
        member.member_id: (
            member.member_epoch,
            sorted(index for each in member.assignment.active_tasks for index in each.partitions),
        )
        for member in group.members
    }


def test_streams_group_continues_when_kafka_and_penstock_serve_it_in_turn(kafka_jars: None, tmp_path: Path) -> None:
    first, second = StreamsMember("first"), StreamsMember("second")
    cluster = kafka.KafkaCluster(data=tmp_path, heap=("-Xmx512M", "-Xms256M"))
    with cluster:
        create(cluster.bootstrap, "in", 2)
        commit(cluster.bootstrap, "in", 0)  # creates the topic of the coordinator
        while not first.tasks():
            first.beat(cluster.bootstrap)
        shown = described_streams(cluster.bootstrap)
        assert shown == {"first": (first.epoch, [0, 1])}
    with penstock_on(cluster.members[0].log_dir) as bootstrap:
        assert described_streams(bootstrap) == shown
        second.beat(bootstrap)
        while not second.tasks():
            first.beat(bootstrap)
            second.beat(bootstrap)
        assert sorted(first.tasks() + second.tasks()) == [0, 1]
        shown = described_streams(bootstrap)
        assert shown == {each.name: (each.epoch, each.tasks()) for each in (first, second)}
    cluster.start()
    try:
        assert described_streams(cluster.bootstrap) == shown
        for _ in range(3):
            first.beat(cluster.bootstrap)
            second.beat(cluster.bootstrap)
        kept = {each.name: each.tasks() for each in (first, second)}
        assert kept == {name: tasks for name, (_, tasks) in shown.items()}, "tasks stay with their members"
    finally:
        cluster.stop()
