"""Implements the active controller: registers brokers, tracks their heartbeats, fences dead brokers, elects leaders.

A dead broker is detected in two ways. If the process ends, its connections close: the connection with the broker's
heartbeats is lost, the broker's listener refuses a new connection, and the broker is fenced at once. If the machine or
the network fails, the broker is fenced when its session times out. A new active controller probes every broker's
listener and starts a new session for each broker.

Every decision is a pure function in `penstock.metadata.controller`; this module adds times, connections and timers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from penstock.broker.controlplane.failovers import Detection, Failovers
from penstock.broker.events import Observer, log_event
from penstock.broker.events.from_images import events_between
from penstock.broker.events.kinds import BrokerRegistered, BrokerUnfenced
from penstock.broker.tasks import Tasks
from penstock.metadata.controller.alter_partition import alter_partition, assign_replicas
from penstock.metadata.controller.broker_states import HeartbeatReply, State, fence_broker, heartbeat, unregister_broker
from penstock.metadata.controller.brokers import check_cluster, epoch_to_name, register_broker, registration_of
from penstock.metadata.controller.elections import balance_leaders, elect_unclean
from penstock.metadata.controller.heartbeats import Heartbeats, Session
from penstock.metadata.controller.partition_change import Rules
from penstock.metadata.controller.tokens import remove_expired
from penstock.metadata.decision import Decision
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_62_broker_registration import BrokerRegistrationResponse
from penstock.protocol.messages.api_63_broker_heartbeat import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    Suspicion,
)
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

#: Pauses before the probes of a suspected broker. A process that dies closes its sockets one by one: its listener may
#: accept connections a moment longer than its own connections last.
PROBES_AFTER_S = (0.0, 0.02, 0.1, 0.3, 1.0)
PROBE_TIMEOUT_S = 1.0
#: Sessions are checked at least this often, so that a pause of the controller is measured from its beginning: every
#: broker's session is extended by the whole pause.
CHECK_SESSIONS_EVERY_MS = 1000
#: A check that runs later than this shows that the controller itself was paused.
PAUSE_MS = 500
#: Time between two checks of a silent broker while its fencing is not committed.
RECHECK_MS = 50


def rules_of(settings: Settings) -> Rules:
    """Returns the settings of this node that the controller's decisions depend on, such as min.insync.replicas.

    A topic's own configs take precedence over these settings.
    """
    return Rules(
        settings.int("min.insync.replicas"),
        settings.bool("unclean.leader.election.enable"),
        settings.node_id,
        settings.int("log.flush.interval.messages") == 1,
    )


class Controller:
    """Runs the controller's timers and decisions while this node is the active controller.

    Start it after the metadata log, and close it before the metadata log.
    """

    def __init__(
        self,
        metadata: MetadataLog,
        settings: Settings,
        clock: Clock,
        network: Network,
        random: Random,
        observer: Observer = log_event,
    ) -> None:
        self._metadata = metadata
        self._settings = settings
        self._clock = clock
        self._network = network
        self._random = random
        self._observer = observer
        self.active = False
        self.beats = Heartbeats(settings.int("broker.session.timeout.ms"))
        self.failovers = Failovers(clock.wall_ms, observer)
        self.unclean_elections = 0
        #: Called with the suspicions of a registered broker, its id and its host, if the guard is on.
        self.on_suspicions: Callable[[tuple[int, str], Sequence[Suspicion]], None] | None = None
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

    async def _remove_expired_tokens(self) -> None:
        removed = await self._decide(lambda image: remove_expired(image, self._clock.wall_ms()))
        if removed:
            logger.info("%d expired delegation tokens were removed", removed)

    async def _take_over(self) -> None:
        settings = self._settings
        self._check_sessions_later()
        if settings.bool("auto.leader.rebalance.enable"):
            self._every(
                "balance", settings.int("leader.imbalance.check.interval.seconds"), lambda: self._elect(balance_leaders)
            )
        if settings.optional_str("delegation.token.secret.key"):
            interval_s = settings.int("delegation.token.expiry.check.interval.ms") / 1000
            self._every("tokens", interval_s, self._remove_expired_tokens)
        interval_s = settings.int("unclean.leader.election.interval.ms") / 1000
        self._every("unclean", interval_s, lambda: self._elect(elect_unclean))
        await self._decide(lambda pending: Decision([], None))  # waits until the earlier records are committed
        for broker_id, broker in sorted(self._metadata.image.brokers.items()):
            if not broker.fenced and broker_id != settings.node_id and self.active:
                self._suspect(broker_id, broker.epoch, "refused a connection when a new controller took over")

    # --- requests of brokers ----------------------------------------------------------------------------

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
            self._observer(BrokerRegistered(request.broker_id, answer.broker_epoch))
        return answer

    async def heartbeat(self, request: BrokerHeartbeatRequest, ctx: RequestContext) -> BrokerHeartbeatResponse:
        rules = self.rules

        def decide(image: MetadataImage) -> Decision[HeartbeatReply]:
            return self._heartbeat(image, request, rules)

        self._watch(request.broker_id, request.broker_epoch, ctx.connection)
        reply = await self._metadata.submit(decide)  # refuses a broker that is not registered with this epoch
        if request.suspicions and self.on_suspicions is not None:
            self.on_suspicions((request.broker_id, ctx.connection.peer_host), request.suspicions)
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
            logger.info("broker %d changed to state %s", broker_id, reply.state.value)
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

    # --- failure detection ------------------------------------------------------------------------------

    def _watch(self, broker_id: int, epoch: int, connection: RequestConnection) -> None:
        """Watches the connection on which the broker sends heartbeats.

        When this connection closes, the broker is suspected.
        """
        watched = self._watched.get(broker_id)
        if watched is not None and watched == (connection, epoch):
            return
        self._watched[broker_id] = (connection, epoch)
        connection.on_close(lambda: self._connection_closed(broker_id, epoch, connection))

    def _connection_closed(self, broker_id: int, epoch: int, connection: RequestConnection) -> None:
        if self._watched.get(broker_id) != (connection, epoch):
            return  # the broker's heartbeats have moved to another connection
        del self._watched[broker_id]
        self.beats.disconnected(broker_id, epoch)
        if self.active:
            self._suspect(broker_id, epoch, "closed its connection and refused another")

    def _suspect(self, broker_id: int, epoch: int, how: str) -> None:
        self._tasks.start(self._probe(broker_id, epoch, how), f"probe-broker-{broker_id}")

    async def _probe(self, broker_id: int, epoch: int, how: str) -> None:
        """Connects to the suspected broker's listener.

        Fences the broker if the listener refuses and no heartbeat arrives.
        """
        began_ms, detected_ms = self._now_ms(), self._clock.wall_ms()
        for pause_s in PROBES_AFTER_S:
            if pause_s:
                await asyncio.sleep(pause_s)
            endpoints = self._endpoints_to_probe(broker_id, epoch, began_ms)
            if not endpoints:
                return
            if all([await self._refuses(endpoint) for endpoint in endpoints]):
                await self._fence(broker_id, epoch, how, detected_ms, heard_before_ms=began_ms)
                return

    def _endpoints_to_probe(self, broker_id: int, epoch: int, began_ms: int) -> list[Endpoint]:
        """Returns the endpoints at which to probe the broker; an empty list if the broker is no longer suspected.

        The inter-broker listener is preferred, because the address advertised to clients may belong to another machine.
        """
        broker = self._metadata.image.brokers.get(broker_id)
        if not self.active or broker is None or broker.epoch != epoch or broker.fenced:
            return []
        if self.beats.session(broker_id, epoch, began_ms).last_contact_ms > began_ms:
            return []
        settings = self._settings
        name = settings.optional_str("inter.broker.listener.name") or settings.str("security.inter.broker.protocol")
        inter_broker = broker.endpoints.get(name.upper())
        return list(broker.endpoints.values()) if inter_broker is None else [inter_broker]

    async def _refuses(self, endpoint: Endpoint) -> bool:
        """Returns True if the endpoint refuses a connection. A timeout is no refusal: the network may be broken."""
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_S):
                await self._network.connect(endpoint.host, endpoint.port, _Probe)
        except ConnectionRefusedError:
            return True
        except (OSError, TimeoutError):
            return False
        return False

    async def _fence(
        self, broker_id: int, epoch: int, how: str, detected_ms: int, *, heard_before_ms: int, silent: bool = False
    ) -> None:
        rules = self.rules

        def decide(image: MetadataImage) -> Decision[int]:
            broker = image.brokers.get(broker_id)
            if broker is None or broker.epoch != epoch:
                return Decision([], 0)
            session = self.beats.session(broker_id, epoch, self._now_ms())
            if session.last_contact_ms > heard_before_ms:
                return Decision([], 0)
            session.shutdown_offset = None
            decision = fence_broker(image, broker_id, rules)
            if decision.records:
                detection = Detection(how, detected_ms, self._last_heard_ms(session), silent)
                self.failovers.decided(broker_id, epoch, detection)
            return decision

        await self._decide(decide)
        self.failovers.ended(broker_id, epoch)

    def _with_last_heard(self, event: BrokerUnfenced) -> BrokerUnfenced:
        session = self.beats.session(event.broker_id, event.broker_epoch, self._now_ms())
        return replace(event, last_heard_ms=self._last_heard_ms(session))

    def _last_heard_ms(self, session: Session) -> int | None:
        """Returns the wall-clock time of a broker's last heartbeat; None if this controller received none."""
        if not session.heard:
            return None
        return self._clock.wall_ms() - (self._now_ms() - session.last_contact_ms)

    # --- sessions ---------------------------------------------------------------------------------------

    def _check_sessions_later(self) -> None:
        now_ms = self._now_ms()
        due_ms = self.beats.next_check_ms(self._metadata.image, now_ms)
        due_ms = max(min(due_ms, now_ms + CHECK_SESSIONS_EVERY_MS), now_ms + RECHECK_MS)
        self._at("sessions", due_ms, self._check_sessions)

    def _check_sessions(self, due_ms: int) -> None:
        now_ms = self._now_ms()
        if now_ms - due_ms > PAUSE_MS:
            logger.warning("the controller was paused for %d ms: broker sessions are extended", now_ms - due_ms)
            self.beats.extend_sessions(now_ms - due_ms, now_ms)
        elif self.beats.stale(self._metadata.image, now_ms):
            self._tasks.start(self._fence_silent(now_ms), "fence-silent-brokers")
        self._check_sessions_later()

    async def _fence_silent(self, now_ms: int) -> None:
        """Fences all brokers whose session has timed out, one after the other."""
        image = self._metadata.image
        for broker_id in self.beats.stale(image, now_ms):
            how = f"was silent for {self.beats.session_timeout_ms} ms"
            epoch, detected_ms = image.brokers[broker_id].epoch, self._clock.wall_ms()
            await self._fence(broker_id, epoch, how, detected_ms, heard_before_ms=now_ms, silent=True)

    # --- leaders ----------------------------------------------------------------------------------------

    async def _elect(self, decide: Callable[[MetadataImage, Rules], Decision[bool]]) -> None:
        """Calls `decide` again and again, until no partition needs a new leader.

        Each call elects some of the leaders, and other requests are served between the calls.
        """
        more: bool | None = True
        while more and self.active:
            rules = self.rules
            more = await self._decide(lambda image: self._counted(decide(image, rules)))  # noqa: B023

    def _counted(self, decision: Decision[bool]) -> Decision[bool]:
        self.unclean_elections += sum(record.leader_recovery_state == 1 for record in decision.records)
        return decision

    def apply(self, old: MetadataImage, new: MetadataImage) -> None:
        """Adds an entry to the list of failovers for each broker that the new image fences.

        The active controller also emits events for the changes in the image. After a config change, it starts unclean
        elections for partitions without a leader, because the new config may allow them.
        """
        self.failovers.apply(new)
        if not self.active:
            return
        for event in events_between(old, new):
            self._observer(self._with_last_heard(event) if isinstance(event, BrokerUnfenced) else event)
            self.failovers.note(event)
        if new.configs is old.configs:
            return
        kinds = {kind for kind, _ in new.changes.configs}
        if kinds & {ResourceType.TOPIC, ResourceType.BROKER} and _any_leaderless(new):
            self._tasks.start(self._elect(elect_unclean), "unclean-elections")

    # --- timers and tasks -------------------------------------------------------------------------------

    async def _decide(self, decide: Callable[[MetadataImage], Decision[Any]]) -> Any:
        """Submits a decision and returns its reply; None if the decision was not committed.

        A decision is not committed if, for example, another node has become the active controller. The new controller
        then makes its own decisions.
        """
        try:
            return await self._metadata.submit(decide)
        except KafkaError as error:
            logger.info("the controller's own decision was not committed: %s", error.message)
            return None

    def _now_ms(self) -> int:
        return int(asyncio.get_running_loop().time() * 1000)

    def _at(self, name: str, when_ms: int, callback: Callable[[int], None]) -> None:
        loop = asyncio.get_running_loop()
        previous = self._timers.pop(name, None)
        if previous is not None:
            previous.cancel()
        if self.active:
            # Half a millisecond late: at the exact time the clock may still round down to the millisecond before.
            self._timers[name] = loop.call_at((when_ms + 0.5) / 1000, callback, when_ms)

    def _every(self, name: str, seconds: float, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        def due(when_ms: int) -> None:
            self._tasks.start(work(), f"controller-{name}")
            self._at(name, self._now_ms() + int(seconds * 1000), due)

        self._at(name, self._now_ms() + int(seconds * 1000), due)


class _Probe(asyncio.Protocol):
    """Implements the asyncio protocol of a probe: closes the connection as soon as it is established.

    A probe only tests whether the listener accepts connections.
    """

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


def _any_leaderless(image: MetadataImage) -> bool:
    return any(one.leader == NO_LEADER for topic in image.topics.values() for one in topic.partitions.values())
