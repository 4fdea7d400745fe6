"""Lists and describes groups, reads and moves their committed offsets, and deletes groups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

from penstock.client.client import AsyncClient
from penstock.client.errors import code_of
from penstock.client.group_members import (
    Described,
    Owner,
    claims_in,
    describe_members,
    existing_partitions,
    in_order,
)
from penstock.client.offsets import list_offsets
from penstock.net.yielding import yield_between_slices
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages import api_08_offset_commit as committing
from penstock.protocol.messages import api_09_offset_fetch as fetching
from penstock.protocol.messages import api_15_describe_groups as classic
from penstock.protocol.messages import api_16_list_groups as listing
from penstock.protocol.messages import api_42_delete_groups as deleting
from penstock.protocol.messages import api_69_consumer_group_describe as consumer
from penstock.protocol.messages import api_89_streams_group_describe as streams
from penstock.protocol.messages.api_60_describe_cluster import DescribeClusterRequest
from penstock.protocol.vocabulary import TopicPartition

Offsets = dict[TopicPartition, int]
NOT_FOUND_STATES = ("Dead", "")
#: The last version of OffsetFetch whose response names topics. Later versions have topic ids.
OFFSET_FETCH_WITH_NAMES = 9


class GroupAdmin:
    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def list(self, states: Sequence[str] = (), types: Sequence[str] = ()) -> list[dict[str, Any]]:
        """Returns a row for each group, in the order of their names. Empty filters match every group."""
        brokers = (await self._client.request(DescribeClusterRequest())).brokers
        found: list[dict[str, Any]] = []
        for node in sorted(each.broker_id for each in brokers):
            found += await self.list_on(node, states, types)
        return sorted(found, key=lambda row: str(row["group"]))

    async def list_on(
        self, node: int, states: Sequence[str] = (), types: Sequence[str] = ()
    ) -> Sequence[dict[str, Any]]:
        """Returns a row for each group that a node coordinates. Empty filters match every group."""
        request = listing.ListGroupsRequest(states_filter=[*states], types_filter=[*types])
        answer: listing.ListGroupsResponse = await self._client.request(request, node=node)
        _raise_for(f"node {node}", answer.error_code)
        return [
            {
                "group": each.group_id,
                "type": each.group_type,
                "protocol": each.protocol_type,
                "state": each.group_state,
                "coordinator": node,
            }
            for each in answer.groups
        ]

    async def describe(self, group: str) -> Described:
        """Describes a group of the classic, the consumer or the streams protocol.

        Raises KafkaError(GROUP_ID_NOT_FOUND) if there is no such group.
        """
        found = await self._describe_consumer(group) or await self._describe_streams(group)
        if found is None:
            found = await self._describe_classic(group)
        if found.state in NOT_FOUND_STATES:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no group {group!r}")
        return found

    async def _describe_consumer(self, group: str) -> Described | None:
        """Describes a group of the consumer protocol.

        Returns None if the group is of another protocol, or if the broker does not know the consumer protocol.
        """
        request = consumer.ConsumerGroupDescribeRequest(group_ids=[group])
        try:
            answer: consumer.ConsumerGroupDescribeResponse = await self._client.ask_coordinator(group, request)
        except KafkaError:
            return None
        [described] = answer.groups
        if described.error_code:
            return None
        members = (
            (
                Owner(each.member_id, each.client_id, each.client_host, each.instance_id),
                ((topic.topic_name, topic.partitions) for topic in each.assignment.topic_partitions),
            )
            for each in described.members
        )
        return await describe_members(self._client, described.group_state, members)

    async def _describe_streams(self, group: str) -> Described | None:
        """Describes a group of the streams protocol. A member owns the partitions that its active tasks read.

        Returns None if the group is of another protocol, or if the broker does not know the streams protocol.
        """
        try:
            answer: streams.StreamsGroupDescribeResponse = await self._client.ask_coordinator(
                group, streams.StreamsGroupDescribeRequest(group_ids=[group])
            )
        except KafkaError:
            return None
        [described] = answer.groups
        if described.error_code or described.topology is None:
            return None
        read = {
            each.subtopology_id: {*each.source_topics, *(topic.name for topic in each.repartition_source_topics)}
            for each in described.topology.subtopologies or ()
        }
        members = (
            (
                Owner(each.member_id, each.client_id, each.client_host, each.instance_id),
                (
                    (topic, task.partitions)
                    for task in each.assignment.active_tasks
                    for topic in sorted(read.get(task.subtopology_id, ()))
                ),
            )
            for each in described.members
        )
        return await describe_members(self._client, described.group_state, members)

    async def _describe_classic(self, group: str) -> Described:
        request = classic.DescribeGroupsRequest(groups=[group])
        answer: classic.DescribeGroupsResponse = await self._client.ask_coordinator(group, request)
        [described] = answer.groups
        if described.error_code != ErrorCode.GROUP_ID_NOT_FOUND:
            _raise_for(group, described.error_code, described.error_message)
        members = (
            (
                Owner(each.member_id, each.client_id, each.client_host, each.group_instance_id),
                claims_in(described.protocol_type, each.member_assignment),
            )
            for each in described.members
        )
        return await describe_members(self._client, described.group_state, members)

    # Offsets.

    async def committed(self, group: str) -> Offsets:
        """Returns the committed offsets of a group; empty if it has none."""
        request = fetching.OffsetFetchRequest(groups=[fetching.OffsetFetchRequestGroup(group_id=group, topics=None)])
        answer = await self._client.ask_coordinator(group, request, at_most=OFFSET_FETCH_WITH_NAMES)
        [found] = answer.groups
        _raise_for(group, found.error_code)
        return _offsets(found.topics)

    async def committed_on(self, node: int, groups: Iterable[str]) -> dict[str, Offsets]:
        """Returns the committed offsets of groups that a node coordinates. Leaves out groups with an error."""
        request = fetching.OffsetFetchRequest(
            groups=[fetching.OffsetFetchRequestGroup(group_id=each, topics=None) for each in groups]
        )
        connection = await self._client.connection(node)
        version = connection.version_of(request.API_KEY, OFFSET_FETCH_WITH_NAMES)
        answer: fetching.OffsetFetchResponse = await connection.request(request, version=version)
        return {each.group_id: _offsets(each.topics) for each in answer.groups if not each.error_code}

    async def offsets_at(self, partitions: Iterable[TopicPartition], when: int) -> Offsets:
        """Returns the partitions' offsets for a timestamp, EARLIEST or LATEST. Leaves out deleted partitions."""
        asked = list(partitions)
        known = await existing_partitions(self._client, {topic for topic, _ in asked})
        wanted: Offsets = {}
        for number, (topic, index) in enumerate(asked):
            await yield_between_slices(number)
            if index in known.get(topic, ()):
                wanted[topic, index] = when
        if not wanted:
            return {}
        return {key: each.offset for key, each in (await list_offsets(self._client, wanted)).items()}

    async def commit(self, group: str, target: Mapping[TopicPartition, int]) -> dict[TopicPartition, ErrorCode]:
        """Sets committed offsets of a group without members. Returns the partitions that were refused."""
        topics: dict[str, list[committing.OffsetCommitRequestPartition]] = {}
        for (topic, index), offset in target.items():
            topics.setdefault(topic, []).append(
                committing.OffsetCommitRequestPartition(
                    partition_index=index, committed_offset=offset, committed_metadata=""
                )
            )
        found = (await self._client.metadata([*topics])).topics
        ids = {topic.name: topic.topic_id for topic in found}
        request = committing.OffsetCommitRequest(
            group_id=group,
            topics=[
                committing.OffsetCommitRequestTopic(name=name, topic_id=ids.get(name, bytes(16)), partitions=partitions)
                for name, partitions in topics.items()
            ],
        )
        answer: committing.OffsetCommitResponse = await self._client.ask_coordinator(group, request)
        names = {identity: name for name, identity in ids.items()}
        return {
            (topic.name or names.get(topic.topic_id) or "?", partition.partition_index): code_of(partition.error_code)
            for topic in answer.topics
            for partition in topic.partitions
            if partition.error_code
        }

    async def delete(self, group: str) -> None:
        """Deletes a group without members, with its offsets. Raises KafkaError."""
        request = deleting.DeleteGroupsRequest(groups_names=[group])
        answer: deleting.DeleteGroupsResponse = await self._client.ask_coordinator(group, request)
        for result in answer.results:
            _raise_for(group, result.error_code)


def _offsets(topics: Iterable[fetching.OffsetFetchResponseTopics]) -> Offsets:
    return {
        (topic.name, partition.partition_index): partition.committed_offset
        for topic in topics
        for partition in topic.partitions
        if partition.committed_offset >= 0 and not partition.error_code
    }


def _raise_for(what: str, code: int, message: str | None = None) -> None:
    if code:
        raise KafkaError(code_of(code), f"{what}: {message or code_of(code).name}")


def lag_of(
    partition: TopicPartition, offsets: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
) -> int | None:
    """Returns the lag of a partition; None if it has no committed offset, or if its end is unknown."""
    offset, end = offsets.get(partition), ends.get(partition)
    return max(end - offset, 0) if offset is not None and end is not None else None


async def partitions_of_group(described: Described, offsets: Iterable[TopicPartition]) -> list[TopicPartition]:
    """Returns the partitions that have a committed offset or are assigned to a member, sorted."""
    found: dict[str, set[int]] = {}
    for number, (topic, index) in enumerate(chain(offsets, described.owners)):
        await yield_between_slices(number)
        found.setdefault(topic, set()).add(index)
    return await in_order(found)


def lag_rows(
    partitions: Iterable[TopicPartition],
    described: Described,
    offsets: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
) -> list[dict[str, Any]]:
    """Returns a row for each of these partitions, with its offsets, its lag and the member that owns it."""
    rows = []
    for partition in partitions:
        owner = described.owners.get(partition)
        rows.append(
            {
                "topic": partition[0],
                "partition": partition[1],
                "committed": offsets.get(partition),
                "end": ends.get(partition),
                "lag": lag_of(partition, offsets, ends),
                "member": owner.member if owner else None,
                "client": owner.client if owner else None,
                "host": owner.host if owner else None,
            }
        )
    return rows
