"""Tests how a broker reports the directories of its replicas: only changes, in one request, until it succeeds."""

from __future__ import annotations

import asyncio
import random
from typing import Any, cast

from penstock.broker.replicas.directory_assignments import DirectoryAssignments
from penstock.broker.replicas.partition import Partition
from penstock.broker.replicas.partition_host import PartitionHost
from penstock.metadata.image import PartitionImage
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_73_assign_replicas_to_dirs import AssignReplicasToDirsResponse
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


def told(*placed: tuple[Partition, bytes], channel: Channel) -> list[Any]:
    async def work() -> None:
        places = DirectoryAssignments(2, cast(Any, channel), lambda: 7)
        for each, directory in placed:
            places.placed(each, directory)
        await asyncio.sleep(60)
        await places.close()

    timeline = Timeline(random.Random(1))
    timeline.run(work(), timeline.process("test"), until=1_000)
    timeline.end()
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
