"""Assigns the replicas of new partitions, unless the request names them, and chooses the first ISR."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from penstock.metadata.image import METADATA_VERSION, UNASSIGNED_DIRECTORY, BrokerImage, MetadataImage
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.persisted.metadata.partition_record import PartitionRecord

DIRECTORIES_SINCE = 17


def refuse_assignment(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)


def check_manual(brokers: Mapping[int, BrokerImage], replicas: Sequence[int], replication_factor: int | None) -> None:
    """Raises KafkaError if a requested list of replicas is impossible.

    The list must have `replication_factor` replicas, as many as the topic's other partitions. If `replication_factor`
    is None, the list may have any length.
    """
    if not replicas:
        raise refuse_assignment("A partition is assigned no replicas: name at least one broker.")
    seen: set[int] = set()
    for broker_id in sorted(replicas):
        if broker_id not in brokers:
            raise refuse_assignment(
                f"Broker {broker_id} is assigned a replica but is not registered: start it, or name another broker."
            )
        if broker_id in seen:
            raise refuse_assignment(f"Broker {broker_id} is assigned the same partition twice: name each broker once.")
        seen.add(broker_id)
    if replication_factor is not None and len(replicas) != replication_factor:
        raise refuse_assignment(
            f"One partition is assigned {len(replicas)} replica(s) and another {replication_factor}: assign the "
            "same number."
        )


def new_partition(image: MetadataImage, topic_id: bytes, partition: int, replicas: Sequence[int]) -> PartitionRecord:
    """Returns the record of a new partition: every usable replica is in sync, and the first of them leads."""
    isr = [broker_id for broker_id in replicas if image.brokers[broker_id].usable]
    if not isr:
        raise refuse_assignment(
            f"Every broker assigned to partition {partition} is fenced or shutting down: name a running broker."
        )
    return PartitionRecord(
        partition_id=partition,
        topic_id=topic_id,
        replicas=list(replicas),
        isr=isr,
        leader=isr[0],
        leader_epoch=0,
        partition_epoch=0,
        directories=[default_directory(image.brokers[one]) for one in replicas] if has_directories(image) else [],
    )


def has_directories(image: MetadataImage) -> bool:
    """Returns True if the cluster's metadata.version has log directory ids in its records."""
    return image.features.get(METADATA_VERSION, DIRECTORIES_SINCE) >= DIRECTORIES_SINCE


def default_directory(broker: BrokerImage) -> bytes:
    """Returns the directory for a new replica if the broker has only one directory.

    A broker with several directories chooses a directory itself and reports it later.
    """
    return broker.log_dirs[0] if len(broker.log_dirs) == 1 else UNASSIGNED_DIRECTORY
