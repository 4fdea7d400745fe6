"""Tests that the memory of a refused request is freed with its response, not by a later garbage collection."""

from __future__ import annotations

import asyncio
import gc
import struct
import weakref
from collections.abc import Awaitable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from test_node_restart import Fixture, node_on, run

from penstock.broker.dispatch.dispatcher import Dispatcher
from penstock.broker.replicas.partition import Partition
from penstock.disk.memory import MemoryDisk
from penstock.log.log import Log
from penstock.node.node import Node
from penstock.protocol.apis import APIS, request_header_version
from penstock.protocol.codec import encode
from penstock.protocol.errors import ErrorCode, KafkaError, without_frames
from penstock.protocol.messages.api_00_produce import PartitionProduceData, ProduceRequest, TopicProduceData
from penstock.protocol.messages.api_01_fetch import FetchPartition, FetchRequest, FetchTopic
from penstock.protocol.messages.api_08_offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from penstock.protocol.messages.api_11_join_group import JoinGroupRequest, JoinGroupRequestProtocol
from penstock.protocol.messages.api_14_sync_group import SyncGroupRequest
from penstock.protocol.messages.api_19_create_topics import CreatableTopic, CreateTopicsRequest
from penstock.protocol.messages.api_33_alter_configs import AlterableConfig as LegacyConfig
from penstock.protocol.messages.api_33_alter_configs import AlterConfigsRequest
from penstock.protocol.messages.api_33_alter_configs import AlterConfigsResource as LegacyResource
from penstock.protocol.messages.api_44_incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from penstock.protocol.messages.api_49_alter_client_quotas import (
    AlterClientQuotasRequest,
    EntityData,
    EntryData,
    OpData,
)
from penstock.protocol.messages.api_68_consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from penstock.records.build import build_batch
from penstock.records.compression import Codec
from penstock.records.scan import SLICE_RECORDS

TOPIC, BROKER_LOGGER = 2, 8


class Frame(bytearray):
    """Holds the bytes of a request in a type that allows weak references."""


@pytest.fixture(autouse=True)
def _no_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def produced(topic: str, records: bytes, *, acks: int = 1, transactional_id: str | None = None) -> ProduceRequest:
    data = [PartitionProduceData(index=0, records=memoryview(records))]
    return ProduceRequest(
        transactional_id=transactional_id,
        acks=acks,
        timeout_ms=1,
        topic_data=[TopicProduceData(name=topic, partition_data=data)],
    )


def batch(count: int = 1, *, timestamp: int = 1, producer_id: int = -1) -> bytes:
    fields: dict[str, Any] = {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": 0}
    return build_batch(
        [(timestamp, None, b"v", ())] * count,
        compression=Codec.ZSTD,
        transactional=producer_id >= 0,
        **(fields if producer_id >= 0 else {}),
    )


FAR = 10**15
REFUSED = {
    "produce to an unknown topic": (0, 9, produced("unknown", bytes(1000))),
    "produce without acks to an unknown topic": (0, 9, produced("unknown", bytes(1000), acks=0)),
    "produce of garbage": (0, 9, produced("t", bytes(1000))),
    "produce with unknown acks": (0, 9, produced("t", batch(), acks=7)),
    "produce of a batch that is refused when it is unpacked": (
        0,
        9,
        produced("t", batch(20 * SLICE_RECORDS, timestamp=FAR)),
    ),
    "produce in a transaction to an unknown topic": (
        0,
        9,
        produced("unknown", batch(producer_id=5), transactional_id="x"),
    ),
    "produce in a transaction that was not begun": (0, 9, produced("t", batch(producer_id=5), transactional_id="x")),
    "fetch from an unknown topic": (
        1,
        11,
        FetchRequest(topics=[FetchTopic(topic="unknown", partitions=[FetchPartition(partition=0)])]),
    ),
    "fetch in an unknown session": (1, 11, FetchRequest(session_id=5, session_epoch=7)),
    "commit of an unknown member": (
        8,
        8,
        OffsetCommitRequest(
            group_id="g",
            member_id="unknown",
            generation_id_or_member_epoch=5,
            topics=[OffsetCommitRequestTopic(name="t", partitions=[OffsetCommitRequestPartition(partition_index=0)])],
        ),
    ),
    "join that fits no record": (
        11,
        3,
        JoinGroupRequest(
            group_id="g",
            session_timeout_ms=10_000,
            rebalance_timeout_ms=1,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=bytes(2 << 20))],
        ),
    ),
    "sync of an unknown member": (14, 5, SyncGroupRequest(group_id="g", member_id="unknown")),
    "heartbeat of an unknown member": (
        68,
        0,
        ConsumerGroupHeartbeatRequest(group_id="g", member_id="unknown", member_epoch=5),
    ),
    "topic with a wrong name": (
        19,
        7,
        CreateTopicsRequest(topics=[CreatableTopic(name="a b", num_partitions=1, replication_factor=1)]),
    ),
    "wrong config, all of them": (
        33,
        2,
        AlterConfigsRequest(
            resources=[
                LegacyResource(
                    resource_type=TOPIC, resource_name="t", configs=[LegacyConfig(name="retention.ms", value="soon")]
                )
            ]
        ),
    ),
    "wrong config": (
        44,
        1,
        IncrementalAlterConfigsRequest(
            resources=[
                AlterConfigsResource(
                    resource_type=TOPIC, resource_name="t", configs=[AlterableConfig(name="retention.ms", value="soon")]
                )
            ]
        ),
    ),
    "unknown logger": (
        44,
        1,
        IncrementalAlterConfigsRequest(
            resources=[
                AlterConfigsResource(
                    resource_type=BROKER_LOGGER, resource_name="x", configs=[AlterableConfig(name="root", value="INFO")]
                )
            ]
        ),
    ),
    "unknown quota": (
        49,
        1,
        AlterClientQuotasRequest(
            entries=[EntryData(entity=[EntityData(entity_type="user", entity_name="u")], ops=[OpData(key="unknown")])]
        ),
    ),
}


async def kept(node: Node, key: int, version: int, request: Any) -> int:
    """Returns 0 if the response to the request leaves neither the request's frame nor an error with a traceback in
    memory."""
    gc.freeze()  # from here on, `gc.get_objects` returns only objects that are made later
    try:
        return await _kept(node, key, version, request)
    finally:
        gc.unfreeze()


async def _kept(node: Node, key: int, version: int, request: Any) -> int:
    head = struct.pack(">hhih", key, version, 7, -1)
    if request_header_version(key, version) >= 2:
        head += b"\0"
    frame = Frame(head + encode(request, version))
    watched = weakref.ref(frame)
    connection: Any = SimpleNamespace(
        mute_for=lambda seconds: None, state={}, id=1, peer_host="127.0.0.1", on_close=lambda _: None, closed=False
    )
    reply = Dispatcher(node.broker)(cast(Any, connection), memoryview(frame))
    del frame
    if isinstance(reply, Awaitable):
        reply = await asyncio.ensure_future(_awaited(reply))
    del reply, connection
    await asyncio.sleep(0)
    left = watched()
    return (0 if left is None else len(left)) + errors_with_traceback()


def errors_with_traceback() -> int:
    """Returns the number of KafkaErrors with a traceback that were created after `gc.freeze`."""
    return sum(1 for each in gc.get_objects() if isinstance(each, KafkaError) and each.__traceback__ is not None)


async def _awaited(reply: Awaitable[Any]) -> Any:
    return await reply


async def started() -> Node:
    node = node_on(MemoryDisk())
    await node.start()
    await Fixture(node).create("t", 1)
    for internal in ("__consumer_offsets", "__transaction_state"):
        await node.broker.topic_creator.ensure(internal)
    return node


@pytest.mark.parametrize("name", REFUSED)
def test_memory_of_a_refused_request_is_freed_after_its_response(name: str) -> None:
    async def scenario() -> None:
        node = await started()
        key, version, request = REFUSED[name]
        assert await kept(node, key, version, request) == 0, APIS[key].name
        await node.stop()

    run(scenario)


@pytest.mark.parametrize("count", [1, 20 * SLICE_RECORDS])
def test_memory_of_a_timed_out_produce_is_freed_after_its_response(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Covers both paths of Produce: a large batch is unpacked first, and a task waits for its response."""

    async def scenario() -> None:
        node = await started()
        loop = asyncio.get_running_loop()
        monkeypatch.setattr(Partition, "when_committed", lambda self, offset: loop.create_future())
        now_ms = node.clock.wall_ms()
        request = produced("t", batch(count, timestamp=now_ms), acks=-1)
        assert await kept(node, 0, 9, request) == 0
        await node.stop()

    run(scenario)


def test_memory_of_a_failed_parked_fetch_is_freed_after_its_response(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise RuntimeError("planted")

    async def scenario() -> None:
        node = await started()
        wanted = FetchPartition(partition=0, partition_max_bytes=1000)
        request = FetchRequest(
            max_wait_ms=1, min_bytes=1, max_bytes=1000, topics=[FetchTopic(topic="t", partitions=[wanted])]
        )
        asyncio.get_running_loop().call_soon(lambda: monkeypatch.setattr(Log, "read", fail))
        assert await kept(node, 1, 11, request) == 0
        monkeypatch.undo()
        await node.stop()

    run(scenario)


def test_error_without_its_traceback_keeps_its_message() -> None:
    try:
        try:
            raise ValueError
        except ValueError as wrong:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "no") from wrong
    except KafkaError as error:
        kept_error = without_frames(error)
    assert (kept_error.__traceback__, kept_error.__context__, kept_error.__cause__) == (None, None, None)
    assert kept_error.message == "no"
