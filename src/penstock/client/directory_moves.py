"""Moves replicas between the log directories of their nodes: carries plans out, waits for moves, and throttles them.

A plan counts a replica that is being moved as if it were in its target directory.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.client.admin import Admin
from penstock.client.cluster_admin import ClusterAdmin
from penstock.metadata.directory_balance import DirectoryMove, DirectoryState, PlacedReplica
from penstock.protocol.errors import KafkaError
from penstock.protocol.vocabulary import ConfigOperation, ResourceType

if TYPE_CHECKING:
    from penstock.client.client import AsyncClient
    from penstock.client.cluster_admin import Holdings
    from penstock.protocol.vocabulary import TopicPartition

LOOK_EVERY_S = 0.25
#: Kafka's own config, so that Kafka's own tools can show and remove the throttle.
RATE = "replica.alter.log.dirs.io.max.bytes.per.second"
#: A planned move of a replica of one node.
NodeMove = tuple[int, DirectoryMove]


class Step(NamedTuple):
    """Holds the progress since the last report: how many moves have ended, and a sentence for each failed move."""

    ended: int
    failures: list[str]


def starting_point(holdings: Holdings) -> tuple[list[DirectoryState], dict[TopicPartition, PlacedReplica]]:
    """Returns a node's log directories, and the directory of each of its replicas.

    A replica that is being moved counts as if it were in its target directory.
    """
    replicas = {
        partition: PlacedReplica(
            holdings.futures[partition].directory if partition in holdings.futures else replica.directory, replica.size
        )
        for partition, replica in holdings.replicas.items()
    }
    directories = [
        DirectoryState(each.path, each.usable_bytes, offline=bool(each.error), cordoned=each.cordoned)
        for each in holdings.directories
    ]
    return directories, replicas


def plan_rows(moves: Sequence[NodeMove]) -> list[dict[str, Any]]:
    return [
        {
            "topic": move.partition[0],
            "partition": move.partition[1],
            "node": node,
            "from": move.source,
            "to": move.target,
            "bytes": move.size,
        }
        for node, move in moves
    ]


class DirectoryMoves:
    def __init__(self, client: AsyncClient) -> None:
        self._cluster = ClusterAdmin(client)
        self._admin = Admin(client)

    async def carry_out(self, moves: Iterable[NodeMove], at_once: int) -> AsyncIterator[Step]:
        """Runs the moves, at most `at_once` per node at a time. Yields the progress after each check of the moves."""
        waiting: dict[int, deque[DirectoryMove]] = {}
        for node, move in moves:
            waiting.setdefault(node, deque()).append(move)
        going: dict[int, dict[TopicPartition, DirectoryMove]] = {node: {} for node in waiting}
        suspected: dict[int, set[TopicPartition]] = {node: set() for node in waiting}
        while any(waiting.values()) or any(going.values()):
            done, failures = 0, []
            for node, queue in waiting.items():
                begun = [queue.popleft() for _ in range(min(len(queue), at_once - len(going[node])))]
                failures += await self._begin(node, begun, going[node])
                done += len(begun) - sum(move.partition in going[node] for move in begun)
            await asyncio.sleep(LOOK_EVERY_S)
            for node, under_way in going.items():
                if under_way:
                    step = ended(node, under_way, await self._cluster.holdings(node), suspected[node])
                    done, failures = done + step.ended, failures + step.failures
            yield Step(done, failures)

    async def _begin(
        self, node: int, moves: Sequence[DirectoryMove], going: dict[TopicPartition, DirectoryMove]
    ) -> list[str]:
        """Starts moves of replicas. Adds each accepted move to `going`, and returns a sentence about each refused
        move."""
        wanted = {move.partition: move.target for move in moves}
        refused = await self._cluster.move_replicas(node, wanted) if wanted else {}
        going |= {move.partition: move for move in moves if move.partition not in refused}
        return [_failure(node, move, refused[move.partition].name) for move in moves if move.partition in refused]

    async def wait(self, nodes: Iterable[int]) -> AsyncIterator[int]:
        """Waits until no replica of these nodes is being moved. Yields the number of moves that ended meanwhile."""
        waiting = set(nodes)
        left: Mapping[int, int] = {}
        while waiting:
            now = {node: len((await self._cluster.holdings(node)).futures) for node in sorted(waiting)}
            yield sum(max(0, left.get(node, 0) - count) for node, count in now.items())
            left, waiting = now, {node for node, count in now.items() if count}
            if waiting:
                await asyncio.sleep(LOOK_EVERY_S)

    async def throttle(self, rate: int, nodes: Iterable[int]) -> None:
        for node in nodes:
            change = (RATE, int(ConfigOperation.SET), str(rate))
            await self._admin.alter_configs(ResourceType.BROKER, str(node), [change])

    async def unthrottle(self, nodes: Iterable[int]) -> list[str]:
        """Removes these nodes' throttle on moves between log directories, because no move is under way.

        A throttle that another tool has set is removed, too. Returns sentences about nodes that are still throttled.
        """
        problems = []
        for node in nodes:
            change = (RATE, int(ConfigOperation.DELETE), None)
            try:
                await self._admin.alter_configs(ResourceType.BROKER, str(node), [change])
            except KafkaError as problem:
                problems.append(f"node {node} is still throttled because its configs could not be changed: {problem}")
        return problems


def ended(
    node: int, going: dict[TopicPartition, DirectoryMove], holdings: Holdings, suspected: set[TopicPartition]
) -> Step:
    """Removes ended moves from `going`. Returns the number of ended moves and the failures.

    A move seems to have failed if the replica is still in the old directory and no copy is being made. A move that has
    just succeeded looks the same for a moment. So the move counts as failed only if two checks in a row find this;
    after the first check, it is in `suspected`.
    """
    count, failures = 0, []
    for partition, move in list(going.items()):
        replica = holdings.replicas.get(partition)
        if partition in holdings.futures:
            suspected.discard(partition)
            continue
        behind = replica is not None and replica.directory != move.target
        if behind and partition not in suspected:
            suspected.add(partition)
            continue
        del going[partition]
        count += 1
        if behind:
            failures.append(_failure(node, move, "the move failed or was cancelled, see the node's log"))
    return Step(count, failures)


def _failure(node: int, move: DirectoryMove, reason: str) -> str:
    topic, index = move.partition
    return f"node {node}: {topic}-{index} was not moved from {move.source} to {move.target}: {reason}"
