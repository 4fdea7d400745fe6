"""Tests the active controller in virtual time: when it fences brokers, and its periodic work."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, cast

import pytest

from penstock.broker.controlplane.controller import Controller, rules_of
from penstock.broker.events import NodeEvent
from penstock.broker.events.kinds import BrokerFenced, BrokerUnfenced, NetworkPartitionSuspected
from penstock.broker.requests.context import RequestContext
from penstock.metadata.apply import apply
from penstock.metadata.configs.settings import Settings
from penstock.metadata.decision import Decision
from penstock.metadata.features import SUPPORTED_FEATURES, default_features
from penstock.metadata.image import EMPTY_IMAGE, MetadataImage, PartitionImage, TopicImage
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages import api_62_broker_registration as api_62
from penstock.protocol.messages.api_63_broker_heartbeat import BrokerHeartbeatRequest, Suspicion
from penstock.protocol.persisted.metadata.config_record import ConfigRecord
from penstock.sim.engine.loop import Timeline

ID = bytes([1] * 16)
CLUSTER = "a cluster"
SETTINGS = {"node.id": "9", "min.insync.replicas": "2"}


class FakeLog:
    """Replaces the metadata log: commits every decision at once."""

    def __init__(self) -> None:
        self.image: MetadataImage = replace(EMPTY_IMAGE, features=default_features(30))
        self.leading = True
        self._listeners: list[Callable[[MetadataImage, MetadataImage], None]] = []
        self._watchers: list[Callable[[bool], None]] = []

    async def submit(self, decide: Callable[[MetadataImage], Decision[Any]]) -> Any:
        if not self.leading:
            raise KafkaError(ErrorCode.NOT_CONTROLLER, "Ask another.")
        decision = decide(self.image)
        if decision.records:
            self.write(decision.records)
        await asyncio.sleep(0)
        return decision.reply

    def write(self, records: Any) -> None:
        old, self.image = self.image, apply(self.image, records)
        for listener in self._listeners:
            listener(old, self.image)

    def subscribe(self, listener: Callable[[MetadataImage, MetadataImage], None]) -> None:
        self._listeners.append(listener)

    def watch_leadership(self, listener: Callable[[bool], None]) -> None:
        self._watchers.append(listener)
        if self.leading:
            listener(True)

    def lead(self, leads: bool) -> None:
        self.leading = leads
        for watcher in self._watchers:
            watcher(leads)


@dataclass
class FakeNetwork:
    """Replaces the network: its ports accept, refuse or ignore connections."""

    ports: dict[int, str] = field(default_factory=dict)
    tried: list[int] = field(default_factory=list)

    async def connect(self, host: str, port: int, factory: Any, **_: Any) -> None:
        self.tried.append(port)
        how = self.ports.get(port, "accepts")
        if how == "refuses":
            raise ConnectionRefusedError
        if how == "silent":
            await asyncio.sleep(3600)


class FakeConnection:
    peer_host = "h"

    def __init__(self) -> None:
        self._callbacks: list[Callable[[], None]] = []
        self.state: dict[str, Any] = {}

    def on_close(self, callback: Callable[[], None]) -> None:
        self._callbacks.append(callback)

    def close(self) -> None:
        for callback in self._callbacks:
            callback()


class FakeClock:
    def wall_ms(self) -> int:
        return int(asyncio.get_running_loop().time() * 1000)

    def nanoseconds(self) -> int:
        return 0


@dataclass
class Stage:
    log: FakeLog
    network: FakeNetwork
    controller: Controller
    events: list[NodeEvent]
    connections: dict[int, FakeConnection] = field(default_factory=dict)
    told: int = -1

    def context(self, broker_id: int) -> RequestContext:
        connection = self.connections.setdefault(broker_id, FakeConnection())
        return RequestContext(63, 2, 0, None, cast(Any, connection), 0)

    async def register(
        self,
        broker_id: int,
        life: int = 1,
        previous: int = -1,
        listeners: list[api_62.Listener] | None = None,
        ended: int = -1,
    ) -> int:
        request = api_62.BrokerRegistrationRequest(
            broker_id=broker_id,
            cluster_id=CLUSTER,
            incarnation_id=bytes([life] * 16),
            listeners=listeners or [api_62.Listener(name="PLAINTEXT", host="h", port=broker_id, security_protocol=0)],
            features=[
                api_62.Feature(name=name, min_supported_version=low, max_supported_version=high)
                for name, (low, high) in SUPPORTED_FEATURES.items()
            ],
            log_dirs=[bytes([broker_id] * 16)],
            previous_broker_epoch=previous,
            ended_broker_epoch=ended,
        )
        answer = await self.controller.register(request, CLUSTER)
        self.told = answer.broker_epoch
        if answer.error_code:
            raise KafkaError(ErrorCode(answer.error_code))
        return answer.broker_epoch

    async def refused(self, broker_id: int, life: int, previous: int = -1, ended: int = -1) -> int:
        """Sends a registration that is refused. Returns the epoch that the controller sends with the refusal."""
        before = self.log.image
        with pytest.raises(KafkaError) as refusal:
            await self.register(broker_id, life, previous, ended=ended)
        assert refusal.value.code is ErrorCode.BROKER_ID_NOT_REGISTERED
        assert self.log.image is before
        return self.told

    async def register_alive(self, broker_id: int, life: int) -> int:
        """Registers as a running process does: gets a refusal, then names the registration that it replaces."""
        return await self.register(broker_id, life, ended=await self.refused(broker_id, life))

    async def beat(self, broker_id: int, **fields: Any) -> Any:
        known = {
            "broker_epoch": self.log.image.brokers[broker_id].epoch,
            "current_metadata_offset": self.log.image.offset,
        }
        request = BrokerHeartbeatRequest(broker_id=broker_id, **{**known, **fields})
        return await self.controller.heartbeat(request, self.context(broker_id))

    async def join(self, *broker_ids: int) -> None:
        for broker_id in broker_ids:
            await self.register(broker_id)
            await self.beat(broker_id)

    def topic(self, *partitions: PartitionImage) -> None:
        topic = TopicImage("t", ID, dict(enumerate(partitions)))
        self.log.image = replace(self.log.image, topics={"t": topic}, topics_by_id={ID: topic})

    def fenced(self) -> list[int]:
        return [broker_id for broker_id, broker in sorted(self.log.image.brokers.items()) if broker.fenced]

    @property
    def partition(self) -> PartitionImage:
        return self.log.image.topics["t"].partitions[0]

    async def keep_beating(self, *broker_ids: int, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while loop.time() < end:
            for broker_id in broker_ids:
                await self.beat(broker_id)
            await asyncio.sleep(1)


@contextmanager
def timeline() -> Iterator[Timeline]:
    made = Timeline(Random(1))
    yield made
    made.end()


def play(script: Callable[[Stage], Awaitable[None]], settings: dict[str, str] | None = None) -> Stage:
    with timeline() as made:
        loop = made.process("controller")
        stages: list[Stage] = []

        async def main() -> None:
            log, network = FakeLog(), FakeNetwork()
            events: list[NodeEvent] = []
            static = Settings({**SETTINGS, **(settings or {})})
            parts = (cast(Any, log), static, FakeClock(), cast(Any, network), Random(1))
            controller = Controller(*parts, observer=events.append)
            stages.append(Stage(log, network, controller, events))
            log.subscribe(controller.apply)
            controller.start()
            await asyncio.sleep(0.01)
            await script(stages[0])
            await controller.close()

        made.run(main(), loop)
        return stages[0]


PARTITION = PartitionImage(replicas=(1, 2, 3), isr=(1, 2, 3), leader=1, directories=(bytes(16),) * 3)


def test_a_broker_without_heartbeats_is_fenced_when_its_session_ends() -> None:
    async def script(stage: Stage) -> None:
        await stage.join(1, 2, 3)
        stage.topic(PARTITION)
        await stage.keep_beating(2, 3, seconds=8.5)
        assert stage.fenced() == []
        await stage.keep_beating(2, 3, seconds=2)
        assert stage.fenced() == [1]
        assert (stage.partition.leader, stage.partition.isr) == (2, (2, 3))

    stage = play(script)
    (failover,) = stage.controller.failovers
    assert (failover.broker_id, failover.partitions, stage.controller.failovers.count) == (1, 1, 1)


def test_controller_refuses_suspicions_in_a_heartbeat_with_a_wrong_broker_epoch() -> None:
    heard: list[tuple[tuple[int, str], int]] = []

    async def script(stage: Stage) -> None:
        stage.controller.on_suspicions = lambda sender, suspicions: heard.append((sender, len(suspicions)))
        await stage.join(1)
        epoch = stage.log.image.brokers[1].epoch
        for wrong in (epoch - 1, epoch + 1):
            with pytest.raises(KafkaError) as refusal:
                await stage.beat(1, broker_epoch=wrong, suspicions=[Suspicion(node_id=2)])
            assert refusal.value.code is ErrorCode.STALE_BROKER_EPOCH
        assert heard == []
        await stage.beat(1, suspicions=[Suspicion(node_id=2)])

    play(script)
    assert heard == [((1, "h"), 1)]


def test_events_of_unfenced_and_fenced_brokers_have_the_time_of_the_last_heartbeat() -> None:
    async def script(stage: Stage) -> None:
        await stage.join(1, 2)
        await stage.keep_beating(2, seconds=12)

    stage = play(script)
    unfenced = [each for each in stage.events if isinstance(each, BrokerUnfenced)]
    assert [each.broker_id for each in unfenced] == [1, 2]
    assert all(each.last_heard_ms is not None for each in unfenced)
    (fenced,) = [each for each in stage.events if isinstance(each, BrokerFenced)]
    assert (fenced.broker_id, fenced.last_heard_ms is not None) == (1, True)
    assert [each.nodes for each in stage.events if isinstance(each, NetworkPartitionSuspected)] == [(1,)]


def test_broker_whose_process_is_killed_is_fenced_at_once() -> None:
    async def script(stage: Stage) -> None:
        await stage.join(1, 2, 3)
        stage.topic(PARTITION)
        stage.network.ports[1] = "refuses"
        stage.connections[1].close()
        await asyncio.sleep(0.001)
        assert stage.fenced() == [1]
        assert stage.partition.leader == 2

    stage = play(script)
    (failover,) = stage.controller.failovers
    assert failover.detected_ms is not None
    assert failover.elected_ms - failover.detected_ms < 10
    assert "refused" in (failover.how or "")


def test_broker_is_fenced_as_soon_as_its_listener_closes_if_its_connection_closed_shortly_before() -> None:
    async def script(stage: Stage) -> None:
        await stage.join(1, 2)
        stage.connections[1].close()
        await asyncio.sleep(0.05)
        assert stage.fenced() == []
        stage.network.ports[1] = "refuses"
        await asyncio.sleep(0.2)
        assert stage.fenced() == [1]

    play(script)


@pytest.mark.parametrize("how", ["accepts", "silent"])
def test_broker_that_loses_only_its_connection_is_not_fenced(how: str) -> None:
    async def script(stage: Stage) -> None:
        await stage.join(1, 2)
        stage.network.ports[1] = how
        stage.connections[1].close()
        await asyncio.sleep(5)
        assert stage.fenced() == []
        await stage.keep_beating(2, seconds=6)
        assert stage.fenced() == [1]

    play(script)


def test_a_broker_that_reconnects_is_not_fenced() -> None:
    async def script(stage: Stage) -> None:
        await stage.join(1, 2)
        stage.connections.pop(1).close()
        await asyncio.sleep(0.05)
        await stage.beat(1)
        stage.network.ports[1] = "refuses"
        await asyncio.sleep(3)
        assert stage.fenced() == []

    play(script)


def test_closing_an_old_connection_does_not_fence_a_broker_that_has_a_new_connection() -> None:
    async def script(stage: Stage) -> None:
        await stage.join(1, 2)
        old = stage.connections.pop(1)
        await stage.beat(1)
        stage.network.ports[1] = "refuses"
        old.close()
        await asyncio.sleep(2)
        assert stage.fenced() == []
        assert stage.network.tried == []

    play(script)


def test_new_controller_immediately_fences_a_broker_that_refuses_connections_and_later_a_silent_broker() -> None:
    async def script(stage: Stage) -> None:
        await stage.join(1, 2, 3)
        stage.topic(PARTITION)
        stage.log.lead(False)
        stage.network.ports[1] = "refuses"
        await asyncio.sleep(30)
        assert stage.fenced() == []
        stage.log.lead(True)
        await asyncio.sleep(0.01)
        assert stage.fenced() == [1]
        await stage.keep_beating(2, seconds=8)
        assert stage.fenced() == [1]
        await stage.keep_beating(2, seconds=3)
        assert stage.fenced() == [1, 3]

    play(script)


def test_pause_of_the_controller_fences_no_broker() -> None:
    async def script(stage: Stage) -> None:
        await stage.join(1, 2)
        asyncio.get_running_loop().block(60.0)  # type: ignore[attr-defined]
        await asyncio.sleep(0.01)
        assert stage.fenced() == []
        await stage.keep_beating(2, seconds=11)
        assert stage.fenced() == [1]

    play(script)


@pytest.mark.parametrize("pause_s", [7.5, 9.5, 60.0])
def test_a_pause_of_the_controller_does_not_shorten_sessions(pause_s: float) -> None:
    """Checks pauses at different moments: each broker keeps its remaining session time, except for about a second."""

    async def script(stage: Stage) -> None:
        await stage.join(1, 2)
        await asyncio.sleep(1.6)  # a heartbeat is in flight
        asyncio.get_running_loop().block(pause_s)  # type: ignore[attr-defined]
        await asyncio.sleep(0)  # the end of the pause
        await asyncio.sleep(5.0)  # brokers whose connections timed out meanwhile reconnect one after the other
        assert stage.fenced() == []
        await stage.beat(1)
        await asyncio.sleep(4.0)
        assert stage.fenced() == [2]

    play(script)


def test_heartbeat_after_controller_pause_is_not_dated_in_the_future() -> None:
    async def script(stage: Stage) -> None:
        await stage.join(1, 2)
        asyncio.get_running_loop().block(60.0)  # type: ignore[attr-defined]
        await stage.beat(1)  # was buffered in its connection
        await asyncio.sleep(0.01)
        stage.network.ports[1] = "refuses"
        stage.connections[1].close()
        await asyncio.sleep(2)
        assert 1 in stage.fenced()

    play(script)


def listeners(**ports: int) -> list[api_62.Listener]:
    return [api_62.Listener(name=name, host="h", port=port, security_protocol=0) for name, port in ports.items()]


@pytest.mark.parametrize(
    ("offered", "refusing", "fenced"),
    [
        (listeners(OUTSIDE=7, PLAINTEXT=8), {7}, []),
        (listeners(OUTSIDE=7, PLAINTEXT=8), {8}, [1]),
        (listeners(OUTSIDE=7, INSIDE=8), {7}, []),
        (listeners(OUTSIDE=7, INSIDE=8), {7, 8}, [1]),
    ],
)
def test_controller_probes_a_broker_at_its_inter_broker_listener(
    offered: list[api_62.Listener], refusing: set[int], fenced: list[int]
) -> None:
    async def script(stage: Stage) -> None:
        await stage.register(1, listeners=offered)
        await stage.beat(1)
        stage.network.ports = dict.fromkeys(refusing, "refuses")
        stage.connections[1].close()
        await asyncio.sleep(2)
        assert stage.fenced() == fenced

    play(script)


def test_restarted_broker_replaces_its_ended_incarnation_but_not_an_incarnation_that_still_runs() -> None:
    async def script(stage: Stage) -> None:
        await stage.join(1, 2)
        with pytest.raises(KafkaError) as refusal:
            await stage.register(1, life=2)
        assert refusal.value.code is ErrorCode.DUPLICATE_BROKER_REGISTRATION
        stage.connections.pop(1).close()
        before = stage.log.image.brokers[1].epoch
        assert await stage.register_alive(1, life=2) > before
        assert stage.fenced() == [1]
        stage.log.lead(False)
        stage.log.lead(True)
        await asyncio.sleep(0.01)
        await stage.register_alive(2, life=2)
        assert stage.fenced() == [1, 2]

    play(script)


def test_late_registration_of_an_ended_incarnation_is_refused() -> None:
    async def script(stage: Stage) -> None:
        await stage.join(1, 2)
        stage.connections.pop(1).close()
        before = stage.log.image.brokers[1].epoch
        await stage.register(1, life=2, previous=before)  # its clean shutdown proves that no record was lost
        stands = stage.log.image.brokers[1].epoch
        for late in (3, 4):
            assert await stage.refused(1, life=late, previous=before) == stands

    play(script)


def test_repeated_late_registrations_of_an_ended_incarnation_are_all_refused() -> None:
    async def script(stage: Stage) -> None:
        await stage.join(1, 2)
        first = stage.log.image.brokers[1].epoch
        stage.connections.pop(1).close()
        assert await stage.refused(1, life=2) == first
        second = await stage.register(1, life=2, ended=first)
        third = await stage.register(1, life=3, previous=second)
        # Incarnation 2 sent these before it ended: twice without an epoch, and once with the epoch from a refusal.
        for ended in (-1, -1, first, first, -1):
            assert await stage.refused(1, life=2, ended=ended) == third
        # A request of another incarnation, of another broker, or at another controller does not change that.
        assert await stage.refused(1, life=4) == third
        stage.connections.pop(2).close()
        await stage.register_alive(2, life=2)
        stage.log.lead(False)
        stage.log.lead(True)
        for ended in (-1, first, second):
            assert await stage.refused(1, life=2, ended=ended) == third
        assert await stage.register(1, life=4, ended=third) > third

    play(script)


def test_registration_of_a_broker_of_another_cluster_is_refused() -> None:
    async def script(stage: Stage) -> None:
        request = api_62.BrokerRegistrationRequest(broker_id=1, cluster_id="another")
        with pytest.raises(KafkaError) as refusal:
            await stage.controller.register(request, CLUSTER)
        assert refusal.value.code is ErrorCode.INCONSISTENT_CLUSTER_ID

    play(script)


def test_a_controlled_shutdown_waits_until_the_other_brokers_have_the_metadata() -> None:
    async def script(stage: Stage) -> None:
        await stage.join(1, 2, 3)
        stage.topic(PARTITION)
        reply = await stage.beat(1, want_shut_down=True)
        assert (reply.should_shut_down, reply.is_fenced, stage.partition.leader) == (False, False, 2)
        assert not (await stage.beat(1, want_shut_down=True)).should_shut_down
        await stage.beat(2)
        assert not (await stage.beat(1, want_shut_down=True)).should_shut_down
        await stage.beat(3)
        assert (await stage.beat(1, want_shut_down=True)).should_shut_down
        assert stage.fenced() == [1]
        again = await stage.beat(1, want_shut_down=True)
        assert again.should_shut_down

    play(script)


def test_controller_periodically_elects_preferred_leaders() -> None:
    async def script(stage: Stage) -> None:
        await stage.join(1, 2, 3)
        stage.topic(replace(PARTITION, leader=2))
        await stage.keep_beating(1, 2, 3, seconds=25)

    settings = {"leader.imbalance.check.interval.seconds": "20"}
    assert play(script, settings).partition.leader == 1
    assert play(script, {**settings, "auto.leader.rebalance.enable": "false"}).partition.leader == 2


def test_controller_elects_an_unclean_leader_as_soon_as_a_config_allows_it() -> None:
    async def script(stage: Stage) -> None:
        await stage.join(2, 3)
        stage.topic(replace(PARTITION, isr=(), elr=(1,), leader=-1, last_known_elr=(1,)))
        name = "unclean.leader.election.enable"
        stage.log.write([ConfigRecord(resource_type=2, resource_name="t", name=name, value="true")])
        await asyncio.sleep(0.01)
        assert stage.partition.leader == 2

    assert play(script).controller.unclean_elections == 1


def test_former_controller_stops_all_periodic_work() -> None:
    async def script(stage: Stage) -> None:
        await stage.join(1, 2)
        stage.log.lead(False)
        stage.network.ports[1] = "refuses"
        stage.connections[1].close()
        await asyncio.sleep(60)
        assert stage.fenced() == []
        assert stage.network.tried == []

    play(script)


def test_controller_takes_min_isr_and_unclean_election_from_the_broker_settings() -> None:
    rules = rules_of(Settings({"node.id": "4", "min.insync.replicas": "2", "unclean.leader.election.enable": "true"}))
    assert (rules.min_insync_replicas, rules.unclean_leader_election, rules.node_id) == (2, True, 4)
