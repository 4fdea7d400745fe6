"""Decides which clients may commit and fetch offsets of a streams group."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from penstock.groups.consumer.commit import MEMBER_EPOCHS_SINCE
from penstock.groups.streams.group import Role, StreamsGroup, StreamsMember, TaskKey
from penstock.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from penstock.protocol.messages.api_08_offset_commit import OffsetCommitRequest
    from penstock.protocol.messages.api_28_txn_offset_commit import TxnOffsetCommitRequest

NO_EPOCH = -1
Partitions = Iterable[tuple[str, int]]  # topic and partition


def check_commit(group: StreamsGroup, request: OffsetCommitRequest, api_version: int) -> None:
    epoch = request.generation_id_or_member_epoch
    if epoch < 0 and not group.members:
        return  # an administrator, or a consumer without group management
    member = group.members.find(request.member_id)
    if api_version < MEMBER_EPOCHS_SINCE:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_VERSION,
            "Members of a streams group must commit with OffsetCommit version 9 or later: upgrade the client.",
        )
    _check_held(group, member, epoch, _partitions(request), ErrorCode.STALE_MEMBER_EPOCH)


def check_transactional_commit(group: StreamsGroup, request: TxnOffsetCommitRequest) -> None:
    """Raises ILLEGAL_GENERATION for a stale member epoch.

    Producers do not know STALE_MEMBER_EPOCH: they know only generations.
    """
    epoch = request.generation_id
    if epoch < 0 and not group.members:
        return
    if epoch == NO_EPOCH and not request.member_id and request.group_instance_id is None:
        return  # a producer that names no member
    member = group.members.find(request.member_id)
    _check_held(group, member, epoch, _partitions(request), ErrorCode.ILLEGAL_GENERATION)


def check_fetch(group: StreamsGroup, member_id: str | None, epoch: int) -> None:
    if member_id is None and epoch < 0:
        return
    member = group.members.find(member_id or "")
    if member.epoch != epoch:
        raise _stale(member, ErrorCode.STALE_MEMBER_EPOCH)


def _partitions(request: OffsetCommitRequest | TxnOffsetCommitRequest) -> Partitions:
    for topic in request.topics:
        for partition in topic.partitions:
            yield topic.name, partition.partition_index


def _check_held(
    group: StreamsGroup, member: StreamsMember, epoch: int, partitions: Partitions, code: ErrorCode
) -> None:
    """Raises KafkaError unless the member may commit with this epoch.

    The epoch must be the member's current epoch. An older epoch is also accepted if the member has held the active task
    of every partition since then, because no other member can have committed in between (KIP-1251).
    """
    if epoch == member.epoch:
        return
    if epoch > member.epoch:
        raise _stale(member, code)
    readers = group.topology.readers if group.topology is not None else {}
    for topic, partition in partitions:
        key = TaskKey(Role.ACTIVE, readers.get(topic, ""))
        since = member.assigned.get(key, {}).get(partition, member.pending_revocation.get(key, {}).get(partition))
        if since is None or epoch < since:
            raise _stale(member, code)


def _stale(member: StreamsMember, code: ErrorCode) -> KafkaError:
    return KafkaError(code, f"The member is in epoch {member.epoch}: send a heartbeat, then retry.")
