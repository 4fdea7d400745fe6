"""Registers brokers and controllers, and allocates blocks of producer ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.metadata.controller.assignments import has_directories
from penstock.metadata.controller.broker_states import after_clean_shutdown, after_unclean_shutdown
from penstock.metadata.controller.partition_change import DEFAULT_RULES, Rules
from penstock.metadata.decision import Decision
from penstock.metadata.features import SUPPORTED_FEATURES
from penstock.metadata.image import METADATA_VERSION, BrokerImage, Endpoint, MetadataImage, is_reserved
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_62_broker_registration import BrokerRegistrationRequest
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

PRODUCER_ID_BLOCK_SIZE = 1000
MAX_PRODUCER_ID = 2**63 - 1
CONTROLLERS_REGISTER_SINCE = 15


@dataclass(frozen=True, slots=True)
class Registration:
    """Holds a broker's registration request."""

    broker_id: int
    incarnation_id: bytes
    endpoints: Mapping[str, Endpoint]
    log_dirs: Sequence[bytes]
    rack: str | None = None
    features: Mapping[str, tuple[int, int]] | None = None
    # The epoch that the last clean shutdown wrote to disk; -1 after an unclean shutdown.
    previous_broker_epoch: int = -1
    # Topic id and partition of each replica that only ever acknowledged records on disk.
    synced: frozenset[tuple[bytes, int]] = frozenset()
    # The epoch of the registration that this request replaces, as a refusal of the controller named it; -1 before that.
    ended_broker_epoch: int = -1


def registration_of(request: BrokerRegistrationRequest) -> Registration:
    return Registration(
        request.broker_id,
        request.incarnation_id,
        {one.name: Endpoint(one.host, one.port, one.security_protocol) for one in request.listeners},
        request.log_dirs,
        request.rack,
        {one.name: (one.min_supported_version, one.max_supported_version) for one in request.features},
        request.previous_broker_epoch,
        frozenset((topic.topic_id, index) for topic in request.synced_topics for index in topic.partitions),
        request.ended_broker_epoch,
    )


def check_cluster(own: str, theirs: str, broker_id: int) -> None:
    if own != theirs:
        raise KafkaError(
            ErrorCode.INCONSISTENT_CLUSTER_ID,
            f"Broker {broker_id} has a directory of cluster {theirs}, but this is cluster {own}: check "
            "controller.quorum.bootstrap.servers, or format another directory for this cluster.",
        )


def register_broker(
    image: MetadataImage, registration: Registration, rules: Rules = DEFAULT_RULES, *, is_live: bool = False
) -> Decision[int]:
    """Registers the broker. It is fenced until it reports that it is ready.

    The reply is the broker epoch. For a new incarnation, this is the offset of the registration record.

    The same incarnation keeps its epoch and its state. Another incarnation replaces the registered incarnation. But if
    `is_live` is True, the new incarnation is refused, because the registered incarnation may still be running.
    """
    known = image.brokers.get(registration.broker_id)
    same = known is not None and known.incarnation_id == registration.incarnation_id
    if is_live and not same:
        raise KafkaError(
            ErrorCode.DUPLICATE_BROKER_REGISTRATION,
            f"Another process runs as broker {registration.broker_id}: give this process its own node.id, "
            "or wait until the other process has stopped.",
        )
    features = SUPPORTED_FEATURES if registration.features is None else registration.features
    _check_features(image, registration.broker_id, features)
    _check_directories(image, registration)
    epoch = known.epoch if same and known is not None else image.offset + 1
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
        log_dirs=sorted(registration.log_dirs) if has_directories(image) else [],
    )
    if same and known is not None:
        record.fenced, record.in_controlled_shutdown = known.fenced, known.in_controlled_shutdown
        if not known.fenced and _as_registered(known) == _as_registered(registration):
            return Decision([], epoch)
        return Decision([record], epoch)
    return Decision([record, *_records_after_shutdown(image, registration, rules)], epoch)


def epoch_to_name(image: MetadataImage, registration: Registration) -> int | None:
    """Returns the broker epoch that the registration lacks; None if the controller can accept the registration.

    A registration that replaces another incarnation must contain the epoch of that incarnation. This protects a newer
    incarnation from a late request of an older process. Accepting the late request would remove the broker from the
    eligible leaders, although its records are not lost.

    A late request can't contain this epoch, because its process ended before the epoch was assigned. A request with
    this epoch comes from a newer process. Only one process at a time can use a directory, so the incarnation with this
    epoch has ended.
    """
    known = image.brokers.get(registration.broker_id)
    if known is None or known.incarnation_id == registration.incarnation_id:
        return None
    return None if known.epoch in (registration.previous_broker_epoch, registration.ended_broker_epoch) else known.epoch


def _as_registered(one: Registration | BrokerImage) -> tuple[Any, ...]:
    return dict(one.endpoints), tuple(sorted(one.log_dirs)), one.rack


def _records_after_shutdown(image: MetadataImage, registration: Registration, rules: Rules) -> list[Any]:
    """Returns the records that end the previous incarnation of the broker.

    After a clean shutdown, the broker still has all records that the previous incarnation wrote. After an unclean
    shutdown, it may have lost records that were not on disk.
    """
    broker_id = registration.broker_id
    known = image.brokers.get(broker_id)
    if known is not None and known.epoch == registration.previous_broker_epoch:
        return after_clean_shutdown(image, broker_id, rules, registration.log_dirs)
    return after_unclean_shutdown(image, broker_id, rules, registration.log_dirs, registration.synced)


def _check_features(image: MetadataImage, broker_id: int, features: Mapping[str, tuple[int, int]]) -> None:
    if image.features and METADATA_VERSION not in features:
        raise KafkaError(
            ErrorCode.INVALID_REGISTRATION,
            f"Broker {broker_id} registers no supported metadata.version: upgrade the broker.",
        )
    for name, level in sorted(image.features.items()):
        low, high = features.get(name, (0, 0))
        if not low <= level <= high:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"Broker {broker_id} supports levels {low} to {high} of {name}, but the cluster is at level {level}: "
                "upgrade the broker first.",
            )


def _check_directories(image: MetadataImage, registration: Registration) -> None:
    if METADATA_VERSION not in image.features or not has_directories(image):
        return
    problem = ""
    directories = list(registration.log_dirs)
    if not directories:
        problem = "registers no log directory: configure one that works."
    elif any(map(is_reserved, directories)):
        problem = "has a log directory with a reserved id: format it again."
    elif len(set(directories)) < len(directories):
        problem = "has two log directories with the same id: format the one that is a copy again."
    else:
        for other in image.brokers.values():
            if other.broker_id != registration.broker_id and set(other.log_dirs) & set(directories):
                problem = (
                    f"has a log directory of broker {other.broker_id}: use that node.id, or format the directory again."
                )
    if problem:
        raise KafkaError(ErrorCode.INVALID_REGISTRATION, f"Broker {registration.broker_id} {problem}")


def register_controller(
    image: MetadataImage,
    controller_id: int,
    incarnation_id: bytes,
    endpoints: Mapping[str, Endpoint],
    features: Mapping[str, tuple[int, int]] = SUPPORTED_FEATURES,
) -> Decision[None]:
    if image.features.get(METADATA_VERSION, CONTROLLERS_REGISTER_SINCE) < CONTROLLERS_REGISTER_SINCE:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_VERSION,
            "This metadata.version has no controller registrations: upgrade it to 3.7 or later.",
        )
    known = image.controllers.get(controller_id)
    if known is not None and (known.incarnation_id, dict(known.endpoints)) == (incarnation_id, dict(endpoints)):
        return Decision([], None)
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
            for name, (low, high) in sorted(features.items())
        ],
    )
    return Decision([record], None)


def allocate_producer_ids(image: MetadataImage, broker_id: int, broker_epoch: int) -> Decision[tuple[int, int]]:
    """Allocates the next block of producer ids. The reply is (first id, count). No id is ever allocated twice."""
    broker = image.brokers.get(broker_id)
    if broker is None:
        raise KafkaError(
            ErrorCode.BROKER_ID_NOT_REGISTERED, f"Broker {broker_id} is not registered: register it first."
        )
    if broker.epoch != broker_epoch:
        raise KafkaError(
            ErrorCode.STALE_BROKER_EPOCH,
            f"Broker {broker_id} is registered with another epoch, {broker.epoch}: register again.",
        )
    first = image.next_producer_id
    if first > MAX_PRODUCER_ID - PRODUCER_ID_BLOCK_SIZE:
        raise KafkaError(
            ErrorCode.UNKNOWN_SERVER_ERROR, "All producer ids of this cluster are allocated: use another cluster."
        )
    record = ProducerIdsRecord(
        broker_id=broker_id, broker_epoch=broker_epoch, next_producer_id=first + PRODUCER_ID_BLOCK_SIZE
    )
    return Decision([record], (first, PRODUCER_ID_BLOCK_SIZE))
