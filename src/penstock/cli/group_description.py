"""Describes a group of either protocol: its state, its members and their partitions. Shared by the group commands."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from penstock.cli.exit import Exit, Failure

if TYPE_CHECKING:
    from penstock.cli.connect import Broker

NOT_FOUND_STATES = ("Dead", "")


class Owner(NamedTuple):
    member: str
    client: str
    host: str
    instance: str | None


class Described(NamedTuple):
    state: str
    owners: dict[tuple[str, int], Owner]
    members: dict[Owner, list[str]]  # each member with its partitions


def describe(broker: Broker, group: str) -> Described:
    """Describes a group of the classic or consumer protocol. Raises Failure if the group does not exist."""
    found = _describe_consumer(broker, group) or _describe_classic(broker, group)
    if found.state in NOT_FOUND_STATES:
        raise Failure(f"there is no group {group!r}: `penstock group list` shows the groups", Exit.NOT_FOUND)
    return found


def _describe_consumer(broker: Broker, group: str) -> Described | None:
    """Describes a group of the consumer protocol.

    Returns None if the group, or the broker, supports only the classic protocol.
    """
    from penstock.protocol.messages import api_69_consumer_group_describe as api

    request = api.ConsumerGroupDescribeRequest(group_ids=[group])
    try:
        answer: api.ConsumerGroupDescribeResponse = broker.ask_coordinator(group, request)
    except Failure:
        return None
    [described] = answer.groups
    if described.error_code:
        return None
    members: dict[Owner, list[tuple[str, int]]] = {}
    for each in described.members:
        owner = Owner(each.member_id, each.client_id, each.client_host, each.instance_id)
        members[owner] = [
            (topic.topic_name, index) for topic in each.assignment.topic_partitions for index in topic.partitions
        ]
    return _described(described.group_state, members)


def _describe_classic(broker: Broker, group: str) -> Described:
    from penstock.cli.connect import failure
    from penstock.protocol.errors import ErrorCode
    from penstock.protocol.messages import api_15_describe_groups as api

    answer: api.DescribeGroupsResponse = broker.ask_coordinator(group, api.DescribeGroupsRequest(groups=[group]))
    [described] = answer.groups
    if described.error_code and described.error_code != ErrorCode.GROUP_ID_NOT_FOUND:
        raise failure(group, described.error_code, described.error_message)
    members = {
        Owner(each.member_id, each.client_id, each.client_host, each.group_instance_id): _assigned(
            described.protocol_type, each.member_assignment
        )
        for each in described.members
    }
    return _described(described.group_state, members)


def _described(state: str, members: dict[Owner, list[tuple[str, int]]]) -> Described:
    return Described(
        state,
        {partition: owner for owner, partitions in members.items() for partition in partitions},
        {
            owner: [f"{topic}-{index}" for topic, index in sorted(partitions)]
            for owner, partitions in sorted(members.items(), key=lambda item: item[0].member)
        },
    )


def _assigned(protocol_type: str, assignment: bytes) -> list[tuple[str, int]]:
    """Returns a member's partitions from the assignment that the leader of its classic group wrote.

    Returns an empty list if the group's protocol type is not "consumer", because the format is unknown then.
    """
    from penstock.protocol.codec import DecodeError, decode_prefix
    from penstock.protocol.messages.consumer_protocol import ConsumerProtocolAssignment

    if protocol_type != "consumer" or len(assignment) < 2:
        return []
    try:
        version = min(int.from_bytes(assignment[:2], "big"), ConsumerProtocolAssignment.MAX_VERSION)
        decoded, _ = decode_prefix(ConsumerProtocolAssignment, version, assignment, 2)
    except DecodeError:
        return []
    return [(each.topic, index) for each in decoded.assigned_partitions for index in each.partitions]


def partitions_of(broker: Broker, topics: Iterable[str]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for topic in broker.existing(list(topics)):
        found[topic.name or ""] = sorted(partition.partition_index for partition in topic.partitions)
    return found


def why(code: int) -> str | None:
    from penstock.protocol.errors import ErrorCode

    match ErrorCode(code):
        case ErrorCode.NON_EMPTY_GROUP:
            return "the group has members: stop them first"
        case ErrorCode.GROUP_ID_NOT_FOUND:
            return "there is no such group: `penstock group list` shows the groups"
        case ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC:
            return "the group reads this topic: stop its members first"
        case ErrorCode.UNKNOWN_MEMBER_ID | ErrorCode.STALE_MEMBER_EPOCH:
            return "the group has members, and only they may move its offsets: stop them first"
        case _:
            return None
