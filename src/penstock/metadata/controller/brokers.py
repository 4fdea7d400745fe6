"""Brokers that come, become usable and go; and the blocks of producer ids they ask for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.metadata.decision import Decision
from penstock.metadata.features import SUPPORTED_FEATURES
from penstock.metadata.image import NO_LEADER, Endpoint, MetadataImage, PartitionImage
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.persisted.metadata.broker_registration_change_record import BrokerRegistrationChangeRecord
from penstock.protocol.persisted.metadata.partition_change_record import PartitionChangeRecord
from penstock.protocol.persisted.metadata.producer_ids_record import ProducerIdsRecord
from penstock.protocol.persisted.metadata.register_broker_record import (
    BrokerEndpoint,
    BrokerFeature,
    RegisterBrokerRecord,
)
from penstock.protocol.persisted.metadata.register_controller_record import (
    ControllerEndpoint,
    ControllerFeature,
    RegisterControllerRecord,
)
from penstock.protocol.persisted.metadata.unregister_broker_record import UnregisterBrokerRecord

PRODUCER_ID_BLOCK_SIZE = 1000
MAX_PRODUCER_ID = 2**63 - 1
UNFENCE = -1


@dataclass(frozen=True, slots=True)
class Registration:
    """How a broker introduces itself."""

    broker_id: int
    incarnation_id: bytes
    endpoints: Mapping[str, Endpoint]
    log_dirs: Sequence[bytes]
    rack: str | None = None
    features: Mapping[str, tuple[int, int]] | None = None


def register_broker(image: MetadataImage, registration: Registration) -> Decision[int]:
    """Takes the broker in, fenced until it says it is ready. The reply is its epoch: its record's own offset."""
    known = image.brokers.get(registration.broker_id)
    if known is not None and not known.fenced and known.incarnation_id == registration.incarnation_id:
        return Decision([], known.epoch)
    features = SUPPORTED_FEATURES if registration.features is None else registration.features
    for name, level in image.features.items():
        low, high = features.get(name, (0, 0))
        if not low <= level <= high:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"Broker {registration.broker_id} supports {name} {low}-{high}, and the cluster runs it at {level}: "
                "upgrade the broker first.",
            )
    epoch = image.offset + 1
    record = RegisterBrokerRecord(
        broker_id=registration.broker_id,
        incarnation_id=registration.incarnation_id,
        broker_epoch=epoch,
        end_points=[
            BrokerEndpoint(name=name, host=one.host, port=one.port, security_protocol=one.security_protocol)
            for name, one in registration.endpoints.items()
        ],
        features=[
            BrokerFeature(name=name, min_supported_version=low, max_supported_version=high)
            for name, (low, high) in sorted(features.items())
        ],
        rack=registration.rack,
        fenced=True,
        log_dirs=sorted(registration.log_dirs),
    )
    return Decision([record], epoch)


def register_controller(
    image: MetadataImage, controller_id: int, incarnation_id: bytes, endpoints: Mapping[str, Endpoint]
) -> Decision[None]:
    record = RegisterControllerRecord(
        controller_id=controller_id,
        incarnation_id=incarnation_id,
        zk_migration_ready=False,
        end_points=[
            ControllerEndpoint(name=name, host=one.host, port=one.port, security_protocol=one.security_protocol)
            for name, one in endpoints.items()
        ],
        features=[
            ControllerFeature(name=name, min_supported_version=low, max_supported_version=high)
            for name, (low, high) in sorted(SUPPORTED_FEATURES.items())
        ],
    )
    return Decision([record], None)


def unfence_broker(image: MetadataImage, broker_id: int, epoch: int) -> Decision[None]:
    """The broker is ready: it leads again what it led, and what is leaderless with it in sync.

    Each such partition starts a new leader epoch, so that a client that read what a crash then lost can tell.
    """
    broker = image.brokers.get(broker_id)
    if broker is None or broker.epoch != epoch:
        raise KafkaError(
            ErrorCode.STALE_BROKER_EPOCH, f"Broker {broker_id} is not registered with epoch {epoch}: register again."
        )
    if not broker.fenced:
        return Decision([], None)
    records: list[Any] = [
        BrokerRegistrationChangeRecord(broker_id=broker_id, broker_epoch=epoch, fenced=UNFENCE),
    ]
    records += _taken_up(image, broker_id)
    return Decision(records, None)


def _taken_up(image: MetadataImage, broker_id: int) -> Iterator[PartitionChangeRecord]:
    for topic in image.topics.values():
        for index, partition in topic.partitions.items():
            change = _lead_when_back(partition, broker_id)
            if change is not None:
                change.partition_id, change.topic_id = index, topic.topic_id
                yield change


def _lead_when_back(partition: PartitionImage, broker_id: int) -> PartitionChangeRecord | None:
    """How a broker takes the lead again; None when it isn't its to take."""
    if partition.leader == broker_id:
        return PartitionChangeRecord(leader=broker_id)
    if partition.leader != NO_LEADER:
        return None
    if broker_id in partition.isr:
        return PartitionChangeRecord(leader=broker_id)
    last_known = not partition.isr and not partition.elr and partition.last_known_elr == (broker_id,)
    if broker_id not in partition.elr and not last_known:
        return None
    # It left the ISR last, so it has everything that was ever acknowledged.
    others = [one for one in partition.elr if one != broker_id]
    return PartitionChangeRecord(
        leader=broker_id, isr=[*partition.isr, broker_id], eligible_leader_replicas=others, last_known_elr=[]
    )


def unregister_broker(image: MetadataImage, broker_id: int) -> Decision[None]:
    broker = image.brokers.get(broker_id)
    if broker is None:
        raise KafkaError(
            ErrorCode.BROKER_ID_NOT_REGISTERED, f"There is no broker {broker_id} to unregister: check the id."
        )
    if not broker.fenced:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"Broker {broker_id} is running: stop it before it is unregistered."
        )
    records: list[Any] = [
        PartitionChangeRecord(partition_id=index, topic_id=topic.topic_id, leader=NO_LEADER)
        for topic in image.topics.values()
        for index, partition in topic.partitions.items()
        if partition.leader == broker_id
    ]
    records.append(UnregisterBrokerRecord(broker_id=broker_id, broker_epoch=broker.epoch))
    return Decision(records, None)


def allocate_producer_ids(image: MetadataImage, broker_id: int, broker_epoch: int) -> Decision[tuple[int, int]]:
    """The next block of ids: (first, how many). No id is ever given twice, whatever becomes of the block."""
    broker = image.brokers.get(broker_id)
    if broker is None:
        raise KafkaError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"Broker {broker_id} must register first.")
    if broker.epoch != broker_epoch:
        raise KafkaError(
            ErrorCode.STALE_BROKER_EPOCH, f"Broker {broker_id} is registered with epoch {broker.epoch}: register again."
        )
    first = image.next_producer_id
    if first > MAX_PRODUCER_ID - PRODUCER_ID_BLOCK_SIZE:
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "All producer ids of this cluster have been given out.")
    record = ProducerIdsRecord(
        broker_id=broker_id, broker_epoch=broker_epoch, next_producer_id=first + PRODUCER_ID_BLOCK_SIZE
    )
    return Decision([record], (first, PRODUCER_ID_BLOCK_SIZE))
