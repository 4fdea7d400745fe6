"""DescribeProducers v0: returns the idempotent and transactional producers that a partition's log knows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.metadata.names import name_problem
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_61_describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.requests.context import RequestContext


def handle(broker: Broker, ctx: RequestContext, request: DescribeProducersRequest) -> DescribeProducersResponse:
    return DescribeProducersResponse(
        topics=[
            TopicResponse(
                name=topic.name, partitions=[_describe(broker, topic.name, index) for index in topic.partition_indexes]
            )
            for topic in request.topics
        ]
    )


def _describe(broker: Broker, topic: str, index: int) -> PartitionResponse:
    try:
        problem = name_problem(topic)
        if problem is not None:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, problem)
        log = broker.partitions.get(topic, index).leader_log()
    except KafkaError as error:
        return PartitionResponse(partition_index=index, error_code=error.code, error_message=error.message)
    return PartitionResponse(
        partition_index=index,
        active_producers=[
            ProducerState(
                producer_id=entry.producer_id,
                producer_epoch=entry.producer_epoch,
                last_sequence=entry.last_sequence,
                last_timestamp=entry.last_timestamp,
                coordinator_epoch=entry.coordinator_epoch,
                current_txn_start_offset=-1 if entry.txn_first_offset is None else entry.txn_first_offset,
            )
            for entry in log.producers
        ],
    )
