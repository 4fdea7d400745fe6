"""Defines the `Broker`: the object through which a handler reaches the parts of this node.

The composition root (`node`) builds one `Broker` per node.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.broker.requests.fault_rules import Faults
from penstock.broker.requests.request_times import RequestTimes
from penstock.broker.requests.slices import Slices
from penstock.net.limits import ByteBudget

if TYPE_CHECKING:
    from penstock.broker.controlplane.auto_topics import TopicCreator
    from penstock.broker.controlplane.controller import Controller
    from penstock.broker.controlplane.controller_channel import ControllerChannel
    from penstock.broker.controlplane.event_topic import EventTopic
    from penstock.broker.controlplane.lifecycle import Lifecycle
    from penstock.broker.controlplane.metadata_log import MetadataLog
    from penstock.broker.controlplane.producer_ids import ProducerIds
    from penstock.broker.coordinators.groups import Groups
    from penstock.broker.coordinators.share_persister import SharePersister
    from penstock.broker.coordinators.share_states import ShareStates
    from penstock.broker.coordinators.transactions import Transactions
    from penstock.broker.events.history import EventHistory
    from penstock.broker.fetch.fetch_policy import FetchPolicy
    from penstock.broker.fetch.fetch_sessions import FetchSessions
    from penstock.broker.guard.guard import Guard
    from penstock.broker.limits.audit import Audit
    from penstock.broker.limits.quotas import Quotas
    from penstock.broker.peers.peers import Peers
    from penstock.broker.replicas.directory_moves import DirectoryMoves
    from penstock.broker.replicas.partitions import Partitions
    from penstock.broker.replicas.replica_manager import ReplicaManager
    from penstock.broker.requests.access_control import AccessControl
    from penstock.broker.share.share_partitions import SharePartitions
    from penstock.broker.telemetry import Telemetry
    from penstock.clock import Clock
    from penstock.log.manager import LogManager
    from penstock.metadata.configs.settings import Settings
    from penstock.security.delegation_tokens import TokenMacs


@dataclass(slots=True)
class Broker:
    node_id: int
    cluster_id: str
    settings: Settings
    clock: Clock
    random: random.Random
    logs: LogManager
    metadata: MetadataLog
    channel: ControllerChannel
    topic_creator: TopicCreator
    peers: Peers
    lifecycle: Lifecycle
    controller: Controller
    partitions: Partitions
    replicas: ReplicaManager
    moves: DirectoryMoves
    fetch_sessions: FetchSessions
    fetch_policy: FetchPolicy
    producer_ids: ProducerIds
    groups: Groups
    transactions: Transactions
    share_states: ShareStates
    persister: SharePersister
    share_partitions: SharePartitions
    quotas: Quotas
    telemetry: Telemetry
    events: EventHistory
    event_topic: EventTopic | None
    token_macs: TokenMacs
    #: None where `penstock.guard.enable` is false.
    guard: Guard | None = None
    #: None on a node without an authorizer, where every client is allowed everything.
    access: AccessControl | None = None
    #: None on a node without `penstock.audit.file`.
    audit: Audit | None = None
    controller_listeners: frozenset[str] = frozenset()
    times: RequestTimes = field(default_factory=RequestTimes)
    faults: Faults = field(default_factory=Faults)
    slices: Slices = field(default_factory=Slices)
    #: The budget of bytes for answers that clients have not read yet. A Fetch may use a share of what is left.
    unsent: ByteBudget = field(default_factory=lambda: ByteBudget(-1))
