"""Handles DescribeGroups, ListGroups and DeleteGroups."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from penstock.groups.classic.group import ClassicGroup, State
from penstock.groups.classic.journal import record_deletion
from penstock.groups.consumer.group import ConsumerGroup
from penstock.groups.consumer.journal import erase_group as erase_consumer_group
from penstock.groups.share.group import ShareGroup
from penstock.groups.share.journal import erase_group as erase_share_group
from penstock.groups.streams.group import StreamsGroup, StreamsGroupState
from penstock.groups.streams.journal import erase_group as erase_streams_group
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_15_describe_groups import DescribedGroup, DescribedGroupMember
from penstock.protocol.messages.api_16_list_groups import ListedGroup

if TYPE_CHECKING:
    from penstock.groups.shard import Group, GroupShard
    from penstock.groups.turn import Turn

NOT_FOUND_SINCE = 6  # earlier versions describe a missing group as dead


def describe(shard: GroupShard, group_id: str, api_version: int) -> DescribedGroup:
    group = shard.groups.get(group_id)
    if not isinstance(group, ClassicGroup) or group.state is State.DEAD:
        described = DescribedGroup(group_id=group_id, group_state=State.DEAD)
        if api_version >= NOT_FOUND_SINCE:
            described.error_code = ErrorCode.GROUP_ID_NOT_FOUND
            described.error_message = (
                f"Group {group_id} is not a classic group." if group is not None else f"Group {group_id} not found."
            )
        return described
    stable = group.state is State.STABLE
    protocol = group.protocol if stable and group.protocol is not None else ""
    return DescribedGroup(
        group_id=group_id,
        group_state=group.state,
        protocol_type=group.protocol_type or "",
        protocol_data=protocol,
        members=[
            DescribedGroupMember(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=member.metadata(protocol) if stable else b"",
                member_assignment=member.assignment,
            )
            for member in group.members.values()
        ],
    )


def list_groups(groups: Iterable[Group], states: frozenset[str], types: frozenset[str]) -> list[ListedGroup]:
    """Lists the groups that match both filters, `states` and `types`.

    The values of a filter are lower case; an empty filter matches all groups.
    """
    return [
        ListedGroup(
            group_id=group.group_id,
            protocol_type=group.protocol_type or "",
            group_state=group.state,
            group_type=group_type(group),
        )
        for group in groups
        if (not states or not states.isdisjoint(_state_names(group))) and (not types or group_type(group) in types)
    ]


def _state_names(group: Group) -> tuple[str, ...]:
    """Returns the names by which a filter can select the group's state.

    The state NotReady has two names, because Kafka's brokers write it as `not_ready` in filters.
    """
    name = group.state.lower()
    return (name, "not_ready") if group.state == StreamsGroupState.NOT_READY else (name,)


def group_type(group: Group) -> str:
    match group:
        case ClassicGroup():
            return "classic"
        case ConsumerGroup():
            return "consumer"
        case ShareGroup():
            return "share"
        case StreamsGroup():
            return "streams"


def delete_group(shard: GroupShard, turn: Turn, group_id: str) -> ErrorCode:
    try:
        group = shard.group(group_id)
    except KafkaError as error:
        return error.code
    if group.state == State.DEAD:
        return ErrorCode.GROUP_ID_NOT_FOUND
    if group.state != State.EMPTY:
        return ErrorCode.NON_EMPTY_GROUP
    shard.offsets.erase_group(turn, group_id)
    if isinstance(group, ConsumerGroup):
        erase_consumer_group(turn, group)
    elif isinstance(group, ShareGroup):
        erase_share_group(turn, group)
    elif isinstance(group, StreamsGroup):
        erase_streams_group(turn, group)
    else:
        record_deletion(turn, group)
    return ErrorCode.NONE
