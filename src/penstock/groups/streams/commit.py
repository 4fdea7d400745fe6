"""Decides which clients may commit and fetch offsets of a streams group."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.groups.consumer.commit import MEMBER_EPOCHS_SINCE
from penstock.groups.streams.group import Role, StreamsGroup, StreamsMember, TaskKey
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.vocabulary import TopicPartition

if TYPE_CHECKING:
    from penstock.protocol.messages.api_08_offset_commit import OffsetCommitRequest
    from penstock.protocol.messages.api_28_txn_offset_commit import TxnOffsetCommitRequest

NO_EPOCH = -1


def check_commit(group: StreamsGroup, request: OffsetCommitRequest, api_version: int) -> frozenset[TopicPartition]:
    """Returns the partitions that the client may not commit, because the request's member epoch is too old for them.

    Raises KafkaError if the client may not commit any partition.
    """
    epoch = request.generation_id_or_member_epoch
    if epoch < 0 and not group.members:
        return frozenset()  # an administrator, or a consumer without group management
    member = group.members.find(request.member_id)
    if api_version < MEMBER_EPOCHS_SINCE:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_VERSION,
            "Members of a streams group must commit with OffsetCommit version 9 or later: upgrade the client.",
        )
    return _stale_partitions(group, member, epoch, request, ErrorCode.STALE_MEMBER_EPOCH)


def check_transactional_commit(group: StreamsGroup, request: TxnOffsetCommitRequest) -> frozenset[TopicPartition]:
    """Checks a producer's request like `check_commit`.

    Raises ILLEGAL_GENERATION if the request's epoch is after the member's epoch: producers know only generations.
    """
    epoch = request.generation_id
    if epoch < 0 and not group.members:
        return frozenset()
    if epoch == NO_EPOCH and not request.member_id and request.group_instance_id is None:
        return frozenset()  # a producer that names no member
    member = group.members.find(request.member_id)
    return _stale_partitions(group, member, epoch, request, ErrorCode.ILLEGAL_GENERATION)


def check_fetch(group: StreamsGroup, member_id: str | None, epoch: int) -> None:
    if member_id is None and epoch < 0:
        return
    member = group.members.find(member_id or "")
    if member.epoch != epoch:
        raise _stale(member, ErrorCode.STALE_MEMBER_EPOCH)


def _stale_partitions(
    group: StreamsGroup,
    member: StreamsMember,
    epoch: int,
    request: OffsetCommitRequest | TxnOffsetCommitRequest,
    code: ErrorCode,
) -> frozenset[TopicPartition]:
    """Returns the partitions for which `epoch`, the request's member epoch, is too old.

    An older epoch is accepted for a partition if the member has held its active task since then: no other member can
    have committed this partition in the meantime (KIP-1251). Raises KafkaError if `epoch` is after the member's epoch.
    """
    if epoch == member.epoch:
        return frozenset()
    if epoch > member.epoch:
        raise _stale(member, code)
    readers = group.topology.readers if group.topology is not None else {}
    stale = set()
    for topic in request.topics:
        key = TaskKey(Role.ACTIVE, readers.get(topic.name, ""))
        held = {**member.pending_revocation.get(key, {}), **member.assigned.get(key, {})}
        for each in topic.partitions:
            if held.get(each.partition_index, epoch + 1) > epoch:
                stale.add((topic.name, each.partition_index))
    return frozenset(stale)


def _stale(member: StreamsMember, code: ErrorCode) -> KafkaError:
    return KafkaError(code, f"The member is in epoch {member.epoch}: send a heartbeat, then retry.")
