"""Decides the transitions of brokers: fencing, unfencing, controlled shutdown, failed directories, unregistration.

    FENCED ──caught up──► UNFENCED ──wants to stop──► CONTROLLED_SHUTDOWN ──may stop──► SHUTDOWN_NOW
       ▲                     │ no heartbeats, on request, or in quarantine
       └─────────────────────┘

A broker in CONTROLLED_SHUTDOWN may stop once it leads nothing and every active broker has applied the records of this
shutdown. Each transition also changes the ISRs and leaders of the broker's partitions, in the same commit.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass
from enum import Enum
from typing import Any

from penstock.metadata.apply import apply
from penstock.metadata.controller.assignments import has_directories
from penstock.metadata.controller.partition_change import (
    DEFAULT_RULES,
    Rules,
    leader_and_isr_changes,
    partitions_where,
)
from penstock.metadata.decision import Decision
from penstock.metadata.image import (
    METADATA_VERSION,
    MIGRATING_DIRECTORY,
    UNASSIGNED_DIRECTORY,
    BrokerImage,
    MetadataImage,
    TopicImage,
)
from penstock.metadata.quarantine import quarantine_reason
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_63_broker_heartbeat import BrokerHeartbeatRequest
from penstock.protocol.persisted.metadata.broker_registration_change_record import BrokerRegistrationChangeRecord
from penstock.protocol.persisted.metadata.unregister_broker_record import UnregisterBrokerRecord
from penstock.protocol.vocabulary import NO_LEADER

FENCE, UNFENCE, SHUTTING_DOWN = 1, -1, 1
CORDONED_SINCE = 30


class State(Enum):
    FENCED = "fenced"
    UNFENCED = "unfenced"
    CONTROLLED_SHUTDOWN = "controlled shutdown"
    SHUTDOWN_NOW = "shutdown now"


@dataclass(frozen=True, slots=True)
class HeartbeatReply:
    is_caught_up: bool
    state: State
    # The offset at which the controlled shutdown that this heartbeat starts is recorded; None if it starts none.
    shutdown_offset: int | None = None

    @property
    def is_fenced(self) -> bool:
        return self.state in (State.FENCED, State.SHUTDOWN_NOW)


def registered_broker(image: MetadataImage, broker_id: int, epoch: int) -> BrokerImage:
    """Returns the broker if it is registered with this epoch. Raises KafkaError (STALE_BROKER_EPOCH) otherwise."""
    broker = image.brokers.get(broker_id)
    if broker is None or broker.epoch != epoch:
        raise KafkaError(
            ErrorCode.STALE_BROKER_EPOCH, f"Broker {broker_id} is not registered with epoch {epoch}: register again."
        )
    return broker


# --- transitions ------------------------------------------------------------------------------------


def fence_broker(image: MetadataImage, broker_id: int, rules: Rules = DEFAULT_RULES) -> Decision[int]:
    """Fences the broker, and removes it from every ISR and leadership. The reply is the number of changed
    partitions."""
    broker = image.brokers.get(broker_id)
    if broker is None or broker.fenced:
        return Decision([], 0)
    changes = without_broker(image, broker_id, rules)
    records = [
        *changes,
        BrokerRegistrationChangeRecord(broker_id=broker_id, broker_epoch=broker.epoch, fenced=FENCE),
    ]
    return Decision(records, len(changes))


def without_broker(image: MetadataImage, broker_id: int, rules: Rules) -> list[Any]:
    in_sync = partitions_where(image, lambda partition: broker_id in partition.isr or partition.leader == broker_id)
    return list(leader_and_isr_changes(image, rules, in_sync, leaving=broker_id))


def unfence_broker(image: MetadataImage, broker_id: int, epoch: int, rules: Rules = DEFAULT_RULES) -> Decision[None]:
    """Unfences the broker and makes it the leader of leaderless partitions that it may lead."""
    broker = registered_broker(image, broker_id, epoch)
    if not broker.fenced:
        return Decision([], None)
    records: list[Any] = [
        BrokerRegistrationChangeRecord(broker_id=broker_id, broker_epoch=epoch, fenced=UNFENCE),
    ]
    leaderless = partitions_where(
        image, lambda partition: partition.leader == NO_LEADER and broker_id in partition.replicas
    )
    records += leader_and_isr_changes(image, rules, leaderless, coming=broker_id)
    return Decision(records, None)


def begin_controlled_shutdown(image: MetadataImage, broker_id: int, rules: Rules) -> list[Any]:
    broker = image.brokers[broker_id]
    records: list[Any] = []
    if not broker.in_controlled_shutdown:
        records.append(
            BrokerRegistrationChangeRecord(
                broker_id=broker_id, broker_epoch=broker.epoch, in_controlled_shutdown=SHUTTING_DOWN
            )
        )
    return records + without_broker(image, broker_id, rules)


def unregister_broker(image: MetadataImage, broker_id: int, rules: Rules = DEFAULT_RULES) -> Decision[None]:
    """Removes a broker's registration. If the broker is running, its next heartbeat is refused and it registers
    again."""
    broker = image.brokers.get(broker_id)
    if broker is None:
        raise KafkaError(
            ErrorCode.BROKER_ID_NOT_REGISTERED, f"There is no broker {broker_id} to unregister: check the id."
        )
    records = after_unclean_shutdown(image, broker_id, rules)
    records.append(UnregisterBrokerRecord(broker_id=broker_id, broker_epoch=broker.epoch))
    return Decision(records, None)


def after_unclean_shutdown(
    image: MetadataImage,
    broker_id: int,
    rules: Rules,
    directories: Sequence[bytes] = (),
    synced: Set[tuple[bytes, int]] = frozenset(),
) -> list[Any]:
    """Returns the records that remove the broker from every ISR and ELR after an unclean shutdown, because it may have
    lost records.

    Exception: a replica that can't have lost an acknowledged record is removed only from the ISR. It can still be an
    eligible leader. A replica can't have lost an acknowledged record if three conditions hold:

    1. The topic acknowledges records only once they are on disk.
    2. Condition 1 has held ever since a time at which all of the replica's records were on disk (`synced`).
    3. The replica's directory is still there (`directories`).

    While eligible leader replicas are not enabled, the last in-sync replica stays in the ISR, unless an unclean
    election replaces it.
    """
    keeps: dict[str, bool] = {}
    kept: list[tuple[TopicImage, int]] = []
    lost: list[tuple[TopicImage, int]] = []
    for topic, index in partitions_where(
        image,
        lambda partition: broker_id in partition.isr or broker_id in partition.elr or partition.leader == broker_id,
    ):
        if topic.name not in keeps:
            keeps[topic.name] = rules.survives_power_loss(image, topic.name, broker_id)
        there = topic.partitions[index].directory(broker_id) in directories
        safe = keeps[topic.name] and there and (topic.topic_id, index) in synced
        (kept if safe else lost).append((topic, index))
    return [
        *leader_and_isr_changes(image, rules, kept, leaving=broker_id),
        *leader_and_isr_changes(image, rules, lost, unclean_shutdown=broker_id),
    ]


def after_clean_shutdown(image: MetadataImage, broker_id: int, rules: Rules, directories: Sequence[bytes]) -> list[Any]:
    """Returns the records that remove the broker from every ISR after a clean shutdown.

    The broker stays an eligible leader, except for its replicas in directories that are now missing. The broker creates
    these replicas again, empty, in other directories. If it stayed an eligible leader for them, it could be elected
    with an empty log.
    """
    there = {*directories, MIGRATING_DIRECTORY, UNASSIGNED_DIRECTORY}
    lost = partitions_where(
        image,
        lambda partition: (
            (broker_id in partition.isr or broker_id in partition.elr or partition.leader == broker_id)
            and partition.directory(broker_id) not in there
        ),
    )
    records: list[Any] = list(leader_and_isr_changes(image, rules, lost, unclean_shutdown=broker_id))
    return records + without_broker(apply(image, records), broker_id, rules)


def offline_directories(image: MetadataImage, broker_id: int, offline: list[bytes], rules: Rules) -> list[Any]:
    """Returns the records that remove the broker's replicas in failed directories from their ISRs.

    Its replicas in other directories stay in their ISRs.
    """
    broker = image.brokers[broker_id]
    failed = [directory for directory in broker.log_dirs if directory in offline]
    if not failed:
        return []
    affected = partitions_where(
        image,
        lambda partition: (
            (broker_id in partition.isr or partition.leader == broker_id) and partition.directory(broker_id) in failed
        ),
    )
    records: list[Any] = list(leader_and_isr_changes(image, rules, affected, leaving=broker_id))
    online = sorted(directory for directory in broker.log_dirs if directory not in failed)
    # An empty list would mean "unchanged"; a broker without any directory stops by itself.
    if online:
        records.append(BrokerRegistrationChangeRecord(broker_id=broker_id, broker_epoch=broker.epoch, log_dirs=online))
    return records


# --- heartbeats -------------------------------------------------------------------------------------


def heartbeat(
    image: MetadataImage,
    request: BrokerHeartbeatRequest,
    rules: Rules = DEFAULT_RULES,
    *,
    shutdown_offset: int | None = None,
    lowest_active_offset: int | None = None,
) -> Decision[HeartbeatReply]:
    """Decides on a broker's heartbeat.

    `shutdown_offset` is the metadata offset at which the broker's controlled shutdown began; None if it is not shutting
    down. Every active broker has applied the metadata log up to `lowest_active_offset`.
    """
    broker_id = request.broker_id
    broker = registered_broker(image, broker_id, request.broker_epoch)
    caught_up = request.current_metadata_offset >= broker.epoch
    shutting_down = shutdown_offset is not None and not broker.fenced
    current = State.CONTROLLED_SHUTDOWN if shutting_down else State.FENCED if broker.fenced else State.UNFENCED
    if current is State.CONTROLLED_SHUTDOWN:
        assert shutdown_offset is not None
        known_to_all = lowest_active_offset is None or shutdown_offset <= lowest_active_offset
        upcoming: State = State.SHUTDOWN_NOW if known_to_all and not leads_any(image, broker_id) else current
    else:
        upcoming = next_state(image, broker, request, caught_up)
    records: list[Any] = []
    new_offset = None
    if upcoming is not current:
        if upcoming in (State.FENCED, State.SHUTDOWN_NOW):
            records += fence_broker(image, broker_id, rules).records
        elif upcoming is State.UNFENCED:
            records += unfence_broker(image, broker_id, broker.epoch, rules).records
        else:
            records += begin_controlled_shutdown(image, broker_id, rules)
            new_offset = image.offset + len(records)
    if not records and has_directories(image):
        # If the broker's state changes too, the next heartbeat reports the directories again.
        records += offline_directories(image, broker.broker_id, request.offline_log_dirs, rules)
    if upcoming is State.UNFENCED:
        # no replica may be placed in these directories once the broker is unfenced
        records += _cordoned(image, broker, request)
    return Decision(records, HeartbeatReply(caught_up, upcoming, new_offset))


def next_state(image: MetadataImage, broker: BrokerImage, request: BrokerHeartbeatRequest, caught_up: bool) -> State:
    wants_fence = request.want_fence or quarantine_reason(image, broker.broker_id) is not None
    if broker.fenced:
        if request.want_shut_down:
            return State.SHUTDOWN_NOW
        return State.UNFENCED if not wants_fence and caught_up else State.FENCED
    if wants_fence:
        return State.SHUTDOWN_NOW if request.want_shut_down else State.FENCED
    if request.want_shut_down:
        return State.CONTROLLED_SHUTDOWN if leads_any(image, broker.broker_id) else State.SHUTDOWN_NOW
    return State.UNFENCED


def leads_any(image: MetadataImage, broker_id: int) -> bool:
    return next(partitions_where(image, lambda partition: partition.leader == broker_id), None) is not None


def _cordoned(image: MetadataImage, broker: BrokerImage, request: BrokerHeartbeatRequest) -> list[Any]:
    """Returns the record that stores a changed set of cordoned directories. Cordoned directories get no new replicas
    (KIP-1066)."""
    cordoned = request.cordoned_log_dirs
    level = image.features.get(METADATA_VERSION, CORDONED_SINCE)
    if level < CORDONED_SINCE or cordoned is None or set(cordoned) == set(broker.cordoned_log_dirs):
        return []
    return [
        BrokerRegistrationChangeRecord(
            broker_id=broker.broker_id, broker_epoch=broker.epoch, cordoned_log_dirs=sorted(cordoned)
        )
    ]
