"""Tests how a leader's proposals of in-sync sets reach the controller: together, again after errors, and only once."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.broker.replicas.isr_changes import IsrChanges
from penstock.metadata.image import PartitionImage
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_56_alter_partition import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    AlterPartitionResponsePartitionData,
    AlterPartitionResponseTopicData,
)
from penstock.replication.leader import Leading, Verdict
from penstock.sim.engine.loop import Timeline

TOPIC = b"t" * 16
IMAGE = PartitionImage(replicas=(1, 2, 3), isr=(1, 2, 3), leader=1, leader_epoch=4, partition_epoch=6)


class Led:
    """Replaces a partition that this node leads, and notes the controller's answers."""

    def __init__(self, index: int) -> None:
        self.topic_id, self.index = TOPIC, index
        self.leading: Leading | None = Leading(1, IMAGE, 0, 0)
        self.accepted: list[tuple[list[int], int, int]] = []
        self.refused: list[ErrorCode] = []

    def propose(self) -> None:
        assert self.leading is not None
        self.leading.shrink([3], 11)

    def isr_accepted(self, isr: list[int], leader_epoch: int, partition_epoch: int) -> None:
        self.accepted.append((isr, leader_epoch, partition_epoch))
        assert self.leading is not None
        self.leading.accepted(isr, leader_epoch, partition_epoch)

    def isr_refused(self, code: ErrorCode) -> Verdict:
        self.refused.append(code)
        assert self.leading is not None
        return self.leading.refused(code)


class Controller:
    """Answers each request with the next of the given errors; afterwards it grants everything at the same epoch."""

    def __init__(self, *errors: Exception | ErrorCode | dict[int, ErrorCode]) -> None:
        self._errors = list(errors)
        self.asked: list[AlterPartitionRequest] = []

    async def ask(self, request: AlterPartitionRequest, *, timeout_ms: int) -> AlterPartitionResponse:
        self.asked.append(request)
        error = self._errors.pop(0) if self._errors else {}
        if isinstance(error, Exception):
            raise error
        if isinstance(error, ErrorCode):
            return AlterPartitionResponse(error_code=error)
        answers = [
            AlterPartitionResponsePartitionData(
                partition_index=each.partition_index,
                error_code=error.get(each.partition_index, ErrorCode.NONE),
                isr=[member.broker_id for member in each.new_isr_with_epochs],
                leader_epoch=each.leader_epoch,
                partition_epoch=each.partition_epoch,
            )
            for each in request.topics[0].partitions
        ]
        return AlterPartitionResponse(topics=[AlterPartitionResponseTopicData(topic_id=TOPIC, partitions=answers)])

    @property
    def indexes(self) -> list[list[int]]:
        return [[each.partition_index for topic in one.topics for each in topic.partitions] for one in self.asked]


def run(work: Coroutine[Any, Any, None]) -> None:
    timeline = Timeline(random.Random(1))
    timeline.run(work, timeline.process("test"), until=1_000)
    timeline.end()
    assert not timeline.failures


def submitted(controller: Controller, *partitions: Led, seconds: float = 60) -> IsrChanges:
    """Submits the proposals of all partitions, and returns the sender after some time."""
    changes = IsrChanges(1, cast(Any, controller), lambda: 11)

    async def work() -> None:
        for each in partitions:
            changes.submit(cast(Any, each))
        await asyncio.sleep(seconds)
        await changes.close()

    run(work())
    return changes


def proposing(*indexes: int) -> list[Led]:
    partitions = [Led(index) for index in indexes]
    for each in partitions:
        each.propose()
    return partitions


def test_all_waiting_isr_changes_are_sent_to_the_controller_in_one_request() -> None:
    partitions, controller = proposing(0, 1), Controller()
    changes = submitted(controller, *partitions)
    assert controller.indexes == [[0, 1]]
    assert (controller.asked[0].broker_id, controller.asked[0].broker_epoch) == (1, 11)
    asked = controller.asked[0].topics[0].partitions[0]
    assert (asked.leader_epoch, asked.partition_epoch) == (4, 6)
    assert [(each.broker_id, each.broker_epoch) for each in asked.new_isr_with_epochs] == [(1, 11), (2, -1)]
    assert [each.accepted for each in partitions] == [[([1, 2], 4, 6)]] * 2
    assert changes.refusals == 0


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(KafkaError(ErrorCode.REQUEST_TIMED_OUT, "nobody"), id="no answer"),
        pytest.param(ValueError("odd"), id="unexpected"),
        pytest.param(ErrorCode.NOT_CONTROLLER, id="whole request refused"),
    ],
)
def test_all_isr_changes_of_a_failed_request_are_sent_again(error: Exception | ErrorCode) -> None:
    partitions, controller = proposing(0, 1), Controller(error)
    changes = submitted(controller, *partitions)
    assert controller.indexes == [[0, 1], [0, 1]]
    assert [len(each.accepted) for each in partitions] == [1, 1]
    assert [each.refused for each in partitions] == [[], []]
    assert changes.refusals == 0


def test_only_the_refused_isr_change_of_a_request_is_sent_again() -> None:
    partitions, controller = proposing(0, 1), Controller({1: ErrorCode.UNKNOWN_SERVER_ERROR})
    changes = submitted(controller, *partitions)
    assert controller.indexes == [[0, 1], [1]]
    assert [len(each.accepted) for each in partitions] == [1, 1]
    assert [each.refused for each in partitions] == [[], [ErrorCode.UNKNOWN_SERVER_ERROR]]
    assert changes.refusals == 1


@pytest.mark.parametrize(
    "error",
    [
        KafkaError(ErrorCode.REQUEST_TIMED_OUT, "nobody"),
        ValueError("odd"),
        ErrorCode.NOT_CONTROLLER,
        {0: ErrorCode.UNKNOWN_SERVER_ERROR},
    ],
)
def test_isr_change_that_replaces_a_proposal_in_flight_is_sent_after_the_first_request_failed(
    error: Exception | ErrorCode | dict[int, ErrorCode],
) -> None:
    """Else the new proposal, which is never answered, would hold back the high watermark."""
    [partition], controller = proposing(0), Controller(error)
    changes = IsrChanges(1, cast(Any, controller), lambda: 11)
    answer = controller.ask

    async def ask(request: AlterPartitionRequest, *, timeout_ms: int) -> AlterPartitionResponse:
        if not controller.asked:
            leading = partition.leading
            assert leading is not None
            leading.follow(replace(IMAGE, isr=(1, 2), partition_epoch=7), 0)
            leading.shrink([2], 11)
            changes.submit(cast(Any, partition))
        return await answer(request, timeout_ms=timeout_ms)

    controller.ask = ask  # type: ignore[method-assign]

    async def work() -> None:
        changes.submit(cast(Any, partition))
        await asyncio.sleep(60)
        await changes.close()

    run(work())
    sent = [each.topics[0].partitions[0] for each in controller.asked]
    assert [each.partition_epoch for each in sent] == [6, 7]
    assert partition.accepted == [([1], 4, 7)]


def test_isr_change_refused_with_invalid_update_version_is_not_sent_again() -> None:
    partitions, controller = proposing(0), Controller({0: ErrorCode.INVALID_UPDATE_VERSION})
    changes = submitted(controller, *partitions)
    assert (len(controller.asked), changes.refusals) == (1, 1)
    assert partitions[0].accepted == []


def test_isr_change_of_a_former_leader_is_not_sent_again() -> None:
    partitions, controller = proposing(0, 1), Controller(KafkaError(ErrorCode.REQUEST_TIMED_OUT, "nobody"))
    changes = IsrChanges(1, cast(Any, controller), lambda: 11)

    async def work() -> None:
        for each in partitions:
            changes.submit(cast(Any, each))
        await asyncio.sleep(0.01)
        partitions[0].leading = None
        await asyncio.sleep(60)
        await changes.close()

    run(work())
    assert controller.indexes == [[0, 1], [1]]


def test_closed_sender_of_isr_changes_sends_no_request() -> None:
    controller = Controller()
    submitted(controller, Led(0), cast(Led, SimpleNamespace(leading=None)))
    assert controller.asked == []
    (late,) = proposing(0)
    changes = submitted(controller)

    async def work() -> None:
        changes.submit(cast(Any, late))
        await asyncio.sleep(1)

    run(work())
    assert (changes._waiting, controller.asked) == ({}, [])


def test_sender_that_is_closed_during_the_pause_after_an_error_sends_no_further_request() -> None:
    controller = Controller(*[KafkaError(ErrorCode.REQUEST_TIMED_OUT, "nobody")] * 5)
    (partition,) = proposing(0)
    changes = submitted(controller, partition, seconds=0.01)

    async def work() -> None:
        await asyncio.sleep(60)

    run(work())
    assert (len(controller.asked), changes._requests.closed) == (1, True)


@pytest.mark.parametrize(
    ("after", "shrinks", "expands"),
    [((1, 2), 1, 0), ((1, 2, 3, 4), 0, 1), ((1, 2, 4), 1, 1), ((3, 2, 1), 0, 0)],
)
def test_isr_change_counts_as_a_shrink_if_a_member_left_and_as_an_expand_if_a_member_joined(
    after: tuple[int, ...], shrinks: int, expands: int
) -> None:
    changes = IsrChanges(1, cast(Any, Controller()), lambda: 11)
    before = PartitionImage(replicas=(1, 2, 3, 4), isr=(1, 2, 3), leader=1)
    changes.count(before, PartitionImage(replicas=(1, 2, 3, 4), isr=after, leader=1))
    assert (changes.shrinks, changes.expands) == (shrinks, expands)
    changes.count(before, PartitionImage(replicas=(1, 2, 3, 4), isr=after, leader=2))
    assert (changes.shrinks, changes.expands) == (shrinks, expands)
