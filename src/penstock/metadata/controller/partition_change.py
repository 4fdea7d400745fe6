"""Builds every change of a partition's leader, ISR, eligible leaders and replicas.
    Change (requested ISR, replicas, election) → reassignment complete? → eligible leaders → leader → record

A leader is elected from the ISR, or from the eligible leader replicas (KIP-966) if the ISR is empty. Other replicas are
elected in two cases only: in an unclean election, and if the last known leader returns and no other replica can have
more records. If the last known leader lost its directory, the next replica of the partition counts as the last known
leader. The record contains only changes; without a change there is no record. A record with a leader starts a new
leader epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

from penstock.metadata.controller.assignments import default_directory, has_directories
from penstock.metadata.image import METADATA_VERSION, MetadataImage, PartitionImage, TopicImage
from penstock.protocol.persisted.metadata.partition_change_record import PartitionChangeRecord
from penstock.protocol.vocabulary import NO_LEADER, NO_LEADER_CHANGE

ELIGIBLE_LEADER_REPLICAS = "eligible.leader.replicas.version"
RECOVERED, RECOVERING = 0, 1
# The first metadata.version level at which a smaller ISR needs no new leader epoch.
SHRINK_KEEPS_EPOCH_SINCE = 12


class Election(IntEnum):
    PREFERRED = 0
    ONLINE = 1
    UNCLEAN = 2


@dataclass(frozen=True, slots=True)
class Rules:
    """Holds this broker's own values of configs. They apply to a topic if neither the topic nor a dynamic config sets a
    value.
    """

    min_insync_replicas: int = 1
    unclean_leader_election: bool = False
    node_id: int | None = None
    syncs_before_acks: bool = False

    def min_isr(self, image: MetadataImage, topic: TopicImage) -> int:
        """Returns min.insync.replicas, limited to the number of the topic's replicas."""
        value = self._config(image, topic.name, "min.insync.replicas")
        wanted = self.min_insync_replicas if value is None else int(value)
        first = topic.partitions.get(0)
        return wanted if first is None else min(wanted, len(first.replicas))

    def allows_unclean(self, image: MetadataImage, topic: str) -> bool:
        value = self._config(image, topic, "unclean.leader.election.enable")
        return self.unclean_leader_election if value is None else value.strip().lower() == "true"

    def survives_power_loss(self, image: MetadataImage, topic: str, broker_id: int) -> bool:
        """Returns True if the broker acknowledges this topic's records only once they are on disk, so that a power loss
        loses none of them.
        """
        configs = image.topic_config(topic)
        if configs.get("penstock.acks.fsync", "").strip().lower() == "true":
            return True
        inherited = {**image.broker_config(None), **image.broker_config(broker_id)}
        value = configs.get("flush.messages", inherited.get("log.flush.interval.messages"))
        return self.syncs_before_acks if value is None else int(value) == 1

    def _config(self, image: MetadataImage, topic: str, name: str) -> str | None:
        value = image.topic_config(topic).get(name)
        if value is None and self.node_id is not None:
            value = image.broker_config(self.node_id).get(name)
        return image.broker_config(None).get(name) if value is None else value


DEFAULT_RULES = Rules()


@dataclass(slots=True)
class Change:
    """Holds a requested change of one partition. A field that is None leaves that part of the partition unchanged."""

    image: MetadataImage
    topic: TopicImage
    index: int
    rules: Rules = DEFAULT_RULES
    election: Election = Election.ONLINE
    isr: Sequence[int] | None = None
    replicas: Sequence[int] | None = None
    removing: Sequence[int] | None = None
    adding: Sequence[int] | None = None
    recovery_state: int | None = None
    directories: dict[int, bytes] = field(default_factory=dict)
    # Brokers that are about to become unusable, or usable, and brokers that may have lost records.
    leaving: frozenset[int] = frozenset()
    coming: frozenset[int] = frozenset()
    unclean_shutdown: frozenset[int] = frozenset()
    partition: PartitionImage = field(init=False)

    def __post_init__(self) -> None:
        self.partition = self.topic.partitions[self.index]

    def may_lead(self, broker_id: int) -> bool:
        if broker_id in self.leaving or broker_id in self.unclean_shutdown:
            return False
        broker = self.image.brokers.get(broker_id)
        if broker is None or not (broker.usable or broker_id in self.coming):
            return False
        return broker.has_online(self.directories.get(broker_id, self.partition.directory(broker_id)))

    def heir(self) -> int | None:
        """Returns the replica that counts as the last known leader, if the last known leader has lost its directory.

        This is the next replica of the partition. Returns None if the directory is not lost. A directory counts as lost
        if the broker assigns its replica to another directory, and its registration no longer has the old directory.
        """
        last_known, replicas = self.partition.last_known_elr, self.partition.replicas
        if len(last_known) != 1 or last_known[0] not in self.directories or last_known[0] not in replicas:
            return None
        broker = self.image.brokers.get(last_known[0])
        if broker is None or broker.has_online(self.partition.directory(last_known[0])):
            return None
        return replicas[(replicas.index(last_known[0]) + 1) % len(replicas)]

    def record(self) -> PartitionChangeRecord | None:
        return _build(self)


class Elected(NamedTuple):
    leader: int
    unclean: bool = False


@dataclass(slots=True)
class _Target:
    """Holds the new state of a partition while it is computed."""

    isr: list[int]
    replicas: list[int]
    removing: list[int]
    adding: list[int]
    elr: list[int]


def _build(change: Change) -> PartitionChangeRecord | None:
    partition, image = change.partition, change.image
    elr_enabled = image.features.get(ELIGIBLE_LEADER_REPLICAS, 0) >= 1
    target = _Target(
        list(partition.isr if change.isr is None else change.isr),
        list(partition.replicas if change.replicas is None else change.replicas),
        list(partition.removing_replicas if change.removing is None else change.removing),
        list(partition.adding_replicas if change.adding is None else change.adding),
        list(partition.elr),
    )
    complete_reassignment(target)
    target.elr = eligible_leaders(change, target) if elr_enabled else []
    record = PartitionChangeRecord(partition_id=change.index, topic_id=change.topic.topic_id)
    _elect(change, target, record, elr_enabled)
    if record.leader == NO_LEADER_CHANGE and not set(partition.replicas) <= set(target.replicas):
        record.leader = partition.leader  # a new leader epoch, so that the removed replica does not count as a follower
    if target.elr != list(partition.elr):
        record.eligible_leader_replicas = target.elr
    # Without eligible leader replicas the last in-sync replica stays in the ISR: only it may lead again.
    if record.isr is None and (target.isr or elr_enabled) and target.isr != list(partition.isr):
        record.isr = target.isr
    shrinks = record.isr is not None and not set(partition.isr) <= set(record.isr)
    if shrinks and record.leader == NO_LEADER_CHANGE and _shrink_needs_epoch(image):
        record.leader = partition.leader
    if elr_enabled:
        _remember_last_leader(change, record)
    _assign(change, target, record)
    if change.recovery_state is not None and change.recovery_state != partition.leader_recovery_state:
        record.leader_recovery_state = change.recovery_state
    return None if _is_nothing(record) else record


# --- reassignment -----------------------------------------------------------------------------------


def complete_reassignment(target: _Target) -> None:
    """Ends the reassignment if all replicas that stay are in sync: drops the replicas to be removed."""
    if not target.removing and not target.adding:
        return
    staying = [broker_id for broker_id in target.replicas if broker_id not in target.removing]
    in_sync = [broker_id for broker_id in target.isr if broker_id not in target.removing]
    if not staying or not in_sync or not set(staying) <= set(in_sync):
        return
    target.replicas, target.isr = staying, in_sync
    target.adding, target.removing = [], []


# --- eligible leaders -------------------------------------------------------------------------------


def eligible_leaders(change: Change, target: _Target) -> list[int]:
    """Returns the replicas that left the ISR while it was below min.insync.replicas, in the order in which they left.

    These replicas have all acknowledged records, because no record was acknowledged after they left. A replica that a
    reassignment removed does not count.
    """
    if len(target.isr) >= change.rules.min_isr(change.image, change.topic):
        return []
    before = dict.fromkeys((*change.partition.elr, *change.partition.isr))
    return [
        broker_id
        for broker_id in before
        if broker_id not in target.isr and broker_id not in change.unclean_shutdown and broker_id in target.replicas
    ]


def _remember_last_leader(change: Change, record: PartitionChangeRecord) -> None:
    """Records the last known leader when the partition loses its leader; clears it when a leader is elected."""
    partition = change.partition
    if record.leader == NO_LEADER and not partition.last_known_elr and partition.leader != NO_LEADER:
        record.last_known_elr = [partition.leader]
    elif record.leader >= 0 and partition.last_known_elr:
        record.last_known_elr = []
    elif record.isr == [] and not record.eligible_leader_replicas and not partition.last_known_elr:
        # Leaderless since before eligible leader replicas were enabled: the last in-sync replica counts as the last
        # leader.
        record.last_known_elr = list(partition.isr[:1])
    elif record.leader < 0 and (heir := change.heir()) is not None:
        record.last_known_elr = [heir]


# --- election ---------------------------------------------------------------------------------------


def choose_leader(change: Change, target: _Target, elr_enabled: bool) -> Elected:
    """Returns the leader: the current leader if it may stay, otherwise the first replica with all acknowledged records.

    A preferred election tries the preferred replica first. If no such replica is alive, the last known leader or an
    unclean election may give a leader.
    """
    replicas, current = target.replicas, change.partition.leader
    first = [replicas[0], current] if change.election is Election.PREFERRED else [current]
    for broker_id in (*first, *replicas):
        if has_everything(target, broker_id) and change.may_lead(broker_id):
            return Elected(broker_id)
    heir = change.heir()
    last_known = change.partition.last_known_elr if heir is None else (heir,)
    if elr_enabled and may_elect_last_known(target, last_known) and change.may_lead(last_known[0]):
        return Elected(last_known[0], unclean=True)
    if change.election is Election.UNCLEAN:
        for broker_id in replicas:
            if change.may_lead(broker_id):
                return Elected(broker_id, unclean=True)
    return Elected(NO_LEADER)


def has_everything(target: _Target, broker_id: int) -> bool:
    """Returns True if the replica has all acknowledged records: it is in sync, or it is an eligible leader replica
    while the ISR is empty."""
    return broker_id in target.isr or (not target.isr and broker_id in target.elr)


def may_elect_last_known(target: _Target, last_known: Sequence[int]) -> bool:
    """Returns True if the last known leader may be elected: the partition has no in-sync replica and no eligible
    leader.

    Then no other replica can have more records than the last known leader.
    """
    return not target.isr and not target.elr and len(last_known) == 1 and last_known[0] in target.replicas


def _elect(change: Change, target: _Target, record: PartitionChangeRecord, elr_enabled: bool) -> None:
    partition = change.partition
    leader, unclean = choose_leader(change, target, elr_enabled)
    if leader == partition.leader:
        return
    record.leader = leader
    if leader in target.elr:
        target.isr = [leader]
        target.elr = [broker_id for broker_id in target.elr if broker_id != leader]
    elif unclean:
        record.isr = target.isr = [leader]
        target.elr = []  # records that the other replicas have beyond the new leader are lost
        if partition.leader_recovery_state != RECOVERING:
            record.leader_recovery_state = RECOVERING


def _shrink_needs_epoch(image: MetadataImage) -> bool:
    return image.features.get(METADATA_VERSION, SHRINK_KEEPS_EPOCH_SINCE) < SHRINK_KEEPS_EPOCH_SINCE


# --- the record -------------------------------------------------------------------------------------


def _assign(change: Change, target: _Target, record: PartitionChangeRecord) -> None:
    partition, image = change.partition, change.image
    moved = bool(change.directories) or target.replicas != list(partition.replicas)
    if moved and has_directories(image):
        directories = [_directory(change, broker_id) for broker_id in target.replicas]
        known = [partition.directory(broker_id) for broker_id in partition.replicas]
        if directories != known:
            record.directories = directories
    if target.replicas != list(partition.replicas):
        record.replicas = target.replicas
    if target.removing != list(partition.removing_replicas):
        record.removing_replicas = target.removing
    if target.adding != list(partition.adding_replicas):
        record.adding_replicas = target.adding


def _directory(change: Change, broker_id: int) -> bytes:
    chosen = change.directories.get(broker_id)
    if chosen is not None:
        return chosen
    if broker_id in change.partition.replicas:
        return change.partition.directory(broker_id)
    return default_directory(change.image.brokers[broker_id])


def _is_nothing(record: PartitionChangeRecord) -> bool:
    return (
        record.leader == NO_LEADER_CHANGE
        and record.leader_recovery_state < 0
        and record.isr is None
        and record.replicas is None
        and record.removing_replicas is None
        and record.adding_replicas is None
        and record.directories is None
        and record.eligible_leader_replicas is None
        and record.last_known_elr is None
    )


# --- many partitions --------------------------------------------------------------------------------


def partitions_where(
    image: MetadataImage, wanted: Callable[[PartitionImage], bool]
) -> Iterator[tuple[TopicImage, int]]:
    for topic in image.topics.values():
        for index, partition in topic.partitions.items():
            if wanted(partition):
                yield topic, index


def leader_and_isr_changes(
    image: MetadataImage,
    rules: Rules,
    partitions: Iterable[tuple[TopicImage, int]],
    *,
    leaving: int | None = None,
    coming: int | None = None,
    unclean_shutdown: int | None = None,
) -> list[PartitionChangeRecord]:
    """Returns the changes of the given partitions after a broker left, returned, or possibly lost records."""
    gone, back, lossy = (frozenset(() if one is None else (one,)) for one in (leaving, coming, unclean_shutdown))
    out = gone | lossy
    records = []
    unclean_allowed: dict[str, bool] = {}
    for topic, index in partitions:
        allowed = unclean_allowed.get(topic.name)
        if allowed is None:
            allowed = unclean_allowed[topic.name] = rules.allows_unclean(image, topic.name)
        record = Change(
            image,
            topic,
            index,
            rules,
            Election.UNCLEAN if allowed else Election.ONLINE,
            isr=[broker_id for broker_id in topic.partitions[index].isr if broker_id not in out],
            leaving=gone,
            coming=back,
            unclean_shutdown=lossy,
        ).record()
        if record is not None:
            records.append(record)
    return records
