"""Tests how several whole nodes form a cluster, in this process with real sockets and disks in memory."""

from __future__ import annotations

import asyncio
import errno
import logging
import random
import re
import socket
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest

from penstock.broker.controlplane.controller_channel import principal_data
from penstock.client.connection import BrokerConnection
from penstock.disk.memory import MemoryDisk
from penstock.metadata.configs.definition import ConfigError
from penstock.metadata.configs.settings import Settings
from penstock.metadata.image import MetadataImage
from penstock.metadata.names import random_uuid
from penstock.net.network import RealNetwork
from penstock.node.listeners import ListenerError
from penstock.node.local import make_node
from penstock.node.node import Node
from penstock.node.quorum_setup import plan_quorum
from penstock.node.storage import FormatPlan, StorageError, format_storage
from penstock.protocol.codec import encode
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_03_metadata import MetadataRequest, MetadataRequestTopic
from penstock.protocol.messages.api_19_create_topics import CreatableTopic, CreateTopicsRequest
from penstock.protocol.messages.api_35_describe_log_dirs import DescribeLogDirsRequest
from penstock.protocol.messages.api_44_incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from penstock.protocol.messages.api_55_describe_quorum import DescribeQuorumRequest, PartitionData, TopicData
from penstock.protocol.messages.api_58_envelope import EnvelopeRequest
from penstock.protocol.messages.api_60_describe_cluster import DescribeClusterRequest
from penstock.protocol.messages.api_64_unregister_broker import UnregisterBrokerRequest
from penstock.protocol.messages.headers import RequestHeader
from penstock.raft.voters import Voter

CLUSTER = "MkU3OEVBNTcwNTJENDM2Qg"
STRANGE = "AAAAAAAAAAAAAAAAAAAAAA"
METADATA = "__cluster_metadata-0"
LIMIT_S = 120.0
#: Short timeouts, so that tests don't wait for seconds.
QUICK = {
    "controller.quorum.election.timeout.ms": "300",
    "controller.quorum.fetch.timeout.ms": "1000",
    "broker.heartbeat.interval.ms": "200",
    "offsets.topic.num.partitions": "2",
    "transaction.state.log.num.partitions": "2",
}


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(LIMIT_S):
            await scenario()

    asyncio.run(bounded())


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


class Cluster:
    """Runs nodes; a node id in `controllers` and `brokers` is both. With `static`, the voters are in the properties."""

    def __init__(
        self,
        controllers: list[int],
        brokers: list[int],
        *,
        static: bool = False,
        extra: Mapping[str, str] | None = None,
        dirs: tuple[str, ...] = ("/data",),
    ) -> None:
        self.dirs = dirs
        self.ids = sorted({*controllers, *brokers})
        self.controllers, self.brokers, self.static = controllers, brokers, static
        self.extra = {**QUICK, **(extra or {})}
        self.ports = dict(zip(controllers, free_ports(len(controllers))))
        dice = random.Random(1)
        self.voters = tuple(
            Voter(one, random_uuid(dice), (("CONTROLLER", "127.0.0.1", self.ports[one]),)) for one in controllers
        )
        self.disks = {one: MemoryDisk() for one in self.ids}
        self.nodes: dict[int, Node] = {}
        self.lives = 0
        for one in self.ids:
            self.format(one)

    def format(self, node_id: int, *, joins: bool = False, cluster_id: str = CLUSTER) -> None:
        plan = FormatPlan(
            self.dirs,
            node_id,
            cluster_id=cluster_id,
            initial_controllers=() if self.static or joins else self.voters,
            static_voters=self.static,
            joins=joins,
        )
        format_storage(self.disks[node_id], plan, random=random.Random(100 + node_id), now_ms=0)

    def settings(self, node_id: int, **more: str) -> Settings:
        roles, listeners = [], []
        if node_id in self.brokers:
            roles.append("broker")
            listeners.append("PLAINTEXT://127.0.0.1:0")
        if node_id in self.controllers:
            roles.append("controller")
            listeners.append(f"CONTROLLER://127.0.0.1:{self.ports[node_id]}")
        addresses = {one: f"127.0.0.1:{port}" for one, port in self.ports.items()}
        quorum = (
            {"controller.quorum.voters": ",".join(f"{one}@{where}" for one, where in addresses.items())}
            if self.static
            else {"controller.quorum.bootstrap.servers": ",".join(addresses.values())}
        )
        return Settings(
            {
                "process.roles": ",".join(roles),
                "node.id": str(node_id),
                "listeners": ",".join(listeners),
                "controller.listener.names": "CONTROLLER",
                "log.dirs": ",".join(self.dirs),
                **quorum,
                **self.extra,
                **more,
            }
        )

    def make(self, node_id: int, **more: str) -> Node:
        self.lives += 1  # every incarnation has a seed of its own, and thus a new incarnation id
        return make_node(self.settings(node_id, **more), self.disks[node_id], seed=100 * self.lives + node_id)

    async def start(self, *node_ids: int) -> None:
        started = {one: self.make(one) for one in node_ids or self.ids}
        await asyncio.gather(*(node.start() for node in started.values()))
        self.nodes |= started

    async def stop(self, *node_ids: int) -> None:
        await asyncio.gather(*(self.nodes.pop(one).stop(1.0) for one in node_ids or list(self.nodes)))

    async def kill(self, node_id: int) -> None:
        await self.nodes.pop(node_id).abandon()

    async def end(self) -> None:
        await asyncio.gather(*(node.abandon() for node in self.nodes.values()))
        self.nodes.clear()

    @property
    def leader(self) -> int:
        return next((one for one, node in self.nodes.items() if node.broker.metadata.leading), -1)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Waits until the condition is true. Checks it at every new image. The time limit ends an endless wait."""
        news = asyncio.Event()
        for node in self.nodes.values():
            node.broker.metadata.subscribe(lambda old, new: news.set())
            node.broker.metadata.watch_leadership(lambda leads: news.set())
        while not condition():
            news.clear()
            await news.wait()

    async def everywhere(self, condition: Callable[[MetadataImage], bool]) -> None:
        await self.until(lambda: all(condition(node.broker.metadata.image) for node in self.nodes.values()))

    async def ask(self, node_id: int, request: Any, *, controller: bool = False) -> Any:
        node = self.nodes[node_id]
        host, _, port = ((node.controller_bootstrap if controller else node.bootstrap) or "").rpartition(":")
        connection = await BrokerConnection.open(RealNetwork(), host, int(port))
        try:
            return await connection.request(request)
        finally:
            connection.close()

    async def create(self, node_id: int, topic: str, factor: int = 1, partitions: int = 1) -> int:
        wanted = CreatableTopic(name=topic, num_partitions=partitions, replication_factor=factor)
        answer = await self.ask(node_id, CreateTopicsRequest(topics=[wanted], timeout_ms=20_000))
        return int(answer.topics[0].error_code)


@pytest.mark.parametrize("static", [False, True], ids=["voters in the log", "voters in the properties"])
def test_three_nodes_form_a_cluster_in_which_each_node_can_create_topics(static: bool) -> None:
    async def scenario() -> None:
        cluster = Cluster([1, 2, 3], [1, 2, 3], static=static)
        await cluster.start()
        for one in (1, 2, 3):
            assert await cluster.create(one, f"t{one}", 3) == ErrorCode.NONE
        await cluster.everywhere(lambda image: {"t1", "t2", "t3"} <= image.topics.keys())
        ends = {(node.broker.metadata.image.topics["t1"].topic_id) for node in cluster.nodes.values()}
        assert len(ends) == 1
        for node in cluster.nodes.values():
            assert sorted(node.broker.metadata.image.brokers) == [1, 2, 3]
            assert sorted(node.broker.metadata.image.controllers) == [1, 2, 3]
        await cluster.end()

    run(scenario)


def test_the_cluster_continues_when_the_active_controller_stops_or_dies() -> None:
    async def scenario() -> None:
        cluster = Cluster([1, 2, 3], [1, 2, 3])
        await cluster.start()
        first = cluster.leader
        await cluster.stop(first)
        await cluster.until(lambda: cluster.leader > 0)
        assert await cluster.create(cluster.leader, "after-stop") == ErrorCode.NONE
        await cluster.start(first)
        second = cluster.leader
        await cluster.kill(second)
        await cluster.until(lambda: cluster.leader > 0)
        left = next(iter(cluster.nodes))
        assert await cluster.create(left, "after-kill") == ErrorCode.NONE
        await cluster.end()

    run(scenario)


def test_killed_controller_is_replaced_before_the_fetch_timeout_of_the_quorum_ends() -> None:
    """The failover takes about 70 ms on an idle machine; the test asserts only that no timeout has to expire."""

    async def scenario() -> None:
        cluster = Cluster([1, 2, 3], [1, 2, 3], extra={"controller.quorum.fetch.timeout.ms": "60000"})
        await cluster.start()
        await cluster.kill(cluster.leader)
        await cluster.until(lambda: cluster.leader > 0)
        assert await cluster.create(next(iter(cluster.nodes)), "t") == ErrorCode.NONE
        await cluster.end()

    run(scenario)


def test_nodes_that_are_stopped_at_the_same_time_do_not_wait_for_each_other() -> None:
    async def scenario() -> None:
        cluster = Cluster([1, 2, 3], [1, 2, 3])
        await cluster.start()
        assert await cluster.create(1, "t", 3) == ErrorCode.NONE
        await cluster.stop()
        await cluster.start()
        await cluster.everywhere(lambda image: "t" in image.topics)
        await cluster.end()

    run(scenario)


def test_brokers_and_controllers_may_be_different_nodes() -> None:
    async def scenario() -> None:
        cluster = Cluster([1, 2, 3], [4, 5])
        await cluster.start()
        assert await cluster.create(4, "t", 2) == ErrorCode.NONE
        await cluster.everywhere(lambda image: "t" in image.topics and sorted(image.brokers) == [4, 5])
        answer = await cluster.ask(5, MetadataRequest(topics=[MetadataRequestTopic(name="t")]))
        assert sorted(one.node_id for one in answer.brokers) == [4, 5]
        await cluster.kill(cluster.leader)
        assert await cluster.create(5, "u") == ErrorCode.NONE
        await cluster.stop(4, 5)
        await cluster.end()

    run(scenario)


def test_broker_answers_describe_quorum_and_controller_answers_describe_cluster() -> None:
    async def scenario() -> None:
        cluster = Cluster([1, 2, 3], [3, 4])
        await cluster.start()
        partition = TopicData(topic_name="__cluster_metadata", partitions=[PartitionData(partition_index=0)])
        for one in (3, 4):
            answer = await cluster.ask(one, DescribeQuorumRequest(topics=[partition]))
            told = answer.topics[0].partitions[0]
            assert told.error_code == ErrorCode.NONE
            assert told.leader_id == cluster.leader
            assert sorted(voter.replica_id for voter in told.current_voters) == [1, 2, 3]
            assert [observer.replica_id for observer in told.observers] == [4]
        await cluster.everywhere(lambda image: len(image.controllers) == 3)
        answer = await cluster.ask(1, DescribeClusterRequest(endpoint_type=2), controller=True)
        assert [(one.broker_id, one.port) for one in answer.brokers] == sorted(cluster.ports.items())
        assert answer.controller_id == cluster.leader
        await cluster.end()

    run(scenario)


def test_voter_that_restarts_with_an_empty_disk_becomes_an_observer(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        cluster = Cluster([1, 2, 3], [1, 2, 3])
        await cluster.start()
        await cluster.stop(3)
        cluster.disks[3] = MemoryDisk()
        cluster.format(3, joins=True)
        await cluster.start(3)
        assert "Remove that voter" in caplog.text
        leader = cluster.nodes[cluster.leader].broker.metadata.quorum()
        assert [replica.key.node_id for replica in leader.observers] == [3]
        await cluster.end()

    run(scenario)


def test_a_controller_with_a_new_disk_becomes_a_voter_again_if_auto_join_is_on() -> None:
    async def scenario() -> None:
        cluster = Cluster([1, 2, 3], [1, 2, 3], extra={"controller.quorum.auto.join.enable": "true"})
        await cluster.start()
        await cluster.stop(3)
        cluster.disks[3] = MemoryDisk()
        cluster.format(3, joins=True)
        await cluster.start(3)
        me = cluster.nodes[3].broker.metadata.voter
        await cluster.until(lambda: me in cluster.nodes[1].broker.metadata.quorum().voters)
        await cluster.end()

    run(scenario)


def contents(disk: MemoryDisk) -> dict[str, bytes]:
    """Returns the files that identify a directory's owner and hold its metadata."""
    log = f"/data/{METADATA}"
    names = ["/data/meta.properties", *(f"{log}/{each}" for each in (disk.listdir(log) if disk.exists(log) else ()))]
    return {name: disk.read_bytes(name) for name in names if name.endswith((".properties", ".log", ".checkpoint"))}


@pytest.mark.parametrize("node_id", [3, 4], ids=["a voter", "a broker that joins"])
def test_node_refuses_a_disk_of_another_cluster_and_does_not_modify_it(
    node_id: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.broker.controlplane.lifecycle.REGISTRATION_TRY_MS", 300)

    async def scenario() -> None:
        cluster = Cluster([1, 2, 3], [1, 2, 3, 4])
        cluster.disks[node_id] = MemoryDisk()
        cluster.format(node_id, joins=node_id == 4, cluster_id=STRANGE)
        await cluster.start(1, 2)
        before = contents(cluster.disks[node_id])
        with pytest.raises(StorageError, match=f"directories of cluster {STRANGE} was refused: .* another cluster"):
            await cluster.make(node_id).start()
        assert node_id not in cluster.nodes[1].broker.metadata.image.brokers
        assert contents(cluster.disks[node_id]).items() >= before.items()
        await cluster.end()

    run(scenario)


def test_controller_of_another_cluster_is_refused_by_the_quorum(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.broker.controlplane.lifecycle.REGISTRATION_TRY_MS", 300)

    async def scenario() -> None:
        cluster = Cluster([1, 2, 3], [1, 2])
        cluster.disks[3] = MemoryDisk()
        cluster.format(3, cluster_id=STRANGE)
        await cluster.start(1, 2)
        stranger = cluster.make(3)
        told = asyncio.Event()
        watch = logging.Handler()
        watch.emit = lambda record: told.set() if "was refused" in record.getMessage() else None  # type: ignore[method-assign]
        logging.getLogger("penstock.broker.controlplane.lifecycle").addHandler(watch)
        try:
            await stranger.start()
            await told.wait()
        finally:
            logging.getLogger("penstock.broker.controlplane.lifecycle").removeHandler(watch)
        assert not stranger.broker.metadata.leading
        assert cluster.leader in (1, 2)
        await stranger.abandon()
        await cluster.end()

    run(scenario)
    assert f"Controller 3 with directories of cluster {STRANGE} was refused" in caplog.text


@pytest.mark.parametrize(
    ("properties", "command"),
    [
        ({}, "format --standalone`"),
        ({"controller.quorum.bootstrap.servers": "a:1"}, "format --no-initial-controllers --cluster-id"),
        (
            {"controller.quorum.bootstrap.servers": "localhost:0"},
            "format --standalone`",
        ),  # as in Kafka's file
        ({"controller.quorum.bootstrap.servers": "localhost:0,b:1"}, "format --no-initial-controllers --cluster-id"),
        ({"controller.quorum.voters": "1@a:1,2@b:2"}, "format --cluster-id"),
    ],
)
def test_node_with_an_empty_disk_does_not_start_and_the_error_names_the_format_command(
    properties: dict[str, str], command: str
) -> None:
    async def scenario() -> None:
        listeners = "PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:0"
        given = {"node.id": "1", "listeners": listeners, "controller.listener.names": "CONTROLLER"}
        disk = MemoryDisk()
        node = make_node(Settings({**given, "log.dirs": "/data", **properties}), disk, seed=1)
        with pytest.raises(StorageError, match=re.escape(command)):
            await node.start()
        assert not disk.exists("/data")

    run(scenario)


def test_a_second_broker_with_the_same_id_is_refused_while_the_first_runs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> None:
        cluster = Cluster([1, 2, 3], [4])
        await cluster.start()
        cluster.disks[4] = MemoryDisk()
        cluster.format(4, joins=True)
        with pytest.raises(StorageError, match=r"same node\.id is running"):
            await cluster.make(4, **{"initial.broker.registration.timeout.ms": "1000"}).start()
        told = [record for record in caplog.records if "same node.id is running" in record.getMessage()]
        assert len(told) == 1, "the one sentence comes with the first refusal, and once"
        assert "up to 1 s" in told[0].getMessage()
        assert not cluster.nodes[4].broker.metadata.image.brokers[4].fenced
        await cluster.end()

    run(scenario)


@pytest.mark.parametrize(
    ("properties", "sentence"),
    [
        ({"node.id": "4", "controller.quorum.voters": "1@a:1,2@b:2,3@c:3"}, "not among controller.quorum.voters"),
        ({"process.roles": "broker", "controller.quorum.voters": "1@a:1"}, "which is not a controller"),
        ({"process.roles": "broker"}, "has no controllers to connect to"),
        ({"controller.quorum.voters": "1@a:1,1@b:2"}, "named twice"),
        ({"controller.quorum.voters": "a:1"}, "is not id@host:port"),
        ({"controller.quorum.bootstrap.servers": "a"}, "is not host:port"),
        ({"controller.quorum.voters": "1@a:1,2@b:2"}, "has no listener for other controllers"),
        ({"process.roles": "controller"}, "only a controller"),
    ],
)
def test_node_refuses_properties_from_which_no_quorum_can_form(properties: dict[str, str], sentence: str) -> None:
    given = {"node.id": "1", "listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": "/data", **properties}
    with pytest.raises((ConfigError, ListenerError), match=sentence):
        make_node(Settings(given), MemoryDisk(), seed=1)


def test_property_sets_the_byte_limit_of_fetches_from_the_metadata_log() -> None:
    config = plan_quorum(Settings({"controller.quorum.fetch.max.bytes": "4096"}), ("CONTROLLER",)).config
    assert config.fetch_max_bytes == 4096


@pytest.mark.parametrize(("timeout", "wait_ms"), [(None, 500), ("6000", 1500), ("1", 1)])
def test_maximum_wait_of_a_metadata_log_fetch_is_a_quarter_of_the_quorum_fetch_timeout(
    timeout: str | None, wait_ms: int
) -> None:
    chosen = {} if timeout is None else {"controller.quorum.fetch.timeout.ms": timeout}
    assert plan_quorum(Settings(chosen), ("CONTROLLER",)).config.fetch_max_wait_ms == wait_ms


def test_a_cordoned_broker_gets_no_new_replicas_until_it_is_uncordoned() -> None:
    async def scenario() -> None:
        cluster = Cluster([1, 2, 3], [1, 2, 3])
        await cluster.start()

        async def cordon(value: str | None) -> int:
            operation = AlterableConfig(name="cordoned.log.dirs", config_operation=int(value is None), value=value)
            resource = AlterConfigsResource(resource_type=4, resource_name="3", configs=[operation])
            answer = await cluster.ask(3, IncrementalAlterConfigsRequest(resources=[resource]))
            return int(answer.responses[0].error_code)

        async def described() -> bool:
            answer = await cluster.ask(3, DescribeLogDirsRequest(topics=None))
            return bool(answer.results[0].is_cordoned)

        for wrong in ("*,/data", "/data,/elsewhere"):
            assert await cordon(wrong) == ErrorCode.INVALID_REQUEST
        assert await cordon("*") == ErrorCode.NONE
        await cluster.everywhere(lambda image: bool(image.brokers[3].cordoned_log_dirs))
        assert await described()
        assert await cluster.create(1, "three", factor=3) == ErrorCode.INVALID_REPLICATION_FACTOR
        assert await cluster.create(1, "two", factor=2) == ErrorCode.NONE
        await cluster.everywhere(lambda image: "two" in image.topics)
        image = cluster.nodes[3].broker.metadata.image
        assert sorted(image.topics["two"].partitions[0].replicas) == [1, 2]
        await cluster.stop(3)
        await cluster.start(3)  # it is cordoned before it is unfenced, so no replica is placed in between
        assert cluster.nodes[3].broker.metadata.image.brokers[3].cordoned_log_dirs
        assert await cordon(None) == ErrorCode.NONE
        await cluster.everywhere(lambda image: not image.brokers[3].cordoned_log_dirs)
        assert not await described()
        assert await cluster.create(1, "three", factor=3) == ErrorCode.NONE
        await cluster.end()

    run(scenario)


def test_a_running_broker_registers_again_after_it_was_unregistered() -> None:
    async def scenario() -> None:
        cluster = Cluster([1, 2, 3], [1, 2, 3])
        await cluster.start()
        assert await cluster.create(1, "t", factor=3) == ErrorCode.NONE
        await cluster.everywhere(lambda image: "t" in image.topics)
        victim = next(one for one in cluster.ids if one != cluster.leader)
        before = cluster.nodes[victim].broker_epoch
        answer = await cluster.ask(victim, UnregisterBrokerRequest(broker_id=victim))
        assert answer.error_code == ErrorCode.NONE

        def back(image: MetadataImage) -> bool:
            broker = image.brokers.get(victim)
            in_sync = image.topics["t"].partitions[0].isr
            return broker is not None and broker.epoch > before and not broker.fenced and len(in_sync) == 3

        await cluster.everywhere(back)
        await cluster.end()

    run(scenario)


def test_a_failed_directory_takes_only_its_own_replicas_offline() -> None:
    async def scenario() -> None:
        cluster = Cluster([1, 2, 3], [1, 2, 3], dirs=("/data", "/more"))
        await cluster.start()
        assert await cluster.create(1, "t", factor=3, partitions=4) == ErrorCode.NONE
        kept, failing = (directory.directory_id for directory in cluster.nodes[3].broker.logs.dirs)

        def places(image: MetadataImage) -> list[tuple[bytes | None, bool]]:
            parts = image.topics["t"].partitions.values() if "t" in image.topics else ()
            return sorted((part.directory(3), 3 in part.isr) for part in parts)

        told = sorted([(kept, True), (failing, True)] * 2)
        await cluster.everywhere(lambda image: places(image) == told)

        def fail(operation: str, path: str) -> None:
            if path.startswith("/more/"):
                raise OSError(errno.EIO, "Input/output error", path)

        cluster.disks[3].on_write = fail
        await cluster.create(1, "u", factor=3, partitions=4)  # a topic with new logs in both directories
        lost = sorted([(kept, True), (failing, False)] * 2)
        await cluster.everywhere(lambda image: image.brokers[3].log_dirs == (kept,) and places(image) == lost)
        await cluster.end()

    run(scenario)


def test_envelope_that_contains_no_controller_request_is_refused() -> None:
    async def scenario() -> None:
        cluster = Cluster([1, 2, 3], [1, 2, 3])
        await cluster.start()
        leader = cluster.leader
        other = next(one for one in cluster.ids if one != leader)
        who, where = principal_data("User:ANONYMOUS"), bytes((127, 0, 0, 1))
        header = RequestHeader(request_api_key=3, request_api_version=12, correlation_id=1, client_id="x")
        for data in (b"", b"\0\3\0\0", encode(header, 2) + encode(MetadataRequest(topics=None), 12)):
            envelope = EnvelopeRequest(request_data=data, request_principal=who, client_host_address=where)
            assert (await cluster.ask(leader, envelope, controller=True)).error_code == ErrorCode.INVALID_REQUEST
            assert (await cluster.ask(other, envelope, controller=True)).error_code == ErrorCode.NOT_CONTROLLER
        await cluster.end()

    run(scenario)


def test_controller_request_times_out_without_a_majority() -> None:
    async def scenario() -> None:
        cluster = Cluster([1, 2, 3], [1, 2, 3])
        await cluster.start()
        first, second = cluster.leader, next(one for one in cluster.ids if one != cluster.leader)
        await cluster.kill(first)
        await cluster.kill(second)
        (left,) = cluster.nodes
        wanted = CreateTopicsRequest(topics=[CreatableTopic(name="t", num_partitions=1, replication_factor=1)])
        with pytest.raises(KafkaError) as caught:
            await cluster.nodes[left].broker.channel.ask(wanted, timeout_ms=200)
        assert caught.value.code is ErrorCode.REQUEST_TIMED_OUT
        await cluster.end()

    run(scenario)
