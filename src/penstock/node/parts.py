"""Makes a node's parts from its settings and connects them. Does not start the parts."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from penstock.allowance import Allowance
from penstock.broker.broker import Broker
from penstock.broker.controlplane.auto_topics import TopicCreator
from penstock.broker.controlplane.controller import Controller
from penstock.broker.controlplane.controller_channel import ControllerChannel
from penstock.broker.controlplane.event_topic import EventTopic
from penstock.broker.controlplane.lifecycle import Directories, Identity, Lifecycle
from penstock.broker.controlplane.metadata_log import MetadataLog, SnapshotPolicy
from penstock.broker.controlplane.metadata_storage import SnapshotStore, open_metadata_log
from penstock.broker.controlplane.producer_ids import ProducerIds
from penstock.broker.controlplane.quorum import Quorum
from penstock.broker.controlplane.quorum_files import QuorumFiles
from penstock.broker.controlplane.suspicions import Suspicions
from penstock.broker.coordinators.groups import Groups
from penstock.broker.coordinators.share_persister import SharePersister
from penstock.broker.coordinators.share_states import ShareStates
from penstock.broker.coordinators.transactions import Transactions
from penstock.broker.events import Observer, log_event
from penstock.broker.events.history import EventHistory
from penstock.broker.fetch.fetch_policy import FetchPolicy
from penstock.broker.fetch.fetch_sessions import FetchSessions
from penstock.broker.guard.guard import Guard
from penstock.broker.handlers.local_controller import LocalController
from penstock.broker.limits.quotas import Quotas
from penstock.broker.peers.peers import Peers
from penstock.broker.replicas.directory_assignments import DirectoryAssignments
from penstock.broker.replicas.directory_moves import DirectoryMoves
from penstock.broker.replicas.isr_changes import IsrChanges
from penstock.broker.replicas.partitions import Partitions
from penstock.broker.replicas.replica_manager import ReplicaManager
from penstock.broker.requests.access_control import AccessControl
from penstock.broker.requests.local_connection import LocalConnection
from penstock.broker.requests.request_times import RequestTimes
from penstock.broker.requests.slices import Slices
from penstock.broker.share.dead_letter_writer import DeadLetterWriter
from penstock.broker.share.share_partitions import SharePartitions
from penstock.broker.telemetry import Telemetry
from penstock.client.credentials import NO_CREDENTIALS, Credentials
from penstock.log.cleaner import Cleaner
from penstock.log.maintenance import Intervals
from penstock.metadata.controller.assignments import has_directories
from penstock.net.limits import ByteBudget, Limits
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_67_allocate_producer_ids import AllocateProducerIdsRequest
from penstock.security.authorizer import parse_super_users
from penstock.security.delegation_tokens import TokenMacs

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.broker.limits.audit import Audit
    from penstock.broker.replicas.partition import Partition
    from penstock.broker.requests.fault_rules import Faults
    from penstock.clock import Clock
    from penstock.disk.api import Disk
    from penstock.log.manager import LogManager
    from penstock.metadata.configs.settings import Settings
    from penstock.net.network import Network
    from penstock.node.quorum_setup import QuorumPlan
    from penstock.raft.voters import Voter

COMPACTION_KEY_BYTES = 150  # memory of the helper process per key
NEVER_MS = 2**62


@dataclass(frozen=True, slots=True)
class World:
    """Holds the dependencies of a node that differ between production, tests and the simulator: clock, disk,
    network, …."""

    settings: Settings
    disk: Disk
    network: Network
    clock: Clock
    random: Random
    history: EventHistory
    """The last events of the node. `observer` adds to it."""
    observer: Observer = log_event
    """A function that is called with every event of the node."""
    to_brokers: Credentials = NO_CREDENTIALS
    """The credentials with which this node connects to the inter-broker listener of other brokers."""
    to_controllers: Credentials = NO_CREDENTIALS
    audit: Audit | None = None


def make_metadata(
    world: World,
    directory: str,
    plan: QuorumPlan,
    me: Voter,
    cluster_id: str,
    on_fatal: Callable[[Exception], None] | None,
) -> MetadataLog:
    """Makes the metadata log, with this node's replica of the quorum's log."""
    settings = world.settings
    log = open_metadata_log(
        world.disk,
        directory,
        world.clock,
        world.random,
        segment_bytes=settings.int("metadata.log.segment.bytes"),
        segment_ms=settings.int("metadata.log.segment.ms"),
    )
    snapshots = SnapshotStore(world.disk, log.path)
    quorum = Quorum(
        QuorumFiles(log, world.disk, world.clock, snapshots, plan.voters_for(me)),
        world.network,
        world.random,
        me,
        cluster_id=cluster_id,
        config=plan.config,
        bootstrap=plan.bootstrap,
        observer=world.observer,
        credentials=world.to_controllers,
        listener=next((name.upper() for name in settings.list("controller.listener.names")), None),
    )
    return MetadataLog(
        log,
        world.disk,
        world.clock,
        me,
        quorum,
        policy=SnapshotPolicy(
            settings.int("metadata.log.max.record.bytes.between.snapshots"),
            settings.int("metadata.log.max.snapshot.interval.ms") or NEVER_MS,
        ),
        on_fatal=on_fatal,
    )


def make_broker(
    world: World,
    identity: Identity,
    logs: LogManager,
    metadata: MetadataLog,
    *,
    controller_listeners: tuple[str, ...],
    inter_broker_listener: str,
    unsent: ByteBudget,
    request_passes: Callable[[], int],
    faults: Faults,
) -> Broker:
    settings, node_id = world.settings, identity.node_id
    access = access_of(settings, world.clock, world.audit)
    quotas = Quotas(settings, world.clock.nanoseconds)
    controller = Controller(metadata, settings, world.clock, world.network, world.random, world.observer)
    token_macs = TokenMacs(settings.optional_str("delegation.token.secret.key"))
    local = LocalController(
        node_id=node_id,
        cluster_id=identity.cluster_id,
        settings=settings,
        clock=world.clock,
        random=world.random,
        metadata=metadata,
        controller=controller,
        connection=LocalConnection(next(iter(controller_listeners), "CONTROLLER")),
        quotas=quotas,
        unlimited=Quotas(settings),
        token_macs=token_macs,
        access=access,
    )
    channel = ControllerChannel(world.network, node_id, metadata, local, world.to_controllers)
    metadata.watch_controller(channel.controller_changed)
    request_timeout_s = settings.int("request.timeout.ms") / 1000
    peers = Peers(
        node_id, lambda: metadata.image, world.network, inter_broker_listener, request_timeout_s, world.to_brokers
    )
    note, observer = logs.note_incarnation, world.observer
    suspicions = Suspicions(lambda: asyncio.get_running_loop().time())
    lifecycle = Lifecycle(
        identity, channel, metadata, settings, lambda: _directories(logs), note, observer, suspicions.due
    )

    def broker_epoch() -> int:
        return lifecycle.broker_epoch

    isr_changes = IsrChanges(node_id, channel, broker_epoch)
    assignments = DirectoryAssignments(node_id, channel, broker_epoch)

    async def assign(partition: Partition, directory_id: bytes) -> None:
        if has_directories(metadata.image):
            await assignments.assigned(partition, directory_id)

    def revert(partition: Partition, directory_id: bytes) -> None:
        if has_directories(metadata.image):
            assignments.report(partition, directory_id)

    moves = DirectoryMoves(
        logs, settings, assign=assign, revert=revert, observer=world.observer, request_passes=request_passes
    )
    partitions = Partitions(
        node_id,
        logs,
        settings,
        broker_epoch=broker_epoch,
        propose=isr_changes.submit,
        placed=assignments.placed,
        moves=moves,
    )
    producer_ids = ProducerIds(lambda: _allocate_producer_ids(channel, lifecycle))
    allowance = Allowance(settings.int("penstock.coordinator.max.bytes"))
    topic_creator = TopicCreator(settings, metadata, channel, lifecycle)
    share_states = ShareStates(
        node_id=node_id, settings=settings, clock=world.clock, partitions=partitions, metadata=metadata
    )
    persister = SharePersister(node_id, states=share_states, metadata=metadata, peers=peers, topics=topic_creator)
    groups = Groups(
        node_id=node_id,
        settings=settings,
        clock=world.clock,
        random=world.random,
        partitions=partitions,
        metadata=metadata,
        topics=topic_creator,
        allowance=allowance,
        persister=persister,
    )
    slices = Slices()
    guard = None
    if settings.bool("penstock.guard.enable"):
        guard = Guard(
            node_id,
            settings,
            world.clock,
            logs=logs,
            partitions=partitions,
            peers=peers,
            metadata=metadata,
            controller=controller,
            suspicions=suspicions,
            beat_now=lifecycle.beat_now,
            observer=world.observer,
        )
    return Broker(
        node_id=node_id,
        cluster_id=identity.cluster_id,
        settings=settings,
        clock=world.clock,
        random=world.random,
        logs=logs,
        metadata=metadata,
        channel=channel,
        topic_creator=topic_creator,
        peers=peers,
        lifecycle=lifecycle,
        controller=controller,
        partitions=partitions,
        replicas=ReplicaManager(
            node_id,
            partitions,
            peers,
            settings,
            isr_changes=isr_changes,
            assignments=assignments,
            broker_epoch=broker_epoch,
            observer=world.observer,
        ),
        moves=moves,
        fetch_policy=FetchPolicy(partitions.host, settings, inter_broker_listener, access),
        fetch_sessions=FetchSessions(
            settings.int("max.incremental.fetch.session.cache.slots"),
            world.random,
            settings.int("penstock.fetch.session.cache.max.partitions"),
        ),
        producer_ids=producer_ids,
        groups=groups,
        transactions=Transactions(
            node_id=node_id,
            settings=settings,
            clock=world.clock,
            partitions=partitions,
            metadata=metadata,
            producer_ids=producer_ids,
            groups=groups,
            peers=peers,
            allowance=allowance,
        ),
        share_states=share_states,
        persister=persister,
        share_partitions=SharePartitions(
            settings=settings,
            clock=world.clock,
            partitions=partitions,
            metadata=metadata,
            persister=persister,
            dead_letters=DeadLetterWriter(
                node_id,
                settings=settings,
                clock=world.clock,
                partitions=partitions,
                metadata=metadata,
                peers=peers,
                topics=topic_creator,
            ),
            turn=slices.turn,
        ),
        slices=slices,
        quotas=quotas,
        telemetry=Telemetry(settings.int("telemetry.max.bytes"), world.random),
        token_macs=token_macs,
        access=access,
        audit=world.audit,
        controller_listeners=frozenset(controller_listeners),
        unsent=unsent,
        times=RequestTimes(world.clock.nanoseconds, settings.int("penstock.request.timing.every")),
        faults=faults,
        guard=guard,
        events=world.history,
        event_topic=(
            EventTopic(world.history, metadata=metadata, peers=peers, topics=topic_creator)
            if settings.bool("penstock.events.topic.enable")
            else None
        ),
    )


def _directories(logs: LogManager) -> Directories:
    return Directories(
        sorted(one.directory_id for one in logs.dirs if not one.offline),
        sorted(one.directory_id for one in logs.dirs.all if one.offline),
        sorted(one.directory_id for one in logs.dirs if one.path in logs.dirs.cordoned),
    )


async def _allocate_producer_ids(channel: ControllerChannel, lifecycle: Lifecycle) -> tuple[int, int]:
    request = AllocateProducerIdsRequest(broker_id=lifecycle.identity.node_id, broker_epoch=lifecycle.broker_epoch)
    answer = await channel.ask(request)
    if answer.error_code:
        raise KafkaError(ErrorCode(answer.error_code), "The controller allocated no producer ids: retry.")
    return answer.producer_id_start, answer.producer_id_len


# --- settings to parts ------------------------------------------------------------------------------------


def limits_of(settings: Settings, network: Network) -> Limits:
    return Limits(
        descriptor_connections=network.max_connections,
        socket_request_max_bytes=settings.int("socket.request.max.bytes"),
        max_connections=settings.int("max.connections"),
        max_connections_per_ip=settings.int("max.connections.per.ip"),
        max_connections_per_ip_overrides=settings.max_connections_per_ip_overrides(),
        connections_max_idle_ms=settings.int("connections.max.idle.ms"),
        queued_max_request_bytes=settings.int("queued.max.request.bytes"),
        queued_max_response_bytes=settings.int("penstock.queued.max.response.bytes"),
        socket_listen_backlog_size=settings.int("socket.listen.backlog.size"),
    )


def access_of(settings: Settings, clock: Clock, audit: Audit | None = None) -> AccessControl | None:
    """Returns the node's authorizer; None if the settings name no authorizer."""
    if not settings.str("authorizer.class.name").strip():
        return None
    return AccessControl(
        super_users=parse_super_users(settings.str("super.users")),
        allow_without_acls=settings.bool("allow.everyone.if.no.acl.found"),
        seconds=lambda: clock.wall_ms() / 1000,
        on_denied=None if audit is None else audit.denied,
    )


def intervals_of(settings: Settings) -> Intervals:
    return Intervals(
        initial_delay_ms=settings.int("log.initial.task.delay.ms"),
        retention_check_ms=settings.int("log.retention.check.interval.ms"),
        checkpoint_ms=settings.int("replica.high.watermark.checkpoint.interval.ms"),
        producer_expiration_check_ms=settings.int("producer.id.expiration.check.interval.ms"),
        cleaner_backoff_ms=settings.int("log.cleaner.backoff.ms"),
    )


def cleaner_of(settings: Settings, logs: LogManager, partitions: Partitions) -> Cleaner | None:
    if not settings.bool("log.cleaner.enable"):
        return None
    max_keys = settings.int("log.cleaner.dedupe.buffer.size") // COMPACTION_KEY_BYTES
    return Cleaner(logs, max_keys=max_keys, may_drop_tombstones=partitions.all_replicas_have)
