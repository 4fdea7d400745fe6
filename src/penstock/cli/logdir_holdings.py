"""Reads which replicas each log directory of a node holds, and which moves between directories are under way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.cli.exit import Exit, Failure

if TYPE_CHECKING:
    from penstock.cli.connect import Broker
    from penstock.client.cluster_admin import Holdings
    from penstock.metadata.directory_balance import CopyState
    from penstock.protocol.vocabulary import TopicPartition

Held = dict[int, "Holdings"]


def read_holdings(broker: Broker, nodes: Sequence[int] = ()) -> Held:
    """Returns the log directories of the given nodes (default: all running nodes), with the replicas in them."""
    running = {each.broker_id for each in broker.run(broker.cluster.describe_brokers()).brokers if not each.is_fenced}
    missing = sorted(set(nodes) - running)
    if missing:
        raise Failure(
            f"node {missing[0]} is not among the running brokers {sorted(running)}: start it first", Exit.NOT_FOUND
        )
    return {node: broker.run(broker.cluster.holdings(node)) for node in sorted(nodes or running)}


def copies(held: Held) -> dict[tuple[int, TopicPartition], CopyState]:
    """Returns the progress of every move between log directories that is under way. The key is (node, partition)."""
    from penstock.metadata.directory_balance import CopyState

    return {
        (node, partition): CopyState(
            holdings.replicas[partition].size if partition in holdings.replicas else future.size,
            future.size,
            future.lag,
        )
        for node, holdings in held.items()
        for partition, future in holdings.futures.items()
    }
