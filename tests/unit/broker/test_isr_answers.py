"""Tests all combinations of answers to the proposals in one AlterPartition request, of two topics."""

from __future__ import annotations

import asyncio
import random
from itertools import product
from typing import Any, cast

import pytest

from penstock.broker.replicas.isr_changes import IsrChanges
from penstock.metadata.image import PartitionImage
from penstock.protocol.errors import ErrorCode
from penstock.protocol.messages.api_56_alter_partition import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    AlterPartitionResponsePartitionData,
    AlterPartitionResponseTopicData,
)
from penstock.replication.leader import Leading, Verdict
from penstock.sim.engine.loop import Timeline

T, U = b"t" * 16, b"u" * 16
IMAGE = PartitionImage(replicas=(1, 2, 3), isr=(1, 2), leader=1, leader_epoch=4, partition_epoch=6)
#: What the controller answers to a proposal, or what happens to the partition before the answer arrives.
KINDS = ("granted", "granted later", "retry", "wait", "missing", "new leader epoch", "new proposal", "stopped")
REFUSED = {
    "retry": ErrorCode.UNKNOWN_SERVER_ERROR,
    "missing": ErrorCode.UNKNOWN_SERVER_ERROR,
    "wait": ErrorCode.INVALID_UPDATE_VERSION,
}


class Led:
    """Replaces a partition that this node leads, and notes the controller's answers."""

    def __init__(self, topic_id: bytes, index: int, *, expands: bool) -> None:
        self.topic_id, self.index, self.expands = topic_id, index, expands
        self.leading: Leading | None = Leading(1, IMAGE, 0, 0)
        self.seen: list[object] = []
        self.propose()

    def propose(self) -> None:
        assert self.leading is not None
        if self.expands:
            self.leading.expand(3, 11)
        else:
            self.leading.shrink([2], 11)

    def isr_accepted(self, isr: list[int], leader_epoch: int, partition_epoch: int) -> None:
        self.seen.append((isr, leader_epoch, partition_epoch))
        assert self.leading is not None
        self.leading.accepted(isr, leader_epoch, partition_epoch)

    def isr_refused(self, code: ErrorCode) -> Verdict:
        self.seen.append(code)
        assert self.leading is not None
        return self.leading.refused(code)

    def expected(self, kind: str) -> tuple[list[object], bool]:
        """Returns the answers that the partition has to hear, and whether its proposal is in a second request."""
        isr = [1, 2, 3] if self.expands else [1]
        granted = (isr, 4, 6)
        match kind:
            case "granted":
                return [granted], False
            case "granted later":
                return ([(isr, 4, 7)] if self.expands else []), False  # a smaller set counts with the next image
            case "retry" | "missing":
                return [REFUSED[kind], granted], True
            case "wait":
                return [REFUSED[kind]], False
            case "new proposal":
                return [granted], True
            case _:
                return [], False


class Controller:
    """Answers the first request as the test says, and grants everything in later requests."""

    def __init__(self, kinds: dict[tuple[bytes, int], str]) -> None:
        self.kinds = kinds
        self.partitions: dict[tuple[bytes, int], Led] = {}
        self.changes = IsrChanges(1, cast(Any, self), lambda: 11)
        self.asked: list[list[tuple[bytes, int]]] = []

    async def ask(self, request: AlterPartitionRequest, *, timeout_ms: int) -> AlterPartitionResponse:
        kinds = {} if self.asked else self.kinds
        asked = {(topic.topic_id, each.partition_index): each for topic in request.topics for each in topic.partitions}
        self.asked.append(list(asked))
        await asyncio.sleep(0.01)
        response = AlterPartitionResponse()
        for (topic_id, index), each in asked.items():
            kind = kinds.get((topic_id, index), "granted")
            self._change(self.partitions[topic_id, index], kind)
            if kind == "missing":
                continue
            answer = AlterPartitionResponsePartitionData(
                partition_index=index,
                error_code=REFUSED.get(kind, ErrorCode.NONE),
                isr=[member.broker_id for member in each.new_isr_with_epochs],
                leader_epoch=each.leader_epoch,
                partition_epoch=each.partition_epoch + (kind == "granted later"),
            )
            response.topics.append(AlterPartitionResponseTopicData(topic_id=topic_id, partitions=[answer]))
        return response

    def _change(self, partition: Led, kind: str) -> None:
        if kind == "new leader epoch":
            partition.leading = Leading(1, IMAGE, 0, 0)
        elif kind == "stopped":
            partition.leading = None
        elif kind == "new proposal":
            partition.propose()
            self.changes.submit(cast(Any, partition))


@pytest.mark.parametrize("expands", [False, True])
def test_each_partition_hears_only_the_answer_to_its_present_proposal(expands: bool) -> None:
    keys = ((T, 0), (T, 1), (U, 0))

    async def work() -> None:
        for kinds in product(KINDS, repeat=3):
            controller = Controller(dict(zip(keys, kinds, strict=True)))
            controller.partitions = {key: Led(*key, expands=expands) for key in keys}
            for each in controller.partitions.values():
                controller.changes.submit(cast(Any, each))
            await asyncio.sleep(5)
            expected = [each.expected(kind) for each, kind in zip(controller.partitions.values(), kinds, strict=True)]
            assert [each.seen for each in controller.partitions.values()] == [seen for seen, _ in expected], kinds
            again = {key for key, (_, repeats) in zip(keys, expected, strict=True) if repeats}
            assert [set(each) for each in controller.asked] == [set(keys), again][: 1 + bool(again)], kinds
            assert controller.changes.refusals == sum(kind in REFUSED for kind in kinds), kinds
            await controller.changes.close()

    timeline = Timeline(random.Random(1))
    timeline.run(work(), timeline.process("test"), until=10_000)
    timeline.end()
    assert not timeline.failures
