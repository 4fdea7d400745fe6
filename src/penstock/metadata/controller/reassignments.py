"""Decides AlterPartitionReassignments requests, and answers ListPartitionReassignments from the image.

A target equal to the current replicas changes nothing. A new order of the same brokers needs only one record. Any other
target starts a reassignment: the partition has old and new replicas until the new replicas have caught up.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.metadata.controller.assignments import check_manual
from penstock.metadata.controller.partition_change import DEFAULT_RULES, Change, Election, Rules
from penstock.metadata.decision import Decision
from penstock.metadata.image import MetadataImage, TopicImage
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_45_alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)
from penstock.protocol.messages.api_46_list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)
from penstock.protocol.persisted.metadata.partition_change_record import PartitionChangeRecord


def alter_reassignments(
    image: MetadataImage, request: AlterPartitionReassignmentsRequest, rules: Rules = DEFAULT_RULES
) -> Decision[AlterPartitionReassignmentsResponse]:
    if not request.topics:
        return Decision([], AlterPartitionReassignmentsResponse())
    records: list[PartitionChangeRecord] = []
    responses: list[ReassignableTopicResponse] = []
    for topic in request.topics:
        response = ReassignableTopicResponse(name=topic.name)
        responses.append(response)
        for asked in topic.partitions:
            result = ReassignablePartitionResponse(partition_index=asked.partition_index, error_message=None)
            try:
                change = _reassign(
                    image,
                    topic.name,
                    asked.partition_index,
                    asked.replicas,
                    request.allow_replication_factor_change,
                    rules,
                )
                if change is not None:
                    records.append(change)
            except KafkaError as error:
                result.error_code, result.error_message = error.code, error.message
            response.partitions.append(result)
    reply = AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=request.allow_replication_factor_change,
        error_message=None,
        responses=responses,
    )
    return Decision(records, reply)


def _reassign(
    image: MetadataImage, name: str, index: int, target: Sequence[int] | None, factor_may_change: bool, rules: Rules
) -> PartitionChangeRecord | None:
    topic = image.topics.get(name)
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no topic '{name}': check the name.")
    partition = topic.partitions.get(index)
    if partition is None:
        raise KafkaError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Topic '{name}' has no partition {index}: check the number."
        )
    if target is None:
        return _cancel(image, topic, index, rules)
    check_manual(image.brokers, target, None)
    settled = [broker_id for broker_id in partition.replicas if broker_id not in partition.adding_replicas]
    if not factor_may_change and len(target) != len(settled):
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"The request does not allow a change from {len(settled)} to {len(target)} replica(s): set "
            "AllowReplicationFactorChange, or keep the number of replicas.",
        )
    removing = sorted(broker_id for broker_id in partition.replicas if broker_id not in target)
    # Replicas added by an earlier move stay marked, even if this move removes them: a cancel restores the replicas
    # before both moves.
    new = {broker_id for broker_id in target if broker_id not in partition.replicas}
    adding = sorted(new | set(partition.adding_replicas))
    return Change(image, topic, index, rules, replicas=[*target, *removing], removing=removing, adding=adding).record()


def _cancel(image: MetadataImage, topic: TopicImage, index: int, rules: Rules) -> PartitionChangeRecord | None:
    """Returns the record that cancels a reassignment: the partition gets its earlier replicas back.

    Raises KafkaError if none of the earlier replicas is in sync, because the cancel would then lose records. Topics
    that allow unclean elections accept this loss.
    """
    partition = topic.partitions[index]
    if not partition.adding_replicas and not partition.removing_replicas:
        raise KafkaError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
    kept = [broker_id for broker_id in partition.replicas if broker_id not in partition.adding_replicas]
    unclean_allowed = rules.allows_unclean(image, topic.name)
    trusted = partition.isr or partition.elr
    lossy = bool(trusted) and not any(broker_id in kept for broker_id in trusted)
    if lossy and not unclean_allowed:
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "Only replicas that the reassignment adds are in sync, so a cancel would lose records: wait until another "
            "replica is "
            "in sync, or set unclean.leader.election.enable for this topic.",
        )
    in_sync = [broker_id for broker_id in partition.isr if broker_id in kept]
    return Change(
        image,
        topic,
        index,
        rules,
        Election.UNCLEAN if unclean_allowed else Election.ONLINE,
        isr=kept[:1] if lossy else in_sync,
        replicas=kept,
        removing=[],
        adding=[],
    ).record()


def list_reassignments(
    image: MetadataImage, request: ListPartitionReassignmentsRequest
) -> ListPartitionReassignmentsResponse:
    response = ListPartitionReassignmentsResponse(error_message=None)
    if request.topics is None:
        wanted = [(name, list(topic.partitions)) for name, topic in image.topics.items()]
    else:
        wanted = [(asked.name, asked.partition_indexes) for asked in request.topics]
    for name, indexes in wanted:
        topic = image.topics.get(name)
        if topic is None:
            continue
        moving = [
            OngoingPartitionReassignment(
                partition_index=index,
                replicas=list(partition.replicas),
                adding_replicas=list(partition.adding_replicas),
                removing_replicas=list(partition.removing_replicas),
            )
            for index, partition in ((index, topic.partitions.get(index)) for index in indexes)
            if partition is not None and (partition.adding_replicas or partition.removing_replicas)
        ]
        if moving:
            response.topics.append(OngoingTopicReassignment(name=name, partitions=moving))
    return response
