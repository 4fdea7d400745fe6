"""Tests the channel to the active controller when the controller changes, and heartbeats after errors."""

from __future__ import annotations

import asyncio
import random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.broker.controlplane.controller_channel import ControllerChannel
from penstock.broker.controlplane.lifecycle import Directories, Identity, Lifecycle
from penstock.broker.events import NodeEvent, Observer, log_event
from penstock.broker.events.kinds import NetworkPartitionSuspected
from penstock.client.connection import BrokerConnection
from penstock.metadata.configs.settings import Settings
from penstock.metadata.image import METADATA_VERSION
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_63_broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from penstock.sim.engine.loop import Timeline

FROZEN, WELL = 1, 2


def run(work: Any) -> None:
    timeline = Timeline(random.Random(1))
    try:
        timeline.run(work, timeline.process("test"), until=1000)
    finally:
        timeline.end()
    assert not timeline.failures, [str(each) for each in timeline.failures]


class FakeConnection:
    """Replaces a connection: the node at one port never answers, all other nodes answer at once."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.closed = False
        self.waiting: list[asyncio.Future[Any]] = []

    async def request(self, message: Any, *, timeout_s: float | None = None) -> Any:
        if self.port != FROZEN:
            return BrokerHeartbeatResponse()
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.waiting.append(future)
        return await future

    def close(self) -> None:
        self.closed = True
        for future in self.waiting:
            if not future.done():
                future.set_exception(KafkaError(ErrorCode.NETWORK_EXCEPTION, "closed"))


async def opened(network: Any, host: str, port: int, settings: Any = None) -> FakeConnection:
    return FakeConnection(port)


def test_requests_to_a_paused_controller_are_sent_to_the_new_controller_once_it_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(BrokerConnection, "open", opened)

    async def scenario() -> None:
        leader = [FROZEN]
        metadata: Any = SimpleNamespace(leading=False, active_controller=lambda: (leader[0], ("h", leader[0])))
        channel = ControllerChannel(cast(Any, None), 3, metadata, cast(Any, None))
        asking = asyncio.ensure_future(channel.ask(BrokerHeartbeatRequest(), timeout_ms=9000, lane="heartbeat"))
        await asyncio.sleep(1)
        assert not asking.done()
        leader[0] = WELL
        channel.controller_changed(WELL)
        await asyncio.sleep(0.1)
        assert asking.done()
        assert not asking.result().error_code
        channel.controller_changed(WELL)  # the connection in use stays open
        assert len(channel._links._open) == 1
        channel.close()

    run(scenario())


def alive(ask: Any, directories: Any = lambda: Directories([], [], []), observer: Observer = log_event) -> Lifecycle:
    """Returns the lifecycle of a registered broker, which sends heartbeats."""
    image = SimpleNamespace(offset=5, brokers={}, features={METADATA_VERSION: 30})
    metadata = SimpleNamespace(image=image, reaches_other_cluster=False)
    identity = Identity(1, "c", bytes(16), True, False, {}, {})
    channel = SimpleNamespace(ask=ask)
    settings = Settings({"node.id": "1"})
    parts = (identity, cast(Any, channel), cast(Any, metadata), settings, directories)
    return Lifecycle(*parts, observer=observer)


def test_broker_reports_a_suspected_network_partition_once_per_outage_of_the_controller() -> None:
    async def scenario() -> None:
        events: list[NodeEvent] = []
        answering = True

        async def ask(request: Any, **_: Any) -> Any:
            await asyncio.sleep(0.1)
            if not answering:
                raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "No answer.")
            return BrokerHeartbeatResponse(is_fenced=False)

        lifecycle = alive(ask, observer=events.append)
        unfencing = asyncio.ensure_future(lifecycle.unfence())
        await asyncio.sleep(5)
        answering = False
        await asyncio.sleep(8)
        assert events == []
        await asyncio.sleep(20)
        reason = "no controller has answered broker 1 for 9000 ms"
        assert events == [NetworkPartitionSuspected(reason, ())]
        answering = True
        await asyncio.sleep(5)
        answering = False
        await asyncio.sleep(20)
        assert len(events) == 2
        unfencing.cancel()
        await lifecycle.close()

    run(scenario())


def test_broker_sends_another_heartbeat_at_once_if_its_directories_change_during_a_heartbeat() -> None:
    async def scenario() -> None:
        told: list[tuple[list[bytes], list[bytes]]] = []
        online, failed, closed = bytes([1] * 16), bytes([2] * 16), bytes([3] * 16)
        now = Directories([online, failed], [], [])

        async def ask(request: Any, **_: Any) -> Any:
            nonlocal now
            told.append((request.offline_log_dirs, request.cordoned_log_dirs))
            await asyncio.sleep(0.1)
            if len(told) == 1:
                now = Directories([online], [failed], [closed])
                lifecycle.beat_now()
            return BrokerHeartbeatResponse(is_fenced=False)

        lifecycle = alive(ask, lambda: now)
        unfencing = asyncio.ensure_future(lifecycle.unfence())
        await asyncio.sleep(1.0)  # half of the interval
        assert told == [([], []), ([failed], [closed])]
        unfencing.cancel()
        await lifecycle.close()

    run(scenario())


def test_broker_continues_its_heartbeats_after_an_unexpected_error(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        beats: list[Any] = []

        async def ask(request: Any, *, timeout_ms: int, **_: Any) -> Any:
            beats.append(request)
            assert timeout_ms <= 4500  # half of a session, so that a lost heartbeat can be sent again
            if len(beats) == 1:
                raise ValueError("an unexpected error")
            return BrokerHeartbeatResponse()

        lifecycle = alive(ask)
        unfencing = asyncio.ensure_future(lifecycle.unfence())
        await asyncio.sleep(5)
        assert len(beats) > 2
        unfencing.cancel()
        await lifecycle.close()

    run(scenario())
    assert "failed and is repeated" in caplog.text
