"""Tests requests with many elements: how they are split, and which requests are refused."""

from __future__ import annotations

import asyncio
import gc
import random
import struct
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.broker.dispatch import dispatcher as dispatch
from penstock.broker.dispatch.dispatcher import Dispatcher
from penstock.broker.dispatch.large_requests import (
    IN_PIECES,
    LARGEST,
    PIECE_ELEMENTS,
    REQUEST_MAX_ELEMENTS,
    SMALL_ELEMENTS,
    WIDEST,
)
from penstock.broker.handlers.registry import served_versions
from penstock.broker.requests.error_replies import error_response
from penstock.broker.requests.fault_rules import Faults
from penstock.broker.requests.pieces import cut, join
from penstock.broker.requests.slices import Slices
from penstock.broker.requests.steps import STEPS_PER_PASS, Steps, run_steps
from penstock.clock import ManualClock
from penstock.disk.memory import MemoryDisk
from penstock.net.later import Later
from penstock.net.reply import Close
from penstock.protocol.apis import request_class, response_class
from penstock.protocol.codec import decode, encode
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_00_produce import (
    NodeEndpoint,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from penstock.protocol.messages.api_03_metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)
from penstock.protocol.messages.api_08_offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from penstock.protocol.messages.api_09_offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
)
from penstock.protocol.messages.api_19_create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from penstock.protocol.messages.api_76_share_group_heartbeat import ShareGroupHeartbeatRequest
from penstock.protocol.messages.api_88_streams_group_heartbeat import StreamsGroupHeartbeatRequest, TaskIds
from penstock.protocol.schema import Struct
from penstock.sim.engine.loop import Timeline

pytestmark = pytest.mark.exhaustive

LARGE = 3 * SMALL_ELEMENTS


# --- splitting and joining


def filled(struct_type: type[Struct], version: int, counts: list[int], serial: list[int]) -> Any:
    """Returns a struct whose arrays have the given lengths, by depth, and whose names and numbers are all different."""
    made = struct_type()
    for field in struct_type.FIELDS:
        if not field.exists_in(version):
            continue
        serial[0] += 1
        if field.kind == "array":
            count = counts[0] if counts else 1
            items = [
                filled(field.item, version, counts[1:], serial)
                if isinstance(field.item, type)
                else scalar(field.item, serial[0] * 1000 + number)
                for number in range(count)
            ]
            setattr(made, field.name, items)
        elif field.kind in ("string", "uuid") or field.name.endswith(("index", "partition", "producer_id")):
            setattr(made, field.name, scalar(field.kind, serial[0]))
    return made


def scalar(kind: str, number: int) -> Any:
    if kind == "string":
        return f"name{number}"
    return number.to_bytes(16, "big") if kind == "uuid" else number


@pytest.mark.parametrize("counts", [[7, 5], [1, 23], [20, 1], [3, 0], [2, 3, 4], [1, 2, 30]])
@pytest.mark.parametrize("key", sorted(IN_PIECES))
def test_joined_responses_to_the_pieces_of_a_request_equal_the_response_to_the_whole_request(
    key: int, counts: list[int]
) -> None:
    for version in served_versions(key):
        request = filled(request_class(key), version, counts, [0])
        if isinstance(request, ProduceRequest):
            request.acks = -1  # it is answered
        expected = error_response(key, version, request, ErrorCode.NOT_LEADER_OR_FOLLOWER, "no")
        pieces = list(cut(request, version, 4))
        answers: list[Any] = [
            error_response(key, version, piece, ErrorCode.NOT_LEADER_OR_FOLLOWER, "no") for piece in pieces
        ]
        for answer in answers[1:]:
            join(answers[0], answer, key, type(request), version)
        assert answers[0] == expected


# --- the dispatcher


def broker(disk: MemoryDisk | None = None) -> Any:
    return SimpleNamespace(
        access=None,
        audit=None,
        clock=ManualClock(),
        faults=Faults(),
        quotas=SimpleNamespace(request=SimpleNamespace(limits={})),
        logs=SimpleNamespace(environment=SimpleNamespace(disk=disk or MemoryDisk())),
        metadata=SimpleNamespace(leading=True),
        slices=Slices(),
    )


def frame(key: int, version: int, request: Any) -> memoryview:
    return memoryview(struct.pack(">hhih", key, version, 7, -1) + b"\0" + encode(request, version))


def reply_of(answer: Any) -> tuple[int, Any]:
    """Runs the dispatcher. Returns the number of event loop iterations that it needed, and the reply."""

    async def run() -> tuple[int, Any]:
        reply = asyncio.ensure_future(answer())
        passes = 0
        while not reply.done():
            passes += 1
            await asyncio.sleep(0)
        return passes, reply.result()

    return asyncio.run(run())


def send(key: int, version: int, request: Any) -> tuple[int, Any]:
    async def ask() -> Any:
        reply = Dispatcher(broker())(cast(Any, None), frame(key, version, request))
        return await reply if isinstance(reply, Awaitable) else reply

    return reply_of(ask)


class MetadataHandler:
    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.collecting: list[bool] = []
        self.creating: list[bool] = []

    def __call__(self, broker: Any, ctx: Any, request: MetadataRequest) -> MetadataResponse:
        self.sizes.append(len(request.topics or ()))
        self.collecting.append(gc.isenabled())
        self.creating.append(request.allow_auto_topic_creation)
        return MetadataResponse(topics=[MetadataResponseTopic(name=topic.name) for topic in request.topics or ()])


@pytest.fixture
def handler(monkeypatch: pytest.MonkeyPatch) -> MetadataHandler:
    handler = MetadataHandler()
    monkeypatch.setattr(dispatch, "load_handler", lambda key: handler)
    return handler


def asked(names: list[str]) -> MetadataRequest:
    return MetadataRequest(topics=[MetadataRequestTopic(name=name) for name in names])


def test_request_with_many_elements_is_handled_in_pieces_with_one_event_loop_iteration_each(
    handler: MetadataHandler,
) -> None:
    names = [f"t{number}" for number in range(LARGE)]
    assert gc.isenabled()
    passes, reply = send(3, 12, asked(names))
    told = decode(MetadataResponse, 12, b"".join(reply[1:]))
    assert [topic.name for topic in told.topics] == names
    assert max(handler.sizes) <= PIECE_ELEMENTS
    assert passes >= LARGE // PIECE_ELEMENTS
    assert not any(handler.collecting)
    assert not any(handler.creating)  # CreateTopics refuses this many topics
    assert gc.isenabled()


def test_large_request_that_repeats_a_name_gets_one_result_for_it(handler: MetadataHandler) -> None:
    _, reply = send(3, 12, asked(["t"] * LARGE))
    assert [topic.name for topic in decode(MetadataResponse, 12, b"".join(reply[1:])).topics] == ["t"]


def test_request_with_few_elements_is_answered_in_the_same_event_loop_iteration(
    handler: MetadataHandler,
) -> None:
    dispatcher = Dispatcher(broker())
    assert isinstance(dispatcher(cast(Any, None), frame(3, 12, asked(["t"] * 100))), list)
    assert handler.collecting == [True]
    assert handler.creating == [True]


def test_offset_fetch_of_many_groups_is_handled_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checks that a group counts as ten elements, because 4,900 groups took 55 ms in one event loop iteration."""
    sizes: list[int] = []

    def handle(broker: Any, ctx: Any, request: OffsetFetchRequest) -> OffsetFetchResponse:
        sizes.append(len(request.groups))
        return OffsetFetchResponse(groups=[OffsetFetchResponseGroup(group_id=each.group_id) for each in request.groups])

    monkeypatch.setattr(dispatch, "load_handler", lambda key: handle)
    groups = [OffsetFetchRequestGroup(group_id=f"g{number}", topics=[]) for number in range(4_900)]
    _, reply = send(9, 9, OffsetFetchRequest(groups=groups))
    told = decode(OffsetFetchResponse, 9, b"".join(reply[1:]))
    assert [each.group_id for each in told.groups] == [each.group_id for each in groups]
    assert max(sizes) <= PIECE_ELEMENTS


def test_request_with_too_many_elements_closes_its_connection(handler: MetadataHandler) -> None:
    _, reply = send(3, 12, asked(["t"] * (REQUEST_MAX_ELEMENTS + 1)))
    assert isinstance(reply, Close)
    assert "elements" in reply.reason
    assert handler.sizes == []


def test_request_with_an_array_length_beyond_its_frame_closes_the_connection_at_once() -> None:
    body = b"\0" + b"\xff\xff\xff\x7f" + bytes(100)
    data = memoryview(struct.pack(">hhih", 3, 12, 7, -1) + body)
    assert isinstance(Dispatcher(broker())(cast(Any, None), data), Close)


def test_offset_commit_of_many_partitions_is_handled_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checks that a commit is handled in pieces, because 9,000 partitions took 65 ms in one event loop iteration."""
    sizes: list[int] = []

    def handle(broker: Any, ctx: Any, request: OffsetCommitRequest) -> OffsetCommitResponse:
        (topic,) = request.topics
        sizes.append(len(topic.partitions))
        return error_response(8, ctx.api_version, request, ErrorCode.NONE)  # type: ignore[return-value]

    monkeypatch.setattr(dispatch, "load_handler", lambda key: handle)
    partitions = [OffsetCommitRequestPartition(partition_index=index) for index in range(LARGEST + 1)]
    request = OffsetCommitRequest(topics=[OffsetCommitRequestTopic(name="t", partitions=partitions)])
    _, reply = send(8, 9, request)
    (topic,) = decode(OffsetCommitResponse, 9, b"".join(reply[1:])).topics
    assert [(each.partition_index, each.error_code) for each in topic.partitions] == [
        (index, 0) for index in range(LARGEST + 1)
    ]
    assert max(sizes) <= PIECE_ELEMENTS


@pytest.mark.parametrize(("topics", "configs", "code"), [(WIDEST + 1, 0, 44), (1000, 20, 0), (6000, 9, 44)])
def test_create_topics_request_with_too_many_topics_is_refused(
    topics: int, configs: int, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def handle(broker: Any, ctx: Any, request: CreateTopicsRequest) -> CreateTopicsResponse:
        return CreateTopicsResponse(topics=[CreatableTopicResult(name=topic.name) for topic in request.topics])

    monkeypatch.setattr(dispatch, "load_handler", lambda key: handle)
    overrides = [CreatableTopicConfig(name="retention.ms", value="1")] * configs
    request = CreateTopicsRequest(topics=[CreatableTopic(name=f"t{n}", configs=overrides) for n in range(topics)])
    _, reply = send(19, 7, request)
    told = decode(CreateTopicsResponse, 7, b"".join(reply[1:]))
    assert {topic.error_code for topic in told.topics} == {code}
    assert len(told.topics) == topics


@pytest.mark.parametrize("extra", [0, 1])
@pytest.mark.parametrize(
    ("key", "largest", "request_of"),
    [
        (
            76,
            10_000,
            lambda count: ShareGroupHeartbeatRequest(subscribed_topic_names=["t"] * count),
        ),
        (
            88,
            20_000,
            lambda count: StreamsGroupHeartbeatRequest(active_tasks=[TaskIds(partitions=[0] * (count - 1))]),
        ),
    ],
    ids=["share", "streams"],
)
def test_heartbeat_with_too_many_topics_or_tasks_is_refused_before_it_is_handled(
    key: int, largest: int, request_of: Callable[[int], Any], extra: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    handled = []

    def handle(broker: Any, ctx: Any, request: Any) -> Any:
        handled.append(request)
        return error_response(ctx.api_key, ctx.api_version, request, ErrorCode.NONE)

    monkeypatch.setattr(dispatch, "load_handler", lambda key: handle)
    version = served_versions(key)[-1]
    _, reply = send(key, version, request_of(largest + extra))
    told: Any = decode(response_class(key), version, b"".join(reply[1:]))
    assert ErrorCode(told.error_code) is (ErrorCode.INVALID_REQUEST if extra else ErrorCode.NONE)
    assert len(handled) == 1 - extra


# --- Produce


class ProduceHandler:
    """Replaces the Produce handler: records the requested appends, and answers after `seconds` seconds."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.appended: list[int] = []
        self.timeouts: list[int] = []
        self.collecting: list[bool] = []
        self.fails_at = -1
        self.seconds = 0.0
        self.throttle_ms = 0

    def __call__(self, broker: Any, ctx: Any, request: ProduceRequest) -> Any:
        indexes = [data.index for topic in request.topic_data for data in topic.partition_data]
        self.sizes.append(len(indexes))
        self.appended += indexes
        self.timeouts.append(request.timeout_ms)
        if request.acks == 0:
            return Close("acks=0") if self.fails_at in indexes else None
        response = ProduceResponse(
            throttle_time_ms=self.throttle_ms,
            responses=[
                TopicProduceResponse(
                    name=topic.name,
                    partition_responses=[
                        PartitionProduceResponse(index=data.index, base_offset=data.index)
                        for data in topic.partition_data
                    ],
                )
                for topic in request.topic_data
            ],
            node_endpoints=[NodeEndpoint(node_id=7), NodeEndpoint(node_id=len(self.sizes) // 2)],
        )
        return Later(self._safe(response)) if self.seconds else response

    async def _safe(self, response: ProduceResponse) -> ProduceResponse:
        look = asyncio.get_running_loop().call_later
        look(self.seconds / 2, lambda: self.collecting.append(gc.isenabled()))
        await asyncio.sleep(self.seconds)
        return response


@pytest.fixture
def producing(monkeypatch: pytest.MonkeyPatch) -> ProduceHandler:
    handler = ProduceHandler()
    monkeypatch.setattr(dispatch, "load_handler", lambda key: handler)
    return handler


def produced(count: int, acks: int = -1) -> ProduceRequest:
    data = [PartitionProduceData(index=index, records=memoryview(b"r")) for index in range(count)]
    return ProduceRequest(
        acks=acks,
        timeout_ms=30_000,
        topic_data=[
            TopicProduceData(name="t", partition_data=data[: count // 3]),
            TopicProduceData(name="u", partition_data=data[count // 3 :]),
        ],
    )


def test_a_produce_with_many_partitions_is_appended_in_pieces_in_order(producing: ProduceHandler) -> None:
    passes, reply = send(0, 10, produced(LARGE))
    told = decode(ProduceResponse, 10, b"".join(reply[1:]))
    assert producing.appended == list(range(LARGE))
    assert max(producing.sizes) <= PIECE_ELEMENTS
    assert passes >= LARGE // PIECE_ELEMENTS
    assert [topic.name for topic in told.responses] == ["t", "u"]
    offsets = [partition.base_offset for topic in told.responses for partition in topic.partition_responses]
    assert offsets == list(range(LARGE))
    nodes = [node.node_id for node in told.node_endpoints]
    assert len(nodes) == len(set(nodes))
    assert nodes[:3] == [7, 0, 1]


def test_produce_to_a_thousand_partitions_is_appended_in_the_same_event_loop_iteration(
    producing: ProduceHandler,
) -> None:
    assert isinstance(Dispatcher(broker())(cast(Any, None), frame(0, 10, produced(1_000))), list)
    assert producing.sizes == [1_000]


@pytest.mark.parametrize("fails_at", [-1, 3_000])
def test_large_produce_with_acks_0_gets_no_response_and_stops_at_its_first_error(
    fails_at: int, producing: ProduceHandler
) -> None:
    producing.fails_at = fails_at
    _, reply = send(0, 10, produced(LARGE, acks=0))
    if fails_at < 0:
        assert reply is None
        assert producing.appended == list(range(LARGE))
    else:
        assert isinstance(reply, Close)
        assert max(producing.appended) < fails_at + PIECE_ELEMENTS


def test_the_pieces_of_a_produce_share_its_timeout_and_garbage_is_collected_while_they_wait(
    producing: ProduceHandler,
) -> None:
    producing.seconds = 2.0

    async def ask() -> Any:
        reply = Dispatcher(broker())(cast(Any, None), frame(0, 10, produced(LARGE)))
        assert isinstance(reply, Awaitable)
        return await reply

    timeline = Timeline(random.Random(1))
    try:
        timeline.run(ask(), timeline.process("test"), until=1_000)
    finally:
        timeline.end()
    assert producing.timeouts[:3] == pytest.approx([30_000, 28_000, 26_000], abs=50)
    assert producing.timeouts[-1] == 0
    assert all(producing.collecting)
    assert gc.isenabled()


def test_the_throttle_time_of_a_large_response_is_enforced(producing: ProduceHandler) -> None:
    producing.throttle_ms = 250
    muted: list[float] = []
    connection: Any = SimpleNamespace(mute_for=muted.append)

    async def ask() -> Any:
        reply = Dispatcher(broker())(connection, frame(0, 10, produced(LARGE)))
        assert isinstance(reply, Awaitable)
        return await reply

    _, reply = reply_of(ask)
    assert decode(ProduceResponse, 10, b"".join(reply[1:])).throttle_time_ms == 250
    assert muted == [0.25]


# --- steps


def counting(steps: int, waits_at: int | None = None, fails: bool = False) -> Steps[int]:
    total = 0
    for number in range(steps):
        if number == waits_at:
            try:
                total += yield _later(fails)
            except KafkaError:
                total -= 1
        total += 1
        yield None
    return total


async def _later(fails: bool) -> int:
    await asyncio.sleep(0)
    if fails:
        raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    return 1000


def test_handler_with_few_steps_answers_in_one_event_loop_iteration() -> None:
    assert run_steps(counting(STEPS_PER_PASS - 1)) == STEPS_PER_PASS - 1


def test_other_requests_run_between_the_steps_of_a_long_handler() -> None:
    async def run() -> Any:
        return await cast(Awaitable[int], run_steps(counting(20 * STEPS_PER_PASS)))

    passes, total = reply_of(run)
    assert total == 20 * STEPS_PER_PASS
    assert passes >= 19


@pytest.mark.parametrize(("fails", "total"), [(False, 1010), (True, 9)])
def test_a_handler_may_wait_for_an_awaitable_between_two_steps(fails: bool, total: int) -> None:
    async def run() -> Any:
        return await cast(Awaitable[int], run_steps(counting(10, waits_at=3, fails=fails)))

    assert reply_of(run)[1] == total
