"""Decides which clients may commit and fetch offsets of a streams group."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.groups.commit_epochs import Held, check_epoch, names_no_member
from penstock.groups.consumer.commit import MEMBER_EPOCHS_SINCE
from penstock.groups.streams.group import Role, StreamsGroup, StreamsMember, TaskKey
from penstock.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.groups.turn import Turn
    from penstock.protocol.messages.api_08_offset_commit import OffsetCommitRequest
    from penstock.protocol.messages.api_28_txn_offset_commit import TxnOffsetCommitRequest


def check_commit(turn: Turn, group: StreamsGroup, request: OffsetCommitRequest, api_version: int) -> None:
    epoch = request.generation_id_or_member_epoch
    if epoch < 0 and not group.members:
        return  # an administrator, or a consumer without group management
    member = group.members.find(request.member_id)
    if api_version < MEMBER_EPOCHS_SINCE:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_VERSION,
            "Members of a streams group must commit with OffsetCommit version 9 or later: upgrade the client.",
        )
    check_epoch(turn, request, epoch, member.epoch, _held(group, member), ErrorCode.STALE_MEMBER_EPOCH)


def check_transactional_commit(turn: Turn, group: StreamsGroup, request: TxnOffsetCommitRequest) -> None:
    """Raises ILLEGAL_GENERATION if the member epoch of a transactional commit is stale.

    Producers do not know STALE_MEMBER_EPOCH: they know only generations.
    """
    epoch = request.generation_id
    if (epoch < 0 and not group.members) or names_no_member(request):
        return
    member = group.members.find(request.member_id)
    check_epoch(turn, request, epoch, member.epoch, _held(group, member), ErrorCode.ILLEGAL_GENERATION)


def _held(group: StreamsGroup, member: StreamsMember) -> Held:
    readers = group.topology.readers if group.topology is not None else {}

    def held(topic: str) -> Mapping[int, int]:
        key = TaskKey(Role.ACTIVE, readers.get(topic, ""))
        return {**member.pending_revocation.get(key, {}), **member.assigned.get(key, {})}

    return held


def check_fetch(group: StreamsGroup, member_id: str | None, epoch: int) -> None:
    if member_id is None and epoch < 0:
        return
    member = group.members.find(member_id or "")
    if member.epoch != epoch:
        raise KafkaError(
            ErrorCode.STALE_MEMBER_EPOCH, f"The member is in epoch {member.epoch}: send a heartbeat, then retry."
        )
