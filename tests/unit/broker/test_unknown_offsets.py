"""Tests OffsetCommit and OffsetDelete of missing topics and partitions."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from penstock.broker.handlers import api_08_offset_commit, api_47_offset_delete
from penstock.protocol.messages.api_08_offset_commit import (
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from penstock.protocol.messages.api_47_offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)

THERE, ASKED = 100, 2_000


def test_unknown_partitions_are_removed_from_an_offset_delete_request_in_linear_time() -> None:
    compared: list[int] = []

    class Index(int):
        __hash__ = int.__hash__

        def __eq__(self, other: object) -> bool:
            compared.append(1)
            return int.__eq__(self, other) is True

    image: Any = SimpleNamespace(topics={"t": SimpleNamespace(partitions=dict.fromkeys(range(THERE)))})
    partitions = [OffsetDeleteRequestPartition(partition_index=Index(index)) for index in range(ASKED)]
    request = OffsetDeleteRequest(group_id="g", topics=[OffsetDeleteRequestTopic(name="t", partitions=partitions)])
    unknown = api_47_offset_delete._remove_unknown(image, request)
    assert len(request.topics[0].partitions) == THERE
    assert len(unknown["t"].partitions) == ASKED - THERE
    assert len(compared) < 5 * ASKED


def test_results_of_unknown_topics_are_merged_into_an_offset_commit_response_in_linear_time() -> None:
    compared: list[int] = []

    class Name(str):
        __slots__ = ()
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            compared.append(1)
            return str.__eq__(self, other) is True

    def answers(name: str, count: int, first: int) -> list[OffsetCommitResponseTopic]:
        return [
            OffsetCommitResponseTopic(
                name=Name(f"{name}{index}"), partitions=[OffsetCommitResponsePartition(partition_index=first)]
            )
            for index in range(count)
        ]

    response = OffsetCommitResponse(topics=answers("there", ASKED, 0))
    refused = dict(enumerate([*answers("there", THERE, 1), *answers("gone", ASKED, 1)]))
    merged = api_08_offset_commit._merge(response, refused)
    assert len(merged.topics) == 2 * ASKED
    told = {str(topic.name): [part.partition_index for part in topic.partitions] for topic in merged.topics}
    assert told["there0"] == [0, 1]
    assert told[f"there{ASKED - 1}"] == [0]
    assert told["gone0"] == [1]
    assert len(compared) < 5 * ASKED
