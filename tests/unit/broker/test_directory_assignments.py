"""Tests how a broker reports the directories of its replicas: only changes, in one request, until it succeeds."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from typing import Any, cast

import pytest

from penstock.broker.replicas.directory_assignments import DirectoryAssignments
from penstock.broker.replicas.partition import Partition
from penstock.broker.replicas.partition_host import PartitionHost
from penstock.metadata.image import PartitionImage
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_73_assign_replicas_to_dirs import (
    AssignReplicasToDirsResponse,
    AssignReplicasToDirsResponseDirectoryData,
    AssignReplicasToDirsResponsePartitionData,
    AssignReplicasToDirsResponseTopicData,
)
from penstock.sim.engine.loop import Timeline

OLD, NEW, OTHER = b"o" * 16, b"n" * 16, b"x" * 16
TOPIC = b"t" * 16


class Channel:
    def __init__(self, *answers: AssignReplicasToDirsResponse | KafkaError) -> None:
        self.answers = list(answers)
        self.asked: list[Any] = []

    async def ask(self, request: Any, *, timeout_ms: int | None = None) -> Any:
        self.asked.append(request)
        answer = self.answers.pop(0) if self.answers else AssignReplicasToDirsResponse()
        if isinstance(answer, KafkaError):
            raise answer
        return answer


def partition(index: int, *directories: bytes) -> Partition:
    image = PartitionImage(replicas=(1, 2), isr=(1, 2), leader=1, directories=directories)
    return Partition("t", TOPIC, index, image, PartitionHost(2, cast(Any, None)))


def run(work: Coroutine[Any, Any, None]) -> None:
    timeline = Timeline(random.Random(1))
    timeline.run(work, timeline.process("test"), until=1_000)
    timeline.end()


def told(*placed: tuple[Partition, bytes], channel: Channel) -> list[Any]:
    async def work() -> None:
        places = DirectoryAssignments(2, cast(Any, channel), lambda: 7)
        for each, directory in placed:
            places.placed(each, directory)
        await asyncio.sleep(60)
        await places.close()

    run(work())
    return channel.asked


def test_broker_does_not_report_a_replica_whose_directory_the_metadata_already_has() -> None:
    assert told((partition(0, OTHER, NEW), NEW), channel=Channel()) == []


def test_all_moved_replicas_are_reported_in_one_request_grouped_by_directory() -> None:
    asked = told((partition(0, OTHER, OLD), NEW), (partition(1, OTHER, OLD), NEW), channel=Channel())
    assert len(asked) == 1
    assert (asked[0].broker_id, asked[0].broker_epoch) == (2, 7)
    (directory,) = asked[0].directories
    assert directory.id == NEW
    assert [part.partition_index for part in directory.topics[0].partitions] == [0, 1]


def test_broker_repeats_a_directory_report_until_it_succeeds() -> None:
    refused = AssignReplicasToDirsResponse(error_code=ErrorCode.STALE_BROKER_EPOCH)
    channel = Channel(KafkaError(ErrorCode.REQUEST_TIMED_OUT, "nobody"), refused)
    assert len(told((partition(0, OTHER, OLD), NEW), channel=channel)) == 3


def test_report_of_another_directory_replaces_a_report_that_was_not_sent_yet() -> None:
    channel, moved = Channel(), partition(0, OTHER, OLD)

    async def work() -> None:
        places = DirectoryAssignments(2, cast(Any, channel), lambda: 7)
        replaced = asyncio.ensure_future(places.assigned(moved, NEW))
        again = asyncio.ensure_future(places.assigned(moved, NEW))
        await asyncio.sleep(0)
        places.report(moved, OTHER)
        for each in (replaced, again):
            with pytest.raises(KafkaError) as error:
                await asyncio.wait_for(each, 5)
            assert error.value.code is ErrorCode.REQUEST_TIMED_OUT
        await asyncio.sleep(1)
        await places.close()

    run(work())
    assert [each.id for request in channel.asked for each in request.directories] == [OTHER]


def test_two_callers_wait_for_the_same_report_and_a_refusal_concerns_only_its_replica() -> None:
    refusal = AssignReplicasToDirsResponsePartitionData(partition_index=1, error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER)
    topic = AssignReplicasToDirsResponseTopicData(topic_id=TOPIC, partitions=[refusal])
    directory = AssignReplicasToDirsResponseDirectoryData(id=NEW, topics=[topic])
    channel = Channel(AssignReplicasToDirsResponse(directories=[directory]))
    accepted, refused = partition(0, OTHER, OLD), partition(1, OTHER, OLD)

    async def work() -> None:
        places = DirectoryAssignments(2, cast(Any, channel), lambda: 7)
        first, second = (asyncio.ensure_future(places.assigned(accepted, NEW)) for _ in range(2))
        third = asyncio.ensure_future(places.assigned(refused, NEW))
        await asyncio.wait_for(asyncio.gather(first, second), 5)
        with pytest.raises(KafkaError) as error:
            await asyncio.wait_for(third, 5)
        assert error.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
        await asyncio.sleep(5)
        await places.close()

    run(work())
    assert len(channel.asked) == 1


def test_closed_broker_reports_no_directory_any_more() -> None:
    channel = Channel(*[KafkaError(ErrorCode.REQUEST_TIMED_OUT, "nobody")] * 3)

    async def work() -> None:
        places = DirectoryAssignments(2, cast(Any, channel), lambda: 7)
        places.placed(partition(0, OTHER, OLD), NEW)
        await asyncio.sleep(0.01)
        await places.close()
        places.placed(partition(1, OTHER, OLD), NEW)
        await asyncio.sleep(60)

    run(work())
    assert len(channel.asked) == 1
