"""DescribeTopicPartitions v0: describes topics in the order of their names, page by page.

A response has at most `response_partition_limit` partitions, or the broker's own limit if lower; the cursor names the
first partition of the next page. Unknown topics do not count towards the limit. An empty list of topics means all
topics.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.broker.handlers.cluster_view import TOPIC_OPERATIONS, ClusterView
from penstock.broker.requests.access_control import visible_topics
from penstock.metadata.image import TopicImage
from penstock.metadata.names import name_problem
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_75_describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)
from penstock.protocol.vocabulary import UNLISTED_TOPICS

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.requests.context import RequestContext


def handle(
    broker: Broker, ctx: RequestContext, request: DescribeTopicPartitionsRequest
) -> DescribeTopicPartitionsResponse:
    view = ClusterView.of(broker.metadata.image, ctx.listener_name)
    names, first_partition = _wanted(view, request, visible_topics(broker.access, ctx))
    configured = broker.settings.int("max.request.partition.size.limit")
    room = max(min(configured, request.response_partition_limit), 1)
    response = DescribeTopicPartitionsResponse()
    for position, name in enumerate(names):
        if room == 0:
            response.next_cursor = Cursor(topic_name=name, partition_index=0)
            break
        topic = view.image.topics.get(name)
        if topic is None:
            response.topics.append(_unknown(name))
            continue
        indexes = sorted(topic.partitions)
        if position == 0:
            indexes = [index for index in indexes if index >= first_partition]
        response.topics.append(_topic(view, topic, indexes[:room]))
        if len(indexes) > room:
            response.next_cursor = Cursor(topic_name=name, partition_index=indexes[room])
            break
        room -= len(indexes)
    return response


def _wanted(
    view: ClusterView, request: DescribeTopicPartitionsRequest, visible: Callable[[str], bool]
) -> tuple[list[str], int]:
    """Returns the names of the topics to describe, and a partition index.

    The description of the first topic begins with this partition.
    """
    cursor = request.cursor
    everything = not request.topics
    names = sorted(filter(visible, view.image.topics) if everything else {topic.name for topic in request.topics})
    if cursor is None:
        return names, 0
    if cursor.partition_index < 0:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"The cursor is at partition {cursor.partition_index} of '{cursor.topic_name}': give 0 or higher.",
        )
    if not everything and cursor.topic_name not in names:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"The cursor is at topic '{cursor.topic_name}', which is not in the request: add this topic.",
        )
    names = [name for name in names if name >= cursor.topic_name]
    return names, cursor.partition_index if names and names[0] == cursor.topic_name else 0


def _unknown(name: str) -> DescribeTopicPartitionsResponseTopic:
    legal = name_problem(name) is None
    return DescribeTopicPartitionsResponseTopic(
        error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if legal else ErrorCode.INVALID_TOPIC_EXCEPTION,
        name=name,
        is_internal=name in UNLISTED_TOPICS,
        topic_authorized_operations=TOPIC_OPERATIONS,
    )


def _topic(view: ClusterView, topic: TopicImage, indexes: list[int]) -> DescribeTopicPartitionsResponseTopic:
    partitions = []
    for index in indexes:
        partition = topic.partitions[index]
        error, leader, offline = view.partition(partition)
        partitions.append(
            DescribeTopicPartitionsResponsePartition(
                error_code=error,
                partition_index=index,
                leader_id=leader,
                leader_epoch=partition.leader_epoch,
                replica_nodes=list(partition.replicas),
                isr_nodes=list(partition.isr),
                eligible_leader_replicas=list(partition.elr),
                last_known_elr=list(partition.last_known_elr),
                offline_replicas=offline,
            )
        )
    return DescribeTopicPartitionsResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.name in UNLISTED_TOPICS,
        partitions=partitions,
        topic_authorized_operations=TOPIC_OPERATIONS,
    )
