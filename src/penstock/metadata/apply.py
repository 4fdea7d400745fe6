"""Applies records to an image: the only code that makes a new image, for live changes and for replay.

Each call makes one new image. It copies only the maps that a record changes; the new image shares all other maps with
the previous image. Records of a metadata transaction are held back: its end record applies them, its abort record drops
them. The end or abort record can come in a later batch. Records are dispatched by class name, so that the class of a
record type is imported only when a record of that type appears.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from penstock.check import check
from penstock.metadata.image import (
    FENCINGS_MAX,
    AclImage,
    BrokerImage,
    ControllerImage,
    Endpoint,
    Fencing,
    ImageChanges,
    MetadataImage,
    PartitionImage,
    QuotaEntity,
    ScramImage,
    TokenImage,
    TopicImage,
)
from penstock.metadata.names import collision_key, may_collide
from penstock.protocol.vocabulary import NO_LEADER_CHANGE, ResourceType

_TRANSACTION_MARKS = frozenset({"BeginTransactionRecord", "EndTransactionRecord", "AbortTransactionRecord"})


def apply(
    image: MetadataImage,
    records: Iterable[Any],
    *,
    offset: int | None = None,
    epoch: int | None = None,
    timestamp_ms: int = -1,
) -> MetadataImage:
    """Returns the image after `records`.

    `offset` is the offset of the last record. By default, the first record comes directly after the image's offset.
    """
    return apply_batches(image, [(timestamp_ms, records)], offset=offset, epoch=epoch)


def apply_batches(
    image: MetadataImage,
    batches: Iterable[tuple[int, Iterable[Any]]],
    *,
    offset: int | None = None,
    epoch: int | None = None,
) -> MetadataImage:
    """Returns the image after several batches, each given as (append time, records)."""
    delta = _Delta(image)
    count = 0
    for timestamp_ms, records in batches:
        delta.begin_batch(timestamp_ms)
        for record in records:
            count += 1
            delta.add(record)
    return delta.finish(image.offset + count if offset is None else offset, image.epoch if epoch is None else epoch)


def advance(image: MetadataImage, *, offset: int, epoch: int, kraft_version: int | None = None) -> MetadataImage:
    """Returns the image after a control batch, which changes at most the offset and the quorum's protocol version."""
    if kraft_version is None:
        return replace(image, offset=offset, epoch=epoch)
    features = {**image.features, "kraft.version": kraft_version}
    if not kraft_version:
        del features["kraft.version"]
    changes = ImageChanges(image.version, features=True)
    return replace(image, offset=offset, epoch=epoch, features=features, version=image.version + 1, changes=changes)


class _Delta:
    """Holds private copies of an image's maps. A map is copied when a record first changes it."""

    def __init__(self, image: MetadataImage) -> None:
        self.image = image
        self.fields: dict[str, Any] = {}
        self.transaction: list[Any] | None = None if image.open_transaction is None else list(image.open_transaction)
        self.partitions: dict[bytes, dict[int, PartitionImage]] = {}
        self.topic_names: set[str] = set()
        self.config_keys: set[tuple[int, str]] = set()
        self.broker_ids: set[int] = set()
        self.partition_count = image.partition_count
        self.fencings: list[Fencing] = []
        self.timestamp_ms = -1
        self.partition_changes = 0  # the batch's append time
        self._interned: dict[tuple[Any, ...], tuple[Any, ...]] = {}

    def begin_batch(self, timestamp_ms: int) -> None:
        self.timestamp_ms = timestamp_ms
        self.partition_changes = 0

    def writable(self, name: str) -> dict[Any, Any]:
        """Returns a private copy of one of the image's maps, made on first use."""
        found: dict[Any, Any] | None = self.fields.get(name)
        if found is None:
            found = self.fields[name] = dict(getattr(self.image, name))
        return found

    def intern(self, values: Iterable[Any]) -> tuple[Any, ...]:
        """Returns one shared tuple for equal lists of replicas or directories. Many partitions have equal lists, so
        this saves memory.
        """
        value = tuple(values)
        return self._interned.setdefault(value, value)

    def partitions_of(self, topic_id: bytes) -> dict[int, PartitionImage]:
        found = self.partitions.get(topic_id)
        if found is None:
            topic = self.writable("topics_by_id").get(topic_id)
            check(topic is not None, "a partition record has a topic id without a topic record")
            assert topic is not None
            found = self.partitions[topic_id] = dict(topic.partitions)
            self.topic_names.add(topic.name)
        return found

    def add(self, record: Any) -> None:
        name = type(record).__name__
        if name in _TRANSACTION_MARKS:
            self._mark(name)
        elif self.transaction is not None:
            self.transaction.append(record)
        else:
            self._apply(name, record)

    def _mark(self, name: str) -> None:
        if name == "BeginTransactionRecord":
            check(self.transaction is None, "a metadata transaction started inside another")
            self.transaction = []
            return
        pending, self.transaction = self.transaction, None
        check(pending is not None, "a metadata transaction ended without a start")
        if name == "EndTransactionRecord":
            for record in pending or ():
                self._apply(type(record).__name__, record)

    def _apply(self, name: str, record: Any) -> None:
        applier = _APPLIERS.get(name)
        check(applier is not None, f"{name} has no rule in metadata/apply.py")
        assert applier is not None
        applier(self, record)

    def finish(self, offset: int, epoch: int) -> MetadataImage:
        if self.partitions:
            topics, by_id = self.writable("topics"), self.writable("topics_by_id")
            for topic_id, partitions in self.partitions.items():
                old = by_id[topic_id]
                topic = TopicImage(old.name, topic_id, partitions)
                topics[old.name] = by_id[topic_id] = topic
        transaction = None if self.transaction is None else tuple(self.transaction)
        version = self.image.version
        changes = ImageChanges(
            version,
            frozenset(self.topic_names),
            frozenset(self.config_keys),
            frozenset(self.broker_ids),
            "client_quotas" in self.fields,
            "features" in self.fields,
            tuple(self.fencings[-FENCINGS_MAX:]),
        )
        return replace(
            self.image,
            offset=offset,
            epoch=epoch,
            version=version + 1,
            changes=changes,
            open_transaction=transaction,
            partition_count=self.partition_count,
            **self.fields,
        )


# --- topics ---------------------------------------------------------------------------------------


def _topic(delta: _Delta, record: Any) -> None:
    topics = delta.writable("topics")
    check(record.name not in topics, f"a topic record creates {record.name!r}, which already exists")
    topics[record.name] = delta.writable("topics_by_id")[record.topic_id] = TopicImage(record.name, record.topic_id, {})
    delta.topic_names.add(record.name)
    delta.partitions[record.topic_id] = {}
    if may_collide(record.name):
        colliding, key = delta.writable("names_by_collision_key"), collision_key(record.name)
        colliding[key] = tuple(sorted((*colliding.get(key, ()), record.name)))


def _remove_topic(delta: _Delta, record: Any) -> None:
    topic = delta.writable("topics_by_id").pop(record.topic_id, None)
    check(topic is not None, "a remove record names a topic id that does not exist")
    partitions = delta.partitions.pop(record.topic_id, None)
    delta.partition_count -= len(topic.partitions if partitions is None else partitions)
    del delta.writable("topics")[topic.name]
    delta.topic_names.add(topic.name)
    if may_collide(topic.name):
        colliding, shared = delta.writable("names_by_collision_key"), collision_key(topic.name)
        others = tuple(name for name in colliding.pop(shared) if name != topic.name)
        if others:
            colliding[shared] = others
    key = (int(ResourceType.TOPIC), topic.name)
    if key in delta.fields.get("configs", delta.image.configs):
        del delta.writable("configs")[key]
        delta.config_keys.add(key)


def _partition(delta: _Delta, record: Any) -> None:
    partitions = delta.partitions_of(record.topic_id)
    delta.partition_count += record.partition_id not in partitions
    partitions[record.partition_id] = PartitionImage(
        replicas=delta.intern(record.replicas),
        isr=delta.intern(record.isr),
        leader=record.leader,
        leader_epoch=record.leader_epoch,
        partition_epoch=record.partition_epoch,
        directories=delta.intern(record.directories or ()),
        elr=delta.intern(record.eligible_leader_replicas or ()),
        last_known_elr=delta.intern(record.last_known_elr or ()),
        adding_replicas=delta.intern(record.adding_replicas),
        removing_replicas=delta.intern(record.removing_replicas),
        leader_recovery_state=record.leader_recovery_state,
    )


def _partition_change(delta: _Delta, record: Any) -> None:
    partitions = delta.partitions_of(record.topic_id)
    old = partitions.get(record.partition_id)
    check(old is not None, "a change record names a partition that does not exist")
    assert old is not None
    partitions[record.partition_id] = changed_partition(old, record, delta.intern)
    delta.partition_changes += 1


def changed_partition(
    old: PartitionImage, record: Any, intern: Callable[[Iterable[Any]], tuple[Any, ...]] = tuple
) -> PartitionImage:
    leads = record.leader != NO_LEADER_CHANGE
    recovery = record.leader_recovery_state
    return PartitionImage(
        replicas=old.replicas if record.replicas is None else intern(record.replicas),
        isr=old.isr if record.isr is None else intern(record.isr),
        leader=record.leader if leads else old.leader,
        leader_epoch=old.leader_epoch + leads,
        partition_epoch=old.partition_epoch + 1,
        directories=old.directories if record.directories is None else intern(record.directories),
        elr=old.elr if record.eligible_leader_replicas is None else intern(record.eligible_leader_replicas),
        last_known_elr=old.last_known_elr if record.last_known_elr is None else intern(record.last_known_elr),
        adding_replicas=old.adding_replicas if record.adding_replicas is None else intern(record.adding_replicas),
        removing_replicas=(
            old.removing_replicas if record.removing_replicas is None else intern(record.removing_replicas)
        ),
        leader_recovery_state=old.leader_recovery_state if recovery < 0 else recovery,
    )


def _clear_elr(delta: _Delta, record: Any) -> None:
    topics = delta.writable("topics")
    for name in [record.topic_name] if record.topic_name else list(topics):
        topic = topics.get(name)
        if topic is None:
            continue
        current = delta.partitions.get(topic.topic_id, topic.partitions)
        stale = [index for index, partition in current.items() if partition.elr or partition.last_known_elr]
        if stale:
            partitions = delta.partitions_of(topic.topic_id)
            for index in stale:
                before = partitions[index]
                partitions[index] = replace(
                    before, partition_epoch=before.partition_epoch + 1, elr=(), last_known_elr=()
                )


# --- brokers and controllers ----------------------------------------------------------------------


def _endpoints(listed: Iterable[Any]) -> dict[str, Endpoint]:
    return {one.name: Endpoint(one.host, one.port, one.security_protocol) for one in listed}


def _supported(listed: Iterable[Any]) -> dict[str, tuple[int, int]]:
    return {one.name: (one.min_supported_version, one.max_supported_version) for one in listed}


def _register_broker(delta: _Delta, record: Any) -> None:
    delta.broker_ids.add(record.broker_id)
    delta.writable("brokers")[record.broker_id] = BrokerImage(
        broker_id=record.broker_id,
        epoch=record.broker_epoch,
        incarnation_id=record.incarnation_id,
        endpoints=_endpoints(record.end_points),
        rack=record.rack,
        fenced=record.fenced,
        in_controlled_shutdown=record.in_controlled_shutdown,
        log_dirs=tuple(record.log_dirs or ()),
        cordoned_log_dirs=tuple(record.cordoned_log_dirs or ()),
        features=_supported(record.features),
    )


def _unregister_broker(delta: _Delta, record: Any) -> None:
    delta.broker_ids.add(record.broker_id)
    gone = delta.writable("brokers").pop(record.broker_id, None)
    check(gone is not None, f"an unregister record names broker {record.broker_id}, which is not registered")


def _change_broker(delta: _Delta, broker_id: int, epoch: int, **changes: Any) -> None:
    brokers = delta.writable("brokers")
    broker: BrokerImage | None = brokers.get(broker_id)
    check(
        broker is not None and broker.epoch == epoch,
        f"a registration change names broker {broker_id} at epoch {epoch}, which is not registered",
    )
    assert broker is not None
    brokers[broker_id] = replace(broker, **changes)
    delta.broker_ids.add(broker_id)
    # A broker that completes its controlled shutdown is fenced too, but it is not counted as a failure.
    if changes.get("fenced") and not broker.fenced and (delta.partition_changes or not broker.in_controlled_shutdown):
        delta.fencings.append(Fencing(broker_id, epoch, delta.timestamp_ms, delta.partition_changes))


def _broker_registration_change(delta: _Delta, record: Any) -> None:
    changes: dict[str, Any] = {}
    if record.fenced:
        changes["fenced"] = record.fenced > 0
    if record.in_controlled_shutdown:
        changes["in_controlled_shutdown"] = record.in_controlled_shutdown > 0
    if record.log_dirs:
        changes["log_dirs"] = tuple(record.log_dirs)
    if record.cordoned_log_dirs is not None:
        changes["cordoned_log_dirs"] = tuple(record.cordoned_log_dirs)
    _change_broker(delta, record.broker_id, record.broker_epoch, **changes)


def _fence_broker(delta: _Delta, record: Any) -> None:
    _change_broker(delta, record.id, record.epoch, fenced=True)


def _unfence_broker(delta: _Delta, record: Any) -> None:
    _change_broker(delta, record.id, record.epoch, fenced=False)


def _register_controller(delta: _Delta, record: Any) -> None:
    delta.writable("controllers")[record.controller_id] = ControllerImage(
        controller_id=record.controller_id,
        incarnation_id=record.incarnation_id,
        endpoints=_endpoints(record.end_points),
        features=_supported(record.features),
    )


# --- configs, quotas, features, ids ---------------------------------------------------------------


def _config(delta: _Delta, record: Any) -> None:
    key = (record.resource_type, record.resource_name)
    configs = delta.writable("configs")
    values = dict(configs.get(key, ()))
    if record.value is None:
        values.pop(record.name, None)
    else:
        values[record.name] = record.value
    if values:
        configs[key] = values
    else:
        configs.pop(key, None)
    delta.config_keys.add(key)


def quota_entity(parts: Iterable[tuple[str, str | None]]) -> QuotaEntity:
    return tuple(sorted(parts, key=lambda part: part[0]))


def _client_quota(delta: _Delta, record: Any) -> None:
    entity = quota_entity((part.entity_type, part.entity_name) for part in record.entity)
    quotas = delta.writable("client_quotas")
    values = dict(quotas.get(entity, ()))
    if record.remove:
        values.pop(record.key, None)
    else:
        values[record.key] = record.value
    if values:
        quotas[entity] = values
    else:
        quotas.pop(entity, None)


def _feature_level(delta: _Delta, record: Any) -> None:
    features = delta.writable("features")
    if record.feature_level:
        features[record.name] = record.feature_level
    else:
        features.pop(record.name, None)


def _producer_ids(delta: _Delta, record: Any) -> None:
    delta.fields["next_producer_id"] = record.next_producer_id


# --- access control -------------------------------------------------------------------------------


def _acl(delta: _Delta, record: Any) -> None:
    delta.writable("acls")[record.id] = AclImage(
        record.resource_type,
        record.resource_name,
        record.pattern_type,
        record.principal,
        record.host,
        record.operation,
        record.permission_type,
    )


def _remove_acl(delta: _Delta, record: Any) -> None:
    gone = delta.writable("acls").pop(record.id, None)
    check(gone is not None, "a remove record names an access control entry that does not exist")


def _scram(delta: _Delta, record: Any) -> None:
    credential = ScramImage(record.salt, record.stored_key, record.server_key, record.iterations)
    delta.writable("scram_credentials")[record.name, record.mechanism] = credential


def _remove_scram(delta: _Delta, record: Any) -> None:
    delta.writable("scram_credentials").pop((record.name, record.mechanism), None)


def _token(delta: _Delta, record: Any) -> None:
    delta.writable("delegation_tokens")[record.token_id] = TokenImage(
        record.owner,
        record.requester,
        tuple(record.renewers),
        record.issue_timestamp,
        record.max_timestamp,
        record.expiration_timestamp,
    )


def _remove_token(delta: _Delta, record: Any) -> None:
    delta.writable("delegation_tokens").pop(record.token_id, None)


def _nothing(delta: _Delta, record: Any) -> None:
    """Ignores records that only advance the offset: NoOpRecord, and records of the migration from ZooKeeper."""


_APPLIERS: dict[str, Callable[[_Delta, Any], None]] = {
    "AccessControlEntryRecord": _acl,
    "BrokerRegistrationChangeRecord": _broker_registration_change,
    "ClearElrRecord": _clear_elr,
    "ClientQuotaRecord": _client_quota,
    "ConfigRecord": _config,
    "DelegationTokenRecord": _token,
    "FeatureLevelRecord": _feature_level,
    "FenceBrokerRecord": _fence_broker,
    "NoOpRecord": _nothing,
    "PartitionChangeRecord": _partition_change,
    "PartitionRecord": _partition,
    "ProducerIdsRecord": _producer_ids,
    "RegisterBrokerRecord": _register_broker,
    "RegisterControllerRecord": _register_controller,
    "RemoveAccessControlEntryRecord": _remove_acl,
    "RemoveDelegationTokenRecord": _remove_token,
    "RemoveTopicRecord": _remove_topic,
    "RemoveUserScramCredentialRecord": _remove_scram,
    "TopicRecord": _topic,
    "UnfenceBrokerRecord": _unfence_broker,
    "UnregisterBrokerRecord": _unregister_broker,
    "UserScramCredentialRecord": _scram,
    "ZkMigrationStateRecord": _nothing,
}
