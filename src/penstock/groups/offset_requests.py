"""Handles OffsetCommit, OffsetFetch and OffsetDelete, and expires old offsets."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from penstock.groups import room
from penstock.groups.classic.commit import check_commit, offset_age_base
from penstock.groups.classic.group import ClassicGroup, State
from penstock.groups.classic.journal import record_deletion
from penstock.groups.consumer.commit import check_commit as check_consumer_commit
from penstock.groups.consumer.commit import check_fetch
from penstock.groups.consumer.group import ConsumerGroup
from penstock.groups.consumer.journal import erase_group as erase_consumer_group
from penstock.groups.journal import NO_EXPIRY
from penstock.groups.share.group import ShareGroup
from penstock.groups.streams import commit as streams_commit
from penstock.groups.streams.group import StreamsGroup
from penstock.groups.streams.journal import erase_group as erase_streams_group
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_08_offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from penstock.protocol.messages.api_09_offset_fetch import (
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponseGroup,
)
from penstock.protocol.messages.api_47_offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from penstock.protocol.persisted.group.offset_commit import OffsetCommitKey, OffsetCommitValue
from penstock.protocol.uuid import ZERO_UUID

if TYPE_CHECKING:
    from penstock.groups.offsets import Committed
    from penstock.groups.shard import Group, GroupShard
    from penstock.groups.turn import Turn

GROUP_ID_NOT_FOUND_SINCE = 9
LATEST_MS = 2**63 - 1  # an expiry time beyond the largest int64 is capped


def commit(shard: GroupShard, turn: Turn, request: OffsetCommitRequest, api_version: int) -> OffsetCommitResponse:
    """Commits offsets of a group.

    The caller has checked topic names and ids against the metadata. A topic id is zero if the client sent none.
    """
    try:
        _check_commit(shard, turn, request, api_version)
    except KafkaError as error:
        return commit_refused(request, error.code)
    retention_ms = request.retention_time_ms
    expire_ms = min(turn.wall_ms + retention_ms, LATEST_MS) if retention_ms >= 0 else NO_EXPIRY
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    OffsetCommitResponsePartition(
                        partition_index=partition.partition_index,
                        error_code=_commit_one(shard, turn, request.group_id, topic, partition, expire_ms),
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _check_commit(shard: GroupShard, turn: Turn, request: OffsetCommitRequest, api_version: int) -> None:
    """Raises KafkaError if the client may not commit these partitions."""
    group = shard.groups.get(request.group_id)
    generation = request.generation_id_or_member_epoch
    if isinstance(group, ShareGroup):
        raise no_offsets(group)
    if isinstance(group, ConsumerGroup):
        check_consumer_commit(turn, group, request, api_version, shard.topic_id)
    elif isinstance(group, StreamsGroup):
        streams_commit.check_commit(turn, group, request, api_version)
    elif group is not None:
        check_commit(turn, group, request.member_id, request.group_instance_id, generation)
    elif generation >= 0:
        if api_version >= GROUP_ID_NOT_FOUND_SINCE:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {request.group_id} not found.")
        raise KafkaError(ErrorCode.ILLEGAL_GENERATION, "The coordinator does not have the group: join it again.")


def _commit_one(
    shard: GroupShard,
    turn: Turn,
    group_id: str,
    topic: OffsetCommitRequestTopic,
    partition: OffsetCommitRequestPartition,
    expire_ms: int,
) -> ErrorCode:
    metadata = partition.committed_metadata or ""
    if len(metadata) > turn.config.offset_metadata_max_bytes:
        return ErrorCode.OFFSET_METADATA_TOO_LARGE
    if not room.admits_offset(shard, turn, group_id, (topic.name, partition.partition_index), metadata):
        return ErrorCode.POLICY_VIOLATION
    turn.record(
        OffsetCommitKey(group=group_id, topic=topic.name, partition=partition.partition_index),
        OffsetCommitValue(
            offset=partition.committed_offset,
            leader_epoch=partition.committed_leader_epoch,
            metadata=metadata,
            commit_timestamp=turn.wall_ms,
            expire_timestamp=expire_ms,
            topic_id=topic.topic_id,
        ),
    )
    return ErrorCode.NONE


def commit_refused(request: OffsetCommitRequest, code: ErrorCode) -> OffsetCommitResponse:
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    OffsetCommitResponsePartition(partition_index=partition.partition_index, error_code=code)
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def no_offsets(group: ShareGroup) -> KafkaError:
    return KafkaError(
        ErrorCode.GROUP_ID_NOT_FOUND,
        f"Group {group.group_id} is a share group, whose offsets are not committed: use another group.",
    )


def fetch(shard: GroupShard, request: OffsetFetchRequestGroup, require_stable: bool) -> OffsetFetchResponseGroup:
    _check_fetch(shard, request)
    return shard.offsets.fetch(request.group_id, request.topics, require_stable, shard.topic_id)


def topics_of(shard: GroupShard, request: OffsetFetchRequestGroup) -> list[OffsetFetchRequestTopics]:
    """Returns the topics and partitions with committed offsets of the group, for a request that asks for all topics."""
    _check_fetch(shard, request)
    return shard.offsets.all_topics(request.group_id, shard.topic_id)


def _check_fetch(shard: GroupShard, request: OffsetFetchRequestGroup) -> None:
    """Raises KafkaError if the client may not fetch offsets of this group."""
    group = shard.groups.get(request.group_id)
    if isinstance(group, ShareGroup):
        raise no_offsets(group)
    if isinstance(group, ConsumerGroup):
        check_fetch(group, request.member_id, request.member_epoch)
    elif isinstance(group, StreamsGroup):
        streams_commit.check_fetch(group, request.member_id, request.member_epoch)


def delete_offsets(shard: GroupShard, turn: Turn, request: OffsetDeleteRequest) -> OffsetDeleteResponse:
    try:
        group = shard.group(request.group_id)
        _check_offset_delete(group)
    except KafkaError as error:
        return OffsetDeleteResponse(error_code=error.code)
    known = shard.offsets.partitions(request.group_id)
    response = OffsetDeleteResponse()
    for topic in request.topics:
        code = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if group.is_subscribed(topic.name) else ErrorCode.NONE
        for partition in topic.partitions:
            if code is ErrorCode.NONE and (topic.name, partition.partition_index) in known:
                shard.offsets.erase(turn, request.group_id, (topic.name, partition.partition_index))
        response.topics.append(
            OffsetDeleteResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetDeleteResponsePartition(partition_index=partition.partition_index, error_code=code)
                    for partition in topic.partitions
                ],
            )
        )
    return response


def _check_offset_delete(group: Group) -> None:
    if isinstance(group, ShareGroup):
        raise no_offsets(group)
    if isinstance(group, ConsumerGroup | StreamsGroup):
        return
    if group.state is State.DEAD:
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group.group_id} not found.")
    if group.state is not State.EMPTY and not group.uses_consumer_protocol:
        raise KafkaError(
            ErrorCode.NON_EMPTY_GROUP,
            "The group's members are not consumers, and may still use these offsets: stop the members first.",
        )


def forget_topics(shard: GroupShard, turn: Turn, topics: Collection[str]) -> None:
    """Erases the offsets committed for deleted topics. Offsets of a new topic with the same name are kept."""
    for group_id in shard.groups:
        for partition in sorted(each for each in shard.offsets.partitions(group_id) if each[0] in topics):
            known = shard.image.topics.get(partition[0])
            if known is None or known.topic_id not in shard.offsets.topic_ids(group_id, partition):
                shard.offsets.erase(turn, group_id, partition)


def forget_missing(shard: GroupShard, turn: Turn, group_id: str) -> None:
    """Erases a group's offsets for topics that no longer exist.

    The topics may have been deleted while the partition of `__consumer_offsets` had no coordinator.
    """
    for partition in sorted(shard.offsets.partitions(group_id)):
        known = shard.image.topics.get(partition[0])
        if known is None or not {known.topic_id, ZERO_UUID} & shard.offsets.topic_ids(group_id, partition):
            shard.offsets.erase(turn, group_id, partition)


def expire(shard: GroupShard, turn: Turn, group_id: str) -> None:
    """Erases offsets older than `offsets.retention.minutes`.

    Also deletes a group without members when its last offset is erased.
    """
    group = shard.groups.get(group_id)
    if group is None or isinstance(group, ShareGroup):
        return
    retention_ms = turn.config.offsets_retention_ms
    left = False
    for partition, committed in shard.offsets.of_group(group_id).items():
        base_ms = _age_base(group, partition[0], committed)
        if (
            base_ms is not None
            and committed.expired(base_ms, turn.wall_ms, retention_ms)
            and not shard.offsets.has_pending(group_id, partition)
        ):
            shard.offsets.erase(turn, group_id, partition)
        else:
            left = True
    if left or any(group_id in groups for groups in shard.offsets.pending.values()):
        return
    if isinstance(group, ConsumerGroup):
        if not group.members:
            erase_consumer_group(turn, group)
    elif isinstance(group, StreamsGroup):
        if not group.members:
            erase_streams_group(turn, group)
    elif group.state is State.EMPTY and not group.pending_members:
        record_deletion(turn, group)


def _age_base(group: Group, topic: str, committed: Committed) -> int | None:
    if isinstance(group, ClassicGroup):
        return offset_age_base(group, topic, committed)
    return None if group.is_subscribed(topic) else committed.commit_ms
