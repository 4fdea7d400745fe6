"""Decides which clients may commit and fetch offsets of a consumer group."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.groups.consumer.group import ConsumerGroup, ConsumerMember
from penstock.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from penstock.protocol.messages.api_08_offset_commit import OffsetCommitRequest

MEMBER_EPOCHS_SINCE = 9


def check_commit(group: ConsumerGroup, request: OffsetCommitRequest, api_version: int) -> None:
    epoch = request.generation_id_or_member_epoch
    if epoch < 0 and not group.members:
        return  # an administrator, or a consumer without group management
    member = group.members.find(request.member_id)
    if member.classic is not None:
        check_epoch(member, epoch)
        return
    if api_version < MEMBER_EPOCHS_SINCE:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_VERSION,
            "Members of a consumer group must commit with OffsetCommit version 9 or later: upgrade the client.",
        )
    if epoch != member.epoch and not _held_since(member, request, epoch):
        check_epoch(member, epoch)


def _held_since(member: ConsumerMember, request: OffsetCommitRequest, epoch: int) -> bool:
    """Returns True if the member has held all partitions of the request since `epoch`, an older epoch.

    The commit is accepted in this case, although its epoch is not the member's current epoch (KIP-1251).
    """
    if not 0 <= epoch < member.epoch:
        return False
    return all(
        member.assigned.get(topic.topic_id, {}).get(partition.partition_index, epoch + 1) <= epoch
        for topic in request.topics
        for partition in topic.partitions
    )


def check_transactional_commit(group: ConsumerGroup, member_id: str, epoch: int) -> None:
    """Raises ILLEGAL_GENERATION if the member epoch of a transactional commit is stale.

    Producers do not know STALE_MEMBER_EPOCH: they know only generations.
    """
    if (epoch >= 0 or group.members) and group.members.find(member_id).epoch != epoch:
        raise KafkaError(
            ErrorCode.ILLEGAL_GENERATION, "The member has another epoch now: get the group metadata again."
        )


def check_fetch(group: ConsumerGroup, member_id: str | None, epoch: int) -> None:
    if member_id is None and epoch < 0:
        return
    check_epoch(group.members.find(member_id or ""), epoch)


def check_epoch(member: ConsumerMember, epoch: int) -> None:
    if epoch == member.epoch:
        return
    if member.classic is not None:
        raise KafkaError(
            ErrorCode.ILLEGAL_GENERATION,
            f"The request's generation does not match the member's generation {member.epoch}: rejoin.",
        )
    raise KafkaError(
        ErrorCode.STALE_MEMBER_EPOCH, f"The member is in epoch {member.epoch}: send a heartbeat, then retry."
    )
