"""WriteTxnMarkers v1-2: ends transactions on partitions; sent by coordinators, and by admins for hanging transactions.

Each partition has its own answer, when its marker is committed: REQUEST_TIMED_OUT if its replicas don't follow for half
of `request.timeout.ms`, so that whoever asks with that timeout still hears of the others. The marker stands; sent
again, it is waited for. Since v2 the marker says which transaction version it belongs to.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
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
    from penstock.broker.markers import Written


def handle(
    broker: Broker, ctx: RequestContext, request: WriteTxnMarkersRequest
) -> WriteTxnMarkersResponse | Awaitable[WriteTxnMarkersResponse]:
    uncommitted: list[tuple[WritableTxnMarkerPartitionResult, Written]] = []

    def write(marker: WritableTxnMarker, topic: str, index: int) -> WritableTxnMarkerPartitionResult:
        result = WritableTxnMarkerPartitionResult(partition_index=index)
        try:
            written = _write(broker, marker, topic, index)
            if written.partition.log.high_watermark < written.end_offset:
                uncommitted.append((result, written))
        except KafkaError as error:
            result.error_code = _told(error.code)
        return result

    response = WriteTxnMarkersResponse(
        markers=[
            WritableTxnMarkerResult(
                producer_id=marker.producer_id,
                topics=[
                    WritableTxnMarkerTopicResult(
                        name=topic.name,
                        partitions=[write(marker, topic.name, index) for index in topic.partition_indexes],
                    )
                    for topic in marker.topics
                ],
            )
            for marker in request.markers
        ]
    )
    if not uncommitted:
        return response
    return _when_committed(response, uncommitted, broker.settings.int("request.timeout.ms") / 2000)


def _write(broker: Broker, marker: WritableTxnMarker, topic: str, index: int) -> Written:
    return broker.transactions.markers.write(
        topic,
        index,
        marker.producer_id,
        marker.producer_epoch,
        EndTxn(marker.transaction_result, marker.coordinator_epoch),
        marker.transaction_version,
    )


def _told(code: ErrorCode) -> ErrorCode:
    """A group coordinator that isn't here or ready yet is, to who sends markers, a leader that isn't."""
    match code:
        case ErrorCode.NOT_COORDINATOR | ErrorCode.COORDINATOR_NOT_AVAILABLE | ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        case _:
            return code


async def _when_committed(
    response: WriteTxnMarkersResponse,
    uncommitted: list[tuple[WritableTxnMarkerPartitionResult, Written]],
    limit_s: float,
) -> WriteTxnMarkersResponse:
    deadline = asyncio.get_running_loop().time() + limit_s
    for result, written in uncommitted:
        try:
            async with asyncio.timeout_at(deadline):
                await written.partition.committed(written.end_offset, written.leader_epoch)
        except KafkaError as error:
            result.error_code = error.code
        except TimeoutError:
            result.error_code = ErrorCode.REQUEST_TIMED_OUT
    return response
