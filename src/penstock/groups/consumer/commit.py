"""Decides which clients may commit and fetch offsets of a consumer group."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.groups.commit_epochs import Held, check_epoch, names_no_member
from penstock.groups.consumer.group import ConsumerGroup, ConsumerMember
from penstock.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from penstock.groups.turn import Turn
    from penstock.protocol.messages.api_08_offset_commit import OffsetCommitRequest
    from penstock.protocol.messages.api_28_txn_offset_commit import TxnOffsetCommitRequest

    TopicId = Callable[[str], bytes]  # the id of a topic; zero if the topic does not exist

MEMBER_EPOCHS_SINCE = 9


def check_commit(
    turn: Turn, group: ConsumerGroup, request: OffsetCommitRequest, api_version: int, topic_id: TopicId
) -> None:
    epoch = request.generation_id_or_member_epoch
    if epoch < 0 and not group.members:
        return  # an administrator, or a consumer without group management
    member = group.members.find(request.member_id)
    if member.classic is None and api_version < MEMBER_EPOCHS_SINCE:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_VERSION,
            "Members of a consumer group must commit with OffsetCommit version 9 or later: upgrade the client.",
        )
    check_epoch(turn, request, epoch, member.epoch, _held(member, topic_id), _refusal(member))


def check_transactional_commit(
    turn: Turn, group: ConsumerGroup, request: TxnOffsetCommitRequest, topic_id: TopicId
) -> None:
    """Raises ILLEGAL_GENERATION if the member epoch of a transactional commit is stale.

    Producers do not know STALE_MEMBER_EPOCH: they know only generations.
    """
    epoch = request.generation_id
    if (epoch < 0 and not group.members) or names_no_member(request):
        return
    member = group.members.find(request.member_id)
    check_epoch(turn, request, epoch, member.epoch, _held(member, topic_id), ErrorCode.ILLEGAL_GENERATION)


def _held(member: ConsumerMember, topic_id: TopicId) -> Held:
    def held(topic: str) -> Mapping[int, int]:
        found = topic_id(topic)
        return {**member.pending_revocation.get(found, {}), **member.assigned.get(found, {})}

    return held


def check_fetch(group: ConsumerGroup, member_id: str | None, epoch: int) -> None:
    if member_id is None and epoch < 0:
        return
    member = group.members.find(member_id or "")
    if epoch != member.epoch:
        raise KafkaError(_refusal(member), f"The member is in epoch {member.epoch}: send a heartbeat, then retry.")


def _refusal(member: ConsumerMember) -> ErrorCode:
    """Returns the error code for a wrong epoch. Members with the classic protocol know only generations."""
    return ErrorCode.STALE_MEMBER_EPOCH if member.classic is None else ErrorCode.ILLEGAL_GENERATION
