"""Asks for the offsets of a share group. Shared by the share commands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.cli.connect import Broker


def offsets_of(broker: Broker, group: str) -> list[tuple[str, Any]]:
    """Returns a topic name and a partition's entry of DescribeShareGroupOffsets, for each partition of the group.

    Raises Failure for the first error.
    """
    from penstock.cli.connect import failure
    from penstock.protocol.messages import api_90_describe_share_group_offsets as api

    wanted = api.DescribeShareGroupOffsetsRequestGroup(group_id=group, topics=None)
    [found] = broker.ask_coordinator(group, api.DescribeShareGroupOffsetsRequest(groups=[wanted])).groups
    if found.error_code:
        raise failure(group, found.error_code, found.error_message)
    for topic in found.topics:
        for part in topic.partitions:
            if part.error_code:
                raise failure(f"{topic.topic_name}-{part.partition_index}", part.error_code, part.error_message)
    return [(topic.topic_name, part) for topic in found.topics for part in topic.partitions]
