"""Handles ConsumerGroupHeartbeat v0-1. With this request a member joins, stays, changes its subscription, or leaves.

A member joins with epoch 0 and leaves with -1; a static member leaves temporarily with -2. Other requests report the
owned partitions, and the response contains the next assignment when it changes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.groups.consumer import journal
from penstock.groups.consumer.advance import advance
from penstock.groups.consumer.assignors import ASSIGNORS
from penstock.groups.consumer.group import ConsumerGroup, ConsumerMember, Partitions
from penstock.groups.consumer.leave import leave
from penstock.groups.consumer.members import find_member
from penstock.groups.reconciliation import JOIN_EPOCH, LEAVE_EPOCH, LEAVE_STATIC_EPOCH, indexes_of, reconcile
from penstock.groups.timing import Limits, arm_revocation, arm_session
from penstock.groups.undo import keep_member_state
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_68_consumer_group_heartbeat import (
    Assignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)

if TYPE_CHECKING:
    from penstock.groups.shard import GroupShard
    from penstock.groups.turn import Caller, Turn

CLIENT_MADE_IDS_SINCE = 1  # KIP-1082


def check_request(turn: Turn, request: ConsumerGroupHeartbeatRequest, api_version: int) -> None:
    """Raises INVALID_REQUEST or UNSUPPORTED_ASSIGNOR, with a reason, for an invalid ConsumerGroupHeartbeat request."""
    epoch = request.member_epoch
    first = epoch == JOIN_EPOCH
    id_needed = api_version >= CLIENT_MADE_IDS_SINCE or epoch != JOIN_EPOCH
    reason = None
    if not request.group_id:
        reason = "The group id is empty: give a group id."
    elif id_needed and not request.member_id:
        reason = "The member id is empty: give a member id."
    elif request.instance_id == "":
        reason = "The instance id is empty: give an id, or null for a dynamic member."
    elif request.rack_id == "":
        reason = "The rack id is empty: give a rack, or null for no rack."
    elif first and request.rebalance_timeout_ms == -1:
        reason = "The joining member has no rebalance timeout: set the timeout."
    elif first and (request.topic_partitions is None or request.topic_partitions):
        reason = "The joining member reports owned partitions: send an empty list."
    elif first and request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
        reason = "The joining member subscribes to no topics: give topic names or a regular expression."
    elif epoch == LEAVE_STATIC_EPOCH and request.instance_id is None:
        reason = "Only a static member can leave temporarily: give the instance id."
    elif epoch < LEAVE_STATIC_EPOCH:
        reason = f"There is no member epoch {epoch}: give -2 or more."
    if reason is not None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, reason)
    assignor = request.server_assignor
    if assignor is not None and (assignor not in ASSIGNORS or assignor not in turn.config.consumer_assignors):
        known = ", ".join(name for name in turn.config.consumer_assignors if name in ASSIGNORS)
        raise KafkaError(ErrorCode.UNSUPPORTED_ASSIGNOR, f"The broker has no assignor {assignor}: use {known}.")


def heartbeat(
    shard: GroupShard,
    turn: Turn,
    group: ConsumerGroup,
    request: ConsumerGroupHeartbeatRequest,
    caller: Caller,
) -> ConsumerGroupHeartbeatResponse:
    """Handles a ConsumerGroupHeartbeat request.

    If the group is new, the record of its first epoch creates the group.
    """
    if request.member_epoch in (LEAVE_EPOCH, LEAVE_STATIC_EPOCH):
        return leave(shard, turn, group, request)
    limits = shard.limits(group.group_id)
    known = group.members.get(request.member_id)
    if known is not None and _nothing_new(group, known, request):
        _arm(turn, group, known, limits)
        return ConsumerGroupHeartbeatResponse(
            member_id=known.member_id, member_epoch=known.epoch, heartbeat_interval_ms=limits.heartbeat_interval_ms
        )
    member_id = request.member_id or turn.new_uuid()
    if member_id not in group.members and len(group.members) >= turn.config.consumer_max_size:
        raise KafkaError(
            ErrorCode.GROUP_MAX_SIZE_REACHED,
            f"The group is full with {turn.config.consumer_max_size} members: raise group.consumer.max.size or "
            "stop a member.",
        )
    keep_member_state(turn, group, member_id)
    owned = _owned(request)
    member, replaced = find_member(turn, group, request, member_id, owned)
    updated = _updated(member, request, caller)
    target = advance(turn, shard.image, group, member, updated, replaced, limits, caller.sees)
    stepped = reconcile(
        updated,
        target.epoch,
        target.partitions,
        owned,
        lambda topic_id, partition: group.owners.get((topic_id, partition)) not in (None, replaced),
    )
    if stepped != updated or member_id not in group.members:
        journal.record_current(turn, group.group_id, stepped)
    _arm(turn, group, stepped, limits)
    full = request.member_epoch == JOIN_EPOCH or (
        request.rebalance_timeout_ms != -1
        and request.topic_partitions is not None
        and (request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None)
    )
    response = ConsumerGroupHeartbeatResponse(
        member_id=member_id, member_epoch=stepped.epoch, heartbeat_interval_ms=limits.heartbeat_interval_ms
    )
    if full or indexes_of(stepped.assigned) != indexes_of(member.assigned):
        response.assignment = Assignment(
            topic_partitions=[
                TopicPartitions(topic_id=topic_id, partitions=sorted(indexes))
                for topic_id, indexes in sorted(indexes_of(stepped.assigned).items())
            ]
        )
    return response


def _nothing_new(group: ConsumerGroup, member: ConsumerMember, request: ConsumerGroupHeartbeatRequest) -> bool:
    """Returns True if the member already owns its target assignment and its heartbeat reports no change.

    Most heartbeats report no change. So this function only compares fields: it computes no assignment and builds no
    object.
    """
    return (
        request.member_epoch == member.epoch
        and request.subscribed_topic_names is None
        and request.subscribed_topic_regex is None
        and request.topic_partitions is None
        and request.server_assignor is None
        and request.rebalance_timeout_ms == -1
        and request.instance_id == member.instance_id
        and (request.rack_id is None or request.rack_id == member.rack_id)
        and not group.metadata_changed
        and group.epoch == group.assignment_epoch
        and member.is_reconciled(group.assignment_epoch)
    )


def _owned(request: ConsumerGroupHeartbeatRequest) -> Partitions | None:
    if request.topic_partitions is None:
        return None
    return {each.topic_id: frozenset(each.partitions) for each in request.topic_partitions}


def _updated(member: ConsumerMember, request: ConsumerGroupHeartbeatRequest, caller: Caller) -> ConsumerMember:
    """Returns the member with the fields of the request. A field that the request leaves out stays unchanged."""
    names, regex = request.subscribed_topic_names, request.subscribed_topic_regex
    return replace(
        member,
        instance_id=request.instance_id or member.instance_id,
        rack_id=request.rack_id or member.rack_id,
        rebalance_timeout_ms=request.rebalance_timeout_ms
        if request.rebalance_timeout_ms != -1
        else member.rebalance_timeout_ms,
        server_assignor=request.server_assignor or member.server_assignor,
        topics=tuple(sorted(set(names))) if names is not None else member.topics,
        regex=(regex or None) if regex is not None else member.regex,
        client_id=caller.client_id,
        client_host=caller.client_host,
        classic=None,
    )


def _arm(turn: Turn, group: ConsumerGroup, member: ConsumerMember, limits: Limits) -> None:
    arm_session(turn, group, member.member_id, limits.session_timeout_ms)
    arm_revocation(turn, group, member)
