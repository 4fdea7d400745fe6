"""Plans moves of replicas between nodes, starts a limited number of moves at a time, and throttles them.

A plan counts moves under way as finished. After an interruption, a new plan therefore contains only the moves that were
not started; the running moves are waited for.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from penstock.client.admin import Admin
from penstock.client.cluster_admin import ClusterAdmin
from penstock.client.cordons import set_cordoned
from penstock.protocol.errors import KafkaError
from penstock.protocol.vocabulary import ConfigOperation, ResourceType

if TYPE_CHECKING:
    from penstock.client.client import AsyncClient
    from penstock.client.cluster_admin import Reassignment
    from penstock.client.cluster_facts import Facts
    from penstock.metadata.moves import Move, Placement, Racks
    from penstock.protocol.vocabulary import TopicPartition

LOOK_EVERY_S = 0.5
#: Kafka's own configs, so that Kafka's own tools can show and remove the throttles.
RATES = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
THROTTLED = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")

Planner = Callable[["Placement", "Racks", Mapping["TopicPartition", int]], list["Move"]]


@dataclass(frozen=True, slots=True)
class MovePlan:
    moves: list[Move]
    elected: list[TopicPartition] = field(default_factory=list)
    """The partitions that are led by another replica than the preferred one after the moves."""
    closing: list[int] = field(default_factory=list)
    """The nodes that are cordoned before the moves, so that they get no new replicas."""

    def __bool__(self) -> bool:
        return bool(self.moves or self.elected or self.closing)

    def rows(self, facts: Facts) -> list[dict[str, Any]]:
        return [
            {
                "topic": move.partition[0],
                "partition": move.partition[1],
                "from": list(move.before),
                "to": list(move.after),
                "adding": list(move.adding),
                "removing": list(move.removing),
                "bytes": _size(move, facts) * len(move.adding),
            }
            for move in self.moves
        ]


def plan_moves(
    facts: Facts,
    going: Mapping[TopicPartition, Reassignment],
    planner: Planner,
    topics: Collection[str] = (),
    *,
    elect_all: bool = False,
    close: Collection[int] = (),
) -> MovePlan:
    """Plans moves of replicas with `planner`; for all topics if none is given. Raises PlanError.

    With `elect_all`, every partition is led by its preferred replica afterwards, not only the moved partitions.
    """
    placement, racks, sizes = _starting_point(facts, going, topics)
    moves = planner(placement, racks, sizes)
    moved = {move.partition: move.after for move in moves}
    wanted = {**placement, **moved} if elect_all else moved
    elected = [each for each, replicas in wanted.items() if facts.partitions[each].leader not in replicas[:1]]
    up = {node.node_id for node in facts.nodes if not node.fenced}
    return MovePlan(moves, elected, sorted((set(close) & up) - facts.cordoned))


def _size(move: Move, facts: Facts) -> int:
    leader = facts.partitions[move.partition].leader
    return facts.sizes.get(leader, {}).get(move.partition, 0) if move.copies else 0


def _starting_point(
    facts: Facts, going: Mapping[TopicPartition, Reassignment], topics: Collection[str]
) -> tuple[dict[TopicPartition, tuple[int, ...]], dict[int, str | None], dict[TopicPartition, int]]:
    """Returns the replicas of each partition, the racks of all usable brokers, and the sizes of partitions.

    For a partition that is being reassigned, returns its replicas after the reassignment.
    """
    placement = {
        each: going[each].target if each in going else part.replicas
        for each, part in facts.partitions.items()
        if not topics or each[0] in topics
    }
    racks = {node.node_id: node.rack for node in facts.nodes if not node.fenced}
    sizes: dict[TopicPartition, int] = {}
    for held in facts.sizes.values():
        for each, held_bytes in held.items():
            sizes[each] = max(sizes.get(each, 0), held_bytes)
    return placement, racks, sizes


class ReplicaMoves:
    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._cluster = ClusterAdmin(client)
        self._admin = Admin(client)

    async def carry_out(self, moves: Sequence[Move], at_once: int) -> AsyncIterator[int]:
        """Starts at most `at_once` moves and waits for them before it starts the next moves.

        Yields the number of partitions moved since the last yield.
        """
        async for _ in self.wait():  # moves that an earlier run or another operator began
            yield 0
        for start in range(0, len(moves), at_once):
            wave = moves[start : start + at_once]
            await self._cluster.reassign({move.partition: move.after for move in wave})
            left = len(wave)
            async for ended in self.wait():
                yield min(ended, left)
                left -= min(ended, left)
            yield left

    async def wait(self) -> AsyncIterator[int]:
        """Waits until no move is under way. Yields the number of moves that ended since the last yield."""
        left = len(await self._cluster.reassignments())
        while left:
            await asyncio.sleep(LOOK_EVERY_S)
            now = len(await self._cluster.reassignments())
            yield max(0, left - now)
            left = now

    async def elect(self, partitions: Sequence[TopicPartition]) -> list[str]:
        """Elects the preferred leaders. Returns a sentence for each partition that was refused."""
        refused = await self._cluster.elect_leaders(partitions) if partitions else {}
        return [
            f"{topic}-{index}: its preferred leader was not elected: {code.name}"
            for (topic, index), code in refused.items()
        ]

    async def cordon(self, nodes: Sequence[int], directories: str | None) -> list[str]:
        """Sets cordoned.log.dirs of the nodes; None unsets the config. Returns sentences about failures."""
        found = [
            await set_cordoned(self._client, node, directories, lambda held: held.cordoned == (directories is not None))
            for node in nodes
        ]
        return [each for each in found if each is not None]

    # Throttles.

    async def throttle(self, rate: int, moves: Sequence[Move], nodes: Sequence[int]) -> None:
        """Limits the rate, in bytes a second, at which the nodes copy the moved replicas."""
        leaders: dict[str, list[str]] = {}
        followers: dict[str, list[str]] = {}
        for move in (each for each in moves if each.copies):
            topic, index = move.partition
            leaders.setdefault(topic, []).extend(f"{index}:{node}" for node in move.before)
            followers.setdefault(topic, []).extend(f"{index}:{node}" for node in move.adding)
        for topic in leaders:
            values = (",".join(leaders[topic]), ",".join(followers[topic]))
            changes = [(name, int(ConfigOperation.SET), value) for name, value in zip(THROTTLED, values)]
            await self._admin.alter_configs(ResourceType.TOPIC, topic, changes)
        if leaders:
            for node in nodes:
                changes = [(name, int(ConfigOperation.SET), str(rate)) for name in RATES]
                await self._admin.alter_configs(ResourceType.BROKER, str(node), changes)

    async def unthrottle(self) -> list[str]:
        """Removes all replication throttles, even throttles that other tools set. Called only when no move is under
        way. Returns sentences about nodes that are still throttled."""
        topics = [topic.name for topic in (await self._client.metadata(None)).topics if topic.name]
        set_on = await self._cluster.topic_configs(topics, *THROTTLED) if topics else {}
        for topic, configs in set_on.items():
            if any(configs.values()):
                changes = [(name, int(ConfigOperation.DELETE), None) for name in THROTTLED]
                await self._admin.alter_configs(ResourceType.TOPIC, topic, changes)
        problems = []
        for node in await self._admin.nodes():
            try:
                await self._admin.alter_configs(
                    ResourceType.BROKER, str(node.node_id), [(name, ConfigOperation.DELETE, None) for name in RATES]
                )
            except KafkaError as problem:
                problems.append(
                    f"node {node.node_id} is still throttled because its configs could not be changed: {problem}"
                )
        return problems


def copied_share(facts: Facts, partition: TopicPartition, adding: Collection[int]) -> tuple[int | None, int | None]:
    """Returns the progress of the slowest new replica: the percentage copied, and the lag in records."""
    leader = facts.partitions[partition].leader if partition in facts.partitions else -1
    whole = facts.sizes.get(leader, {}).get(partition)
    parts = [facts.sizes.get(node, {}).get(partition, 0) for node in adding]
    lags = [lag for node in adding if (lag := facts.lag(partition, node)) is not None]
    share = None if not whole or not parts else min(100, min(parts) * 100 // whole)
    return share, max(lags) if lags else None
