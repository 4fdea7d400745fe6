"""WriteTxnMarkers v1-2: ends transactions on partitions, for coordinators and for administrators.

The response waits until the markers are committed. After half of `request.timeout.ms`, a partition whose marker is not
committed gets REQUEST_TIMED_OUT, and the marker stays in the log. The sender waits twice as long, so it gets the
results of the other partitions. A repeated marker is not written again: its result waits for the first marker. Since v2
the marker contains its transaction version. Many markers are written in several passes of the event loop.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from penstock.broker.requests.steps import Steps, run_steps
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
    from penstock.broker.coordinators.marker_writer import Written
    from penstock.broker.requests.context import RequestContext
    from penstock.net.later import Later

#: An append is slower than steps of other requests: 50 appends per pass of the loop take about 4 ms.
STEPS_PER_MARKER = 4


def handle(
    broker: Broker, ctx: RequestContext, request: WriteTxnMarkersRequest
) -> WriteTxnMarkersResponse | Later[WriteTxnMarkersResponse]:
    return run_steps(_steps(broker, request))


def _steps(broker: Broker, request: WriteTxnMarkersRequest) -> Steps[WriteTxnMarkersResponse]:
    uncommitted: list[tuple[WritableTxnMarkerPartitionResult, Written]] = []
    response = WriteTxnMarkersResponse()
    for marker in request.markers:
        answer = WritableTxnMarkerResult(producer_id=marker.producer_id)
        response.markers.append(answer)
        for topic in marker.topics:
            partitions: list[WritableTxnMarkerPartitionResult] = []
            answer.topics.append(WritableTxnMarkerTopicResult(name=topic.name, partitions=partitions))
            for index in topic.partition_indexes:
                result = WritableTxnMarkerPartitionResult(partition_index=index)
                partitions.append(result)
                try:
                    written = _write(broker, marker, topic.name, index)
                    if written.partition.log.high_watermark < written.end_offset:
                        uncommitted.append((result, written))
                except KafkaError as error:
                    result.error_code = _error_for_sender(error.code)
                for _ in range(STEPS_PER_MARKER):
                    yield None
            yield None
        yield None
    if uncommitted:
        yield _when_committed(uncommitted, broker.settings.int("request.timeout.ms") / 2000)
    return response


def _write(broker: Broker, marker: WritableTxnMarker, topic: str, index: int) -> Written:
    return broker.transactions.markers.write(
        topic,
        index,
        marker.producer_id,
        marker.producer_epoch,
        EndTxn(marker.transaction_result, marker.coordinator_epoch),
        marker.transaction_version,
    )


def _error_for_sender(code: ErrorCode) -> ErrorCode:
    """Returns the error code for the response: NOT_LEADER_OR_FOLLOWER if the group coordinator is not loaded.

    Other codes are returned unchanged.
    """
    match code:
        case ErrorCode.NOT_COORDINATOR | ErrorCode.COORDINATOR_NOT_AVAILABLE | ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        case _:
            return code


async def _when_committed(uncommitted: list[tuple[WritableTxnMarkerPartitionResult, Written]], limit_s: float) -> None:
    deadline = asyncio.get_running_loop().time() + limit_s
    for result, written in uncommitted:
        try:
            async with asyncio.timeout_at(deadline):
                await written.partition.committed(written.end_offset, written.leader_epoch)
        except KafkaError as error:
            result.error_code = error.code
        except TimeoutError:
            result.error_code = ErrorCode.REQUEST_TIMED_OUT
