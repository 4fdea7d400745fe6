"""Writes and applies the records of consumer groups. No other module writes or applies them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.groups.consumer.group import (
    Assigned,
    ClassicMembership,
    ConsumerGroup,
    ConsumerMember,
    Partitions,
    ResolvedRegex,
)
from penstock.groups.reconciliation import MemberState
from penstock.protocol.persisted.group.consumer_group_current_member_assignment import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    TopicPartitions,
)
from penstock.protocol.persisted.group.consumer_group_member_metadata import (
    ClassicMemberMetadata,
    ClassicProtocol,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
)
from penstock.protocol.persisted.group.consumer_group_metadata import (
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
)
from penstock.protocol.persisted.group.consumer_group_regular_expression import (
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
)
from penstock.protocol.persisted.group.consumer_group_target_assignment_member import (
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    TopicPartition,
)
from penstock.protocol.persisted.group.consumer_group_target_assignment_metadata import (
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
)

if TYPE_CHECKING:
    from penstock.groups.turn import JournalRecord, Turn

# --- writing


def record_member(turn: Turn, group_id: str, member: ConsumerMember) -> None:
    classic = member.classic
    turn.record(
        ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=member.member_id),
        ConsumerGroupMemberMetadataValue(
            instance_id=member.instance_id,
            rack_id=member.rack_id,
            client_id=member.client_id,
            client_host=member.client_host,
            subscribed_topic_names=list(member.topics),
            subscribed_topic_regex=member.regex,
            rebalance_timeout_ms=member.rebalance_timeout_ms,
            server_assignor=member.server_assignor,
            classic_member_metadata=None
            if classic is None
            else ClassicMemberMetadata(
                session_timeout_ms=classic.session_timeout_ms,
                supported_protocols=[
                    ClassicProtocol(name=name, metadata=metadata) for name, metadata in classic.protocols
                ],
            ),
        ),
    )


def record_epoch(turn: Turn, group_id: str, epoch: int, metadata_hash: int) -> None:
    turn.record(
        ConsumerGroupMetadataKey(group_id=group_id),
        ConsumerGroupMetadataValue(epoch=epoch, metadata_hash=metadata_hash),
    )


def record_target(turn: Turn, group_id: str, member_id: str, partitions: Partitions) -> None:
    turn.record(
        ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id),
        ConsumerGroupTargetAssignmentMemberValue(
            topic_partitions=[
                TopicPartition(topic_id=topic_id, partitions=sorted(indexes))
                for topic_id, indexes in sorted(partitions.items())
            ]
        ),
    )


def record_target_epoch(turn: Turn, group_id: str, epoch: int) -> None:
    turn.record(
        ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id),
        ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch=epoch, assignment_timestamp=turn.wall_ms),
    )


def record_current(turn: Turn, group_id: str, member: ConsumerMember) -> None:
    turn.record(
        ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member.member_id),
        ConsumerGroupCurrentMemberAssignmentValue(
            member_epoch=member.epoch,
            previous_member_epoch=member.previous_epoch,
            state=member.state,
            assigned_partitions=_written(member.assigned),
            partitions_pending_revocation=_written(member.pending_revocation),
        ),
    )


def _written(assigned: Assigned) -> list[TopicPartitions]:
    return [
        TopicPartitions(
            topic_id=topic_id,
            partitions=[partition for partition, _ in sorted(partitions.items())],
            assignment_epochs=[epoch for _, epoch in sorted(partitions.items())],
        )
        for topic_id, partitions in sorted(assigned.items())
        if partitions
    ]


def record_regex(turn: Turn, group_id: str, regex: str, resolved: ResolvedRegex | None) -> None:
    turn.record(
        ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=regex),
        None
        if resolved is None
        else ConsumerGroupRegularExpressionValue(
            topics=sorted(resolved.topics), version=resolved.version, timestamp=resolved.timestamp_ms
        ),
    )


def erase_member(turn: Turn, group_id: str, member_id: str) -> None:
    turn.record(ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member_id), None)
    turn.record(ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id), None)
    turn.record(ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=member_id), None)


def erase_group(turn: Turn, group: ConsumerGroup) -> None:
    for member_id in group.members:
        erase_member(turn, group.group_id, member_id)
    for regex in group.regexes:
        record_regex(turn, group.group_id, regex, None)
    turn.record(ConsumerGroupTargetAssignmentMetadataKey(group_id=group.group_id), None)
    turn.record(ConsumerGroupMetadataKey(group_id=group.group_id), None)


# --- applying


def apply(group: ConsumerGroup, record: JournalRecord) -> None:
    """Applies a record to a group. The record that deletes a group is applied by `GroupShard`."""
    key, value = record
    match key:
        case ConsumerGroupMetadataKey():
            if value is not None:
                group.epoch, group.metadata_hash = value.epoch, value.metadata_hash
        case ConsumerGroupMemberMetadataKey():
            _apply_member(group, key.member_id, value)
        case ConsumerGroupTargetAssignmentMetadataKey():
            group.assignment_epoch = value.assignment_epoch if value is not None else 0
            group.assignment_ms = value.assignment_timestamp if value is not None else 0
        case ConsumerGroupTargetAssignmentMemberKey():
            if value is None:
                group.target.pop(key.member_id, None)
            else:
                group.target[key.member_id] = {
                    each.topic_id: frozenset(each.partitions) for each in value.topic_partitions
                }
        case ConsumerGroupCurrentMemberAssignmentKey():
            _apply_current(group, key.member_id, value)
        case ConsumerGroupRegularExpressionKey():
            if value is None:
                group.regexes.pop(key.regular_expression, None)
            else:
                group.regexes[key.regular_expression] = ResolvedRegex(
                    frozenset(value.topics), value.version, value.timestamp
                )
        case _:
            pass  # a record type for partition metadata that Kafka replaced by the metadata hash


def _apply_member(group: ConsumerGroup, member_id: str, value: ConsumerGroupMemberMetadataValue | None) -> None:
    before = group.members.get(member_id)
    if before is not None and before.instance_id is not None:
        group.static_members.pop(before.instance_id, None)
    if value is None:
        group.members.drop(member_id)
        for timers in (group.sessions, group.revocations, group.rejoins, group.syncs):
            timer = timers.pop(member_id, None)
            if timer is not None:
                timer.cancel()
        return
    classic = value.classic_member_metadata
    member = replace(
        before or ConsumerMember(member_id),
        instance_id=value.instance_id,
        rack_id=value.rack_id,
        client_id=value.client_id,
        client_host=value.client_host,
        topics=tuple(value.subscribed_topic_names),
        regex=value.subscribed_topic_regex or None,
        rebalance_timeout_ms=value.rebalance_timeout_ms,
        server_assignor=value.server_assignor,
        classic=None
        if classic is None
        else ClassicMembership(
            classic.session_timeout_ms, tuple((each.name, each.metadata) for each in classic.supported_protocols)
        ),
    )
    group.members.put(member)
    if value.instance_id is not None:
        group.static_members[value.instance_id] = member_id


def _apply_current(
    group: ConsumerGroup, member_id: str, value: ConsumerGroupCurrentMemberAssignmentValue | None
) -> None:
    before = group.members.get(member_id) or ConsumerMember(member_id)
    for partition in _held(before):
        if group.owners.get(partition) == member_id:
            del group.owners[partition]
    if value is None:
        if member_id in group.members:
            group.members.put(
                replace(
                    before, epoch=0, previous_epoch=-1, state=MemberState.STABLE, assigned={}, pending_revocation={}
                )
            )
        return
    member = replace(
        before,
        epoch=value.member_epoch,
        previous_epoch=value.previous_member_epoch,
        state=MemberState(value.state),
        assigned=_read(value.assigned_partitions, value.member_epoch),
        pending_revocation=_read(value.partitions_pending_revocation, value.member_epoch),
    )
    group.members.put(member)
    for partition in _held(member):
        group.owners[partition] = member_id


def _held(member: ConsumerMember) -> list[tuple[bytes, int]]:
    return [
        (topic_id, partition)
        for assigned in (member.assigned, member.pending_revocation)
        for topic_id, partitions in assigned.items()
        for partition in partitions
    ]


def _read(written: list[TopicPartitions], member_epoch: int) -> dict[bytes, Mapping[int, int]]:
    return {
        each.topic_id: dict(zip(each.partitions, each.assignment_epochs or [member_epoch] * len(each.partitions)))
        for each in written
    }
