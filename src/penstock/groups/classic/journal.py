"""Writes the record of a classic group to the log, and restores the group from its record."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.groups.classic.group import ClassicGroup, Member, State
from penstock.groups.timers import Timer, TimerKind
from penstock.protocol.persisted.group.group_metadata import GroupMetadataKey, GroupMetadataValue, MemberMetadata

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.groups.turn import Turn


def record_group(turn: Turn, group: ClassicGroup, assignments: Mapping[str, bytes]) -> None:
    """Writes a record of the current generation to the log: its members and their assignments."""
    protocol = group.protocol
    members = [
        MemberMetadata(
            member_id=member.member_id,
            group_instance_id=member.instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            rebalance_timeout=member.rebalance_timeout_ms,
            session_timeout=member.session_timeout_ms,
            subscription=member.metadata(protocol) if protocol is not None else b"",
            assignment=assignments.get(member.member_id, b""),
        )
        for member in group.members.values()
    ]
    turn.record(
        GroupMetadataKey(group=group.group_id),
        GroupMetadataValue(
            protocol_type=group.protocol_type or "",
            generation=group.generation,
            protocol=protocol,
            leader=group.leader,
            current_state_timestamp=group.state_timestamp_ms,
            members=members,
        ),
    )


def record_creation(turn: Turn, group: ClassicGroup) -> None:
    turn.record(
        GroupMetadataKey(group=group.group_id),
        GroupMetadataValue(
            protocol_type="",
            generation=0,
            protocol=None,
            leader=None,
            current_state_timestamp=group.state_timestamp_ms,
            members=[],
        ),
    )


def record_deletion(turn: Turn, group: ClassicGroup) -> None:
    turn.record(GroupMetadataKey(group=group.group_id), None)


def restore(turn: Turn, group: ClassicGroup) -> None:
    """Restores a group that was loaded from the log: every member gets a full session timeout."""
    value = group.stored
    if value is None:
        return
    group.generation = value.generation
    group.protocol_type = value.protocol_type or None
    group.protocol = value.protocol
    group.state_timestamp_ms = value.current_state_timestamp
    group.state = State.STABLE if value.members else State.EMPTY
    for stored in value.members:
        member = Member(
            member_id=stored.member_id,
            instance_id=stored.group_instance_id,
            client_id=stored.client_id,
            client_host=stored.client_host,
            session_timeout_ms=stored.session_timeout,
            # a record from before rebalance timeouts existed
            rebalance_timeout_ms=stored.rebalance_timeout if stored.rebalance_timeout >= 0 else stored.session_timeout,
            protocols=((value.protocol or "", stored.subscription),),
            session=Timer(TimerKind.SESSION, group.group_id, stored.member_id),
            assignment=stored.assignment,
        )
        group.add(member)
        turn.arm(member.session, member.session_timeout_ms)
    group.leader = value.leader
    group.subscribed_topics = group.subscriptions()
