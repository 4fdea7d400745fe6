"""Tests Produce with batches that have to be unpacked before the append: which requests wait, and their responses."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.broker.handlers import api_00_produce as api
from penstock.broker.requests.context import RequestContext
from penstock.clock import ManualClock
from penstock.disk.memory import MemoryDisk
from penstock.log.free_space import FreeSpace
from penstock.log.log import Log
from penstock.log.manager import LogManager
from penstock.metadata.configs.topic import LogConfig
from penstock.net.reply import Close
from penstock.protocol.errors import ErrorCode
from penstock.protocol.messages.api_00_produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from penstock.records.build import build_batch
from penstock.records.compression import Codec
from penstock.records.scan import SLICE_RECORDS

NOW = 1_700_000_000_000
MANY = 20 * SLICE_RECORDS
PLAIN, COMPACTED = 0, 1


class Node:
    """Holds two partitions of one topic. One partition has the config of a compacted topic."""

    def __init__(self) -> None:
        logs = LogManager(MemoryDisk(), ("/logs",), ManualClock())
        asyncio.run(logs.open(node_id=1, cluster_id="cluster"))
        compacted = LogConfig(cleanup_policy=frozenset({"compact"}))
        self.charged: list[int] = []
        self.logs = [logs.create("t", bytes(16), PLAIN, LogConfig()), logs.create("t", bytes(16), COMPACTED, compacted)]

    def produce(self, *batches: tuple[int, bytes], acks: int = 1) -> Any:
        partitions = [self._partition(log) for log in self.logs]
        broker: Any = SimpleNamespace(
            partitions=SimpleNamespace(get=lambda topic, index: partitions[index]),
            quotas=SimpleNamespace(record_produce=self._charge),
            logs=SimpleNamespace(dirs=SimpleNamespace(free_space=FreeSpace(MemoryDisk()))),
        )
        data = [PartitionProduceData(index=index, records=memoryview(batch)) for index, batch in batches]
        request = ProduceRequest(
            acks=acks, timeout_ms=1000, topic_data=[TopicProduceData(name="t", partition_data=data)]
        )
        return api.handle(broker, RequestContext(0, 9, 1, "c", cast(Any, None), NOW), request)

    def _charge(self, ctx: RequestContext, size: int) -> int:
        self.charged.append(size)
        return 0

    @staticmethod
    def _partition(log: Log) -> Any:
        def append(records: Any, *, now_ms: int, required_acks: int, prepared: Any) -> Any:
            return log.append_as_leader(records, leader_epoch=0, now_ms=now_ms, prepared=prepared)

        return SimpleNamespace(log=log, topic="t", append=append, acks_need_fsync=False)


def many(key: bytes | None = b"k", timestamp: int = NOW) -> bytes:
    return build_batch([(timestamp, key, None, ())] * MANY, compression=Codec.ZSTD)


def awaited(answer: Awaitable[Any]) -> Any:
    async def wait() -> Any:
        return await answer

    return asyncio.run(wait())


def told(answer: ProduceResponse) -> list[PartitionProduceResponse]:
    return answer.responses[0].partition_responses


def test_produced_batch_that_is_unpacked_later_keeps_its_position_in_the_response() -> None:
    node = Node()
    small = build_batch([(NOW, b"k", None, ())])
    answer = node.produce((COMPACTED, many()), (PLAIN, many()), (COMPACTED, small))
    assert not isinstance(answer, ProduceResponse), "it was unpacked in the pass of the request"
    assert [log.log_end_offset for log in node.logs] == [MANY, 1]
    first, second, third = told(awaited(answer))
    assert [each.index for each in (first, second, third)] == [COMPACTED, PLAIN, COMPACTED]
    assert [each.error_code for each in (first, second, third)] == [0, 0, 0]
    assert (first.base_offset, second.base_offset, third.base_offset) == (1, 0, 0)
    assert node.logs[COMPACTED].log_end_offset == 1 + MANY
    assert node.charged == [2 * len(many()) + len(small)]  # each batch once, including the unpacked one


def test_produce_error_after_unpacking_lists_the_invalid_records() -> None:
    node = Node()
    (refused,) = told(awaited(node.produce((COMPACTED, many(key=None)))))
    assert refused.error_code == ErrorCode.INVALID_RECORD
    assert len(refused.record_errors) == 1000
    (refused,) = told(awaited(node.produce((PLAIN, many(timestamp=NOW + 10**12)))))
    assert refused.error_code == ErrorCode.INVALID_TIMESTAMP
    assert len(refused.record_errors) == 1000
    assert refused.log_start_offset == 0
    assert [log.log_end_offset for log in node.logs] == [0, 0]


@pytest.mark.parametrize(("key", "answer"), [(b"k", None), (None, Close)])
def test_produce_error_after_unpacking_closes_the_connection_if_acks_is_0(
    key: bytes | None, answer: type | None
) -> None:
    found = awaited(Node().produce((COMPACTED, many(key=key)), acks=0))
    assert found is None if answer is None else isinstance(found, answer)


def test_produce_of_small_batches_to_a_compacted_topic_is_answered_at_once() -> None:
    batch = build_batch([(NOW, b"k", b"v", ())] * 100, compression=Codec.LZ4)
    assert isinstance(Node().produce((COMPACTED, batch)), ProduceResponse)
