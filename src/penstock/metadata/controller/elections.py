"""ElectLeaders as a decision: back to the preferred replica, or to any live one when the partition has no leader."""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum

from penstock.metadata.decision import Decision
from penstock.metadata.image import NO_LEADER, MetadataImage, PartitionImage
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_43_elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)
from penstock.protocol.persisted.metadata.partition_change_record import PartitionChangeRecord

RECOVERING = 1


class ElectionType(IntEnum):
    PREFERRED = 0
    UNCLEAN = 1


def elect_leaders(image: MetadataImage, request: ElectLeadersRequest) -> Decision[ElectLeadersResponse]:
    everything = request.topic_partitions is None
    records: list[PartitionChangeRecord] = []
    results: list[ReplicaElectionResult] = []
    for topic, partitions in _wanted(image, request):
        outcome = ReplicaElectionResult(topic=topic)
        results.append(outcome)
        for index in partitions:
            try:
                records.append(_elect(image, topic, index, request.election_type))
                result = PartitionResult(partition_id=index, error_message=None)
            except KafkaError as error:
                if everything and error.code is ErrorCode.ELECTION_NOT_NEEDED:
                    continue  # nobody asked about this one in particular
                result = PartitionResult(partition_id=index, error_code=error.code, error_message=error.message)
            outcome.partition_result.append(result)
    known = request.election_type in ElectionType.__members__.values()
    code = ErrorCode.NONE if known else ErrorCode.INVALID_REQUEST
    return Decision(records, ElectLeadersResponse(error_code=code, replica_election_results=results))


def _wanted(image: MetadataImage, request: ElectLeadersRequest) -> Iterator[tuple[str, list[int]]]:
    if request.topic_partitions is None:
        for topic in image.topics.values():
            yield topic.name, sorted(topic.partitions)
    else:
        for asked in request.topic_partitions:
            yield asked.topic, asked.partitions


def _elect(image: MetadataImage, topic_name: str, index: int, election_type: int) -> PartitionChangeRecord:
    if election_type not in ElectionType.__members__.values():
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"{election_type} is no election type: use 0 (preferred) or 1 (unclean)."
        )
    topic = image.topics.get(topic_name)
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no topic '{topic_name}': check the name.")
    partition = topic.partitions.get(index)
    if partition is None:
        raise KafkaError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Topic '{topic_name}' has no partition {index}: check the number."
        )
    if election_type == ElectionType.PREFERRED:
        leader = _preferred(image, partition)
        return PartitionChangeRecord(partition_id=index, topic_id=topic.topic_id, leader=leader)
    leader = _any_live(image, partition)
    return PartitionChangeRecord(
        partition_id=index,
        topic_id=topic.topic_id,
        leader=leader,
        isr=None if leader in partition.isr else [leader],
        leader_recovery_state=-1 if leader in partition.isr else RECOVERING,
    )


def _not_needed() -> KafkaError:
    return KafkaError(
        ErrorCode.ELECTION_NOT_NEEDED, "The partition has the leader that it should have: nothing is to be done."
    )


def _usable(image: MetadataImage, broker_id: int) -> bool:
    broker = image.brokers.get(broker_id)
    return broker is not None and broker.usable


def _preferred(image: MetadataImage, partition: PartitionImage) -> int:
    preferred = partition.replicas[0]
    if partition.leader == preferred:
        raise _not_needed()
    if preferred not in partition.isr or not _usable(image, preferred):
        raise KafkaError(
            ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
            f"Broker {preferred} is the preferred leader and is not alive and in sync.",
        )
    return preferred


def _any_live(image: MetadataImage, partition: PartitionImage) -> int:
    if partition.leader != NO_LEADER:
        raise _not_needed()
    in_order = sorted(partition.replicas, key=lambda broker_id: broker_id not in partition.isr)
    for broker_id in in_order:
        if _usable(image, broker_id):
            return broker_id
    raise KafkaError(ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, "None of the partition's replicas is alive.")
