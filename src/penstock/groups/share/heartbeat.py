"""Handles ShareGroupHeartbeat v1. With this request a member joins, stays in, or leaves a share group.

A member joins with epoch 0 and leaves with -1. A response contains the assignment when the member joins, sends its
subscription or gets another assignment.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.groups.consumer.subscribe import metadata_hash
from penstock.groups.reconciliation import JOIN_EPOCH, LEAVE_EPOCH
from penstock.groups.share import assignor, journal
from penstock.groups.share.group import ShareGroup, ShareMember
from penstock.groups.share.states import initialize_missing
from penstock.groups.timing import arm_session, may_assign
from penstock.groups.undo import keep_member_state
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_76_share_group_heartbeat import (
    Assignment,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
    TopicPartitions,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from penstock.groups.consumer.group import Partitions
    from penstock.groups.timing import Limits
    from penstock.groups.turn import Caller, Turn
    from penstock.metadata.image import MetadataImage

FIRST_EPOCH = 1
#: The heartbeat interval while the share coordinator creates states, so that members get their partitions soon.
INITIALIZING_HEARTBEAT_MS = 500


def check_request(request: ShareGroupHeartbeatRequest) -> None:
    """Raises INVALID_REQUEST, with the reason, for an invalid ShareGroupHeartbeat request."""
    reason = None
    if not request.member_id:
        reason = "The member id is empty: give a member id."
    elif not request.group_id:
        reason = "The group id is empty: give a group id."
    elif request.rack_id == "":
        reason = "The rack id is empty: give a rack, or null for no rack."
    elif request.member_epoch == JOIN_EPOCH and not request.subscribed_topic_names:
        reason = "The joining member subscribes to no topics: give topic names."
    elif request.member_epoch < LEAVE_EPOCH:
        reason = f"There is no member epoch {request.member_epoch}: give -1 or more."
    if reason is not None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, reason)


def heartbeat(
    turn: Turn,
    image: MetadataImage,
    limits: Limits,
    group: ShareGroup,
    request: ShareGroupHeartbeatRequest,
    caller: Caller,
) -> ShareGroupHeartbeatResponse:
    """Handles a ShareGroupHeartbeat request.

    If the group is new, the record of its first epoch creates the group.
    """
    if request.member_epoch == LEAVE_EPOCH:
        remove(turn, image, group, [group.members.find(request.member_id)])
        return ShareGroupHeartbeatResponse(member_id=request.member_id, member_epoch=LEAVE_EPOCH)
    member = _find(turn, group, request)
    keep_member_state(turn, group, member.member_id)
    updated = _updated(member, request, caller)
    members = {**group.members, updated.member_id: updated}
    if updated != member or updated.member_id not in group.members:
        journal.record_member(turn, group.group_id, updated)
    epoch = _group_epoch(turn, image, group, members, updated.topics != member.topics)
    topics = sorted({name for each in members.values() for name in each.topics})
    initialize_missing(turn, image, group, topics, epoch)
    target_epoch, target = _target(turn, image, group, members, updated.member_id, epoch, limits)
    stepped = updated
    if updated.epoch != target_epoch or updated.member_id not in group.members:
        stepped = replace(updated, epoch=target_epoch, previous_epoch=member.epoch, assigned=target)
        journal.record_current(turn, group.group_id, stepped)
    arm_session(turn, group, updated.member_id, limits.session_timeout_ms)
    response = ShareGroupHeartbeatResponse(
        member_id=updated.member_id, member_epoch=stepped.epoch, heartbeat_interval_ms=limits.heartbeat_interval_ms
    )
    if turn.effects or group.states.initializing:
        response.heartbeat_interval_ms = min(limits.heartbeat_interval_ms, INITIALIZING_HEARTBEAT_MS)
    full = request.member_epoch == JOIN_EPOCH or request.subscribed_topic_names is not None
    if full or stepped.assigned != member.assigned:
        response.assignment = Assignment(
            topic_partitions=[
                TopicPartitions(topic_id=topic_id, partitions=sorted(indexes))
                for topic_id, indexes in sorted(stepped.assigned.items())
                if topic_id in image.topics_by_id
            ]
        )
    return response


def _find(turn: Turn, group: ShareGroup, request: ShareGroupHeartbeatRequest) -> ShareMember:
    member = group.members.get(request.member_id)
    if member is None:
        if request.member_epoch != JOIN_EPOCH:
            return group.members.find(request.member_id)  # raises UNKNOWN_MEMBER_ID
        most = turn.config.share_max_size
        if len(group.members) >= most:
            raise KafkaError(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                f"The group is full with {most} members: raise group.share.max.size or stop a member.",
            )
        return ShareMember(request.member_id)
    # The previous epoch comes from a member that missed the last response.
    if request.member_epoch not in (JOIN_EPOCH, member.epoch, member.previous_epoch):
        raise KafkaError(
            ErrorCode.FENCED_MEMBER_EPOCH,
            f"The member is in epoch {member.epoch}, not {request.member_epoch}: give up all records and join again.",
        )
    return member


def _updated(member: ShareMember, request: ShareGroupHeartbeatRequest, caller: Caller) -> ShareMember:
    names = request.subscribed_topic_names
    return replace(
        member,
        rack_id=request.rack_id or member.rack_id,
        topics=tuple(sorted(set(names))) if names is not None else member.topics,
        client_id=caller.client_id,
        client_host=caller.client_host,
    )


def _group_epoch(
    turn: Turn, image: MetadataImage, group: ShareGroup, members: Mapping[str, ShareMember], changed: bool
) -> int:
    """Returns the group epoch. Records a new epoch after a change of members, subscriptions, topics or states."""
    epoch = group.epoch
    if changed or group.metadata_changed or not epoch:
        digest = metadata_hash(image, {name for member in members.values() for name in member.topics})
        group.metadata_changed = False
        changed = changed or digest != group.metadata_hash
    else:
        digest = group.metadata_hash
    if changed or not epoch or _has_unassigned(image, group, members):
        epoch = max(epoch + 1, FIRST_EPOCH)
        journal.record_epoch(turn, group.group_id, epoch, digest)
    return epoch


def _has_unassigned(image: MetadataImage, group: ShareGroup, members: Mapping[str, ShareMember]) -> bool:
    """Returns True if partitions have a state at the share coordinator but are in no target assignment yet."""
    if group.epoch > group.assignment_epoch:
        return False
    assigned: dict[bytes, set[int]] = {}
    for partitions in group.target.values():
        for topic_id, indexes in partitions.items():
            assigned.setdefault(topic_id, set()).update(indexes)
    return any(
        indexes - assigned.get(topic_id, set()) for topic_id, indexes in _assignable(image, group, members).items()
    )


def _assignable(
    image: MetadataImage, group: ShareGroup, members: Mapping[str, ShareMember]
) -> dict[bytes, frozenset[int]]:
    read = {image.topics[name].topic_id for each in members.values() for name in each.topics if name in image.topics}
    return {topic_id: indexes for topic_id, indexes in group.states.initialized.items() if topic_id in read}


def _target(
    turn: Turn,
    image: MetadataImage,
    group: ShareGroup,
    members: Mapping[str, ShareMember],
    member_id: str,
    epoch: int,
    limits: Limits,
) -> tuple[int, Partitions]:
    due = may_assign(turn, group.assignment_ms, limits)
    due = due or not any(group.target.values())  # the first partitions are assigned as soon as they are initialized
    if epoch <= group.assignment_epoch or not due:
        return group.assignment_epoch, group.target.get(member_id, {})
    subscriptions = {
        each: frozenset(image.topics[name].topic_id for name in member.topics if name in image.topics)
        for each, member in members.items()
    }
    target = assignor.assign(subscriptions, _assignable(image, group, members), group.target)
    for each, partitions in target.items():
        if partitions != group.target.get(each):
            journal.record_target(turn, group.group_id, each, partitions)
    journal.record_target_epoch(turn, group.group_id, epoch)
    return epoch, target[member_id]


# --- members that go, and time


def remove(turn: Turn, image: MetadataImage, group: ShareGroup, members: Iterable[ShareMember]) -> None:
    """Removes members from the share group, which gets a new group epoch.

    Other members get the free partitions with their next heartbeats.
    """
    gone = {member.member_id for member in members}
    for member_id in sorted(gone):
        journal.erase_member(turn, group.group_id, member_id)
    topics = {name for each, member in group.members.items() if each not in gone for name in member.topics}
    journal.record_epoch(turn, group.group_id, group.epoch + 1, metadata_hash(image, topics))


def start_timers(turn: Turn, group: ShareGroup, limits: Limits) -> None:
    """Restarts the session timeout of every member, after the group was loaded from the log."""
    for member_id in group.members:
        arm_session(turn, group, member_id, limits.session_timeout_ms)
