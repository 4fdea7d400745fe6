"""Runs a node: makes its parts, and starts and stops them in the right order.

Start: lock directories and open logs → open listeners and serve the controllers' listener → join the quorum → register
the broker with the bound addresses → wait until the image contains all earlier records → apply the image to partitions,
coordinators and quotas → send heartbeats and admit requests. Stop: hand over leaderships → refuse new requests and
answer parked requests → close coordinators → flush and checkpoint logs and mark them clean.
"""

from __future__ import annotations

import asyncio
import logging
import random as random_module
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from penstock.broker.controlplane.lifecycle import Identity
from penstock.broker.dispatch.dispatcher import Dispatcher
from penstock.broker.events import log_event, log_event_as_json, notify_all
from penstock.broker.events.history import EventHistory
from penstock.broker.events.kinds import CorruptionFound, DirectoryFailed
from penstock.broker.limits.audit import Audit
from penstock.broker.limits.connection_rates import ConnectionRates
from penstock.broker.requests.authentication import SaslGate
from penstock.broker.requests.fault_rules import Faults
from penstock.log.checkpoints import Incarnation
from penstock.log.free_space import MIN_FREE_BYTES
from penstock.log.maintenance import Maintenance
from penstock.log.manager import LogDir, LogManager
from penstock.metadata.checkpoint import BOOTSTRAP_FILE
from penstock.metadata.configs.protection import check_protection
from penstock.metadata.image import Endpoint
from penstock.metadata.names import random_uuid
from penstock.net.later import Later, settled
from penstock.net.server import Connection, Dispatch, Listener, Reply, Server
from penstock.node.audit_file import AuditFile
from penstock.node.certificates import Certificates
from penstock.node.http import HttpSide
from penstock.node.image_delivery import ImageDelivery
from penstock.node.listener_security import ListenerSecurity, nobody_secret, securities
from penstock.node.listeners import (
    SUPPORTED_PROTOCOLS,
    ListenerPlan,
    exposed_listeners,
    inter_broker_listener,
    plan_listeners,
    protected_listeners,
)
from penstock.node.parts import World, cleaner_of, intervals_of, limits_of, make_broker, make_metadata
from penstock.node.peer_security import check_own_tls, peer_securities
from penstock.node.quorum_setup import plan_quorum
from penstock.node.storage import StorageError, check_formatted, read_meta_properties
from penstock.protocol.uuid import ZERO_UUID
from penstock.raft.voters import Voter

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.events import Observer
    from penstock.clock import Clock
    from penstock.disk.api import Disk
    from penstock.http.pipelines import Pipelines
    from penstock.metadata.configs.settings import Settings
    from penstock.net.network import Network
    from penstock.node.http_security import HttpSecurity
    from penstock.protocol.vocabulary import TopicPartition

logger = logging.getLogger(__name__)

STOP_GRACE_SECONDS = 10.0


class Node:
    """Runs a broker, a controller or both.

    Call `start()`, then `stop()`; or `abandon()`, which ends the node as a crash would.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        disk: Disk,
        network: Network,
        clock: Clock,
        random: random_module.Random,
        on_fatal: Callable[[Exception], None] | None = None,
        observers: Sequence[Observer] = (),
        faults: Faults | None = None,
        http_optional: bool = False,
        pipelines: Pipelines | None = None,
    ) -> None:
        """Reads the settings. The method `start` makes and starts the parts.

        `on_fatal` is called when the node can't continue, because its metadata log or all log directories have failed.
        `faults` are the fault rules of tests. With `http_optional`, the node starts without HTTP if the HTTP address
        can't be bound. `pipelines` returns the pipelines that the console shows.
        """
        self.settings = settings
        self.disk = disk
        self.clock = clock
        self.random = random
        check_protection(settings.static)
        self._plans: list[ListenerPlan] = plan_listeners(settings)
        self._controller_listeners = tuple(plan.name for plan in self._plans if plan.controller)
        path = settings.str("penstock.audit.file").strip()
        self._audit_file = AuditFile(path) if path else None
        audit = None if self._audit_file is None else Audit(clock, self._audit_file.put)
        of_nobody = nobody_secret(settings, lambda: self.broker.cluster_id)
        self._security = securities(
            settings,
            self._plans,
            lambda: self.broker.metadata,
            of_nobody,
            clock.wall_ms,
            None if audit is None else audit.login_failed,
        )
        self._peers = peer_securities(settings, self._plans)
        to_brokers, to_controllers = (peer.credentials for peer in self._peers)
        history = EventHistory(settings.node_id, clock.wall_ms)
        to_log = log_event_as_json if settings.str("penstock.events.log.format") == "json" else log_event
        self._observer = notify_all((*observers, to_log, history.observe))
        self._world = World(
            settings, disk, network, clock, random, history, self._observer, to_brokers, to_controllers, audit
        )
        self._on_fatal = on_fatal
        self._faults = faults or Faults()
        self.quorum_plan = plan_quorum(settings, self._controller_listeners)
        self.http = HttpSide(
            self._world,
            self._plans,
            lambda: self.broker.metadata,
            of_nobody,
            optional=http_optional,
            pipelines=pipelines,
        )
        protected: dict[str, ListenerSecurity | HttpSecurity] = {**self._security, **self.http.securities}
        self._certificates = Certificates(settings, protected, self._peers)
        settings.check_own = partial(check_own_tls, settings, protected, self._peers)
        self._open = asyncio.Event()
        self._ready = asyncio.Event()
        #: The parts that handlers use; None until `start` has made them.
        self.broker_or_none: Broker | None = None
        self._server = Server(self._hold, limits_of(settings, network), network=network, nanoseconds=clock.nanoseconds)
        self._maintenance: Maintenance

    # --- access for callers ----------------------------------------------------------------------------

    @property
    def broker(self) -> Broker:
        """Returns the `Broker` object that handlers get. Raises an error before `start`."""
        assert self.broker_or_none is not None, "the node has not been started"
        return self.broker_or_none

    @property
    def bootstrap(self) -> str:
        """Returns the advertised `host:port` of the first client listener.

        If the node has no client listener, returns the address of its first controller listener.
        """
        return self._shown(next((plan for plan in self._plans if not plan.controller), self._plans[0]))

    def bootstrap_of(self, listener: str) -> str:
        """Returns the advertised `host:port` of a listener. Raises StopIteration if there is no such listener."""
        return self._shown(next(plan for plan in self._plans if plan.name == listener.upper()))

    @property
    def controller_bootstrap(self) -> str | None:
        """Returns `host:port` of the first controller listener, for other nodes and for tools."""
        plan = next((plan for plan in self._plans if plan.controller), None)
        return None if plan is None else self._shown(plan)

    @property
    def broker_epoch(self) -> int:
        return self.broker.lifecycle.broker_epoch

    def _shown(self, plan: ListenerPlan) -> str:
        host, port = self._advertised(plan)
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def _advertised(self, plan: ListenerPlan) -> tuple[str, int]:
        bound = next(listener for listener in self._server.listeners if listener.name == plan.name)
        return plan.advertised_host, plan.advertised_port or bound.port

    # --- start -------------------------------------------------------------------------------------------

    async def start(self) -> None:
        settings = self.settings
        if self._audit_file is not None:
            self._audit_file.check()
        for warning in exposed_listeners(settings, self._plans):
            logger.warning("%s", warning)
        logs = self._open_logs_manager()
        cluster_id = self._cluster_id()
        check_formatted(self.disk, [directory.path for directory in logs.dirs.all])
        await logs.open(node_id=settings.node_id, cluster_id=cluster_id)
        try:
            failure = logs.dirs.metadata.failure
            if failure is not None:
                raise StorageError(
                    f"{logs.dirs.metadata.path}, which holds the metadata log, can't be used "
                    f"({failure.strerror or failure}): repair the disk, or join with a new disk as a new voter."
                )
            for security in self._security.values():
                await security.start()
            protected = protected_listeners(settings, self._plans)
            await self._server.start(self._listener(plan, plan.name in protected) for plan in self._plans)
            self._certificates.watch(lambda: self._server.stopping)
            await self.http.open()
            await self._start_parts(cluster_id, logs)
        except BaseException:
            await self._undo_start(logs)
            raise
        self._maintenance = Maintenance(
            logs,
            intervals_of(settings),
            cleaner_of(settings, logs, self.broker.partitions),
            min_free_bytes=lambda: settings.int(MIN_FREE_BYTES),
        )
        self._maintenance.start()
        if not self._controller_listeners and all(one.open for one in self._security.values()):
            # Without the check of the listener for every request.
            self._server.use(Dispatcher(self.broker, times=self.broker.times))
        self._ready.set()
        self.http.serve(self.broker, self._server, self._maintenance.cleaner)

    async def _start_parts(self, cluster_id: str, logs: LogManager) -> None:
        settings, directory = self.settings, logs.dirs.metadata
        identity = self._identity(cluster_id, logs)
        endpoints = tuple((name, one.host, one.port) for name, one in identity.controller_endpoints.items())
        me = Voter(settings.node_id, directory.directory_id, endpoints)
        metadata = make_metadata(self._world, directory.path, self.quorum_plan, me, cluster_id, self._fatal)
        listener = inter_broker_listener(settings, self._plans)
        broker = self.broker_or_none = make_broker(
            self._world,
            identity,
            logs,
            metadata,
            controller_listeners=self._controller_listeners,
            inter_broker_listener=listener,
            unsent=self._server.unsent,
            request_passes=lambda: self._server.turns.passes,
            faults=self._faults,
        )
        self._server.arrivals = ConnectionRates(settings, broker.quotas, self.clock).arrive
        images = ImageDelivery(
            broker,
            self._server,
            is_broker=identity.is_broker,
            is_controller=identity.is_controller,
            on_fatal=self._fatal,
            on_settings=self._certificates.use_settings,
        )
        images.start()
        if identity.is_controller:
            broker.controller.start()
        await metadata.start(
            bootstrap_path=f"{directory.path}/{BOOTSTRAP_FILE}",
            min_insync_replicas=settings.int("min.insync.replicas"),
            keep_credentials=any(self._security[name].scram for name in self._controller_listeners),
            on_stored=self._certificates.use_stored if self._certificates.in_use else None,
        )
        self._server.use(self._dispatch(broker))
        self._open.set()
        await broker.lifecycle.register()
        images.follow()
        self._certificates.use_settings()
        if identity.is_broker:
            broker.replicas.start()
            broker.groups.start()
            broker.transactions.start()
            broker.share_states.start()
            await broker.lifecycle.unfence()
        if broker.event_topic is not None:
            broker.event_topic.start()
        if broker.guard is not None:
            broker.guard.start()

    def _identity(self, cluster_id: str, logs: LogManager) -> Identity:
        plan = self.quorum_plan
        endpoints: dict[bool, dict[str, Endpoint]] = {True: {}, False: {}}
        for listener in self._plans:
            host, port = self._advertised(listener)
            protocol = SUPPORTED_PROTOCOLS[listener.security_protocol]
            endpoints[listener.controller][listener.name] = Endpoint(host, port, protocol)
        last, fresh = _last_incarnation(logs), random_uuid(self.random)
        return Identity(
            self.settings.node_id,
            cluster_id,
            fresh if last.asking == ZERO_UUID else last.asking,
            plan.is_broker,
            plan.is_controller,
            endpoints[False],
            endpoints[True],
            self.settings.optional_str("broker.rack"),
            last.broker_epoch,
            logs.synced_partitions(),
        )

    def _open_logs_manager(self) -> LogManager:
        settings = self.settings
        return LogManager(
            self.disk,
            settings.log_dirs,
            self.clock,
            random=self.random,
            on_offline=self._on_directory_offline,
            on_corruption=self._on_corruption,
            producer_expiration_ms=settings.int("producer.id.expiration.ms"),
            max_producer_ids=settings.int("penstock.max.producer.ids"),
            metadata_dir=settings.optional_str("metadata.log.dir"),
            cordoned=settings.cordoned_log_dirs(),
        )

    def _cluster_id(self) -> str:
        """Returns the cluster id that the first readable directory holds. A directory that can't be read is taken
        offline."""
        unreadable: OSError | None = None
        for path in self.settings.log_dirs:
            try:
                properties = read_meta_properties(self.disk, path)
            except OSError as error:
                unreadable = error
                continue
            if properties is not None:
                return properties.cluster_id
        if unreadable is not None:
            raise unreadable
        own = [
            (host, plan.port) for plan in self._plans if plan.controller for host in (plan.host, plan.advertised_host)
        ]
        how = self.quorum_plan.format_advice(own)
        raise StorageError(f"{self.settings.log_dirs[0]} is not formatted: run `penstock storage format {how}` first.")

    async def _undo_start(self, logs: LogManager) -> None:
        broker = self.broker_or_none
        if broker is not None:
            await self._cut_off(broker)
            await broker.transactions.close()
            await broker.share_partitions.close()
            await broker.share_states.close()
            await broker.groups.close()
            await broker.partitions.close()
        await self._server.stop(grace_s=0)
        self._close_securities()
        await self.http.close()
        logs.abandon()

    def _dispatch(self, broker: Broker) -> Dispatch:
        """Returns the dispatcher of all listeners. It serves controllers immediately, and clients as soon as the
        broker is ready."""
        clients = Dispatcher(broker, times=broker.times)
        controllers = Dispatcher(broker, "CONTROLLER", broker.times)

        def by_listener(connection: Connection, frame: memoryview) -> Reply | Later[Reply]:
            if connection.listener.name in broker.controller_listeners:
                return controllers(connection, frame)
            if self._ready.is_set():
                return clients(connection, frame)
            return Later(self._once_ready(clients, connection, frame))

        with_sasl = frozenset(name for name, one in self._security.items() if one.sasl is not None)
        if not with_sasl:
            return by_listener
        gate = SaslGate(by_listener)

        def authenticated(connection: Connection, frame: memoryview) -> Reply | Later[Reply]:
            return (gate if connection.listener.name in with_sasl else by_listener)(connection, frame)

        return authenticated

    def _listener(self, plan: ListenerPlan, protected: bool) -> Listener:
        security = self._security[plan.name]
        source = security.tls
        return Listener(
            plan.name,
            plan.host,
            plan.port,
            plan.security_protocol,
            tls=None if source is None else lambda: source.context,
            protected=protected,
            on_accept=None if security.open else security.accept,
        )

    def _close_securities(self) -> None:
        for security in self._security.values():
            security.close()

    def _hold(self, connection: Connection, frame: memoryview) -> Later[Reply]:
        """Returns a `Later` that answers a request which arrives before the dispatcher is set."""
        return Later(self._held(connection, frame))

    async def _held(self, connection: Connection, frame: memoryview) -> Reply:
        await self._open.wait()
        return await settled(self._server.dispatch(connection, frame))

    async def _once_ready(self, dispatch: Dispatch, connection: Connection, frame: memoryview) -> Reply:
        await self._ready.wait()
        return await settled(dispatch(connection, frame))

    def _on_corruption(self, partition: TopicPartition, reason: str) -> None:
        self._observer(CorruptionFound(f"{partition[0]}-{partition[1]}", reason))
        broker = self.broker_or_none
        if broker is not None and broker.guard is not None:
            broker.guard.corruption_found(*partition)

    def _on_directory_offline(self, directory: LogDir, error: OSError) -> None:
        self._observer(DirectoryFailed(directory.path, str(error)))
        broker = self.broker_or_none
        if broker is not None:
            broker.logs.note_incarnation(broker.lifecycle.broker_epoch)
            broker.lifecycle.beat_now()
            if directory is broker.logs.dirs.metadata:
                self._fatal(StorageError(_cannot_go_on(f"the directory of its metadata log, {directory.path}", error)))
            elif all(each.offline for each in broker.logs.dirs):
                self._fatal(StorageError(_cannot_go_on("all its log directories", error)))

    def _fatal(self, error: Exception) -> None:
        if self._on_fatal is not None:
            self._on_fatal(error)

    # --- stop --------------------------------------------------------------------------------------------

    async def stop(self, grace_seconds: float = STOP_GRACE_SECONDS) -> None:
        """Stops cleanly: all acknowledged records are on disk, and the next start needs no recovery."""
        broker = self.broker
        await self.http.close()
        broker.faults.clear()
        broker.faults.release()
        await _close_observers(broker)
        await broker.lifecycle.hand_over(grace_seconds)
        await broker.metadata.hand_over()
        stopping = asyncio.ensure_future(self._server.stop(grace_seconds))
        await asyncio.sleep(0)  # the server is marked as stopping: requests released now are not parked again
        broker.partitions.release_waiters()
        await broker.groups.close()  # answers members that wait for a rebalance, which may take minutes
        await stopping
        self._close_securities()
        await broker.transactions.close()
        await broker.share_partitions.close()
        await broker.share_states.close()
        await self._maintenance.stop()
        await broker.controller.close()
        await broker.lifecycle.close()
        await broker.moves.close()
        await broker.replicas.close()
        broker.channel.close()
        broker.peers.close()
        await broker.partitions.close()
        await broker.metadata.close()
        if self._audit_file is not None:
            await self._audit_file.close()
        await broker.logs.close(broker_epoch=self.broker_epoch)

    async def abandon(self) -> None:
        """Stops as a killed process does: nothing is flushed or marked clean. For tests."""
        await self._cut_off(self.broker)
        await self._server.stop(grace_s=0)
        self._close_securities()
        await self.http.close()
        await self.broker.transactions.close()
        await self.broker.share_partitions.close()
        await self.broker.share_states.close()
        await self.broker.groups.close()
        await self._maintenance.stop()
        await self.broker.partitions.close()
        self.broker.logs.abandon()

    async def _cut_off(self, broker: Broker) -> None:
        """Closes the connections to other nodes, stops heartbeats, and leaves the quorum without a clean stop."""
        broker.channel.close()
        broker.peers.close()
        await _close_observers(broker)
        await broker.moves.close()
        await broker.replicas.close()
        await broker.controller.close()
        await broker.lifecycle.close()
        await broker.metadata.abandon()


async def _close_observers(broker: Broker) -> None:
    if broker.guard is not None:
        await broker.guard.close()
    if broker.event_topic is not None:
        await broker.event_topic.close()


def _cannot_go_on(lost: str, error: OSError) -> str:
    return f"This node can't go on without {lost} ({error}): repair or replace the disk, and start the node again."


def _last_incarnation(logs: LogManager) -> Incarnation:
    """Returns the broker's previous incarnation; an unknown incarnation if the log directories record different ones.

    Unlike in Kafka, the incarnation is also known after the process was killed, because its writes survive in the page
    cache. After a power loss or a change of disks, records may be missing. Then the incarnation is unknown, and the
    broker's replicas are no longer eligible leaders (ELR).
    """
    epochs, asking = (set(each) for each in zip(*(directory.last_incarnation for directory in logs.dirs), strict=True))
    return Incarnation(epochs.pop() if len(epochs) == 1 else -1, asking.pop() if len(asking) == 1 else ZERO_UUID)
