"""Describes share groups, moves and deletes their offsets, and shows, releases or archives their records in flight.

Descriptions and offsets use requests that any Kafka broker from 4.2 on serves. Records in flight need Penstock brokers:
these requests go to the leaders of the partitions.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from penstock.client.client import AsyncClient
from penstock.client.errors import code_of
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages import api_77_share_group_describe as describing
from penstock.protocol.messages import api_79_share_acknowledge as acknowledging
from penstock.protocol.messages import api_90_describe_share_group_offsets as offsets_api
from penstock.protocol.messages import api_91_alter_share_group_offsets as altering
from penstock.protocol.messages import api_92_delete_share_group_offsets as deleting
from penstock.protocol.vocabulary import SHARE_OPERATOR, Acknowledge, TopicPartition

SHARE = "share"
FINAL_EPOCH = -1
PARTITIONS_AT_ONCE = 100
Window = dict[str, Any]


class Refusal(NamedTuple):
    """Describes one item of a change that the cluster refused: a group, topic or partition, with the error."""

    what: str
    code: int
    message: str | None


class Place(NamedTuple):
    """Holds a partition, and the node that leads it."""

    leader: int
    topic: str
    topic_id: bytes
    partition: int


class ShareAdmin:
    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def describe(self, group: str) -> describing.DescribedGroup:
        """Describes a share group with its members. Raises KafkaError(GROUP_ID_NOT_FOUND) if there is no such group."""
        request = describing.ShareGroupDescribeRequest(group_ids=[group])
        [described] = (await self._client.ask_coordinator(group, request)).groups
        if described.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no share group {group!r}")
        _raise_for(group, described.error_code, described.error_message)
        found: describing.DescribedGroup = described
        return found

    async def offsets(self, group: str) -> list[tuple[str, offsets_api.DescribeShareGroupOffsetsResponsePartition]]:
        """Returns pairs (topic name, partition entry) of DescribeShareGroupOffsets, one for each partition of the
        group.

        Raises KafkaError for the first error.
        """
        wanted = offsets_api.DescribeShareGroupOffsetsRequestGroup(group_id=group, topics=None)
        request = offsets_api.DescribeShareGroupOffsetsRequest(groups=[wanted])
        [found] = (await self._client.ask_coordinator(group, request)).groups
        _raise_for(group, found.error_code, found.error_message)
        for topic in found.topics:
            for part in topic.partitions:
                _raise_for(f"{topic.topic_name}-{part.partition_index}", part.error_code, part.error_message)
        return [(topic.topic_name, part) for topic in found.topics for part in topic.partitions]

    async def alter_offsets(self, group: str, target: Mapping[TopicPartition, int]) -> list[Refusal]:
        """Sets the start offsets of a group without members.

        Returns an error for each refused partition, or one error if the whole request was refused.
        """
        topics: dict[str, altering.AlterShareGroupOffsetsRequestTopic] = {}
        for (name, index), offset in sorted(target.items()):
            topic = topics.setdefault(name, altering.AlterShareGroupOffsetsRequestTopic(topic_name=name, partitions=[]))
            part = altering.AlterShareGroupOffsetsRequestPartition(partition_index=index, start_offset=offset)
            topic.partitions.append(part)
        request = altering.AlterShareGroupOffsetsRequest(group_id=group, topics=list(topics.values()))
        answer = await self._client.ask_coordinator(group, request)
        if answer.error_code:
            return [Refusal(group, answer.error_code, answer.error_message)]
        return [
            Refusal(f"{topic.topic_name}-{part.partition_index}", part.error_code, part.error_message)
            for topic in answer.responses
            for part in topic.partitions
            if part.error_code
        ]

    async def delete_offsets(self, group: str, topics: Iterable[str]) -> list[Refusal]:
        """Deletes a group's offsets in these topics.

        Returns an error for each refused topic, or one error if the whole request was refused.
        """
        wanted = [deleting.DeleteShareGroupOffsetsRequestTopic(topic_name=topic) for topic in topics]
        request = deleting.DeleteShareGroupOffsetsRequest(group_id=group, topics=wanted)
        answer = await self._client.ask_coordinator(group, request)
        if answer.error_code:
            return [Refusal(group, answer.error_code, answer.error_message)]
        return [
            Refusal(f"{group} {each.topic_name}", each.error_code, each.error_message)
            for each in answer.responses
            if each.error_code
        ]

    # Records in flight.

    async def windows(self, group: str, topics: Iterable[str] = ()) -> list[Window]:
        """Describes the records in flight of each partition of the group: state, offsets and counts.

        If `topics` is empty, describes all topics.
        """
        return await self.windows_of(group, await self.partitions(group, topics))

    async def partitions(self, group: str, topics: Iterable[str] = ()) -> list[TopicPartition]:
        """Returns the partitions in which the group has offsets, sorted; of all topics if `topics` is empty."""
        wanted = [(topic, part.partition_index) for topic, part in await self.offsets(group)]
        chosen = set(topics)
        missing = sorted(chosen - {topic for topic, _ in wanted})
        if missing:
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"{group} has no offsets in {', '.join(missing)}: check the name",
            )
        return sorted(each for each in wanted if not chosen or each[0] in chosen)

    async def windows_of(self, group: str, partitions: Iterable[TopicPartition]) -> list[Window]:
        """Describes the records in flight of these partitions: state, offsets and counts."""
        found: dict[TopicPartition, Window] = {}
        for some in _portions(await self._places(partitions)):
            for place, answer in await self._ask(group, some, None):
                _raise_for(f"{place.topic}-{place.partition}", answer.error_code, answer.error_message)
                row = json.loads(answer.error_message)
                found[place.topic, place.partition] = {**row, "topic": place.topic, "partition": place.partition}
        return [found[key] for key in sorted(found)]

    async def change(
        self, group: str, partition: TopicPartition, first: int, last: int, kind: Acknowledge
    ) -> Refusal | None:
        """Releases or archives records in flight of a partition. Returns the refusal; None after success."""
        [place] = await self._places([partition])
        return await self._change(group, place, first, last, kind)

    async def drain(self, group: str, windows: Iterable[Window]) -> AsyncIterator[tuple[Window, Refusal | None]]:
        """Archives the records in flight of the partitions in `windows`, the result of `windows_of`.

        Yields each entry of `windows` with None after success, or with the refusal.
        """
        wanted = {(each["topic"], each["partition"]): each for each in windows}
        for place in await self._places(wanted):
            window = wanted[place.topic, place.partition]
            first, last = window["start_offset"], window["end_offset"] - 1
            yield window, await self._change(group, place, first, last, Acknowledge.REJECT)

    async def _change(self, group: str, place: Place, first: int, last: int, kind: Acknowledge) -> Refusal | None:
        batch = acknowledging.AcknowledgementBatch(first_offset=first, last_offset=last, acknowledge_types=[kind])
        [(_, answer)] = await self._ask(group, [place], batch)
        if not answer.error_code:
            return None
        return Refusal(f"{place.topic}-{place.partition}", answer.error_code, answer.error_message)

    async def _places(self, wanted: Iterable[TopicPartition]) -> list[Place]:
        """Returns the partitions with their leaders. Raises KafkaError if a partition does not exist or has no
        leader."""
        keys = sorted(wanted)
        names = sorted({topic for topic, _ in keys})
        topics = {each.name: each for each in (await self._client.metadata(names)).topics} if names else {}
        leaders = {
            (name, part.partition_index): part.leader_id for name, topic in topics.items() for part in topic.partitions
        }
        found = []
        for name, index in keys:
            topic = topics[name]
            if topic.error_code or leaders.get((name, index), -1) < 0:
                raise KafkaError(
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                    f"{name}-{index} does not exist or has no leader: check the partition's number",
                )
            found.append(Place(leaders[name, index], name, topic.topic_id, index))
        return sorted(found)

    async def _ask(
        self, group: str, places: list[Place], batch: acknowledging.AcknowledgementBatch | None
    ) -> list[tuple[Place, Any]]:
        """Sends a request for the group's records in flight to a leader. Returns the answer for each partition."""
        topics: dict[bytes, acknowledging.AcknowledgeTopic] = {}
        for place in places:
            topic = topics.setdefault(place.topic_id, acknowledging.AcknowledgeTopic(topic_id=place.topic_id))
            partition = acknowledging.AcknowledgePartition(partition_index=place.partition)
            if batch is not None:
                partition.acknowledgement_batches = [batch]
            topic.partitions.append(partition)
        request = acknowledging.ShareAcknowledgeRequest(
            group_id=group, member_id=SHARE_OPERATOR, share_session_epoch=FINAL_EPOCH, topics=list(topics.values())
        )
        answer = await self._client.request(request, node=places[0].leader)
        if answer.error_code == ErrorCode.SHARE_SESSION_NOT_FOUND:
            raise KafkaError(
                ErrorCode.SHARE_SESSION_NOT_FOUND,
                f"node {places[0].leader} can't show records in flight: this needs a Penstock broker",
            )
        _raise_for(group, answer.error_code, answer.error_message)
        answers = {
            (topic.topic_id, part.partition_index): part for topic in answer.responses for part in topic.partitions
        }
        return [(place, answers[place.topic_id, place.partition]) for place in places]


def members_of(described: describing.DescribedGroup) -> Iterator[tuple[dict[str, Any], list[TopicPartition]]]:
    """Yields each member's ids, host and epoch, and the member's partitions."""
    for member in described.members:
        row = {
            "member": member.member_id,
            "client": member.client_id,
            "host": member.client_host,
            "epoch": member.member_epoch,
        }
        topics = member.assignment.topic_partitions
        yield row, [(topic.topic_name, index) for topic in topics for index in topic.partitions]


def offset_rows(offsets: Iterable[tuple[str, Any]]) -> list[dict[str, Any]]:
    return [
        {
            "topic": topic,
            "partition": part.partition_index,
            "start": part.start_offset if part.start_offset >= 0 else None,
            "lag": part.lag if part.lag >= 0 else None,
        }
        for topic, part in offsets
    ]


def in_flight(window: Window) -> int:
    return sum(window.get(name, 0) for name in ("available", "acquired", "delayed"))


def is_idle(windows: Iterable[Window]) -> bool:
    """Returns True if no member fetches from these partitions, so that no record is in flight."""
    return all(each["state"] == "idle" for each in windows)


def _portions(places: list[Place]) -> Iterator[list[Place]]:
    """Divides the partitions by leader. Yields lists that fit into one request each."""
    for leader in sorted({place.leader for place in places}):
        led = [place for place in places if place.leader == leader]
        for first in range(0, len(led), PARTITIONS_AT_ONCE):
            yield led[first : first + PARTITIONS_AT_ONCE]


def _raise_for(what: str, code: int, message: str | None) -> None:
    if code:
        raise KafkaError(code_of(code), f"{what}: {message or code_of(code).name}")
