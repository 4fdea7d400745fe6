"""Elects leaders, on request (ElectLeaders) and periodically.

A preferred election makes the preferred replica the leader. An unclean election is for a partition without a leader: it
can elect any live replica.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import IntEnum

from penstock.metadata.controller.partition_change import (
    DEFAULT_RULES,
    Change,
    Election,
    Rules,
    partitions_where,
)
from penstock.metadata.decision import Decision
from penstock.metadata.image import MetadataImage, PartitionImage
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_43_elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)
from penstock.protocol.persisted.metadata.partition_change_record import PartitionChangeRecord
from penstock.protocol.vocabulary import NO_LEADER

MAX_ELECTIONS = 1000


class ElectionType(IntEnum):
    PREFERRED = 0
    UNCLEAN = 1


def elect_leaders(
    image: MetadataImage, request: ElectLeadersRequest, rules: Rules = DEFAULT_RULES
) -> Decision[ElectLeadersResponse]:
    everything = request.topic_partitions is None
    records: list[PartitionChangeRecord] = []
    results: list[ReplicaElectionResult] = []
    for topic, partitions in _wanted(image, request):
        outcome = ReplicaElectionResult(topic=topic)
        results.append(outcome)
        for index in partitions:
            try:
                records.append(_elect(image, topic, index, request.election_type, rules))
                result = PartitionResult(partition_id=index, error_message=None)
            except KafkaError as error:
                if everything and error.code is ErrorCode.ELECTION_NOT_NEEDED:
                    continue  # an election of all partitions reports only changes
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


def _elect(
    image: MetadataImage, topic_name: str, index: int, election_type: int, rules: Rules
) -> PartitionChangeRecord:
    if election_type not in ElectionType.__members__.values():
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"{election_type} is not an election type: use 0 (preferred) or 1 (unclean)."
        )
    topic = image.topics.get(topic_name)
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no topic '{topic_name}': check the name.")
    partition = topic.partitions.get(index)
    if partition is None:
        raise KafkaError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Topic '{topic_name}' has no partition {index}: check the number."
        )
    unclean = election_type == ElectionType.UNCLEAN
    if partition.leader == partition.replicas[0] or (unclean and partition.leader != NO_LEADER):
        raise KafkaError(
            ErrorCode.ELECTION_NOT_NEEDED, "The partition already has a suitable leader: no election is needed."
        )
    election = Election.UNCLEAN if unclean else Election.PREFERRED
    record = Change(image, topic, index, rules, election).record()
    if record is not None:
        return record
    if unclean:
        raise KafkaError(
            ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
            "None of the partition's replicas is alive: start one of their brokers.",
        )
    raise KafkaError(
        ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
        f"Broker {partition.replicas[0]}, the preferred leader, is not alive or not in sync: retry once it is in sync.",
    )


# --- periodic elections -----------------------------------------------------------------------------


def balance_leaders(image: MetadataImage, rules: Rules, limit: int = MAX_ELECTIONS) -> Decision[bool]:
    """Makes preferred replicas the leaders again if they can lead. The reply is True if more partitions may need an
    election."""
    return _some(image, rules, Election.PREFERRED, lambda one: one.leader != one.replicas[0], limit)


def elect_unclean(image: MetadataImage, rules: Rules, limit: int = MAX_ELECTIONS) -> Decision[bool]:
    """Elects leaders for leaderless partitions of topics that allow unclean elections. The reply is True if more
    partitions may need an election.
    """
    return _some(image, rules, Election.UNCLEAN, lambda one: one.leader == NO_LEADER, limit)


def _some(
    image: MetadataImage, rules: Rules, election: Election, wanted: Callable[[PartitionImage], bool], limit: int
) -> Decision[bool]:
    records: list[PartitionChangeRecord] = []
    for topic, index in partitions_where(image, wanted):
        if election is Election.UNCLEAN and not rules.allows_unclean(image, topic.name):
            continue
        record = Change(image, topic, index, rules, election).record()
        if record is not None:
            records.append(record)
            if len(records) >= limit:
                return Decision(records, True)
    return Decision(records, False)
