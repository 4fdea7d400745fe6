"""Tests that one event loop iteration adds few partitions to transactions, and writes few markers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.broker.coordinators.marker_writer import Written
from penstock.broker.handlers import api_24_add_partitions_to_txn as handler_24
from penstock.broker.handlers import api_27_write_txn_markers as handler_27
from penstock.broker.requests.context import RequestContext
from penstock.metadata.configs.settings import Settings
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages import api_24_add_partitions_to_txn as api_24
from penstock.protocol.messages import api_27_write_txn_markers as api_27


class Passes:
    """Counts the operations in each event loop iteration."""

    def __init__(self) -> None:
        self.done = [0]

    def count(self, number: int = 1) -> None:
        self.done[-1] += number

    def run(self, ask: Callable[[], Any]) -> Any:
        async def run() -> Any:
            answer = ask()
            if not isinstance(answer, Awaitable):
                return answer
            asking = asyncio.ensure_future(answer)
            while not asking.done():
                self.done.append(0)
                await asyncio.sleep(0)
            return asking.result()

        return asyncio.run(run())


def context(key: int, version: int) -> RequestContext:
    return RequestContext(key, version, 0, "c", cast(Any, None), 0)


# --- markers


@pytest.mark.parametrize(("markers", "indexes"), [(1_000, 1), (1, 1_000), (10, 100)])
@pytest.mark.parametrize("high_watermark", [0, 1])
def test_many_markers_are_written_in_several_event_loop_iterations(
    markers: int, indexes: int, high_watermark: int
) -> None:
    passes = Passes()

    async def committed(end_offset: int, leader_epoch: int) -> None:
        pass

    partition = SimpleNamespace(log=SimpleNamespace(high_watermark=high_watermark), committed=committed)

    def write(topic: str, index: int, *marker: Any) -> Written:
        passes.count()
        if index == 7:
            raise KafkaError(ErrorCode.NOT_COORDINATOR)
        return Written(cast(Any, partition), 1)

    broker: Any = SimpleNamespace(
        transactions=SimpleNamespace(markers=SimpleNamespace(write=write)), settings=Settings({"node.id": "1"})
    )
    topics = [api_27.WritableTxnMarkerTopic(name="t", partition_indexes=list(range(indexes)))]
    request = api_27.WriteTxnMarkersRequest(
        markers=[api_27.WritableTxnMarker(producer_id=number, topics=topics) for number in range(markers)]
    )
    response = passes.run(lambda: handler_27.handle(broker, context(27, 2), request))
    assert [marker.producer_id for marker in response.markers] == list(range(markers))
    codes = {each.partition_index: each.error_code for each in response.markers[0].topics[0].partitions}
    assert codes == {index: 0 if index != 7 else ErrorCode.NOT_LEADER_OR_FOLLOWER for index in range(indexes)}
    assert sum(passes.done) == markers * indexes
    assert max(passes.done) <= 60


# --- partitions


def add(passes: Passes, monkeypatch: pytest.MonkeyPatch, version: int, sizes: list[int]) -> Any:
    async def decide(broker: Any, asked: Any, partitions: list[Any], client_version: int) -> dict[Any, ErrorCode]:
        passes.count(len(partitions))
        return dict.fromkeys(partitions, ErrorCode.NONE)

    monkeypatch.setattr(handler_24, "_decide", decide)
    image = SimpleNamespace(partition=lambda topic, index: object())
    broker: Any = SimpleNamespace(metadata=SimpleNamespace(image=image))
    topics = [[api_24.AddPartitionsToTxnTopic(name="t", partitions=list(range(size)))] for size in sizes]
    if version < 4:
        request = api_24.AddPartitionsToTxnRequest(v3_and_below_topics=topics[0])
    else:
        request = api_24.AddPartitionsToTxnRequest(
            transactions=[
                api_24.AddPartitionsToTxnTransaction(transactional_id=f"tx{number}", topics=each)
                for number, each in enumerate(topics)
            ]
        )
    return passes.run(lambda: handler_24.handle(broker, context(24, version), request))


@pytest.mark.parametrize("sizes", [[100] * 200, [1] * 5_000, [9_000, 1, 1, 9_000, 3_000]])
def test_partitions_of_many_transactions_are_added_in_several_event_loop_iterations(
    sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    passes = Passes()
    response = add(passes, monkeypatch, 5, sizes)
    assert [len(each.topic_results[0].results_by_partition) for each in response.results_by_transaction] == sizes
    assert [each.transactional_id for each in response.results_by_transaction][:3] == ["tx0", "tx1", "tx2"]
    assert sum(passes.done) == sum(sizes)
    assert max(passes.done) <= max(2_000, *sizes)


@pytest.mark.parametrize("version", [0, 3, 4, 5])
def test_add_partitions_to_txn_with_too_many_partitions_is_refused(
    version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes = Passes()
    assert add(passes, monkeypatch, version, [10_000])
    with pytest.raises(KafkaError) as refused:
        add(passes, monkeypatch, version, [10_001])
    assert refused.value.code is ErrorCode.POLICY_VIOLATION
    assert sum(passes.done) == 10_000
