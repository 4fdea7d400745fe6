"""Tests reports of directories that meet other reports: in flight, cancelled, or more than fit into one request."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from typing import Any, cast

import pytest

from penstock.broker.replicas import directory_assignments
from penstock.broker.replicas.directory_assignments import DirectoryAssignments
from penstock.broker.replicas.partition import Partition
from penstock.broker.replicas.partition_host import PartitionHost
from penstock.metadata.image import PartitionImage
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_73_assign_replicas_to_dirs import (
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
    AssignReplicasToDirsResponseDirectoryData,
    AssignReplicasToDirsResponsePartitionData,
    AssignReplicasToDirsResponseTopicData,
)
from penstock.sim.engine.loop import Timeline

OLD, NEW, OTHER = b"o" * 16, b"n" * 16, b"x" * 16
T, U = b"t" * 16, b"u" * 16
#: A report: directory, topic id, partition.
Report = tuple[bytes, bytes, int]


class Controller:
    """Parks every request until the test answers it."""

    def __init__(self) -> None:
        self.asked: list[AssignReplicasToDirsRequest] = []
        self.answers: list[asyncio.Future[AssignReplicasToDirsResponse]] = []

    async def ask(self, request: AssignReplicasToDirsRequest, *, timeout_ms: int) -> AssignReplicasToDirsResponse:
        self.asked.append(request)
        self.answers.append(asyncio.get_running_loop().create_future())
        return await self.answers[-1]

    async def answer(self, number: int, *refused: Report) -> None:
        """Waits for the request with this number, beginning with 1, and refuses some of its reports."""
        await asyncio.sleep(0.01)
        assert len(self.asked) == number
        directories = [
            AssignReplicasToDirsResponseDirectoryData(
                id=directory,
                topics=[
                    AssignReplicasToDirsResponseTopicData(
                        topic_id=topic,
                        partitions=[
                            AssignReplicasToDirsResponsePartitionData(
                                partition_index=index,
                                error_code=ErrorCode.INVALID_REQUEST
                                if (directory, topic, index) in refused
                                else ErrorCode.NONE,
                            )
                        ],
                    )
                ],
            )
            for directory, topic, index in self.reports(number)
        ]
        self.answers[-1].set_result(AssignReplicasToDirsResponse(directories=directories))
        await asyncio.sleep(0.01)

    def reports(self, number: int) -> list[Report]:
        return [
            (directory.id, topic.topic_id, each.partition_index)
            for directory in self.asked[number - 1].directories
            for topic in directory.topics
            for each in topic.partitions
        ]


def partition(index: int, topic_id: bytes = T) -> Partition:
    image = PartitionImage(replicas=(1, 2), isr=(1, 2), leader=1, directories=(OTHER, OLD))
    return Partition("t", topic_id, index, image, PartitionHost(2, cast(Any, None)))


def run(work: Coroutine[Any, Any, None]) -> None:
    timeline = Timeline(random.Random(1))
    timeline.run(work, timeline.process("test"), until=1_000)
    timeline.end()
    assert not timeline.failures


def sender(controller: Controller) -> DirectoryAssignments:
    return DirectoryAssignments(2, cast(Any, controller), lambda: 7)


def code_of(task: asyncio.Task[None]) -> ErrorCode:
    """Returns the error of a caller that no longer waits."""
    assert task.done()
    error = task.exception()
    return error.code if isinstance(error, KafkaError) else ErrorCode.NONE


def test_one_request_groups_its_replicas_by_directory_and_topic() -> None:
    async def work() -> None:
        controller = Controller()
        places = sender(controller)
        reports = [(directory, topic, index) for index in (0, 1) for topic in (T, U) for directory in (NEW, OTHER)]
        partitions = {(directory, topic, index): partition(index, topic) for directory, topic, index in reports}
        for report, each in partitions.items():
            places.placed(each, report[0])
        await controller.answer(1)
        assert sorted(controller.reports(1)) == sorted(reports)
        directories = controller.asked[0].directories
        assert [each.id for each in directories] == [NEW, OTHER]
        assert [[topic.topic_id for topic in each.topics] for each in directories] == [[T, U], [T, U]]
        await asyncio.sleep(60)
        assert len(controller.asked) == 1
        await places.close()

    run(work())


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
def test_more_replicas_than_fit_into_a_request_are_sent_in_the_next_one(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directory_assignments, "MAX_REPLICAS", 2)

    async def work() -> None:
        controller = Controller()
        places = sender(controller)
        callers = [asyncio.ensure_future(places.assigned(partition(index), NEW)) for index in range(count)]
        sizes = [min(2, count - sent) for sent in range(0, count, 2)]
        for number, size in enumerate(sizes, 1):
            await controller.answer(number)
            assert [index for _, _, index in controller.reports(number)] == [2 * number - 2, 2 * number - 1][:size]
            assert [each.done() for each in callers] == [index < 2 * number for index in range(count)]
        await asyncio.sleep(60)
        assert len(controller.asked) == len(sizes)
        await places.close()

    run(work())


def test_directory_that_changes_during_a_request_is_reported_in_the_next_request() -> None:
    async def work() -> None:
        controller = Controller()
        places, moved, stays = sender(controller), partition(0), partition(1)
        callers = [asyncio.ensure_future(places.assigned(each, NEW)) for each in (moved, stays)]
        await asyncio.sleep(0.01)
        back = asyncio.ensure_future(places.assigned(moved, OTHER))
        await controller.answer(1)
        assert controller.reports(1) == [(NEW, T, 0), (NEW, T, 1)]
        assert [code_of(each) for each in callers] == [ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NONE]
        assert not back.done()
        await controller.answer(2)
        assert (controller.reports(2), code_of(back)) == ([(OTHER, T, 0)], ErrorCode.NONE)
        await asyncio.sleep(60)
        assert len(controller.asked) == 2
        await places.close()

    run(work())


@pytest.mark.parametrize("refused", [(NEW, T, 0), (NEW, T, 1), (NEW, U, 0), (OTHER, T, 2)])
def test_refusal_reaches_only_the_caller_of_the_same_directory_topic_and_partition(refused: Report) -> None:
    async def work() -> None:
        controller = Controller()
        places = sender(controller)
        reports = [(NEW, T, 0), (NEW, T, 1), (NEW, U, 0), (OTHER, T, 2)]
        callers = [
            asyncio.ensure_future(places.assigned(partition(index, topic), directory))
            for directory, topic, index in reports
        ]
        await controller.answer(1, refused)
        assert [code_of(each) for each in callers] == [
            ErrorCode.INVALID_REQUEST if each == refused else ErrorCode.NONE for each in reports
        ]
        await asyncio.sleep(60)
        assert len(controller.asked) == 1, "a refused report is not repeated"
        await places.close()

    run(work())


@pytest.mark.parametrize("refuses", [False, True])
def test_caller_that_stopped_waiting_does_not_disturb_the_other_callers(refuses: bool) -> None:
    async def work() -> None:
        controller = Controller()
        places, moved = sender(controller), partition(0)
        callers = [asyncio.ensure_future(places.assigned(moved, NEW)) for _ in range(3)]
        await asyncio.sleep(0.01)
        callers[0].cancel()
        await controller.answer(1, *([(NEW, T, 0)] if refuses else []))
        assert callers[0].cancelled()
        expected = ErrorCode.INVALID_REQUEST if refuses else ErrorCode.NONE
        assert [code_of(each) for each in callers[1:]] == [expected] * 2
        assert places._answers == {}
        await places.close()

    run(work())


def test_replica_is_reported_on_request_even_if_the_metadata_has_its_directory() -> None:
    async def work() -> None:
        controller = Controller()
        places = sender(controller)
        places.placed(partition(0), OLD)
        await asyncio.sleep(1)
        assert controller.asked == []
        places.report(partition(0), OLD)
        await controller.answer(1)
        assert controller.reports(1) == [(OLD, T, 0)]
        await places.close()

    run(work())


@pytest.mark.parametrize("seed", range(20))
def test_controller_has_the_last_reported_directories_and_every_caller_an_answer(seed: int) -> None:
    rng = random.Random(seed)

    async def work() -> None:
        controller = Controller()
        places, partitions = sender(controller), [partition(index) for index in range(4)]
        last: dict[int, bytes] = {}
        replaced: set[asyncio.Task[None]] = set()
        #: Callers with their partition, their directory and the number of requests before their call.
        callers: list[tuple[asyncio.Task[None], int, bytes, int]] = []
        accepted: list[dict[int, bytes]] = []
        refused: list[dict[int, bytes]] = []

        def answer(*, faults: bool) -> None:
            number = len(controller.answers)
            if not number or controller.answers[-1].done():
                return
            kind = rng.choice(("granted", "granted", "some refused", "error", "lost")) if faults else "granted"
            reports = {index: directory for directory, _, index in controller.reports(number)}
            bad = {index for index in reports if kind == "some refused" and rng.random() < 0.5}
            if kind == "lost":
                controller.answers[-1].set_exception(KafkaError(ErrorCode.REQUEST_TIMED_OUT, "No answer."))
            elif kind == "error":
                response = AssignReplicasToDirsResponse(error_code=ErrorCode.NOT_CONTROLLER)
                controller.answers[-1].set_result(response)
            else:
                accepted.append({index: each for index, each in reports.items() if index not in bad})
                refused.append({index: each for index, each in reports.items() if index in bad})
                topics = {
                    directory: AssignReplicasToDirsResponseTopicData(topic_id=T) for directory in set(reports.values())
                }
                for index, directory in reports.items():
                    code = ErrorCode.INVALID_REQUEST if index in bad else ErrorCode.NONE
                    one = AssignReplicasToDirsResponsePartitionData(partition_index=index, error_code=code)
                    topics[directory].partitions.append(one)
                data = [
                    AssignReplicasToDirsResponseDirectoryData(id=each, topics=[one]) for each, one in topics.items()
                ]
                controller.answers[-1].set_result(AssignReplicasToDirsResponse(directories=data))

        for _ in range(60):
            await asyncio.sleep(rng.choice((0, 0.01, 0.3)))
            index, directory = rng.randrange(4), rng.choice((NEW, OTHER))
            kind = rng.choice(("answer", "answer", "report", "assigned"))
            if kind == "answer":
                answer(faults=True)
                continue
            last[index] = directory
            replaced |= {call for call, at, to, _ in callers if at == index and to != directory}
            if kind == "report":
                places.report(partitions[index], directory)
            else:
                call = asyncio.ensure_future(places.assigned(partitions[index], directory))
                callers.append((call, index, directory, len(accepted)))
                await asyncio.sleep(0)
        for _ in range(10):
            await asyncio.sleep(2)
            answer(faults=False)
        await asyncio.sleep(1)
        for index, directory in last.items():
            answers = [each for each in zip(accepted, refused, strict=True) if index in each[0] or index in each[1]]
            assert directory in (answers[-1][0].get(index), answers[-1][1].get(index))
        for call, index, directory, before in callers:
            code = code_of(call)
            assert code in (ErrorCode.NONE, ErrorCode.INVALID_REQUEST, ErrorCode.REQUEST_TIMED_OUT)
            if code is ErrorCode.REQUEST_TIMED_OUT:
                assert call in replaced
            else:
                matching = accepted if code is ErrorCode.NONE else refused
                assert directory in [each.get(index) for each in matching[before:]]
        asked = len(controller.asked)
        await asyncio.sleep(60)
        assert len(controller.asked) == asked, "nothing is reported again"
        await places.close()

    run(work())
