"""Decides CreatePartitions requests: returns the records of new partitions."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

from penstock.metadata.controller.assignments import (
    check_manual,
    new_partition,
    refuse_assignment,
)
from penstock.metadata.decision import MAX_RECORDS_PER_REQUEST, Charge, Decision, free_of_charge
from penstock.metadata.image import MetadataImage
from penstock.metadata.placement import place
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_37_create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)


def create_partitions(
    image: MetadataImage, request: CreatePartitionsRequest, random: Random, charge: Charge = free_of_charge
) -> Decision[CreatePartitionsResponse]:
    counts = Counter(topic.name for topic in request.topics)
    results: list[CreatePartitionsTopicResult] = []
    records: list[Any] = []
    for topic in request.topics:
        if counts[topic.name] > 1:
            continue
        try:
            made = _added(image, topic, random)
            if len(records) + len(made) > MAX_RECORDS_PER_REQUEST:
                raise _too_many()
            charge(len(made))
        except KafkaError as error:
            results.append(_result(topic.name, error))
        else:
            records += made
            results.append(CreatePartitionsTopicResult(name=topic.name))
    duplicate = KafkaError(ErrorCode.INVALID_REQUEST, "The request contains the topic twice: name it once.")
    results += [_result(name, duplicate) for name, count in counts.items() if count > 1]
    return Decision([] if request.validate_only else records, CreatePartitionsResponse(results=results))


def _result(name: str, error: KafkaError) -> CreatePartitionsTopicResult:
    return CreatePartitionsTopicResult(name=name, error_code=error.code, error_message=error.message)


def _too_many() -> KafkaError:
    return KafkaError(
        ErrorCode.POLICY_VIOLATION,
        f"The request creates more than {MAX_RECORDS_PER_REQUEST} partitions: split it into several requests.",
    )


def _added(image: MetadataImage, topic: CreatePartitionsTopic, random: Random) -> list[Any]:
    found = image.topics.get(topic.name)
    if found is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    current = len(found.partitions)
    if topic.count == current:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS, f"The topic already has {current} partition(s): request a higher number."
        )
    if topic.count < current:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS,
            f"Topic '{topic.name}' can't shrink from {current} partition(s) to {topic.count}: request a higher number.",
        )
    additional = topic.count - current
    if additional > MAX_RECORDS_PER_REQUEST:
        raise _too_many()
    replication_factor = len(found.partitions[0].replicas)
    if topic.assignments is None:
        assignments = place(image.brokers.values(), additional, replication_factor, random)
    else:
        if len(topic.assignments) != additional:
            raise refuse_assignment(
                f"There are {len(topic.assignments)} assignment(s) for {additional} new partition(s): give one for "
                "each."
            )
        assignments = [list(assignment.broker_ids) for assignment in topic.assignments]
        for replicas in assignments:
            check_manual(image.brokers, replicas, replication_factor)
    return [
        new_partition(image, found.topic_id, current + index, replicas) for index, replicas in enumerate(assignments)
    ]
