"""ConsumerGroupHeartbeat v0-1: join, stay, change one's mind, leave, all in one request.

A member joins with epoch 0, leaves with -1, and as a static one for a while with -2. In between it says what it
holds, and hears what to hold next whenever that changes.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from penstock.groups.consumer import journal
from penstock.groups.consumer.assignors import ASSIGNORS, MemberSpec
from penstock.groups.consumer.group import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    LEAVE_STATIC_EPOCH,
    ConsumerGroup,
    ConsumerMember,
    MemberState,
    Partitions,
    ResolvedRegex,
    partitions_of,
)
from penstock.groups.consumer.leave import fence, leave
from penstock.groups.consumer.members import find_member
from penstock.groups.consumer.reconcile import reconcile
from penstock.groups.consumer.subscribe import metadata_hash, refresh_regexes, subscribed, topic_specs
from penstock.groups.timers import Timer, TimerKind
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_68_consumer_group_heartbeat import (
    Assignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.groups.turn import Caller, Turn
    from penstock.metadata.image import MetadataImage

FIRST_EPOCH = 1
CLIENT_MADE_IDS_SINCE = 1  # KIP-1082


class Limits(NamedTuple):
    """What holds for this group; a group may have its own."""

    session_timeout_ms: int
    heartbeat_interval_ms: int
    assignment_interval_ms: int  # changes in between wait, and are assigned together


def check_request(turn: Turn, request: ConsumerGroupHeartbeatRequest, api_version: int) -> None:
    """Raises INVALID_REQUEST or UNSUPPORTED_ASSIGNOR with the reason."""
    epoch = request.member_epoch
    first = epoch == JOIN_EPOCH
    id_needed = api_version >= CLIENT_MADE_IDS_SINCE or epoch != JOIN_EPOCH
    reason = None
    if not request.group_id:
        reason = "GroupId can't be empty."
    elif id_needed and not request.member_id:
        reason = "MemberId can't be empty."
    elif request.instance_id == "":
        reason = "InstanceId can't be empty."
    elif request.rack_id == "":
        reason = "RackId can't be empty."
    elif first and request.rebalance_timeout_ms == -1:
        reason = "RebalanceTimeoutMs must be provided in first request."
    elif first and (request.topic_partitions is None or request.topic_partitions):
        reason = "TopicPartitions must be empty when (re-)joining."
    elif first and request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
        reason = "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining."
    elif epoch == LEAVE_STATIC_EPOCH and request.instance_id is None:
        reason = "InstanceId can't be null."
    elif epoch < LEAVE_STATIC_EPOCH:
        reason = f"MemberEpoch is {epoch}, but must be greater than or equal to -2."
    if reason is not None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, reason)
    assignor = request.server_assignor
    if assignor is not None and (assignor not in ASSIGNORS or assignor not in turn.config.consumer_assignors):
        known = ", ".join(name for name in turn.config.consumer_assignors if name in ASSIGNORS)
        raise KafkaError(
            ErrorCode.UNSUPPORTED_ASSIGNOR, f"ServerAssignor {assignor} is not supported. Supported assignors: {known}."
        )


def heartbeat(
    turn: Turn,
    image: MetadataImage,
    group: ConsumerGroup,
    request: ConsumerGroupHeartbeatRequest,
    caller: Caller,
    limits: Limits,
) -> ConsumerGroupHeartbeatResponse:
    """The group may be a new one that nobody has recorded yet: its first epoch does."""
    if request.member_epoch in (LEAVE_EPOCH, LEAVE_STATIC_EPOCH):
        return leave(turn, image, group, request)
    known = group.members.get(request.member_id)
    if known is not None and _nothing_new(group, known, request):
        _arm(turn, group, known, limits)
        return ConsumerGroupHeartbeatResponse(
            member_id=known.member_id, member_epoch=known.epoch, heartbeat_interval_ms=limits.heartbeat_interval_ms
        )
    member_id = request.member_id or turn.new_uuid()
    if member_id not in group.members and len(group.members) >= turn.config.consumer_max_size:
        raise KafkaError(
            ErrorCode.GROUP_MAX_SIZE_REACHED, f"The group has its {turn.config.consumer_max_size} members already."
        )
    owned = _owned(request)
    member, replaced = find_member(turn, group, request, member_id, owned)
    updated = _updated(member, request, caller)
    members = {key: value for key, value in group.members.items() if key != replaced}
    members[member_id] = updated
    changed = _record_changes(turn, group, member, updated)
    target = _advance(turn, image, group, members, changed, replaced, member_id, limits)
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
    if full or partitions_of(stepped.assigned) != partitions_of(member.assigned):
        response.assignment = Assignment(
            topic_partitions=[
                TopicPartitions(topic_id=topic_id, partitions=sorted(indexes))
                for topic_id, indexes in sorted(partitions_of(stepped.assigned).items())
            ]
        )
    return response


def _nothing_new(group: ConsumerGroup, member: ConsumerMember, request: ConsumerGroupHeartbeatRequest) -> bool:
    """The usual case, in no more than look-ups: a member that is where it should be and says nothing."""
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
    """A field left out means: as before."""
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


def _record_changes(turn: Turn, group: ConsumerGroup, member: ConsumerMember, updated: ConsumerMember) -> bool:
    """Whether the group has to be assigned anew."""
    is_new = updated.member_id not in group.members
    if is_new or updated != member:
        journal.record_member(turn, group.group_id, updated)
    return (updated.topics, updated.regex) != (member.topics, member.regex)


class _Target(NamedTuple):
    epoch: int
    partitions: Partitions


def _advance(
    turn: Turn,
    image: MetadataImage,
    group: ConsumerGroup,
    members: Mapping[str, ConsumerMember],
    changed: bool,
    replaced: str | None,
    member_id: str,
    limits: Limits,
) -> _Target:
    """Bump the group's epoch if something changed, assign if the epoch is ahead, and give the member's share."""
    epoch, assignment_epoch = max(group.epoch, FIRST_EPOCH), group.assignment_epoch
    inherited = group.target.get(replaced, {}) if replaced is not None else {}
    current = group.target.get(member_id, inherited)
    if changed or group.metadata_changed:
        regexes = refresh_regexes(turn, image, group, members)
        topics = frozenset().union(*(subscribed(each, regexes) for each in members.values()))
        digest = metadata_hash(image, topics)
        group.metadata_changed = False
        if changed or digest != group.metadata_hash:
            epoch += 1
        if epoch != group.epoch:
            journal.record_epoch(turn, group.group_id, epoch, digest)
    else:
        regexes = group.regexes
    if epoch > assignment_epoch and not 0 <= turn.wall_ms - group.assignment_ms < limits.assignment_interval_ms:
        target = compute_target(turn, image, members, regexes, group.target, replaced, member_id)
        for each, partitions in target.items():
            if partitions != group.target.get(each):
                journal.record_target(turn, group.group_id, each, partitions)
        journal.record_target_epoch(turn, group.group_id, epoch)
        return _Target(epoch, target[member_id])
    return _Target(assignment_epoch, current)


def compute_target(
    turn: Turn,
    image: MetadataImage,
    members: Mapping[str, ConsumerMember],
    regexes: Mapping[str, ResolvedRegex],
    before: Mapping[str, Partitions],
    replaced: str | None,
    member_id: str,
) -> dict[str, Partitions]:
    names = {each: subscribed(member, regexes) for each, member in members.items()}
    topics = topic_specs(image, frozenset().union(*names.values()))
    specs = {
        each: MemberSpec(
            frozenset(image.topics[name].topic_id for name in names[each] if name in image.topics),
            member.rack_id,
            member.instance_id,
        )
        for each, member in members.items()
    }
    previous = dict(before)
    if replaced is not None and replaced in previous:
        previous[member_id] = previous.pop(replaced)
    assign = ASSIGNORS[preferred_assignor(turn, members)]
    return assign(specs, topics, previous)


def preferred_assignor(turn: Turn, members: Mapping[str, ConsumerMember]) -> str:
    """The one most members ask for, else the first one configured."""
    votes = Counter(member.server_assignor for member in members.values() if member.server_assignor)
    if votes:
        [(name, _)] = votes.most_common(1)
        if name in ASSIGNORS:
            return name
    return next((name for name in turn.config.consumer_assignors if name in ASSIGNORS), "uniform")


# --- time


def _arm(turn: Turn, group: ConsumerGroup, member: ConsumerMember, limits: Limits) -> None:
    session = group.sessions.get(member.member_id)
    if session is None:
        session = group.sessions[member.member_id] = Timer(TimerKind.SESSION, group.group_id, member.member_id)
    turn.arm(session, limits.session_timeout_ms)
    arm_revocation(turn, group, member)


def arm_revocation(turn: Turn, group: ConsumerGroup, member: ConsumerMember) -> None:
    """Giving partitions up may take a member its rebalance timeout, and not longer."""
    timer = group.revocations.get(member.member_id)
    if member.state is MemberState.UNREVOKED_PARTITIONS:
        if timer is None:
            timer = group.revocations[member.member_id] = Timer(TimerKind.REVOCATION, group.group_id, member.member_id)
        if not timer.armed:
            turn.arm(timer, max(member.rebalance_timeout_ms, 0))
    elif timer is not None:
        timer.cancel()


def start_timers(turn: Turn, group: ConsumerGroup, limits: Limits) -> None:
    """After a load, or after a static member stepped out: everybody gets a full session."""
    for member in group.members.values():
        if member.epoch != LEAVE_STATIC_EPOCH or member.member_id not in group.sessions:
            _arm(turn, group, member, limits)


def on_timer(turn: Turn, image: MetadataImage, group: ConsumerGroup, timer: Timer) -> None:
    member = group.members.get(timer.member_id)
    if member is None:
        return
    if timer.kind is TimerKind.SESSION or (
        timer.kind is TimerKind.REVOCATION and member.state is MemberState.UNREVOKED_PARTITIONS
    ):
        fence(turn, image, group, [member])
