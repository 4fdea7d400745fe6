"""Lists and describes groups, reads and moves their committed offsets, and deletes groups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from penstock.client.client import AsyncClient
from penstock.client.errors import code_of
from penstock.client.offsets import list_offsets
from penstock.protocol.codec import DecodeError, decode_prefix
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages import api_08_offset_commit as committing
from penstock.protocol.messages import api_09_offset_fetch as fetching
from penstock.protocol.messages import api_15_describe_groups as classic
from penstock.protocol.messages import api_16_list_groups as listing
from penstock.protocol.messages import api_42_delete_groups as deleting
from penstock.protocol.messages import api_69_consumer_group_describe as consumer
from penstock.protocol.messages import api_89_streams_group_describe as streams
from penstock.protocol.messages.api_60_describe_cluster import DescribeClusterRequest
from penstock.protocol.messages.consumer_protocol import ConsumerProtocolAssignment
from penstock.protocol.vocabulary import TopicPartition

Offsets = dict[TopicPartition, int]
NOT_FOUND_STATES = ("Dead", "")
#: The last version of OffsetFetch whose response names topics. Later versions have topic ids.
OFFSET_FETCH_WITH_NAMES = 9


class Owner(NamedTuple):
    member: str
    client: str
    host: str
    instance: str | None


class Described(NamedTuple):
    state: str
    owners: dict[TopicPartition, Owner]
    members: dict[Owner, list[str]]
    """Each member with the names of its partitions."""


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
        members: dict[Owner, list[TopicPartition]] = {}
        for each in described.members:
            owner = Owner(each.member_id, each.client_id, each.client_host, each.instance_id)
            members[owner] = [
                (topic.topic_name, index) for topic in each.assignment.topic_partitions for index in topic.partitions
            ]
        return _described(described.group_state, members)

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
        topics = (await self._client.metadata(sorted(set().union(*read.values())))).topics if read else []
        known = {(topic.name or "", part.partition_index) for topic in topics for part in topic.partitions}
        members = {
            Owner(each.member_id, each.client_id, each.client_host, each.instance_id): [
                (topic, index)
                for task in each.assignment.active_tasks
                for topic in sorted(read.get(task.subtopology_id, ()))
                for index in task.partitions
                if (topic, index) in known
            ]
            for each in described.members
        }
        return _described(described.group_state, members)

    async def _describe_classic(self, group: str) -> Described:
        request = classic.DescribeGroupsRequest(groups=[group])
        answer: classic.DescribeGroupsResponse = await self._client.ask_coordinator(group, request)
        [described] = answer.groups
        if described.error_code != ErrorCode.GROUP_ID_NOT_FOUND:
            _raise_for(group, described.error_code, described.error_message)
        members = {
            Owner(each.member_id, each.client_id, each.client_host, each.group_instance_id): _assigned(
                described.protocol_type, each.member_assignment
            )
            for each in described.members
        }
        return _described(described.group_state, members)

    # Offsets.

    async def committed(self, group: str) -> Offsets:
        """Returns the committed offsets of a group; empty if it has none."""
        request = fetching.OffsetFetchRequest(groups=[fetching.OffsetFetchRequestGroup(group_id=group, topics=None)])
        answer = await self._client.ask_coordinator(group, request, at_most=OFFSET_FETCH_WITH_NAMES)
        [found] = answer.groups
        _raise_for(group, found.error_code)
        return _offsets(found.topics)

    async def committed_on(self, node: int, groups: Iterable[str]) -> dict[str, Offsets]:
        """Returns the committed offsets of groups that a node coordinates. Leaves out groups that it refuses."""
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
        names = sorted({topic for topic, _ in asked})
        topics = (await self._client.metadata(names)).topics if names else []
        known = {(topic.name or "", each.partition_index) for topic in topics for each in topic.partitions}
        wanted = {partition: when for partition in asked if partition in known}
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


def _described(state: str, members: Mapping[Owner, list[TopicPartition]]) -> Described:
    return Described(
        state,
        {partition: owner for owner, partitions in members.items() for partition in partitions},
        {
            owner: [f"{topic}-{index}" for topic, index in sorted(partitions)]
            for owner, partitions in sorted(members.items(), key=lambda item: item[0].member)
        },
    )


def _assigned(protocol_type: str, assignment: bytes) -> list[TopicPartition]:
    """Returns a member's partitions from the assignment that the leader of its classic group wrote.

    Returns an empty list if the group's protocol type is not "consumer", because the format of such an assignment is
    unknown.
    """
    if protocol_type != "consumer" or len(assignment) < 2:
        return []
    try:
        version = min(int.from_bytes(assignment[:2], "big"), ConsumerProtocolAssignment.MAX_VERSION)
        decoded, _ = decode_prefix(ConsumerProtocolAssignment, version, assignment, 2)
    except DecodeError:
        return []
    return [(each.topic, index) for each in decoded.assigned_partitions for index in each.partitions]


def lag_rows(
    described: Described, offsets: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
) -> list[dict[str, Any]]:
    """Returns a row with the lag of each partition that has a committed offset or is assigned to a member."""
    rows = []
    for partition in sorted(offsets.keys() | described.owners.keys()):
        owner = described.owners.get(partition)
        offset, end = offsets.get(partition), ends.get(partition)
        rows.append(
            {
                "topic": partition[0],
                "partition": partition[1],
                "committed": offset,
                "end": end,
                "lag": max(end - offset, 0) if offset is not None and end is not None else None,
                "member": owner.member if owner else None,
                "client": owner.client if owner else None,
                "host": owner.host if owner else None,
            }
        )
    return rows
