"""DescribeLogDirs v1-5: lists the log directories of this broker, with the size of every replica in them.

v4 adds the space on the directory's volume, and v5 adds whether the directory is cordoned. A replica that moves to
another directory is listed twice: its future log has `is_future_key` and the number of offsets that it lacks. A long
list of replicas is built in several passes of the event loop.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from penstock.broker.requests.encoded_responses import SMALL_ITEMS, Encoded, encoded_aside
from penstock.broker.requests.steps import Steps, run_steps
from penstock.protocol.errors import ErrorCode
from penstock.protocol.messages.api_35_describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.replicas.partition import Partition
    from penstock.broker.requests.context import RequestContext
    from penstock.log.log import Log
    from penstock.log.manager import LogDir
    from penstock.net.later import Later


def handle(
    broker: Broker, ctx: RequestContext, request: DescribeLogDirsRequest
) -> DescribeLogDirsResponse | Encoded | Later[DescribeLogDirsResponse | Encoded]:
    return run_steps(_steps(broker, ctx, request))


def _steps(
    broker: Broker, ctx: RequestContext, request: DescribeLogDirsRequest
) -> Steps[DescribeLogDirsResponse | Encoded]:
    wanted = None
    if request.topics is not None:
        wanted = {(topic.topic, partition) for topic in request.topics for partition in topic.partitions}
    by_dir: dict[str, dict[str, DescribeLogDirsTopic]] = defaultdict(dict)
    described = 0
    for partition in list(broker.partitions):
        if partition.is_open and (wanted is None or (partition.topic, partition.index) in wanted):
            _describe_replica(broker, partition, by_dir)
            described += 1
        yield None
    response = DescribeLogDirsResponse(
        results=[_describe(broker, directory, by_dir[directory.path]) for directory in broker.logs.dirs]
    )
    if described <= SMALL_ITEMS:
        return response
    by_dir.clear()  # so that the thread that encodes the response frees it
    encoding = encoded_aside(broker.logs.environment.disk, response, ctx.api_version)
    del response
    encoded: Encoded = yield encoding
    return encoded


def _describe_replica(broker: Broker, partition: Partition, by_dir: dict[str, dict[str, DescribeLogDirsTopic]]) -> None:
    log = partition.log
    _add(by_dir[log.log_dir], log, max(log.high_watermark - log.log_end_offset, 0), future=False)
    future = broker.logs.futures.get(partition.topic, partition.index)
    if future is not None:
        _add(by_dir[future.log.log_dir], future.log, future.records_left, future=True)


def _add(topics: dict[str, DescribeLogDirsTopic], log: Log, lag: int, *, future: bool) -> None:
    topics.setdefault(log.topic, DescribeLogDirsTopic(name=log.topic)).partitions.append(
        DescribeLogDirsPartition(
            partition_index=log.partition, partition_size=log.size, offset_lag=lag, is_future_key=future
        )
    )


def _describe(broker: Broker, directory: LogDir, topics: dict[str, DescribeLogDirsTopic]) -> DescribeLogDirsResult:
    result = DescribeLogDirsResult(log_dir=directory.path, is_cordoned=directory.path in broker.logs.dirs.cordoned)
    if directory.offline:
        result.error_code = ErrorCode.KAFKA_STORAGE_ERROR
        return result
    result.topics = list(topics.values())
    result.total_bytes, result.usable_bytes = directory.space()
    return result
