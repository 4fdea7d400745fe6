"""WriteTxnMarkers v1-2: ends transactions on partitions; sent by coordinators, and by admins for hanging transactions.

Each partition has its own answer. Since v2 the marker says which transaction version it belongs to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_27_write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from penstock.records.control import EndTxn

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.context import RequestContext


def handle(broker: Broker, ctx: RequestContext, request: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse:
    return WriteTxnMarkersResponse(
        markers=[
            WritableTxnMarkerResult(
                producer_id=marker.producer_id,
                topics=[
                    WritableTxnMarkerTopicResult(
                        name=topic.name,
                        partitions=[
                            WritableTxnMarkerPartitionResult(
                                partition_index=index, error_code=_write(broker, marker, topic.name, index)
                            )
                            for index in topic.partition_indexes
                        ],
                    )
                    for topic in marker.topics
                ],
            )
            for marker in request.markers
        ]
    )


def _write(broker: Broker, marker: WritableTxnMarker, topic: str, index: int) -> ErrorCode:
    try:
        broker.transactions.markers.write(
            topic,
            index,
            marker.producer_id,
            marker.producer_epoch,
            EndTxn(marker.transaction_result, marker.coordinator_epoch),
            marker.transaction_version,
        )
    except KafkaError as error:
        return error.code
    return ErrorCode.NONE
