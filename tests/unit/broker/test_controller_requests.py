"""Tests requests to the active controller: retries, forwarded requests, and topics that a node creates for itself."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.broker.controlplane.auto_topics import EVENT_SEGMENT_BYTES, TopicCreator, topic_to_create
from penstock.broker.controlplane.controller_channel import ControllerChannel, says_not_controller
from penstock.broker.peers.links import Links
from penstock.broker.requests.context import RequestContext
from penstock.metadata.configs.settings import Settings
from penstock.protocol.codec import encode
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_19_create_topics import CreatableTopicResult, CreateTopicsRequest
from penstock.protocol.messages.api_19_create_topics import CreateTopicsResponse as Created
from penstock.protocol.messages.api_58_envelope import EnvelopeResponse
from penstock.protocol.messages.api_63_broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from penstock.protocol.messages.headers import ResponseHeader
from penstock.protocol.vocabulary import CONSUMER_OFFSETS, EVENT_TOPIC, SHARE_GROUP_STATE, TRANSACTION_STATE
from penstock.sim.engine.loop import Timeline

CREATE_TOPICS, VERSION = CreateTopicsRequest.API_KEY, 7


def run(work: Any) -> None:
    timeline = Timeline(random.Random(1))
    try:
        timeline.run(work, timeline.process("test"), until=1000)
    finally:
        timeline.end()
    assert not timeline.failures, [str(each) for each in timeline.failures]


class Controller:
    """Replaces the connections to the controller: gives the answers in turn, and the last answer again and again."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[float, Any]] = []

    async def request(self, key: Any, address: Any, message: Any, left_s: float) -> Any:
        self.asked.append((asyncio.get_running_loop().time(), message))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, KafkaError):
            raise answer
        return answer

    def channel(self) -> ControllerChannel:
        metadata: Any = SimpleNamespace(leading=False, active_controller=lambda: (2, ("h", 2)))
        channel = ControllerChannel(cast(Any, None), 3, metadata, cast(Any, None))
        channel._links = cast(Any, self)
        return channel


def client(api_key: int = CREATE_TOPICS, *, large: bool = False) -> RequestContext:
    connection: Any = SimpleNamespace(peer_host="10.0.0.7", principal="User:u")
    return RequestContext(api_key, VERSION, 5, "c", connection, 0, large)


def created(*codes: ErrorCode) -> Created:
    results = [CreatableTopicResult(name=f"t{index}", error_code=code) for index, code in enumerate(codes)]
    return Created(topics=results)


def test_only_lost_requests_and_other_controllers_make_a_node_ask_again() -> None:
    again = {
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.BROKER_NOT_AVAILABLE,
        ErrorCode.REQUEST_TIMED_OUT,
    }

    async def scenario() -> None:
        for code in ErrorCode:
            controller = Controller(KafkaError(code, "Lost."), BrokerHeartbeatResponse())
            asking = controller.channel().ask(BrokerHeartbeatRequest())
            if code in again:
                assert await asking == BrokerHeartbeatResponse()
                assert len(controller.asked) == 2
                continue
            with pytest.raises(KafkaError) as refused:
                await asking
            assert refused.value.code is code
            assert len(controller.asked) == 1

    run(scenario())


@pytest.mark.parametrize("timeout_ms", [1, 15, 40, 250, 1000])
def test_node_asks_after_growing_pauses_and_gives_up_exactly_at_the_timeout(timeout_ms: int) -> None:
    async def scenario() -> None:
        controller, loop = Controller(KafkaError(ErrorCode.NOT_CONTROLLER)), asyncio.get_running_loop()
        began = loop.time()
        with pytest.raises(KafkaError) as caught:
            await controller.channel().ask(BrokerHeartbeatRequest(), timeout_ms=timeout_ms)
        assert caught.value.code is ErrorCode.REQUEST_TIMED_OUT
        assert loop.time() - began == pytest.approx(timeout_ms / 1000, abs=0.001)
        due, pause = [0.0], 0.01
        while due[-1] + pause < timeout_ms / 1000:
            due.append(due[-1] + pause)
            pause = min(2 * pause, 0.1)
        assert [at - began for at, _ in controller.asked][: len(due)] == pytest.approx(due, abs=0.001)

    run(scenario())


def test_response_names_another_controller_at_its_top_or_in_the_first_entry_of_an_array() -> None:
    other, fine, refused = ErrorCode.NOT_CONTROLLER, ErrorCode.NONE, ErrorCode.INVALID_REQUEST
    cases: list[tuple[Any, bool]] = [
        (None, False),
        (int(other), False),
        (BrokerHeartbeatResponse(), False),
        (BrokerHeartbeatResponse(error_code=refused), False),
        (BrokerHeartbeatResponse(error_code=other), True),
        (BrokerHeartbeatResponse(throttle_time_ms=int(other)), False),
        (created(), False),
        (created(fine), False),
        (created(refused, fine), False),
        (created(other, other), True),
    ]
    for answer, expected in cases:
        assert says_not_controller(answer) is expected, answer


def test_forwarded_request_gets_the_answer_in_the_envelope_or_the_error_of_the_envelope() -> None:
    data = encode(ResponseHeader(correlation_id=5), 1) + encode(created(ErrorCode.NONE), VERSION)
    cases = [
        (EnvelopeResponse(response_data=data), None),
        (EnvelopeResponse(response_data=data, error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED), 31),
        (EnvelopeResponse(response_data=None, error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED), 31),
        (EnvelopeResponse(response_data=None), ErrorCode.UNKNOWN_SERVER_ERROR),
        (EnvelopeResponse(response_data=data[:-3]), ErrorCode.UNKNOWN_SERVER_ERROR),
    ]

    async def scenario() -> None:
        for envelope, code in cases:
            asking = Controller(envelope).channel().forward(client(), CreateTopicsRequest(timeout_ms=500))
            if code is None:
                assert [each.name for each in (await asking).topics] == ["t0"]
                continue
            with pytest.raises(KafkaError) as caught:
                await asking
            assert caught.value.code == code

    run(scenario())


def test_new_controller_closes_the_connections_to_all_other_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[int] = []
    monkeypatch.setattr(Links, "keep_only", lambda _, node_id: kept.append(node_id))
    channel = ControllerChannel(cast(Any, None), 3, cast(Any, None), cast(Any, None))
    channel.controller_changed(2)
    assert kept == [2]


# --- topics that a node creates for itself

INTERNAL: dict[str, tuple[str, str, dict[str, str]]] = {
    CONSUMER_OFFSETS: (
        "offsets.topic.num.partitions",
        "offsets.topic.replication.factor",
        {"compression.type": "producer", "cleanup.policy": "compact", "segment.bytes": "1048577"},
    ),
    TRANSACTION_STATE: (
        "transaction.state.log.num.partitions",
        "transaction.state.log.replication.factor",
        {
            "compression.type": "uncompressed",
            "cleanup.policy": "compact",
            "min.insync.replicas": "4",
            "segment.bytes": "1048578",
            "unclean.leader.election.enable": "false",
        },
    ),
    SHARE_GROUP_STATE: (
        "share.coordinator.state.topic.num.partitions",
        "share.coordinator.state.topic.replication.factor",
        {
            "compression.type": "producer",
            "cleanup.policy": "delete",
            "min.insync.replicas": "5",
            "segment.bytes": "1048579",
            "retention.ms": "-1",
        },
    ),
}
SIZES = {
    "offsets.topic.segment.bytes": "1048577",
    "transaction.state.log.segment.bytes": "1048578",
    "transaction.state.log.min.isr": "4",
    "share.coordinator.state.topic.segment.bytes": "1048579",
    "share.coordinator.state.topic.min.isr": "5",
    "penstock.events.topic.replication.factor": "3",
}


def test_internal_topics_are_created_with_their_own_settings_and_others_with_the_defaults() -> None:
    counts = {name: str(2 + index) for index, pair in enumerate(INTERNAL.values()) for name in pair[:2]}
    settings = Settings({"node.id": "1", **SIZES, **counts})
    events = {"cleanup.policy": "compact", "segment.bytes": str(EVENT_SEGMENT_BYTES)}
    expected = {
        name: (settings.int(partitions), settings.int(factor), configs)
        for name, (partitions, factor, configs) in INTERNAL.items()
    }
    for name, figures in {**expected, EVENT_TOPIC: (1, 3, events), "orders": (-1, -1, {})}.items():
        topic = topic_to_create(settings, name)
        configs = {each.name: each.value for each in topic.configs}
        assert (topic.name, topic.num_partitions, topic.replication_factor, configs) == (name, *figures)


class Creating:
    """Replaces the controller channel and the lifecycle: topics are in the image once the node waits for it."""

    def __init__(self, *codes: ErrorCode) -> None:
        self.reply = created(*codes)
        self.image: Any = SimpleNamespace(topics={})
        self.forwarded: list[Any] = []
        self.requested: list[Any] = []

    async def ask(self, request: CreateTopicsRequest) -> Created:
        self.requested = request.topics
        return self.reply

    async def forward(self, ctx: Any, request: CreateTopicsRequest) -> Created:
        self.forwarded.append((ctx, request))
        return self.reply

    async def sees(self, condition: Callable[[Any], bool], limit_s: float) -> bool:
        accepted = (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS)
        made = [each.name for each in self.reply.topics if each.error_code in accepted]
        assert condition(self.image) is not bool(made)
        self.image.topics = {name: f"image of {name}" for name in made}
        assert condition(self.image) is True
        return True

    def creator(self) -> TopicCreator:
        parts: Any = (Settings({"node.id": "1"}), self, self, self)
        return TopicCreator(*parts)


def test_missing_topics_are_created_once_each_in_the_name_of_the_client_and_refusals_are_returned() -> None:
    async def scenario() -> None:
        creating = Creating(ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS, ErrorCode.POLICY_VIOLATION)
        creating.reply.throttle_time_ms = 77
        names = ["t0", "t1", "t0", "t2"]
        refused, throttle_ms = await creating.creator().create_missing(client(3, large=True), names)
        assert ({name: error.code for name, error in refused.items()}, throttle_ms) == ({"t2": 44}, 77)
        ((asked, request),) = creating.forwarded
        assert [each.name for each in request.topics] == ["t0", "t1", "t2"]
        assert (asked.api_key, asked.client_id, asked.correlation_id, asked.large) == (CREATE_TOPICS, "c", 5, False)
        assert [*creating.image.topics] == ["t0", "t1"]

    asyncio.run(scenario())


@pytest.mark.parametrize("configs", [None, {}, {"cleanup.policy": "compact", "retention.ms": "5"}])
def test_topic_that_a_node_needs_is_created_with_the_given_configs_and_default_sizes(
    configs: dict[str, str] | None,
) -> None:
    async def scenario() -> None:
        creating = Creating(ErrorCode.NONE)
        await creating.creator().ensure("t0", configs)
        (topic,) = creating.requested
        assert (topic.name, topic.num_partitions, topic.replication_factor) == ("t0", -1, -1)
        assert {each.name: each.value for each in topic.configs} == (configs or {})
        creating.requested = []
        await creating.creator().ensure("t0", {"retention.ms": "6"})
        assert creating.requested == []  # it exists

    asyncio.run(scenario())


@pytest.mark.parametrize("code", [ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS, ErrorCode.POLICY_VIOLATION])
def test_node_gets_the_topic_that_it_needs_or_the_reason_why_there_is_none(code: ErrorCode) -> None:
    async def scenario() -> None:
        creating = Creating(code)
        asking = creating.creator().ensure("t0")
        if code is ErrorCode.POLICY_VIOLATION:
            with pytest.raises(KafkaError) as caught:
                await asking
            assert caught.value.code is code
        else:
            assert await asking == "image of t0"  # type: ignore[comparison-overlap]

    asyncio.run(scenario())
