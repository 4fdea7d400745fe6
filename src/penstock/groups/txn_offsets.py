"""Handles TxnOffsetCommit: offsets of a transaction are pending until the transaction's marker is written."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.groups import room
from penstock.groups.classic.commit import check_commit
from penstock.groups.consumer.commit import check_transactional_commit
from penstock.groups.consumer.group import ConsumerGroup
from penstock.groups.offset_requests import no_offsets
from penstock.groups.share.group import ShareGroup
from penstock.groups.streams import commit as streams_commit
from penstock.groups.streams.group import StreamsGroup
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_28_txn_offset_commit import TxnOffsetCommitRequest
from penstock.protocol.persisted.group.offset_commit import OffsetCommitKey, OffsetCommitValue

if TYPE_CHECKING:
    from penstock.groups.shard import GroupShard
    from penstock.groups.turn import Turn

Codes = dict[tuple[str, int], ErrorCode]


def commit_in_transaction(shard: GroupShard, turn: Turn, request: TxnOffsetCommitRequest) -> Codes:
    """Commits offsets as part of a transaction.

    The caller has checked that the topics exist and that the producer owns the transaction.
    """
    try:
        _check(shard, turn, request)
    except KafkaError as error:
        return {(topic.name, part.partition_index): error.code for topic in request.topics for part in topic.partitions}
    codes: Codes = {}
    for topic in request.topics:
        for part in topic.partitions:
            metadata = part.committed_metadata or ""
            if len(metadata) > turn.config.offset_metadata_max_bytes:
                codes[topic.name, part.partition_index] = ErrorCode.OFFSET_METADATA_TOO_LARGE
                continue
            if not room.admits_offset(shard, turn, request.group_id, (topic.name, part.partition_index), metadata):
                codes[topic.name, part.partition_index] = ErrorCode.POLICY_VIOLATION
                continue
            codes[topic.name, part.partition_index] = ErrorCode.NONE
            turn.record(
                OffsetCommitKey(group=request.group_id, topic=topic.name, partition=part.partition_index),
                OffsetCommitValue(
                    offset=part.committed_offset,
                    leader_epoch=part.committed_leader_epoch,
                    metadata=metadata,
                    commit_timestamp=turn.wall_ms,
                    topic_id=shard.topic_id(topic.name),
                ),
            )
    if turn.records:
        turn.producer = (request.producer_id, request.producer_epoch)
    return codes


def _check(shard: GroupShard, turn: Turn, request: TxnOffsetCommitRequest) -> None:
    """Raises KafkaError if the producer may not commit these partitions."""
    group = shard.groups.get(request.group_id)
    if isinstance(group, ShareGroup):
        raise no_offsets(group)
    if isinstance(group, ConsumerGroup):
        check_transactional_commit(turn, group, request, shard.topic_id)
    elif isinstance(group, StreamsGroup):
        streams_commit.check_transactional_commit(turn, group, request)
    elif group is not None:
        check_commit(
            turn, group, request.member_id, request.group_instance_id, request.generation_id, transactional=True
        )
    elif request.generation_id >= 0:
        raise KafkaError(ErrorCode.ILLEGAL_GENERATION, "The coordinator does not have the group: join it again.")
