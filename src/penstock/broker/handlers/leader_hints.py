"""Adds leader hints (KIP-951) to a response: a NOT_LEADER_OR_FOLLOWER error names the new leader and its address.

So the client need not send a Metadata request first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.requests.context import RequestContext


class LeaderHints:
    """Collects the leaders that one response names, with their addresses on the client's listener."""

    __slots__ = ("_image", "_listener", "nodes")

    def __init__(self, broker: Broker, ctx: RequestContext) -> None:
        self._image = broker.metadata.image
        self._listener = ctx.listener_name
        self.nodes: dict[int, dict[str, Any]] = {}

    def leader_of(self, topic: str | bytes, index: int) -> tuple[int, int] | None:
        """Returns a partition's leader and leader epoch from the image. The topic is given by name or id.

        This node need not host the partition.
        """
        image = self._image
        found = image.topics_by_id.get(topic) if isinstance(topic, bytes) else image.topics.get(topic)
        partition = found.partitions.get(index) if found is not None else None
        if partition is None or partition.leader < 0:
            return None
        leader = partition.leader
        node = self._image.brokers.get(leader)
        endpoint = node.endpoints.get(self._listener) if node is not None else None
        if node is not None and endpoint is not None:
            self.nodes[leader] = {
                "node_id": leader,
                "host": endpoint.host,
                "port": endpoint.port,
                "rack": node.rack,
            }
        return leader, partition.leader_epoch
