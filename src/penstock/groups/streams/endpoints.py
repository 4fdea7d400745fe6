"""Lists the partitions that each member serves. An application uses the list to find the instance that has the state of
a key (interactive queries)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import TYPE_CHECKING

from penstock.groups.streams.group import Role, StreamsMember
from penstock.protocol.messages.api_88_streams_group_heartbeat import (
    Endpoint,
    EndpointToPartitions,
    TopicPartition,
)

if TYPE_CHECKING:
    from penstock.groups.streams.topics import ConfiguredTopology, Count


def partitions_by_endpoint(
    members: Iterable[StreamsMember], topology: ConfiguredTopology, existing: Count
) -> list[EndpointToPartitions]:
    """Lists the members that have an endpoint, with the partitions of their active and standby tasks."""
    return [
        EndpointToPartitions(
            user_endpoint=Endpoint(host=member.endpoint[0], port=member.endpoint[1]),
            active_partitions=_partitions(member, Role.ACTIVE, topology, existing),
            standby_partitions=_partitions(member, Role.STANDBY, topology, existing),
        )
        for member in members
        if member.endpoint is not None
    ]


def _partitions(
    member: StreamsMember, role: Role, topology: ConfiguredTopology, existing: Count
) -> list[TopicPartition]:
    found = []
    for key, tasks in sorted(member.assigned.items()):
        subtopology = topology.subtopologies.get(key.subtopology)
        if key.role is not role or subtopology is None:
            continue
        ordered = sorted(tasks)
        for topic in subtopology.inputs:
            # A task whose number is too large for this topic reads the subtopology's other topics only.
            indexes = ordered[: bisect_left(ordered, existing(topic) or 0)]
            found.append(TopicPartition(topic=topic, partitions=indexes))
    return found
