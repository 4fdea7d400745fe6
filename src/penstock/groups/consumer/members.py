"""Finds the member that sent a heartbeat: a new member, a known member, or a static member that has returned."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.groups.consumer import journal
from penstock.groups.consumer.group import ConsumerGroup, ConsumerMember, Partitions
from penstock.groups.reconciliation import JOIN_EPOCH, LEAVE_STATIC_EPOCH, check_member_epoch
from penstock.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from penstock.groups.turn import Turn
    from penstock.protocol.messages.api_68_consumer_group_heartbeat import ConsumerGroupHeartbeatRequest


def find_member(
    turn: Turn,
    group: ConsumerGroup,
    request: ConsumerGroupHeartbeatRequest,
    member_id: str,
    owned: Partitions | None,
) -> tuple[ConsumerMember, str | None]:
    """Returns the member that sent a heartbeat, and the id of the static member that it replaces (None if it replaces
    no member).

    The returned member has its state before this heartbeat.
    """
    if request.instance_id is not None:
        return _find_static(turn, group, request.instance_id, member_id, request.member_epoch, owned)
    member = group.members.get(member_id)
    if member is None:
        if request.member_epoch != JOIN_EPOCH:
            raise KafkaError(
                ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not in the group: join the group first."
            )
        return ConsumerMember(member_id), None
    check_member_epoch(member, request.member_epoch, owned)
    return member, None


def _find_static(
    turn: Turn,
    group: ConsumerGroup,
    instance_id: str,
    member_id: str,
    epoch: int,
    owned: Partitions | None,
) -> tuple[ConsumerMember, str | None]:
    known = group.static_member(instance_id)
    if epoch == JOIN_EPOCH:
        if known is None:
            return ConsumerMember(member_id), None
        if known.member_id == member_id:
            return known, None
        if known.epoch != LEAVE_STATIC_EPOCH:
            raise KafkaError(
                ErrorCode.UNRELEASED_INSTANCE_ID,
                f"Instance {instance_id} is still in use by member {known.member_id}: stop that member first.",
            )
        return replace_member(turn, group, known, member_id), known.member_id
    check_instance(known, instance_id, member_id)
    assert known is not None
    check_member_epoch(known, epoch, owned)
    return known, None


def check_instance(known: ConsumerMember | None, instance_id: str, member_id: str) -> None:
    if known is None:
        raise KafkaError(
            ErrorCode.UNKNOWN_MEMBER_ID, f"Instance {instance_id} is not in the group: join the group first."
        )
    if known.member_id != member_id:
        raise KafkaError(
            ErrorCode.FENCED_INSTANCE_ID,
            f"Another member now uses instance id {instance_id}: give each consumer its own id.",
        )


def replace_member(turn: Turn, group: ConsumerGroup, old: ConsumerMember, member_id: str) -> ConsumerMember:
    """Gives the static member `old` a new member id, and returns the member with this id.

    The member stays in the group and keeps its target assignment.
    """
    journal.erase_member(turn, group.group_id, old.member_id)
    journal.record_target(turn, group.group_id, member_id, group.target.get(old.member_id, {}))
    return replace(old, member_id=member_id, epoch=JOIN_EPOCH, previous_epoch=-1, pending_revocation={})
