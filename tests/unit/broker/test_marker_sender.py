"""Tests how markers are sent to local partitions, and to leaders that move, refuse, die or wait for their followers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.broker.coordinators.marker_sender import Ending, MarkerSender
from penstock.broker.coordinators.marker_writer import MarkerWriter, Written
from penstock.broker.coordinators.runtime import Phase
from penstock.broker.handlers.api_27_write_txn_markers import handle as write_txn_markers
from penstock.clock import ManualClock
from penstock.metadata.configs.settings import Settings
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_27_write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopic,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from penstock.records.control import EndTxn
from penstock.transactions.turn import Markers

HERE = 1
EPOCH = 4


def answer(request: WriteTxnMarkersRequest, codes: dict[int, ErrorCode] | None = None) -> WriteTxnMarkersResponse:
    """Returns a response with the given error codes by partition index; NONE for all other partitions."""
    codes = codes or {}
    return WriteTxnMarkersResponse(
        markers=[
            WritableTxnMarkerResult(
                producer_id=marker.producer_id,
                topics=[
                    WritableTxnMarkerTopicResult(
                        name=topic.name,
                        partitions=[
                            WritableTxnMarkerPartitionResult(partition_index=i, error_code=codes.get(i, 0))
                            for i in topic.partition_indexes
                        ],
                    )
                    for topic in marker.topics
                ],
            )
            for marker in reversed(request.markers)
        ]
    )


@dataclass
class World:
    """Holds the leaders of partitions.

    `scripts` has the results of the next calls to each node; later calls succeed.
    """

    leaders: dict[tuple[str, int], int]
    scripts: dict[int, list[Any]] = field(default_factory=dict)
    asked: list[tuple[int, WriteTxnMarkersRequest]] = field(default_factory=list)
    written: list[tuple[str, int, int]] = field(default_factory=list)
    refusals: list[ErrorCode] = field(default_factory=list)
    high_watermark: int = 10
    moved: asyncio.Event = field(default_factory=asyncio.Event)
    done: list[Ending] = field(default_factory=list)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.coordinator = SimpleNamespace(phase=Phase.ACTIVE, epoch=EPOCH)
        self.sender = MarkerSender(
            HERE,
            metadata=cast(Any, SimpleNamespace(image=self)),
            writer=cast(Any, self),
            peers=self,
            done=self.finished,
            spawn=self.spawn,
        )

    def send(self, *partitions: tuple[str, int], producer_id: int = 7) -> None:
        markers = Markers(f"tx{producer_id}", producer_id, 3, True, 2, frozenset(partitions))
        self.sender.send(markers, cast(Any, self.coordinator))

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def finished(self, ending: Ending) -> None:
        self.done.append(ending)
        self.news.set()

    async def until_done(self, count: int = 1) -> None:
        while len(self.done) < count:
            self.news.clear()
            await self.news.wait()

    # the image, the writer, the peers, and a partition's log

    def partition(self, topic: str, index: int) -> Any:
        leader = self.leaders.get((topic, index))
        return None if leader is None else SimpleNamespace(leader=leader)

    def write(self, topic: str, index: int, producer_id: int, epoch: int, marker: EndTxn, version: int) -> Written:
        if self.refusals:
            raise KafkaError(self.refusals.pop(0))
        self.written.append((topic, index, marker.coordinator_epoch))
        return Written(cast(Any, self), 10)

    @property
    def log(self) -> World:
        return self

    async def committed(self, offset: int, leader_epoch: int) -> None:
        while self.high_watermark < offset:
            await self.moved.wait()

    async def ask(self, node_id: int, request: Any, *, lane: str = "") -> Any:
        self.asked.append((node_id, request))
        script = self.scripts.get(node_id)
        step = script.pop(0) if script else {}
        if isinstance(step, asyncio.Event):
            await step.wait()
            step = {}
        if isinstance(step, Exception):
            raise step
        return answer(request, step)


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(120):
            await scenario()

    asyncio.run(bounded())


def test_markers_for_local_partitions_are_written_at_once() -> None:
    async def scenario() -> None:
        world = World({("t", 0): HERE, ("t", 1): HERE})
        world.send(("t", 0), ("t", 1))
        assert len(world.done) == 1
        assert world.written == [("t", 0, EPOCH), ("t", 1, EPOCH)]

    run(scenario)


def test_marker_counts_as_written_only_when_it_is_committed() -> None:
    async def scenario() -> None:
        world = World({("t", 0): HERE}, high_watermark=9)
        world.send(("t", 0))
        await asyncio.sleep(0)
        assert not world.done
        world.high_watermark = 10
        world.moved.set()
        await world.until_done()

    run(scenario)


def test_all_waiting_markers_for_a_remote_leader_are_sent_in_one_request() -> None:
    async def scenario() -> None:
        gate = asyncio.Event()
        world = World({("t", 0): 2, ("t", 1): 2, ("u", 0): 3}, scripts={2: [gate]})
        world.send(("t", 0), producer_id=1)
        await asyncio.sleep(0)
        world.send(("t", 0), ("t", 1), ("u", 0), producer_id=2)
        world.send(("t", 1), producer_id=3)
        gate.set()
        await world.until_done(3)
        to_two = [request for node, request in world.asked if node == 2]
        assert [[marker.producer_id for marker in request.markers] for request in to_two] == [[1], [2, 3]]
        assert all(marker.coordinator_epoch == EPOCH for request in to_two for marker in request.markers)

    run(scenario)


def test_only_lost_or_refused_transaction_markers_are_sent_again() -> None:
    async def scenario() -> None:
        lost = KafkaError(ErrorCode.NETWORK_EXCEPTION, "gone")
        world = World({("t", 0): 2, ("t", 1): 2}, scripts={2: [lost, {1: ErrorCode.NOT_LEADER_OR_FOLLOWER}]})
        world.send(("t", 0), ("t", 1))
        await world.until_done()
        indexes = [request.markers[0].topics[0].partition_indexes for _, request in world.asked]
        assert indexes == [[0, 1], [0, 1], [1]]

    run(scenario)


def test_marker_is_sent_again_after_a_malformed_response(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        world = World({("t", 0): 2, ("t", 1): 2}, scripts={2: [ValueError("999 is no error code")]})
        world.send(("t", 0), producer_id=1)
        world.send(("t", 1), producer_id=2)
        await world.until_done(2)

    run(scenario)
    assert "markers for node 2" in caplog.text


def test_markers_are_sent_to_a_new_partition_leader_at_once() -> None:
    async def scenario() -> None:
        world = World({("t", 0): -1})
        world.send(("t", 0))
        assert not world.asked
        world.leaders["t", 0] = 3
        world.sender.image_changed()
        await world.until_done()
        assert [node for node, _ in world.asked] == [3]

    run(scenario)


def test_dead_node_does_not_delay_the_markers_for_other_nodes() -> None:
    async def scenario() -> None:
        silence = asyncio.Event()
        world = World({("t", 0): 2, ("u", 0): 3}, scripts={2: [silence]})
        world.send(("t", 0), producer_id=1)
        await asyncio.sleep(0)
        world.send(("u", 0), producer_id=2)
        await world.until_done()
        assert world.done[0].markers.producer_id == 2
        silence.set()
        await world.until_done(2)

    run(scenario)


def test_marker_is_not_retried_if_the_partition_knows_a_newer_coordinator_epoch() -> None:
    async def scenario() -> None:
        world = World({("t", 0): 2, ("t", 1): HERE}, scripts={2: [{0: ErrorCode.TRANSACTION_COORDINATOR_FENCED}]})
        world.send(("t", 0), ("t", 1))
        await asyncio.gather(*world.tasks)
        assert not world.done
        assert len(world.asked) == 1

    run(scenario)


def test_no_further_marker_is_sent_once_a_partition_knows_a_newer_coordinator_epoch() -> None:
    async def scenario() -> None:
        world = World({("t", 0): HERE, ("t", 1): 2, ("t", 2): -1}, refusals=[ErrorCode.TRANSACTION_COORDINATOR_FENCED])
        world.send(("t", 0), ("t", 1), ("t", 2))
        await asyncio.gather(*world.tasks)
        world.leaders["t", 2] = 2
        world.sender.image_changed()
        await asyncio.gather(*world.tasks)
        assert not world.asked

    run(scenario)


def test_a_partition_that_already_ended_the_transaction_gets_no_further_marker() -> None:
    async def scenario() -> None:
        world = World({("t", 0): 2}, scripts={2: [{0: ErrorCode.INVALID_PRODUCER_EPOCH}]})
        world.send(("t", 0))
        await world.until_done()

    run(scenario)


def test_coordinator_that_lost_its_partition_sends_no_markers() -> None:
    async def scenario() -> None:
        world = World({("t", 0): HERE}, refusals=[ErrorCode.NOT_ENOUGH_REPLICAS])
        world.send(("t", 0))
        world.coordinator.phase = Phase.CLOSED
        world.sender.image_changed()
        assert world.written == []
        assert not world.done

    run(scenario)


def test_marker_is_not_sent_to_a_deleted_partition() -> None:
    async def scenario() -> None:
        world = World({("t", 0): -1})
        world.send(("t", 0), ("gone", 0))
        del world.leaders["t", 0]
        world.sender.image_changed()
        assert len(world.done) == 1

    run(scenario)


def test_markers_for_many_local_partitions_are_written_in_slices() -> None:
    async def scenario() -> None:
        names = [("t", index) for index in range(250)]
        world = World(dict.fromkeys(names, HERE))
        world.send(*names)
        assert world.written == []
        await world.until_done()
        assert len(world.written) == 250

    run(scenario)


def test_a_marker_that_is_not_replicated_in_time_is_answered_with_request_timed_out() -> None:
    """Checks that each partition gets its own result, even if another partition is never replicated."""

    class Committing:
        def __init__(self, outcome: Exception | None, waits: bool) -> None:
            self.outcome, self.waits = outcome, waits
            self.log = SimpleNamespace(high_watermark=0)

        async def committed(self, offset: int, epoch: int) -> None:
            if self.waits:
                await asyncio.Event().wait()
            if self.outcome is not None:
                raise self.outcome

    partitions = [
        Committing(None, waits=True),
        Committing(None, waits=False),
        Committing(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "no"), waits=False),
    ]
    writer = SimpleNamespace(write=lambda topic, index, *_: Written(cast(Any, partitions[index]), 1))
    broker = SimpleNamespace(
        transactions=SimpleNamespace(markers=writer), settings=Settings({"request.timeout.ms": "20"})
    )
    asked = WritableTxnMarker(
        producer_id=1, producer_epoch=0, topics=[WritableTxnMarkerTopic(name="t", partition_indexes=[0, 1, 2])]
    )

    async def scenario() -> None:
        answer = write_txn_markers(cast(Any, broker), cast(Any, None), WriteTxnMarkersRequest(markers=[asked]))
        assert isinstance(answer, Awaitable)
        results = (await answer).markers[0].topics[0].partitions
        codes = [ErrorCode(result.error_code) for result in results]
        assert codes == [ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER]

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("refusal", "end", "written"),
    [
        (ErrorCode.INVALID_PRODUCER_EPOCH, 5, True),
        (ErrorCode.INVALID_PRODUCER_EPOCH, 4, False),
        (ErrorCode.TRANSACTION_COORDINATOR_FENCED, 5, False),
        (ErrorCode.NOT_ENOUGH_REPLICAS, 5, False),
    ],
)
def test_repeated_marker_waits_until_the_uncommitted_records_of_the_partition_are_committed(
    refusal: ErrorCode, end: int, written: bool
) -> None:
    """Checks that only a marker refused with INVALID_PRODUCER_EPOCH waits: the partition may already have it."""

    def refuse(*_: object, **__: object) -> None:
        raise KafkaError(refusal, "no")

    log = SimpleNamespace(high_watermark=4, log_end_offset=end)
    partition = SimpleNamespace(topic="t", log=log, leader_epoch=2, append=refuse)
    writer = MarkerWriter(cast(Any, SimpleNamespace(get=lambda *_: partition)), cast(Any, None), ManualClock())
    if written:
        assert writer.write("t", 0, 7, 3, EndTxn(True, EPOCH), 2) == Written(cast(Any, partition), 5, 2)
    else:
        with pytest.raises(KafkaError) as refused:
            writer.write("t", 0, 7, 3, EndTxn(True, EPOCH), 2)
        assert refused.value.code is refusal
