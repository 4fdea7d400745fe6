"""Describes a group for the commands of `penstock group`, and explains why a broker refused a request about a group."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from penstock.cli.exit import Exit, Failure

if TYPE_CHECKING:
    from penstock.cli.connect import Broker
    from penstock.client.group_members import Described


def describe(broker: Broker, group: str) -> Described:
    """Describes a group of the classic, consumer or streams protocol. Raises Failure if the group does not exist."""
    try:
        return broker.run(broker.groups.describe(group))
    except Failure as failure:
        if failure.code is not Exit.NOT_FOUND:
            raise
        raise Failure(f"{failure.message}: `penstock group list` shows the groups", Exit.NOT_FOUND) from failure


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
