"""KIP-951: an answer that says "not the leader" also says who is, and where, so that the client need not ask."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.context import RequestContext
    from penstock.broker.partition import Partition


class LeaderHints:
    """Collects the leaders named in one answer and their addresses on the client's listener."""

    __slots__ = ("_image", "_listener", "nodes")

    def __init__(self, broker: Broker, ctx: RequestContext) -> None:
        self._image = broker.metadata.image
        self._listener = ctx.listener_name
        self.nodes: dict[int, dict[str, Any]] = {}

    def leader_of(self, partition: Partition | None) -> tuple[int, int] | None:
        if partition is None or partition.image.leader < 0:
            return None
        leader = partition.image.leader
        node = self._image.brokers.get(leader)
        endpoint = node.endpoints.get(self._listener) if node is not None else None
        if node is not None and endpoint is not None:
            self.nodes[leader] = {
                "node_id": leader,
                "host": endpoint.host,
                "port": endpoint.port,
                "rack": node.rack,
            }
        return leader, partition.image.leader_epoch
