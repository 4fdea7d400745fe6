"""What the active controller does by itself: listens for brokers' heartbeats, fences who is gone, looks after leaders.

A broker that dies is noticed in two ways. A process that ends closes its connections: when the one it sent heartbeats
over closes and its listener refuses a new one, it is fenced at once. A machine that falls silent is fenced when
its session is over. A controller that takes over asks every broker in the first way, and gives each a whole session.

Every decision is a pure function in `penstock.metadata.controller`; here are only times, connections and timers.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.broker.tasks import Tasks
from penstock.metadata.controller.alter_partition import alter_partition, assign_replicas
from penstock.metadata.controller.broker_states import HeartbeatReply, State, fence_broker, heartbeat, unregister_broker
from penstock.metadata.controller.brokers import check_cluster, epoch_to_name, register_broker, registration_of
from penstock.metadata.controller.elections import balance_leaders, elect_unclean
from penstock.metadata.controller.heartbeats import Heartbeats
from penstock.metadata.controller.partition_change import Rules
from penstock.metadata.decision import Decision
from penstock.metadata.image import FENCINGS_MAX
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_62_broker_registration import BrokerRegistrationResponse
from penstock.protocol.messages.api_63_broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from penstock.protocol.vocabulary import NO_LEADER, ResourceType

if TYPE_CHECKING:
    from random import Random

    from penstock.broker.controlplane.metadata_log import MetadataLog
    from penstock.broker.requests.context import RequestConnection, RequestContext
    from penstock.clock import Clock
    from penstock.metadata.configs.settings import Settings
    from penstock.metadata.image import Endpoint, MetadataImage
    from penstock.net.network import Network
    from penstock.protocol.messages.api_56_alter_partition import AlterPartitionRequest, AlterPartitionResponse
    from penstock.protocol.messages.api_62_broker_registration import BrokerRegistrationRequest
    from penstock.protocol.messages.api_73_assign_replicas_to_dirs import (
        AssignReplicasToDirsRequest,
        AssignReplicasToDirsResponse,
    )

logger = logging.getLogger(__name__)

#: A process that dies closes its sockets one by one: its listener may be there a moment longer than its connections.
PROBES_AFTER_S = (0.0, 0.02, 0.1, 0.3, 1.0)
PROBE_TIMEOUT_S = 1.0
#: A timer that is later than this shows that the controller itself was held up. One goes off this often, to tell for
#: how long: all of that time is lost to everybody, not only what is left of it after somebody's session.
HELD_UP_MS = 500
LOOK_EVERY_MS = 1000
#: Between two looks at a broker that is silent, while its fencing is not committed.
RECHECK_MS = 50


@dataclass(frozen=True, slots=True)
class Failover:
    """A broker that was found gone, and when its partitions had other leaders. Times on the wall.

    Every node reads this from the metadata log; how and when it was noticed is known where the controller was.
    """

    broker_id: int
    elected_ms: int
    partitions: int
    how: str | None = None
    detected_ms: int | None = None


def rules_of(settings: Settings) -> Rules:
    """For topics about which the metadata says nothing."""
    return Rules(
        settings.int("min.insync.replicas"),
        settings.bool("unclean.leader.election.enable"),
        settings.node_id,
        settings.int("log.flush.interval.messages") == 1,
    )


class Controller:
    """Idle until this node is the active controller. `start` after the metadata log is, `close` before it."""

    def __init__(
        self, metadata: MetadataLog, settings: Settings, clock: Clock, network: Network, random: Random
    ) -> None:
        self._metadata = metadata
        self._settings = settings
        self._clock = clock
        self._network = network
        self._random = random
        self.active = False
        self.beats = Heartbeats(settings.int("broker.session.timeout.ms"))
        self.failovers: deque[Failover] = deque(maxlen=FENCINGS_MAX)
        self.failover_count = 0
        self._noticed: dict[tuple[int, int], tuple[str, int]] = {}
        self.unclean_elections = 0
        self._watched: dict[int, tuple[RequestConnection, int]] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._tasks = Tasks()
        self._closed = False

    @property
    def rules(self) -> Rules:
        return rules_of(self._settings)

    # --- start and stop ---------------------------------------------------------------------------------

    def start(self) -> None:
        self._metadata.watch_leadership(self._leadership_changed)

    async def close(self) -> None:
        self._closed = True
        self._stop()
        await self._tasks.close()

    def _leadership_changed(self, leads: bool) -> None:
        self._stop()
        if leads and not self._closed:
            self.active = True
            self.beats.begin(self._metadata.image, self._now_ms())
            self._tasks.start(self._take_over(), "controller-take-over")

    def _stop(self) -> None:
        self.active = False
        self._watched.clear()
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    async def _take_over(self) -> None:
        settings = self._settings
        self._check_sessions_later()
        if settings.bool("auto.leader.rebalance.enable"):
            self._every(
                "balance", settings.int("leader.imbalance.check.interval.seconds"), lambda: self._elect(balance_leaders)
            )
        interval_s = settings.int("unclean.leader.election.interval.ms") / 1000
        self._every("unclean", interval_s, lambda: self._elect(elect_unclean))
        await self._decide(lambda pending: Decision([], None))  # until all that was decided before is known to be
        for broker_id, broker in sorted(self._metadata.image.brokers.items()):
            if not broker.fenced and broker_id != settings.node_id and self.active:
                self._suspect(broker_id, broker.epoch, "refused a connection when a new controller took over")

    # --- what brokers ask -------------------------------------------------------------------------------

    async def register(self, request: BrokerRegistrationRequest, cluster_id: str) -> BrokerRegistrationResponse:
        check_cluster(cluster_id, request.cluster_id, request.broker_id)
        registration = registration_of(request)
        rules = self.rules

        def decide(image: MetadataImage) -> Decision[BrokerRegistrationResponse]:
            now_ms = self._now_ms()
            is_live = self.beats.is_live(image, request.broker_id, now_ms)
            ended = None if is_live else epoch_to_name(image, registration)
            if ended is not None:
                code = ErrorCode.BROKER_ID_NOT_REGISTERED
                return Decision([], BrokerRegistrationResponse(error_code=code, broker_epoch=ended))
            decision = register_broker(image, registration, rules, is_live=is_live)
            self.beats.registered(request.broker_id, decision.reply, now_ms)
            return Decision(decision.records, BrokerRegistrationResponse(broker_epoch=decision.reply))

        answer = await self._metadata.submit(decide)
        if not answer.error_code:
            logger.info("broker %d is registered with epoch %d", request.broker_id, answer.broker_epoch)
        return answer

    async def heartbeat(self, request: BrokerHeartbeatRequest, ctx: RequestContext) -> BrokerHeartbeatResponse:
        rules = self.rules

        def decide(image: MetadataImage) -> Decision[HeartbeatReply]:
            return self._heartbeat(image, request, rules)

        self._watch(request.broker_id, request.broker_epoch, ctx.connection)
        reply = await self._metadata.submit(decide)
        return BrokerHeartbeatResponse(
            is_caught_up=reply.is_caught_up,
            is_fenced=reply.is_fenced,
            should_shut_down=reply.state is State.SHUTDOWN_NOW,
        )

    def _heartbeat(
        self, image: MetadataImage, request: BrokerHeartbeatRequest, rules: Rules
    ) -> Decision[HeartbeatReply]:
        broker_id, epoch, now_ms = request.broker_id, request.broker_epoch, self._now_ms()
        broker = image.brokers.get(broker_id)
        known = broker is not None and broker.epoch == epoch
        session = self.beats.session(broker_id, epoch, now_ms) if known else None
        decision = heartbeat(
            image,
            request,
            rules,
            shutdown_offset=None if session is None else session.shutdown_offset,
            lowest_active_offset=self.beats.lowest_active_offset(image),
        )
        session = self.beats.touch(broker_id, epoch, now_ms, request.current_metadata_offset)
        reply = decision.reply
        if reply.is_fenced:
            session.shutdown_offset = None
        elif reply.shutdown_offset is not None:
            session.shutdown_offset = reply.shutdown_offset
        if decision.records:
            logger.info("broker %d is now in state: %s", broker_id, reply.state.value)
        return decision

    async def alter_partition(self, request: AlterPartitionRequest) -> AlterPartitionResponse:
        rules = self.rules
        return await self._metadata.submit(lambda image: alter_partition(image, request, rules))

    async def assign_replicas(self, request: AssignReplicasToDirsRequest) -> AssignReplicasToDirsResponse:
        rules = self.rules
        return await self._metadata.submit(lambda image: assign_replicas(image, request, rules))

    async def unregister(self, broker_id: int) -> None:
        rules = self.rules

        def decide(image: MetadataImage) -> Decision[None]:
            decision = unregister_broker(image, broker_id, rules)
            self.beats.forget(broker_id)
            self._watched.pop(broker_id, None)
            return decision

        await self._metadata.submit(decide)

    # --- brokers that go --------------------------------------------------------------------------------

    def _watch(self, broker_id: int, epoch: int, connection: RequestConnection) -> None:
        """The connection that a broker's heartbeats come over tells of its end."""
        watched = self._watched.get(broker_id)
        if watched is not None and watched == (connection, epoch):
            return
        self._watched[broker_id] = (connection, epoch)
        connection.on_close(lambda: self._connection_closed(broker_id, epoch, connection))

    def _connection_closed(self, broker_id: int, epoch: int, connection: RequestConnection) -> None:
        if self._watched.get(broker_id) != (connection, epoch):
            return  # it has moved to another connection since
        del self._watched[broker_id]
        self.beats.disconnected(broker_id, epoch)
        if self.active:
            self._suspect(broker_id, epoch, "closed its connection and refused another")

    def _suspect(self, broker_id: int, epoch: int, how: str) -> None:
        self._tasks.start(self._probe(broker_id, epoch, how), f"probe-broker-{broker_id}")

    async def _probe(self, broker_id: int, epoch: int, how: str) -> None:
        """Fences the broker if its listener refuses connections, unless it is heard of again."""
        began_ms, detected_ms = self._now_ms(), self._clock.wall_ms()
        for pause_s in PROBES_AFTER_S:
            if pause_s:
                await asyncio.sleep(pause_s)
            endpoints = self._suspected(broker_id, epoch, began_ms)
            if not endpoints:
                return
            if all([await self._refuses(endpoint) for endpoint in endpoints]):
                await self._fence(broker_id, epoch, how, detected_ms, heard_before_ms=began_ms)
                return

    def _suspected(self, broker_id: int, epoch: int, began_ms: int) -> list[Endpoint]:
        """Where to look for the broker; nowhere when there is no reason to any more.

        Where brokers reach each other: the address that a listener tells clients may be another machine from here.
        """
        broker = self._metadata.image.brokers.get(broker_id)
        if not self.active or broker is None or broker.epoch != epoch or broker.fenced:
            return []
        if self.beats.session(broker_id, epoch, began_ms).last_contact_ms > began_ms:
            return []
        settings = self._settings
        name = settings.optional_str("inter.broker.listener.name") or settings.str("security.inter.broker.protocol")
        among_brokers = broker.endpoints.get(name.upper())
        return list(broker.endpoints.values()) if among_brokers is None else [among_brokers]

    async def _refuses(self, endpoint: Endpoint) -> bool:
        """Whether nobody listens there. Silence is no answer: the network may be what is broken."""
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_S):
                await self._network.connect(endpoint.host, endpoint.port, _Probe)
        except ConnectionRefusedError:
            return True
        except (OSError, TimeoutError):
            return False
        return False

    async def _fence(
        self, broker_id: int, epoch: int, how: str, detected_ms: int, *, heard_before_ms: int | None = None
    ) -> None:
        rules = self.rules

        def decide(image: MetadataImage) -> Decision[int]:
            broker = image.brokers.get(broker_id)
            if broker is None or broker.epoch != epoch:
                return Decision([], 0)
            session = self.beats.session(broker_id, epoch, self._now_ms())
            if heard_before_ms is not None and session.last_contact_ms > heard_before_ms:
                return Decision([], 0)
            session.shutdown_offset = None
            decision = fence_broker(image, broker_id, rules)
            if decision.records:
                self.failover_count += 1
                self._noticed[broker_id, epoch] = (how, detected_ms)
                logger.warning("broker %d is fenced: it %s", broker_id, how)
            return decision

        await self._decide(decide)
        self._noticed.pop((broker_id, epoch), None)

    def _list_failovers(self, image: MetadataImage) -> None:
        for each in image.changes.fencings:
            noticed = self._noticed.get((each.broker_id, each.broker_epoch))
            if noticed is None:
                self.failovers.append(Failover(each.broker_id, each.timestamp_ms, each.partitions))
            else:
                self.failovers.append(Failover(each.broker_id, self._clock.wall_ms(), each.partitions, *noticed))

    # --- sessions ---------------------------------------------------------------------------------------

    def _check_sessions_later(self) -> None:
        now_ms = self._now_ms()
        due_ms = self.beats.next_check_ms(self._metadata.image, now_ms)
        self._at("sessions", max(min(due_ms, now_ms + LOOK_EVERY_MS), now_ms + RECHECK_MS), self._check_sessions)

    def _check_sessions(self, due_ms: int) -> None:
        now_ms = self._now_ms()
        if now_ms - due_ms > HELD_UP_MS:
            logger.warning("the controller was held up for %d ms: no broker is blamed for them", now_ms - due_ms)
            self.beats.forgive(now_ms - due_ms, now_ms)
        elif self.beats.stale(self._metadata.image, now_ms):
            self._tasks.start(self._fence_silent(now_ms), "fence-silent-brokers")
        self._check_sessions_later()

    async def _fence_silent(self, now_ms: int) -> None:
        """One after the other, so that the leaderships of the first don't go to the second."""
        image = self._metadata.image
        for broker_id in self.beats.stale(image, now_ms):
            how = f"was silent for {self.beats.session_timeout_ms} ms"
            await self._fence(
                broker_id, image.brokers[broker_id].epoch, how, self._clock.wall_ms(), heard_before_ms=now_ms
            )

    # --- leaders ----------------------------------------------------------------------------------------

    async def _elect(self, decide: Callable[[MetadataImage, Rules], Decision[bool]]) -> None:
        """In portions, so that requests get their turn between them."""
        more: bool | None = True
        while more and self.active:
            rules = self.rules
            more = await self._decide(lambda image: self._counted(decide(image, rules)))  # noqa: B023

    def _counted(self, decision: Decision[bool]) -> Decision[bool]:
        self.unclean_elections += sum(record.leader_recovery_state == 1 for record in decision.records)
        return decision

    def apply(self, old: MetadataImage, new: MetadataImage) -> None:
        """Lists failovers, and holds unclean elections at once when a config begins to allow them."""
        self._list_failovers(new)
        if not self.active or new.configs is old.configs:
            return
        kinds = {kind for kind, _ in new.changes.configs}
        if kinds & {ResourceType.TOPIC, ResourceType.BROKER} and _any_leaderless(new):
            self._tasks.start(self._elect(elect_unclean), "unclean-elections")

    # --- timers and tasks -------------------------------------------------------------------------------

    async def _decide(self, decide: Callable[[MetadataImage], Decision[Any]]) -> Any:
        """The reply; None when this node isn't the active controller any more: then another one will decide."""
        try:
            return await self._metadata.submit(decide)
        except KafkaError as error:
            logger.info("nothing was decided: %s", error.message)
            return None

    def _now_ms(self) -> int:
        return int(asyncio.get_running_loop().time() * 1000)

    def _at(self, name: str, when_ms: int, callback: Callable[[int], None]) -> None:
        loop = asyncio.get_running_loop()
        previous = self._timers.pop(name, None)
        if previous is not None:
            previous.cancel()
        if self.active:
            # In the middle of the millisecond: at its beginning the clock may still round down to the one before.
            self._timers[name] = loop.call_at((when_ms + 0.5) / 1000, callback, when_ms)

    def _every(self, name: str, seconds: float, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        def due(when_ms: int) -> None:
            self._tasks.start(work(), f"controller-{name}")
            self._at(name, self._now_ms() + int(seconds * 1000), due)

        self._at(name, self._now_ms() + int(seconds * 1000), due)


class _Probe(asyncio.Protocol):
    """A connection that is wanted only to see that it can be had."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


def _any_leaderless(image: MetadataImage) -> bool:
    return any(one.leader == NO_LEADER for topic in image.topics.values() for one in topic.partitions.values())
