"""Defines the image: the cluster's metadata at one offset of the metadata log, in immutable values that `apply`
builds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock.protocol.vocabulary import ResourceType

# Reserved directory ids: replica from before there were ids, directory not chosen yet, directory lost.
MIGRATING_DIRECTORY = bytes(16)
UNASSIGNED_DIRECTORY = bytes(15) + b"\1"
LOST_DIRECTORY = bytes(15) + b"\2"
RESERVED_DIRECTORIES = 100
FENCINGS_MAX = 100
KRAFT_VERSION = "kraft.version"
METADATA_VERSION = "metadata.version"

# The entity of a client quota: ((entity type, entity name or None for the default), ...), sorted by type.
QuotaEntity = tuple[tuple[str, str | None], ...]


@dataclass(frozen=True, slots=True)
class PartitionImage:
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int
    leader_epoch: int = 0
    partition_epoch: int = 0
    directories: tuple[bytes, ...] = ()
    elr: tuple[int, ...] = ()
    last_known_elr: tuple[int, ...] = ()
    adding_replicas: tuple[int, ...] = ()
    removing_replicas: tuple[int, ...] = ()
    leader_recovery_state: int = 0

    def directory(self, broker_id: int) -> bytes:
        """Returns the id of the directory that has the broker's replica; a reserved id until the broker reports it."""
        if broker_id in self.replicas:
            index = self.replicas.index(broker_id)
            if index < len(self.directories):
                return self.directories[index]
        return UNASSIGNED_DIRECTORY


@dataclass(frozen=True, slots=True)
class TopicImage:
    name: str
    topic_id: bytes
    partitions: Mapping[int, PartitionImage]


@dataclass(frozen=True, slots=True)
class Endpoint:
    host: str
    port: int
    security_protocol: int


@dataclass(frozen=True, slots=True)
class BrokerImage:
    broker_id: int
    epoch: int
    incarnation_id: bytes
    endpoints: Mapping[str, Endpoint]
    rack: str | None = None
    fenced: bool = True
    in_controlled_shutdown: bool = False
    log_dirs: tuple[bytes, ...] = ()
    cordoned_log_dirs: tuple[bytes, ...] = ()
    features: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    @property
    def usable(self) -> bool:
        """Returns True if the broker may lead partitions."""
        return not self.fenced and not self.in_controlled_shutdown

    def has_online(self, directory: bytes) -> bool:
        """Returns True if the broker can serve a replica in this directory, or if the directory is not assigned yet."""
        if directory in (MIGRATING_DIRECTORY, UNASSIGNED_DIRECTORY):
            return True
        if directory == LOST_DIRECTORY:
            return False
        return not self.log_dirs or directory in self.log_dirs


def is_reserved(directory: bytes) -> bool:
    return int.from_bytes(directory, "big") < RESERVED_DIRECTORIES


@dataclass(frozen=True, slots=True)
class ControllerImage:
    controller_id: int
    incarnation_id: bytes
    endpoints: Mapping[str, Endpoint]
    features: Mapping[str, tuple[int, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AclImage:
    resource_type: int
    resource_name: str
    pattern_type: int
    principal: str
    host: str
    operation: int
    permission_type: int


@dataclass(frozen=True, slots=True)
class ScramImage:
    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int


#: SCRAM credentials by user and number of the mechanism.
ScramCredentials = Mapping[tuple[str, int], ScramImage]


@dataclass(frozen=True, slots=True)
class TokenImage:
    owner: str
    requester: str
    renewers: tuple[str, ...]
    issue_timestamp: int
    max_timestamp: int
    expiration_timestamp: int


@dataclass(frozen=True, slots=True)
class Fencing:
    """Describes a fencing without a controlled shutdown: its time, and the number of partitions that changed."""

    broker_id: int
    broker_epoch: int
    timestamp_ms: int
    partitions: int


@dataclass(frozen=True, slots=True)
class ImageChanges:
    """Holds the differences from the image with version `base_version`, so that a listener need not compare every
    topic.
    """

    base_version: int = -1
    topics: frozenset[str] = frozenset()
    configs: frozenset[tuple[int, str]] = frozenset()
    brokers: frozenset[int] = frozenset()
    client_quotas: bool = False
    features: bool = False
    fencings: tuple[Fencing, ...] = ()
    """The last FENCINGS_MAX fencings of brokers, in the order of the metadata log."""

    def then(self, later: ImageChanges) -> ImageChanges:
        return ImageChanges(
            self.base_version,
            self.topics | later.topics,
            self.configs | later.configs,
            self.brokers | later.brokers,
            self.client_quotas or later.client_quotas,
            self.features or later.features,
            (self.fencings + later.fencings)[-FENCINGS_MAX:],
        )


@dataclass(frozen=True, slots=True)
class MetadataImage:
    """Holds the whole metadata of the cluster.

    `offset` and `epoch` belong to the last applied record. `version` is a cache key in this process.
    """

    offset: int = -1
    epoch: int = 0
    version: int = field(default=0, compare=False)
    features: Mapping[str, int] = field(default_factory=dict)
    brokers: Mapping[int, BrokerImage] = field(default_factory=dict)
    controllers: Mapping[int, ControllerImage] = field(default_factory=dict)
    topics: Mapping[str, TopicImage] = field(default_factory=dict)
    topics_by_id: Mapping[bytes, TopicImage] = field(default_factory=dict)
    configs: Mapping[tuple[int, str], Mapping[str, str]] = field(default_factory=dict)
    client_quotas: Mapping[QuotaEntity, Mapping[str, float]] = field(default_factory=dict)
    next_producer_id: int = 0
    acls: Mapping[bytes, AclImage] = field(default_factory=dict)
    scram_credentials: ScramCredentials = field(default_factory=dict)
    delegation_tokens: Mapping[str, TokenImage] = field(default_factory=dict)
    # Records of an unfinished metadata transaction, not visible yet; None outside a transaction.
    open_transaction: tuple[Any, ...] | None = None
    partition_count: int = 0
    # Topic names with a dot or underscore by their name in metrics, where they must not collide.
    names_by_collision_key: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    changes: ImageChanges = field(default=ImageChanges(), compare=False, repr=False)

    def partition(self, topic: str, partition: int) -> PartitionImage | None:
        found = self.topics.get(topic)
        return None if found is None else found.partitions.get(partition)

    def config(self, resource_type: int, name: str) -> Mapping[str, str]:
        """Returns the overrides of one resource, without inherited values."""
        return self.configs.get((resource_type, name), {})

    def topic_config(self, topic: str) -> Mapping[str, str]:
        return self.configs.get((ResourceType.TOPIC, topic), {})

    def broker_config(self, broker_id: int | None) -> Mapping[str, str]:
        """Returns the dynamic configs of one broker; for None, the cluster-wide dynamic configs."""
        return self.configs.get((ResourceType.BROKER, "" if broker_id is None else str(broker_id)), {})


EMPTY_IMAGE = MetadataImage()


@dataclass(frozen=True, slots=True)
class TopicChanges:
    created: tuple[TopicImage, ...] = ()
    deleted: tuple[TopicImage, ...] = ()
    changed: tuple[tuple[TopicImage, TopicImage], ...] = ()


def topic_changes(old: MetadataImage, new: MetadataImage) -> TopicChanges:
    """Compares two images. Returns the topics that were created, deleted or changed.

    If a topic was deleted and another topic was created under the same name, the old topic is in `deleted` and the new
    topic is in `created`.
    """
    if old.topics is new.topics:
        return TopicChanges()
    if new.changes.base_version == old.version:
        names = sorted(new.changes.topics)
    else:
        names = sorted(old.topics.keys() | new.topics.keys())
    created: list[TopicImage] = []
    deleted: list[TopicImage] = []
    changed: list[tuple[TopicImage, TopicImage]] = []
    for name in names:
        before, after = old.topics.get(name), new.topics.get(name)
        if before is after:
            continue
        if before is not None and after is not None and before.topic_id == after.topic_id:
            changed.append((before, after))
            continue
        if before is not None:
            deleted.append(before)
        if after is not None:
            created.append(after)
    return TopicChanges(tuple(created), tuple(deleted), tuple(changed))
