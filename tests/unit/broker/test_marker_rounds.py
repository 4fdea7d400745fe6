"""Tests the requests and pauses of the marker sender in virtual time: batches, retries, and the end of the sender."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from plain_coordinator import in_virtual_time
from test_marker_sender import HERE, World

from penstock.broker.coordinators import marker_sender
from penstock.broker.coordinators.marker_sender import MAX_RETRY_SECONDS, RETRY_SECONDS
from penstock.broker.coordinators.runtime import Phase
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_27_write_txn_markers import WriteTxnMarkersRequest
from penstock.transactions.turn import Markers

LOST = KafkaError(ErrorCode.NETWORK_EXCEPTION, "gone")


class Timed(World):
    """Notes the time of each request."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.times: list[float] = []
        self.commit_errors: list[KafkaError | None] = []

    async def ask(self, node_id: int, request: Any, *, lane: str = "") -> Any:
        self.times.append(asyncio.get_running_loop().time())
        return await super().ask(node_id, request, lane=lane)

    async def committed(self, offset: int, leader_epoch: int) -> None:
        await super().committed(offset, leader_epoch)
        error = self.commit_errors.pop(0) if self.commit_errors else None
        if error is not None:
            raise error


def producers(request: WriteTxnMarkersRequest) -> list[int]:
    return [marker.producer_id for marker in request.markers]


def test_markers_of_one_transaction_are_sent_to_all_leaders_at_once() -> None:
    async def scenario() -> None:
        world = Timed({("t", 0): 2, ("t", 1): 3, ("u", 0): 4, ("u", 1): HERE, ("v", 0): 2})
        world.send(*world.leaders)
        await world.until_done()
        sent = {
            node: [(each.name, each.partition_indexes) for each in request.markers[0].topics]
            for node, request in world.asked
        }
        assert sent == {2: [("t", [0]), ("v", [0])], 3: [("t", [1])], 4: [("u", [0])]}
        assert world.times == [0.0] * 3
        assert [(name, index) for name, index, _ in world.written] == [("u", 1)]

    in_virtual_time(scenario)


def test_marker_request_has_every_field_of_the_transaction() -> None:
    async def scenario() -> None:
        world = Timed({("t", 0): 2})
        world.coordinator.epoch = 6
        for committed in (True, False):
            markers = Markers("tx", 7, 3, committed, 1, frozenset({("t", 0)}))
            world.sender.send(markers, cast(Any, world.coordinator))
            await world.until_done(len(world.asked) + 1)
        fields = [
            (
                one.producer_id,
                one.producer_epoch,
                one.transaction_result,
                one.coordinator_epoch,
                one.transaction_version,
            )
            for _, request in world.asked
            for one in request.markers
        ]
        assert fields == [(7, 3, True, 6, 1), (7, 3, False, 6, 1)]

    in_virtual_time(scenario)


def test_pause_between_retries_doubles_up_to_its_maximum_and_starts_again_after_a_success() -> None:
    async def scenario() -> None:
        world = Timed({("t", 0): 2, ("t", 1): 2}, scripts={2: [LOST] * 8})
        world.send(("t", 0))
        await world.until_done()
        pauses = [min(RETRY_SECONDS * 2**number, MAX_RETRY_SECONDS) for number in range(8)]
        assert pauses[-1] == pauses[-2] == MAX_RETRY_SECONDS
        assert [later - earlier for earlier, later in zip(world.times, world.times[1:])] == pytest.approx(pauses)
        world.times.clear()
        world.scripts[2] = [LOST]
        world.send(("t", 1))
        await world.until_done(2)
        assert world.times[1] - world.times[0] == pytest.approx(RETRY_SECONDS)

    in_virtual_time(scenario)


def test_all_failed_markers_of_all_transactions_are_retried_in_one_round() -> None:
    async def scenario() -> None:
        world = Timed({("t", 0): -1, ("t", 1): 2, ("u", 0): -1}, scripts={2: [LOST, LOST]})
        world.send(("t", 0), ("t", 1), producer_id=1)
        world.send(("u", 0), producer_id=2)
        world.send(("t", 1), producer_id=3)
        await asyncio.sleep(RETRY_SECONDS / 2)
        world.leaders = dict.fromkeys(world.leaders, 3)
        await world.until_done(3)
        [(node, request)] = world.asked[1:]
        assert (node, sorted(producers(request))) == (3, [1, 2, 3])
        assert world.times == [0.0, RETRY_SECONDS]

    in_virtual_time(scenario)


def test_markers_that_fail_again_after_a_new_image_wait_for_a_new_and_longer_pause() -> None:
    async def scenario() -> None:
        world = Timed({("t", 0): -1})
        world.send(("t", 0))
        world.sender.image_changed()
        world.leaders["t", 0] = 2
        await world.until_done()
        assert world.times == [2 * RETRY_SECONDS]

    in_virtual_time(scenario)


@pytest.mark.parametrize(
    ("sizes", "requests"),
    [
        ([2, 1, 1], [[0, 1], [2]]),
        ([3, 1], [[0], [1]]),
        ([1, 1, 5, 1], [[0, 1, 2], [3]]),
        ([1, 1], [[0, 1]]),
    ],
)
def test_marker_request_ends_with_the_transaction_that_reaches_the_limit_of_partitions(
    sizes: list[int], requests: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(marker_sender, "PARTITIONS_IN_A_REQUEST", 3)

    async def scenario() -> None:
        gate = asyncio.Event()
        world = Timed({("t", index): 2 for index in range(5)}, scripts={2: [gate]})
        world.send(("t", 0), producer_id=100)
        await asyncio.sleep(0)
        for producer_id, size in enumerate(sizes):
            world.send(*[("t", index) for index in range(size)], producer_id=producer_id)
        gate.set()
        await world.until_done(1 + len(sizes))
        assert [producers(request) for _, request in world.asked[1:]] == requests

    in_virtual_time(scenario)


def test_two_transactions_of_one_producer_are_sent_in_two_requests() -> None:
    async def scenario() -> None:
        gate = asyncio.Event()
        world = Timed({("t", 0): 2}, scripts={2: [gate]})
        world.send(("t", 0), producer_id=100)
        await asyncio.sleep(0)
        for producer_id in (7, 8, 7):
            world.send(("t", 0), producer_id=producer_id)
        gate.set()
        await world.until_done(4)
        assert [producers(request) for _, request in world.asked[1:]] == [[7, 8], [7]]

    in_virtual_time(scenario)


def test_queued_markers_of_a_closed_coordinator_are_dropped_and_the_node_gets_later_markers() -> None:
    async def scenario() -> None:
        gate = asyncio.Event()
        world = Timed({("t", 0): 2}, scripts={2: [gate]})
        world.send(("t", 0), producer_id=1)
        await asyncio.sleep(0)
        world.coordinator = SimpleNamespace(phase=Phase.ACTIVE, epoch=5)
        world.send(("t", 0), producer_id=2)
        world.send(("t", 0), producer_id=3)
        world.coordinator.phase = Phase.CLOSED
        gate.set()
        await world.until_done()
        await asyncio.sleep(1)
        world.coordinator = SimpleNamespace(phase=Phase.ACTIVE, epoch=6)
        world.send(("t", 0), producer_id=4)
        await world.until_done(2)
        assert [producers(request) for _, request in world.asked] == [[1], [4]]

    in_virtual_time(scenario)


def test_closed_sender_sends_neither_queued_nor_failed_markers() -> None:
    async def scenario() -> None:
        gate = asyncio.Event()
        world = Timed({("t", 0): 2, ("t", 1): -1}, scripts={2: [gate]})
        world.send(("t", 0), producer_id=1)
        world.send(("t", 1), producer_id=2)
        await asyncio.sleep(0)
        world.send(("t", 0), producer_id=3)
        world.sender.close()
        world.leaders["t", 1] = 3
        world.sender.image_changed()
        gate.set()
        await asyncio.sleep(10)
        assert [producers(request) for _, request in world.asked] == [[1]]

    in_virtual_time(scenario)


@pytest.mark.parametrize("failing", [0, 1])
def test_marker_that_a_new_leader_lacks_is_written_again_before_the_transaction_is_done(failing: int) -> None:
    async def scenario() -> None:
        world = Timed({("t", 0): HERE, ("t", 1): HERE}, high_watermark=9)
        errors: list[KafkaError | None] = [None, None]
        errors[failing] = KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "moved")
        world.commit_errors = errors
        world.send(("t", 0), ("t", 1))
        await asyncio.sleep(1)
        assert world.done == []
        world.high_watermark = 10
        world.moved.set()
        await asyncio.sleep(RETRY_SECONDS / 2)
        assert world.done == []
        assert len(world.written) == 2
        await world.until_done()
        assert [index for _, index, _ in world.written] == [0, 1, failing]
        assert len(world.done) == 1

    in_virtual_time(scenario)


@pytest.mark.parametrize("count", [marker_sender.MARKERS_AT_ONCE, marker_sender.MARKERS_AT_ONCE + 1])
def test_markers_of_a_closed_coordinator_are_not_written_after_the_current_slice(count: int) -> None:
    async def scenario() -> None:
        names = [("t", index) for index in range(count)]
        world = Timed(dict.fromkeys(names, HERE))
        world.send(*names)
        at_once = count <= marker_sender.MARKERS_AT_ONCE
        assert len(world.done) == at_once
        if not at_once:
            await asyncio.sleep(0)
        world.coordinator.phase = Phase.CLOSED
        await asyncio.sleep(1)
        assert len(world.written) == marker_sender.MARKERS_AT_ONCE
        assert len(world.done) == at_once

    in_virtual_time(scenario)
