"""DescribeLogDirs v1-5: lists the log directories of this broker, with the size of every replica in them.

Since v4 also the space on the directory's volume, since v5 also whether the directory is cordoned.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

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
    from penstock.broker.requests.context import RequestContext
    from penstock.log.manager import LogDir


def handle(broker: Broker, ctx: RequestContext, request: DescribeLogDirsRequest) -> DescribeLogDirsResponse:
    wanted = None
    if request.topics is not None:
        wanted = {(topic.topic, partition) for topic in request.topics for partition in topic.partitions}
    by_dir: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for partition in broker.partitions:
        if partition.is_open and (wanted is None or (partition.topic, partition.index) in wanted):
            by_dir[partition.log.log_dir].append((partition.topic, partition.index))
    return DescribeLogDirsResponse(
        results=[_describe(broker, directory, by_dir[directory.path]) for directory in broker.logs.dirs]
    )


def _describe(broker: Broker, directory: LogDir, members: list[tuple[str, int]]) -> DescribeLogDirsResult:
    result = DescribeLogDirsResult(log_dir=directory.path, is_cordoned=directory.path in broker.logs.dirs.cordoned)
    if directory.offline:
        result.error_code = ErrorCode.KAFKA_STORAGE_ERROR
        return result
    topics: dict[str, DescribeLogDirsTopic] = {}
    for name, index in members:
        topic = topics.setdefault(name, DescribeLogDirsTopic(name=name))
        log = broker.partitions.get(name, index).log
        topic.partitions.append(DescribeLogDirsPartition(partition_index=index, partition_size=log.size))
    result.topics = list(topics.values())
    result.total_bytes, result.usable_bytes = directory.space()
    return result
