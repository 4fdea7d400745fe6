"""Decides CreateTopics and DeleteTopics requests: returns the records that create and delete topics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from penstock.metadata.configs.definition import ConfigError
from penstock.metadata.configs.topic import validate_topic_configs
from penstock.metadata.controller.assignments import (
    check_manual,
    new_partition,
    refuse_assignment,
)
from penstock.metadata.decision import MAX_RECORDS_PER_REQUEST, Charge, Decision, free_of_charge
from penstock.metadata.image import MetadataImage, TopicImage
from penstock.metadata.names import collision_key, may_collide, name_problem, random_uuid
from penstock.metadata.placement import place
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_19_create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from penstock.protocol.messages.api_20_delete_topics import DeletableTopicResult, DeleteTopicsResponse, DeleteTopicState
from penstock.protocol.persisted.metadata.config_record import ConfigRecord
from penstock.protocol.persisted.metadata.remove_topic_record import RemoveTopicRecord
from penstock.protocol.persisted.metadata.topic_record import TopicRecord
from penstock.protocol.uuid import ZERO_UUID
from penstock.protocol.vocabulary import METADATA_TOPIC, ResourceType


@dataclass(frozen=True, slots=True)
class TopicDefaults:
    """Holds the defaults for fields that a request sets to -1, and a function that describes a topic's configs for the
    reply.
    """

    num_partitions: int
    replication_factor: int
    describe: Callable[[Mapping[str, str]], list[CreatableTopicConfigs]] = lambda overrides: []


# --- create ---------------------------------------------------------------------------------------


def create_topics(
    image: MetadataImage,
    request: CreateTopicsRequest,
    defaults: TopicDefaults,
    random: Random,
    charge: Charge = free_of_charge,
) -> Decision[CreateTopicsResponse]:
    """Creates the topics; a refused topic does not affect the others.

    `charge` is called with the number of partitions of each topic. It raises KafkaError if a quota refuses the topic.
    """
    counts = Counter(topic.name for topic in request.topics)
    topics = [topic for topic in request.topics if counts[topic.name] == 1]
    results: list[CreatableTopicResult] = []
    records: list[Any] = []
    too_many = sum(_wanted_partitions(topic, defaults) for topic in request.topics) > MAX_RECORDS_PER_REQUEST
    for topic in topics:
        try:
            if too_many:
                raise KafkaError(
                    ErrorCode.POLICY_VIOLATION,
                    f"The request creates more than {MAX_RECORDS_PER_REQUEST} partitions: split it into several "
                    "requests.",
                )
            made, result = _create_topic(image, topic, defaults, random)
            charge(result.num_partitions)
        except KafkaError as error:
            results.append(_create_error(topic.name, error))
        else:
            records += made
            results.append(result)
    results += [
        _create_error(
            name, KafkaError(ErrorCode.INVALID_REQUEST, "The request contains the topic twice: name it once.")
        )
        for name, count in counts.items()
        if count > 1
    ]
    return Decision([] if request.validate_only else records, CreateTopicsResponse(topics=results))


def _wanted_partitions(topic: CreatableTopic, defaults: TopicDefaults) -> int:
    if topic.assignments:
        return len(topic.assignments)
    return defaults.num_partitions if topic.num_partitions == -1 else max(topic.num_partitions, 0)


def _create_error(name: str, error: KafkaError) -> CreatableTopicResult:
    return CreatableTopicResult(name=name, error_code=error.code, error_message=error.message)


def _create_topic(
    image: MetadataImage, topic: CreatableTopic, defaults: TopicDefaults, random: Random
) -> tuple[list[Any], CreatableTopicResult]:
    check_new_name(image, topic.name)
    overrides = _overrides(topic)
    if topic.assignments:
        assignments = _manual(image, topic)
    else:
        assignments = _automatic(image, topic, defaults, random)
    topic_id = random_uuid(random)
    while topic_id in image.topics_by_id:
        topic_id = random_uuid(random)
    records: list[Any] = [TopicRecord(name=topic.name, topic_id=topic_id)]
    records += [
        ConfigRecord(resource_type=ResourceType.TOPIC, resource_name=topic.name, name=name, value=value)
        for name, value in overrides.items()
    ]
    records += [new_partition(image, topic_id, index, replicas) for index, replicas in enumerate(assignments)]
    result = CreatableTopicResult(
        name=topic.name,
        topic_id=topic_id,
        error_message=None,
        num_partitions=len(assignments),
        replication_factor=len(assignments[0]),
        configs=defaults.describe(overrides),
    )
    return records, result


def check_new_name(image: MetadataImage, name: str) -> None:
    """Raises KafkaError if a topic name is not legal, exists already, or differs from an existing name only in dots and
    underscores."""
    problem = name_problem(name)
    if problem is not None:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"No topic can have this name: {problem}")
    if name == METADATA_TOPIC:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"{name} is reserved for the controllers: choose another name.")
    if name in image.topics:
        raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists: choose another name.")
    if may_collide(name):
        others = image.names_by_collision_key.get(collision_key(name))
        if others:
            raise KafkaError(
                ErrorCode.INVALID_TOPIC_EXCEPTION,
                f"'{name}' and topic '{others[0]}' have the same name in metrics: choose another name.",
            )


def _overrides(topic: CreatableTopic) -> dict[str, str]:
    overrides: dict[str, str] = {}
    for config in topic.configs:
        if config.value is None:
            raise KafkaError(
                ErrorCode.INVALID_CONFIG, f"No value is given for {config.name}: give a value, or leave the config out."
            )
        overrides[config.name] = config.value
    try:
        validate_topic_configs(overrides)
    except ConfigError as error:
        raise KafkaError(ErrorCode.INVALID_CONFIG, str(error)) from None
    return overrides


def _manual(image: MetadataImage, topic: CreatableTopic) -> list[list[int]]:
    if topic.replication_factor != -1:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            "The assignments determine the replication factor: set it to -1, or leave the assignments out.",
        )
    if topic.num_partitions != -1:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            "The assignments determine the number of partitions: set it to -1, or leave the assignments out.",
        )
    by_index: dict[int, CreatableReplicaAssignment] = {}
    replication_factor: int | None = None
    for assignment in topic.assignments:
        if assignment.partition_index in by_index:
            raise refuse_assignment(f"Partition {assignment.partition_index} has two assignments: give one assignment.")
        check_manual(image.brokers, assignment.broker_ids, replication_factor)
        replication_factor = len(assignment.broker_ids)
        by_index[assignment.partition_index] = assignment
    if by_index.keys() != set(range(len(by_index))):
        raise refuse_assignment("The assignments skip a partition: assign partitions 0, 1, 2 and so on.")
    return [list(by_index[index].broker_ids) for index in range(len(by_index))]


def _automatic(image: MetadataImage, topic: CreatableTopic, defaults: TopicDefaults, random: Random) -> list[list[int]]:
    if topic.replication_factor < -1 or topic.replication_factor == 0:
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"The replication factor can't be {topic.replication_factor}: give 1 or more, or -1 for the default.",
        )
    if topic.num_partitions < -1 or topic.num_partitions == 0:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS,
            f"A topic can't have {topic.num_partitions} partitions: give 1 or more, or -1 for the default.",
        )
    partitions = defaults.num_partitions if topic.num_partitions == -1 else topic.num_partitions
    factor = defaults.replication_factor if topic.replication_factor == -1 else topic.replication_factor
    return place(image.brokers.values(), partitions, factor, random)


# --- delete ---------------------------------------------------------------------------------------


def delete_topics(
    image: MetadataImage, topics: Sequence[DeleteTopicState], charge: Charge = free_of_charge
) -> Decision[DeleteTopicsResponse]:
    """Deletes topics by name or by id. Refuses a topic that the request contains twice, for example by name and by
    id."""
    names = Counter(topic.name for topic in topics if topic.name is not None and topic.topic_id == ZERO_UUID)
    ids = Counter(topic.topic_id for topic in topics if topic.name is None and topic.topic_id != ZERO_UUID)
    results: list[DeletableTopicResult] = []
    records: list[Any] = []
    answered: set[str | bytes] = set()
    doubly_named = {found.topic_id for name in names if (found := image.topics.get(name)) and found.topic_id in ids}
    for topic in topics:
        key = topic.name if topic.name is not None else topic.topic_id
        if topic.name is None or topic.topic_id == ZERO_UUID:
            if key in answered or key in doubly_named:
                continue
            answered.add(key)
        if topic.name is not None and topic.name in image.topics and image.topics[topic.name].topic_id in doubly_named:
            topic = DeleteTopicState(name=topic.name, topic_id=image.topics[topic.name].topic_id)
        try:
            found = _topic_to_delete(image, topic, names, ids)
            charge(len(found.partitions))
        except KafkaError as error:
            results.append(
                DeletableTopicResult(
                    name=topic.name, topic_id=topic.topic_id, error_code=error.code, error_message=error.message
                )
            )
        else:
            records.append(RemoveTopicRecord(topic_id=found.topic_id))
            results.append(DeletableTopicResult(name=found.name, topic_id=found.topic_id))
    return Decision(records, DeleteTopicsResponse(responses=results))


def _topic_to_delete(
    image: MetadataImage, topic: DeleteTopicState, names: Counter[str], ids: Counter[bytes]
) -> TopicImage:
    if topic.name is None:
        if topic.topic_id == ZERO_UUID:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                "The topic has neither name nor id: give one of them.",
            )
        if ids[topic.topic_id] > 1:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "The request contains the topic twice: name it once.")
        found = image.topics_by_id.get(topic.topic_id)
        if found is None:
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_ID, "No topic has this id: check the id, or give the topic's name."
            )
        return found
    if topic.topic_id != ZERO_UUID:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "The request contains the topic by name and by id: name it once.")
    if names[topic.name] > 1:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "The request contains the topic twice: name it once.")
    found = image.topics.get(topic.name)
    if found is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no topic '{topic.name}': check the name.")
    return found
