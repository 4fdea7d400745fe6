"""Removes members that leave, leave temporarily, or time out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.groups.consumer import journal
from penstock.groups.consumer.group import ConsumerGroup, ConsumerMember
from penstock.groups.consumer.members import check_instance
from penstock.groups.consumer.subscribe import metadata_hash, refresh_regexes, subscribed
from penstock.groups.migration import can_downgrade, downgrade
from penstock.groups.reconciliation import LEAVE_STATIC_EPOCH
from penstock.protocol.messages.api_68_consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)

if TYPE_CHECKING:
    from penstock.groups.shard import GroupShard
    from penstock.groups.turn import Turn


def leave(
    shard: GroupShard, turn: Turn, group: ConsumerGroup, request: ConsumerGroupHeartbeatRequest
) -> ConsumerGroupHeartbeatResponse:
    member_id, instance_id = request.member_id, request.instance_id
    if instance_id is None:
        member = group.members.find(member_id)
    else:
        known = group.static_member(instance_id)
        check_instance(known, instance_id, member_id)
        assert known is not None
        member = known
    if request.member_epoch == LEAVE_STATIC_EPOCH:
        # Its membership and its partitions are kept until its session ends.
        away = replace(member, epoch=LEAVE_STATIC_EPOCH, pending_revocation={})
        journal.record_current(turn, group.group_id, away)
    else:
        remove(shard, turn, group, [member])
    return ConsumerGroupHeartbeatResponse(member_id=member_id, member_epoch=request.member_epoch)


def remove(shard: GroupShard, turn: Turn, group: ConsumerGroup, members: Sequence[ConsumerMember]) -> None:
    """Removes the members from the group, which gets a new group epoch.

    The next heartbeat of another member computes a new target assignment with the free partitions.
    """
    gone = {member.member_id for member in members}
    if can_downgrade(turn, group, gone):
        downgrade(shard, turn, group, gone)
        return
    for member_id in sorted(gone):
        journal.erase_member(turn, group.group_id, member_id)
    left = {member_id: member for member_id, member in group.members.items() if member_id not in gone}
    regexes = refresh_regexes(turn, shard.image, group, left, None)
    topics = frozenset().union(*(subscribed(member, regexes) for member in left.values()))
    journal.record_epoch(turn, group.group_id, group.epoch + 1, metadata_hash(shard.image, topics))
