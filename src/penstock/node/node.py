"""One running node: its parts made, started in order, and stopped in the opposite one.

Start: directories are locked and their logs come up → the metadata log is replayed and a new epoch begins →
partitions, coordinators and quotas follow the image → listeners open → the broker registers with the addresses it
really has → requests are let in. Stop: no more requests, parked ones answered → coordinators → logs flushed,
checkpointed and marked clean.
"""

from __future__ import annotations

import asyncio
import logging
import random as random_module
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from penstock.broker.broker import Broker
from penstock.broker.dispatch import Dispatcher
from penstock.broker.fetch_sessions import FetchSessions
from penstock.broker.groups import Groups
from penstock.broker.metadata_log import MetadataLog, SnapshotPolicy
from penstock.broker.metadata_storage import open_metadata_log
from penstock.broker.partitions import Partitions
from penstock.broker.producer_ids import ProducerIds
from penstock.broker.quotas import Quotas
from penstock.broker.telemetry import Telemetry
from penstock.broker.transactions import Transactions
from penstock.log.cleaner import Cleaner
from penstock.log.maintenance import Intervals, Maintenance
from penstock.log.manager import LogDir, LogManager
from penstock.metadata.checkpoint import BOOTSTRAP_FILE
from penstock.metadata.controller.brokers import (
    Registration,
    allocate_producer_ids,
    register_broker,
    register_controller,
    unfence_broker,
)
from penstock.metadata.image import EMPTY_IMAGE, Endpoint, MetadataImage
from penstock.metadata.names import random_uuid
from penstock.metadata.voters import Voter
from penstock.net.limits import Limits
from penstock.net.server import Connection, Dispatch, Listener, Reply, Server
from penstock.node.listeners import SUPPORTED_PROTOCOLS, ListenerPlan, plan_listeners
from penstock.node.storage import StorageError, read_meta_properties

if TYPE_CHECKING:
    from penstock.clock import Clock
    from penstock.disk.api import Disk
    from penstock.metadata.configs.settings import Settings
    from penstock.net.network import Network

logger = logging.getLogger(__name__)

STOP_GRACE_SECONDS = 10.0
COMPACTION_KEY_BYTES = 150  # what the helper process needs to remember one key
NEVER_MS = 2**62


class Node:
    """Give it its world, `await start()`, and later `await stop()` or, as a crash would, `abandon()`."""

    def __init__(
        self,
        settings: Settings,
        *,
        disk: Disk,
        network: Network,
        clock: Clock,
        random: random_module.Random,
        on_fatal: Callable[[Exception], None] | None = None,
    ) -> None:
        self.settings = settings
        self.disk = disk
        self.clock = clock
        self.random = random
        self._network = network
        self._on_fatal = on_fatal
        self._plans: list[ListenerPlan] = plan_listeners(settings)
        self._ready = asyncio.Event()
        self.broker: Broker
        self._server: Server
        self._maintenance: Maintenance
        self.broker_epoch = -1

    # --- what others ask -------------------------------------------------------------------------------

    @property
    def bootstrap(self) -> str:
        """`host:port` of the first client listener, as advertised."""
        plan = next(plan for plan in self._plans if not plan.controller)
        host, port = self._advertised(plan)
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def _advertised(self, plan: ListenerPlan) -> tuple[str, int]:
        bound = next(listener for listener in self._server.listeners if listener.name == plan.name)
        return plan.advertised_host, plan.advertised_port or bound.port

    # --- start -------------------------------------------------------------------------------------------

    async def start(self) -> None:
        settings = self.settings
        logs = self._open_logs_manager()
        cluster_id = self._cluster_id()
        await logs.open(node_id=settings.node_id, cluster_id=cluster_id)
        try:
            metadata = await self._start_metadata(logs)
            self.broker = self._make_broker(cluster_id, logs, metadata)
            self._server = Server(self._hold, self._limits(), network=self._network)
            await self._server.start(
                Listener(plan.name, plan.host, plan.port, plan.security_protocol) for plan in self._plans
            )
            self._follow_image()
            await self._register(logs)
            self.broker.groups.start()
            self.broker.transactions.start()
        except BaseException:
            await self._undo_start(logs)
            raise
        self._maintenance = Maintenance(logs, self._intervals(), self._cleaner(logs))
        self._maintenance.start()
        self._server.dispatch = self._dispatch()
        self._ready.set()

    def _open_logs_manager(self) -> LogManager:
        settings = self.settings
        return LogManager(
            self.disk,
            settings.log_dirs,
            self.clock,
            random=self.random,
            on_offline=self._on_directory_offline,
            producer_expiration_ms=settings.int("producer.id.expiration.ms"),
            metadata_dir=settings.optional_str("metadata.log.dir"),
        )

    def _cluster_id(self) -> str:
        for path in self.settings.log_dirs:
            properties = read_meta_properties(self.disk, path)
            if properties is not None:
                return properties.cluster_id
        raise StorageError(
            f"{self.settings.log_dirs[0]} is not formatted: run `penstock storage format --standalone` first."
        )

    async def _start_metadata(self, logs: LogManager) -> MetadataLog:
        settings = self.settings
        directory = logs.metadata_dir
        log = open_metadata_log(
            self.disk,
            directory.path,
            self.clock,
            self.random,
            segment_bytes=settings.int("metadata.log.segment.bytes"),
            segment_ms=settings.int("metadata.log.segment.ms"),
        )
        endpoints = tuple((plan.name, plan.advertised_host, plan.port) for plan in self._plans if plan.controller)
        metadata = MetadataLog(
            log,
            self.disk,
            self.clock,
            Voter(settings.node_id, directory.directory_id, endpoints),
            policy=SnapshotPolicy(
                settings.int("metadata.log.max.record.bytes.between.snapshots"),
                settings.int("metadata.log.max.snapshot.interval.ms") or NEVER_MS,
            ),
            on_fatal=self._on_fatal,
        )
        await metadata.start(
            bootstrap_path=f"{directory.path}/{BOOTSTRAP_FILE}",
            min_insync_replicas=settings.int("min.insync.replicas"),
        )
        return metadata

    def _make_broker(self, cluster_id: str, logs: LogManager, metadata: MetadataLog) -> Broker:
        settings = self.settings
        settings.apply_image(metadata.image)
        partitions = Partitions(settings.node_id, logs, settings)
        producer_ids = ProducerIds(self._allocate_producer_ids)
        groups = Groups(
            node_id=settings.node_id,
            settings=settings,
            clock=self.clock,
            random=self.random,
            partitions=partitions,
            metadata=metadata,
        )
        return Broker(
            node_id=settings.node_id,
            cluster_id=cluster_id,
            settings=settings,
            clock=self.clock,
            random=self.random,
            logs=logs,
            metadata=metadata,
            partitions=partitions,
            fetch_sessions=FetchSessions(settings.int("max.incremental.fetch.session.cache.slots"), self.random),
            producer_ids=producer_ids,
            groups=groups,
            transactions=Transactions(
                node_id=settings.node_id,
                settings=settings,
                clock=self.clock,
                partitions=partitions,
                metadata=metadata,
                producer_ids=producer_ids,
                groups=groups,
            ),
            quotas=Quotas(settings, time.perf_counter_ns),
            telemetry=Telemetry(settings.int("telemetry.max.bytes"), self.random),
            fetch_max_bytes=settings.int("fetch.max.bytes"),
            controller_listeners=frozenset(plan.name for plan in self._plans if plan.controller),
        )

    def _follow_image(self) -> None:
        """Settings first: the others read them. Coordinators come last and see partitions that are already there."""
        self._apply(EMPTY_IMAGE, self.broker.metadata.image)
        self.broker.partitions.put_strays_aside()
        self.broker.metadata.subscribe(self._apply)

    def _apply(self, old: MetadataImage, new: MetadataImage) -> None:
        broker = self.broker
        if new.configs is not old.configs:
            if self.settings.apply_image(new):
                self._server.counts.limits = self._limits()  # max.connections may change while running
            broker.fetch_max_bytes = self.settings.int("fetch.max.bytes")
        broker.partitions.apply(None if old is EMPTY_IMAGE else old, new)
        broker.quotas.apply_image(new)
        broker.telemetry.apply_image(old, new)

    async def _register(self, logs: LogManager) -> None:
        """Tell the cluster who this is and where; in a cluster of one, nobody else has to agree."""
        settings = self.settings
        incarnation = random_uuid(self.random)
        endpoints: dict[bool, dict[str, Endpoint]] = {True: {}, False: {}}
        for plan in self._plans:
            host, port = self._advertised(plan)
            endpoints[plan.controller][plan.name] = Endpoint(host, port, SUPPORTED_PROTOCOLS[plan.security_protocol])
        registration = Registration(
            settings.node_id,
            incarnation,
            endpoints[False],
            [directory.directory_id for directory in logs.dirs if not directory.offline],
            settings.optional_str("broker.rack"),
        )
        submit = self.broker.metadata.submit
        await submit(lambda image: register_controller(image, settings.node_id, incarnation, endpoints[True]))
        self.broker_epoch = await submit(lambda image: register_broker(image, registration))
        await submit(lambda image: unfence_broker(image, settings.node_id, self.broker_epoch))

    async def _undo_start(self, logs: LogManager) -> None:
        server = getattr(self, "_server", None)
        if server is not None:
            await server.stop(grace_s=0)
        logs.abandon()

    async def _allocate_producer_ids(self) -> tuple[int, int]:
        submit = self.broker.metadata.submit
        return await submit(lambda image: allocate_producer_ids(image, self.settings.node_id, self.broker_epoch))

    def _dispatch(self) -> Dispatch:
        broker = self.broker
        clients = Dispatcher(broker)
        if not broker.controller_listeners:
            return clients
        controllers = Dispatcher(broker, "CONTROLLER")

        def by_listener(connection: Connection, frame: memoryview) -> Reply | Awaitable[Reply]:
            chosen = controllers if connection.listener.name in broker.controller_listeners else clients
            return chosen(connection, frame)

        return by_listener

    def _hold(self, connection: Connection, frame: memoryview) -> Awaitable[Reply]:
        """A listener is open a moment before the node is ready: early requests wait for it."""

        async def later() -> Reply:
            await self._ready.wait()
            reply = self._server.dispatch(connection, frame)
            return reply if reply is None or isinstance(reply, list) or not hasattr(reply, "__await__") else await reply

        return later()

    # --- settings to parts -------------------------------------------------------------------------------

    def _limits(self) -> Limits:
        settings = self.settings
        return Limits(
            socket_request_max_bytes=settings.int("socket.request.max.bytes"),
            max_connections=settings.int("max.connections"),
            max_connections_per_ip=settings.int("max.connections.per.ip"),
            max_connections_per_ip_overrides=settings.max_connections_per_ip_overrides(),
            connections_max_idle_ms=settings.int("connections.max.idle.ms"),
            queued_max_request_bytes=settings.int("queued.max.request.bytes"),
            socket_listen_backlog_size=settings.int("socket.listen.backlog.size"),
        )

    def _intervals(self) -> Intervals:
        settings = self.settings
        return Intervals(
            initial_delay_ms=settings.int("log.initial.task.delay.ms"),
            retention_check_ms=settings.int("log.retention.check.interval.ms"),
            checkpoint_ms=settings.int("replica.high.watermark.checkpoint.interval.ms"),
            producer_expiration_check_ms=settings.int("producer.id.expiration.check.interval.ms"),
            cleaner_backoff_ms=settings.int("log.cleaner.backoff.ms"),
        )

    def _cleaner(self, logs: LogManager) -> Cleaner | None:
        if not self.settings.bool("log.cleaner.enable"):
            return None
        return Cleaner(logs, max_keys=self.settings.int("log.cleaner.dedupe.buffer.size") // COMPACTION_KEY_BYTES)

    def _on_directory_offline(self, directory: LogDir, error: OSError) -> None:
        logger.critical("log directory %s is offline: %s", directory.path, error)

    # --- stop --------------------------------------------------------------------------------------------

    async def stop(self, grace_seconds: float = STOP_GRACE_SECONDS) -> None:
        """A clean stop: everything acknowledged is on disk, and the next start has nothing to check."""
        broker = self.broker
        broker.faults.clear()
        broker.faults.release()
        stopping = asyncio.ensure_future(self._server.stop(grace_seconds))
        await asyncio.sleep(0)  # the server has marked itself as stopping: what is released now is not parked again
        broker.partitions.release_waiters()
        await broker.groups.close()  # a member may wait for others for minutes: it hears now that this is over
        await stopping
        await broker.transactions.close()
        await self._maintenance.stop()
        await broker.partitions.close()
        await broker.metadata.close()
        await broker.logs.close(broker_epoch=self.broker_epoch)

    async def abandon(self) -> None:
        """Stop as a killed process does: nothing is flushed or marked. For tests."""
        await self._server.stop(grace_s=0)
        await self.broker.transactions.close()
        await self.broker.groups.close()
        await self._maintenance.stop()
        await self.broker.partitions.close()
        self.broker.logs.abandon()
