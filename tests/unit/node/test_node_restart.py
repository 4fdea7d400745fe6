"""Tests a whole node on a disk in memory: starts, stops, crashes, and failing directories."""

from __future__ import annotations

import asyncio
import errno
import logging
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.controlplane.controller_channel import ControllerChannel
from penstock.broker.replicas.directory_assignments import DirectoryAssignments
from penstock.disk.api import DiskError
from penstock.disk.memory import MemoryDisk
from penstock.disk.real import RealDisk
from penstock.metadata.apply import apply
from penstock.metadata.configs.definition import ConfigError
from penstock.metadata.decision import Decision
from penstock.metadata.framing import decode_record, encode_record, record_class
from penstock.metadata.image import EMPTY_IMAGE, METADATA_VERSION, MetadataImage
from penstock.metadata.snapshot import records_of
from penstock.node.local import format_if_new, local_settings, make_node
from penstock.node.node import Node
from penstock.node.storage import FormatPlan, StorageError, format_storage
from penstock.protocol.errors import ErrorCode
from penstock.protocol.messages.api_00_produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from penstock.protocol.messages.api_01_fetch import FetchPartition, FetchRequest, FetchTopic
from penstock.protocol.messages.api_19_create_topics import CreatableTopic, CreateTopicsRequest
from penstock.protocol.messages.api_62_broker_registration import BrokerRegistrationResponse
from penstock.protocol.vocabulary import NO_LEADER
from penstock.records.build import build_batch
from penstock.records.record import read_records

DIRECTORIES = "/data/a,/data/b"


class Fixture:
    """Calls the node's handlers as the dispatcher does, without sockets."""

    def __init__(self, node: Node, client_id: str = "test") -> None:
        self.node = node
        self.client_id = client_id

    async def call(self, api_key: int, version: int, request: Any) -> Any:
        from penstock.broker.handlers.registry import load_handler
        from penstock.broker.requests.context import RequestContext

        now_ms = self.node.clock.wall_ms()
        context = RequestContext(api_key, version, 1, self.client_id, None, now_ms)  # type: ignore[arg-type]
        answer = load_handler(api_key)(self.node.broker, context, request)
        return await answer if isinstance(answer, Awaitable) else answer

    async def create(self, topic: str, partitions: int, **configs: str) -> None:
        answer = await self.call(
            19,
            2,
            CreateTopicsRequest(topics=[CreatableTopic(name=topic, num_partitions=partitions, replication_factor=1)]),
        )
        assert answer.topics[0].error_code == ErrorCode.NONE

    async def produce(self, topic: str, partition: int, value: bytes) -> tuple[ErrorCode, int]:
        batch = bytearray(build_batch([(self.node.clock.wall_ms(), None, value, ())]))
        data = PartitionProduceData(index=partition, records=memoryview(batch))
        request = ProduceRequest(acks=-1, topic_data=[TopicProduceData(name=topic, partition_data=[data])])
        answer = (await self.call(0, 9, request)).responses[0].partition_responses[0]
        return ErrorCode(answer.error_code), answer.base_offset

    async def fetch(self, topic: str, partition: int) -> tuple[ErrorCode, list[bytes | None]]:
        wanted = FetchPartition(partition=partition, fetch_offset=0, partition_max_bytes=1 << 20)
        request = FetchRequest(max_bytes=1 << 20, topics=[FetchTopic(topic=topic, partitions=[wanted])])
        answer = (await self.call(1, 7, request)).responses[0].partitions[0]
        values: list[bytes | None] = []
        rest = memoryview(answer.records)
        while len(rest):
            size = 12 + int.from_bytes(rest[8:12], "big")
            values += [record.value for record in read_records(rest[:size])]
            rest = rest[size:]
        return ErrorCode(answer.error_code), values


def node_on(disk: MemoryDisk, seed: int = 7, on_fatal: Callable[[Exception], None] | None = None) -> Node:
    node = make_node(local_settings(DIRECTORIES, port=0), disk, seed=seed, on_fatal=on_fatal)
    format_if_new(node)
    return node


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(120):
            await scenario()

    asyncio.run(bounded())


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_node_has_all_topics_and_records_after_a_stop_and_after_a_kill(end: str) -> None:
    async def scenario() -> None:
        disk = MemoryDisk()
        node = node_on(disk)
        await node.start()
        user = Fixture(node)
        await user.create("t", 4)
        for partition in range(4):
            for number in range(10):
                assert await user.produce("t", partition, b"%d" % number) == (ErrorCode.NONE, number)
        await (node.stop() if end == "stop" else node.abandon())

        again = node_on(disk)
        await again.start()
        user = Fixture(again)
        for partition in range(4):
            assert await user.fetch("t", partition) == (ErrorCode.NONE, [b"%d" % number for number in range(10)])
            assert await user.produce("t", partition, b"next") == (ErrorCode.NONE, 10)
        await again.stop()

    run(scenario)


def test_a_broker_killed_during_registration_registers_again_with_the_same_incarnation_id(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers: list[BrokerRegistrationResponse] = []
    whole = ControllerChannel.ask

    async def scenario() -> None:
        registered = asyncio.Event()

        async def ask(channel: ControllerChannel, request: Any, **how: Any) -> Any:
            answer = await whole(channel, request, **how)
            if not isinstance(answer, BrokerRegistrationResponse):
                return answer
            answers.append(answer)
            registered.set()
            return await asyncio.Event().wait()

        disk = MemoryDisk()
        first = node_on(disk, 1)
        await first.start()
        await first.abandon()
        with monkeypatch.context() as patched:
            patched.setattr(ControllerChannel, "ask", ask)
            starting = asyncio.ensure_future(node_on(disk, 2).start())
            await registered.wait()
            starting.cancel()
            await asyncio.wait([starting])
        third = node_on(disk, 3)
        await third.start()
        assert first.broker_epoch < third.broker_epoch == answers[0].broker_epoch
        await third.stop()
        fourth = node_on(disk, 4)
        await fourth.start()
        assert fourth.broker_epoch > third.broker_epoch, "the answer arrived, so the next incarnation has a new id"
        await fourth.stop()

    run(scenario)


def test_power_loss_loses_no_metadata_and_only_the_last_records_of_a_log() -> None:
    async def scenario() -> None:
        for seed in range(12):
            disk = MemoryDisk(crashable=True)
            node = node_on(disk)
            await node.start()
            user = Fixture(node)
            await user.create("t", 2)
            sent = [b"%d" % number for number in range(30)]
            for value in sent:
                await user.produce("t", seed % 2, value)
            survivor = disk.crash(random.Random(seed))
            await node.abandon()

            again = node_on(survivor)
            await again.start()
            code, values = await Fixture(again).fetch("t", seed % 2)
            assert code is ErrorCode.NONE
            assert values == sent[: len(values)]
            await again.stop()

    run(scenario)


def test_a_node_whose_directories_all_fail_reports_a_fatal_error(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL + 1)

    async def scenario() -> None:
        disk = MemoryDisk()
        told: list[Exception] = []
        node = node_on(disk, on_fatal=told.append)
        await node.start()
        user = Fixture(node)
        await user.create("t", 4)

        def broken(path: str) -> Callable[[str, str], None]:
            def fail(operation: str, where: str) -> None:
                if operation == "append" and where.startswith(path):
                    raise DiskError(errno.EIO, "Input/output error", where)

            return fail

        disk.on_write = broken("/data/b/t-")
        for partition in range(4):
            await user.produce("t", partition, b"x")
        assert told == []
        disk.on_write = broken("/data/a/t-")
        for partition in range(4):
            await user.produce("t", partition, b"x")
        assert len(told) == 1
        disk.on_write = None
        await node.abandon()

    asyncio.run(scenario())


def test_a_full_directory_refuses_writes_but_serves_reads_and_other_directories_are_unaffected(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.CRITICAL + 1)

    async def scenario() -> None:
        disk = MemoryDisk()
        node = node_on(disk)
        await node.start()
        user = Fixture(node)
        await user.create("t", 4)
        for partition in range(4):
            assert await user.produce("t", partition, b"before") == (ErrorCode.NONE, 0)

        def full(operation: str, path: str) -> None:
            if operation == "append" and path.startswith("/data/b/t-"):
                raise DiskError(errno.ENOSPC, "No space left on device", path)

        disk.on_write = full
        outcomes = {partition: await user.produce("t", partition, b"after") for partition in range(4)}
        by_directory = {partition: node.broker.partitions.get("t", partition).log.log_dir for partition in range(4)}
        assert set(by_directory.values()) == {"/data/a", "/data/b"}
        for partition, (code, offset) in outcomes.items():
            if by_directory[partition] == "/data/a":
                assert (code, offset) == (ErrorCode.NONE, 1)
                assert await user.fetch("t", partition) == (ErrorCode.NONE, [b"before", b"after"])
            else:
                assert code is ErrorCode.KAFKA_STORAGE_ERROR
                assert await user.fetch("t", partition) == (ErrorCode.NONE, [b"before"])

        disk.on_write = None
        await node.abandon()
        again = node_on(disk)
        await again.start()
        user = Fixture(again)
        for partition in range(4):
            _, values = await user.fetch("t", partition)
            assert values[0] == b"before"
            assert (await user.produce("t", partition, b"room again"))[0] is ErrorCode.NONE
        await again.stop()

    run(scenario)


def test_node_applies_a_failed_metadata_image_together_with_the_next_image(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        node = node_on(MemoryDisk())
        await node.start()
        fixture, partitions = Fixture(node), node.broker.partitions

        def broken(*_: Any) -> None:
            raise ValueError("planted")

        with monkeypatch.context() as patched:
            patched.setattr(partitions, "apply", broken)
            await fixture.create("missed", 1)
        await fixture.create("seen", 1)
        for topic in ("missed", "seen"):
            assert await fixture.produce(topic, 0, b"x") == (ErrorCode.NONE, 0)
        await node.stop()

    run(scenario)
    assert "a listener of the metadata log failed" in caplog.text


def node_in(path: Path) -> Node:
    return make_node(local_settings(f"{path}/a,{path}/b", port=0), RealDisk())


async def filled(path: Path, release: str | None = None) -> tuple[int, int]:
    """Writes one record to a partition in directory a and one to a partition in directory b, and stops the node.

    Returns the two partition indexes.
    """
    node = node_in(path)
    plan = FormatPlan([f"{path}/a", f"{path}/b"], node.settings.node_id, release_version=release)
    format_storage(RealDisk(), plan, random=random.Random(1), now_ms=1)
    await node.start()
    user = Fixture(node)
    await user.create("t", 2)
    for partition in range(2):
        assert await user.produce("t", partition, b"kept") == (ErrorCode.NONE, 0)
    by_directory = {node.broker.partitions.get("t", each).log.log_dir: each for each in range(2)}
    await node.stop()
    return by_directory[f"{path}/a"], by_directory[f"{path}/b"]


async def all_is_there(path: Path) -> None:
    node = node_in(path)
    await node.start()
    for partition in range(2):
        assert await Fixture(node).fetch("t", partition) == (ErrorCode.NONE, [b"kept"])
        assert await Fixture(node).produce("t", partition, b"next") == (ErrorCode.NONE, 1)
    await node.stop()


@pytest.mark.parametrize("mount_point", ["empty", "missing"])
def test_node_does_not_start_while_the_disk_of_a_log_directory_is_not_mounted(tmp_path: Path, mount_point: str) -> None:
    async def scenario() -> None:
        await filled(tmp_path)
        (tmp_path / "b").rename(tmp_path / "disk")
        if mount_point == "empty":
            (tmp_path / "b").mkdir()
        node = node_in(tmp_path)
        assert not format_if_new(node)
        with pytest.raises(StorageError, match=r"/b is not formatted, but other .* mount its disk"):
            await node.start()
        if mount_point == "empty":
            assert not list((tmp_path / "b").iterdir())
            (tmp_path / "b").rmdir()
        (tmp_path / "disk").rename(tmp_path / "b")
        await all_is_there(tmp_path)

    run(scenario)


@pytest.mark.parametrize(("told", "release"), [(True, None), (False, None), (True, "3.6")])
def test_partitions_of_a_disk_that_is_broken_at_start_are_offline_until_it_is_repaired(
    told: bool, release: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checks nodes with and without reported directory assignments, and a metadata version that can't record them."""

    async def scenario() -> None:
        with monkeypatch.context() as patched:
            if not told:
                patched.setattr(DirectoryAssignments, "placed", lambda *_: None)
            intact, lost = await filled(tmp_path, release)
        (tmp_path / "b").rename(tmp_path / "disk")
        (tmp_path / "b").touch()  # opening anything below fails
        node = node_in(tmp_path)
        await node.start()
        user = Fixture(node)
        assert await user.fetch("t", intact) == (ErrorCode.NONE, [b"kept"])
        await node.broker.partitions.settle()
        assert not (tmp_path / "a" / f"t-{lost}").exists()
        await node.broker.lifecycle.sees(lambda image: image.topics["t"].partitions[lost].leader == NO_LEADER, 120)
        assert (await user.produce("t", lost, b"x"))[0] is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert node.broker.metadata.image.topics["t"].partitions[lost].leader == NO_LEADER
        await user.create("new", 2)  # new partitions go to the working directory
        assert await user.produce("new", 1, b"x") == (ErrorCode.NONE, 0)
        await node.stop()
        (tmp_path / "b").unlink()
        (tmp_path / "disk").rename(tmp_path / "b")
        await all_is_there(tmp_path)

    run(scenario)


def test_node_starts_even_if_its_first_log_directory_cannot_be_read(tmp_path: Path) -> None:
    async def scenario() -> None:
        own = {"metadata.log.dir": f"{tmp_path}/meta"}
        settings = local_settings(f"{tmp_path}/a,{tmp_path}/b", port=0, overrides=own)
        node = make_node(settings, RealDisk())
        assert format_if_new(node)
        await node.start()
        await node.stop()
        (tmp_path / "a" / "meta.properties").unlink()
        (tmp_path / "a" / "meta.properties").mkdir()  # reading it fails
        again = make_node(settings, RealDisk())
        await again.start()
        assert [directory.offline for directory in again.broker.logs.dirs] == [True, False]
        user = Fixture(again)
        await user.create("t", 1)
        assert await user.produce("t", 0, b"x") == (ErrorCode.NONE, 0)
        await again.stop()

    run(scenario)


@pytest.mark.parametrize("release", ["3.3-IV3", "3.4", "3.5", "3.6", "3.7-IV0", "3.7-IV2", "3.9", "4.0", "4.2"])
def test_a_node_runs_with_the_metadata_version_of_an_older_release(release: str) -> None:
    async def scenario() -> None:
        disk = MemoryDisk()
        for incarnation in (1, 2):
            node = make_node(local_settings(DIRECTORIES, port=0), disk, seed=incarnation)
            if incarnation == 1:
                plan = FormatPlan(node.settings.log_dirs, node.settings.node_id, release_version=release)
                format_storage(disk, plan, random=random.Random(1), now_ms=1)
            await node.start()
            user = Fixture(node)
            await user.create(f"t{incarnation}", 2)
            assert await user.produce(f"t{incarnation}", 1, b"x") == (ErrorCode.NONE, 0)
            assert await user.fetch("t1", 1) == (ErrorCode.NONE, [b"x"])
            image = node.broker.metadata.image
            level = image.features[METADATA_VERSION]
            values = [encode_record(record, level) for record in records_of(image)]
            again = apply(EMPTY_IMAGE, [decode_record(value) for value in values])
            assert again.brokers == image.brokers  # the image holds nothing that a snapshot of this level can't
            assert again.topics == image.topics
            await node.stop()

    run(scenario)


def test_broker_reports_its_log_directories_as_soon_as_the_metadata_version_supports_them() -> None:
    async def scenario() -> None:
        disk = MemoryDisk()
        node = make_node(local_settings(DIRECTORIES, port=0), disk, seed=1)
        plan = FormatPlan(node.settings.log_dirs, node.settings.node_id, release_version="3.6")
        format_storage(disk, plan, random=random.Random(1), now_ms=1)
        await node.start()
        user, broker = Fixture(node), node.broker
        await user.create("t", 2)
        await broker.partitions.settle()
        epoch = broker.lifecycle.broker_epoch
        level = record_class(12)(name=METADATA_VERSION, feature_level=17)
        await broker.metadata.submit(lambda _: Decision([level], None))
        broker.lifecycle.beat_now()
        ids = {each.directory_id for each in broker.logs.dirs}

        def are_told(image: MetadataImage) -> bool:
            placed = {one.directory(1) for one in image.topics["t"].partitions.values()}
            return set(image.brokers[1].log_dirs) == placed == ids

        assert await broker.lifecycle.sees(are_told, 120)
        assert broker.lifecycle.broker_epoch == broker.metadata.image.brokers[1].epoch == epoch
        assert await user.produce("t", 1, b"x") == (ErrorCode.NONE, 0)
        await node.stop()

    run(scenario)


def test_a_node_does_not_start_without_the_disk_of_its_metadata_log(tmp_path: Path) -> None:
    async def scenario() -> None:
        await filled(tmp_path)
        (tmp_path / "a").rename(tmp_path / "disk")
        (tmp_path / "a").touch()
        with pytest.raises(StorageError, match=r"/a, which holds the metadata log, can't be used"):
            await node_in(tmp_path).start()
        (tmp_path / "a").unlink()
        (tmp_path / "disk").rename(tmp_path / "a")
        await all_is_there(tmp_path)

    run(scenario)


def test_replaced_disk_is_formatted_and_its_partitions_accept_records_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        intact, lost = await filled(tmp_path)
        (tmp_path / "b").rename(tmp_path / "old")
        plan = FormatPlan([f"{tmp_path}/a", f"{tmp_path}/b"], node_in(tmp_path).settings.node_id, ignore_formatted=True)
        assert format_storage(RealDisk(), plan, random=random.Random(1), now_ms=1).directories == (f"{tmp_path}/b",)
        node = node_in(tmp_path)
        await node.start()
        user = Fixture(node)
        assert await user.fetch("t", intact) == (ErrorCode.NONE, [b"kept"])
        assert await user.produce("t", lost, b"anew") == (ErrorCode.NONE, 0)
        await node.stop()

    run(scenario)


def test_a_node_refuses_to_start_with_unsupported_security_properties() -> None:
    settings = local_settings("/data", port=0, overrides={"authorizer.class.name": "StandardAuthorizer"})
    with pytest.raises(ConfigError, match=r"authorizer.class.name names a class that Penstock does not have"):
        make_node(settings, MemoryDisk())


def test_node_without_an_authorizer_refuses_to_start_if_its_metadata_log_has_acls() -> None:
    async def scenario() -> None:
        disk = MemoryDisk()
        stopped: list[Exception] = []
        node = make_node(local_settings("/data", port=0), disk, seed=1, on_fatal=stopped.append)
        format_if_new(node)
        await node.start()
        acl = record_class(18)(
            id=bytes(range(16)),
            resource_type=2,
            resource_name="t",
            pattern_type=3,
            principal="User:a",
            host="*",
            operation=3,
            permission_type=3,
        )
        await node.broker.metadata.submit(lambda _: Decision([acl], None))
        assert "holds ACLs (1)" in str(stopped[0])
        await node.stop()
        again = make_node(local_settings("/data", port=0), disk, seed=2)
        with pytest.raises(StorageError, match=r"holds ACLs .1., and this node has no authorizer"):
            await again.start()

    asyncio.run(scenario())
