"""Plans moves of replicas: to drain a broker, to fill a new broker, to balance a cluster. Pure code.

Goals, in this order: a partition keeps its number of replicas, in as many racks as possible; as little data moves as
possible; the numbers of replicas per broker differ by at most one; leaderships are as even as the replicas allow.
Leaders are balanced last, without copying data: only the order of a partition's replicas changes, and the first replica
is the preferred leader.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from penstock.protocol.vocabulary import TopicPartition

Placement = Mapping[TopicPartition, tuple[int, ...]]
Racks = Mapping[int, str | None]
"""Every broker that may hold replicas, with its rack."""


class PlanError(Exception):
    """Raised if the plan is impossible; the message states cause and remedy."""


@dataclass(frozen=True, slots=True)
class Move:
    partition: TopicPartition
    before: tuple[int, ...]
    after: tuple[int, ...]

    @property
    def adding(self) -> tuple[int, ...]:
        return tuple(broker for broker in self.after if broker not in self.before)

    @property
    def removing(self) -> tuple[int, ...]:
        return tuple(broker for broker in self.before if broker not in self.after)

    @property
    def copies(self) -> bool:
        """Returns True if data has to be copied. A new order of the same replicas needs no copy."""
        return bool(self.adding)


def drain(
    placement: Placement, racks: Racks, leaving: Collection[int], sizes: Mapping[TopicPartition, int]
) -> list[Move]:
    """Returns the moves of all replicas off the brokers in `leaving`, each to the most suitable other broker.

    Only partitions with a replica on these brokers change. Their leaderships are also spread evenly.
    """
    staying = {broker: rack for broker, rack in racks.items() if broker not in leaving}
    board = _Board(placement, staying, sizes)
    # The largest partitions first, so that small ones are left to balance the result.
    held = [each for each in sorted(placement) if any(broker in leaving for broker in placement[each])]
    for partition in sorted(held, key=lambda each: -sizes.get(each, 0)):
        for broker in placement[partition]:
            if broker in leaving:
                board.replace(partition, broker, board.best_home(partition, broker))
    board.even_out_leaders(only=set(held))
    return board.moves()


def rebalance(
    placement: Placement, racks: Racks, sizes: Mapping[TopicPartition, int], *, onto: Collection[int] = ()
) -> list[Move]:
    """Returns the moves that balance the whole cluster. With `onto`, replicas move only to these brokers, for example
    to new brokers.
    """
    board = _Board(placement, racks, sizes)
    takers = [broker for broker in sorted(racks) if not onto or broker in onto]
    if not onto:
        board.spread_over_racks()
    while (step := board.next_step(takers)) is not None:
        board.replace(*step)
    board.even_out_leaders(only=None)
    return board.moves()


@dataclass(slots=True)
class _Board:
    """Holds a planned assignment of replicas to brokers, with the counts of replicas and leaderships per broker."""

    before: Placement
    racks: Racks
    sizes: Mapping[TopicPartition, int]
    replicas: dict[TopicPartition, list[int]] = field(init=False)
    held: dict[int, set[TopicPartition]] = field(init=False)
    of_topic: Counter[tuple[int, str]] = field(init=False)

    def __post_init__(self) -> None:
        self.replicas = {each: list(self.before[each]) for each in sorted(self.before)}
        self.held = {broker: set() for broker in self.racks}
        self.of_topic = Counter()
        for partition, replicas in self.replicas.items():
            for broker in replicas:
                self.held.setdefault(broker, set()).add(partition)
                self.of_topic[broker, partition[0]] += 1

    # --- replicas ------------------------------------------------------------------------------------------------

    def replace(self, partition: TopicPartition, old: int, new: int) -> None:
        replicas = self.replicas[partition]
        replicas[replicas.index(old)] = new
        self.held[old].discard(partition)
        self.held[new].add(partition)
        self.of_topic[old, partition[0]] -= 1
        self.of_topic[new, partition[0]] += 1

    def crowd(self, partition: TopicPartition, broker: int, instead_of: int | None) -> int:
        """Returns how many other replicas of the partition are in the rack of `broker`; 0 if the broker has no rack."""
        rack = self.racks.get(broker)
        if rack is None:
            return 0
        others = (each for each in self.replicas[partition] if each not in (instead_of, broker))
        return sum(self.racks.get(each) == rack for each in others)

    def best_home(self, partition: TopicPartition, instead_of: int) -> int:
        free = [broker for broker in self.racks if broker not in self.replicas[partition]]
        if not free:
            name = f"{partition[0]}-{partition[1]}"
            sentence = f"{name} has {len(self.replicas[partition])} replicas, and no other broker can take one of them"
            raise PlanError(f"{sentence}: add a broker first, or lower the topic's replication factor")
        topic = partition[0]
        return min(
            free,
            key=lambda broker: (
                self.crowd(partition, broker, instead_of),
                len(self.held[broker]),
                self.of_topic[broker, topic],
                broker,
            ),
        )

    def spread_over_racks(self) -> None:
        """Moves replicas that share a rack to racks without a replica."""
        for partition, replicas in self.replicas.items():
            for broker in tuple(reversed(replicas)):  # the preferred leader comes last: it should stay
                crowded = self.crowd(partition, broker, broker)
                if crowded and len(self.racks) > len(replicas):
                    home = self.best_home(partition, broker)
                    if self.crowd(partition, home, broker) < crowded:
                        self.replace(partition, broker, home)

    def next_step(self, takers: Iterable[int]) -> tuple[TopicPartition, int, int] | None:
        """Returns the next move as (partition, giving broker, taking broker); None if no move evens out the brokers.

        Tries the broker with the most replicas as the giver, and the broker of `takers` with the fewest replicas as the
        taker. If no replica can move between these two, tries other brokers. If several replicas can move, chooses the
        replica with the lowest `_cost`.
        """
        count = {broker: len(self.held[broker]) for broker in self.racks}
        givers = sorted(count, key=lambda broker: (-count[broker], broker))
        for taker in sorted(takers, key=lambda broker: (count[broker], broker)):
            for giver in givers:
                if count[giver] - count[taker] < 2:
                    break
                movable = [each for each in self.held[giver] - self.held[taker] if self._may(each, giver, taker)]
                if movable:
                    return min(movable, key=lambda each: self._cost(each, giver, taker)), giver, taker
        return None

    def _may(self, partition: TopicPartition, giver: int, taker: int) -> bool:
        return self.crowd(partition, taker, giver) <= self.crowd(partition, giver, giver)

    def _cost(self, partition: TopicPartition, giver: int, taker: int) -> tuple[int, int, bool, TopicPartition]:
        """Returns a sort key of the move of a partition's replica from `giver` to `taker`; the best move is first.

        Topics with many more partitions on `giver` than on `taker` come first. Then small partitions come before large
        partitions, and followers before leaders.
        """
        topic = partition[0]
        lopsided = self.of_topic[giver, topic] - self.of_topic[taker, topic]
        return -lopsided, self.sizes.get(partition, 0), self.replicas[partition][0] == giver, partition

    # --- leaders -------------------------------------------------------------------------------------------------

    def even_out_leaders(self, only: Collection[TopicPartition] | None) -> None:
        """Makes the number of leaderships per broker as even as the replicas allow.

        A broker gives a leadership to a broker that has at least two leaderships fewer. If they share no partition, the
        leadership moves along a chain: each broker of the chain gives one leadership to the next broker. Without such a
        chain, the distribution is as even as possible (an optimal semi-matching). `only` names the partitions whose
        leader may change; None means all partitions.
        """
        leads: dict[int, set[TopicPartition]] = {broker: set() for broker in self.held}
        for partition, replicas in self.replicas.items():
            if replicas:
                leads[replicas[0]].add(partition)
        count = {broker: len(led) for broker, led in leads.items()}
        while True:
            for start in sorted(count, key=lambda broker: (-count[broker], broker)):
                path = self._path(start, leads, count, only)
                if path:
                    break
            else:
                return
            for partition, giver, taker in path:
                replicas = self.replicas[partition]
                place = replicas.index(taker)
                replicas[0], replicas[place] = taker, giver
                leads[giver].discard(partition)
                leads[taker].add(partition)
            count[path[0][1]] -= 1
            count[path[-1][2]] += 1

    def _path(
        self,
        start: int,
        leads: Mapping[int, set[TopicPartition]],
        count: Mapping[int, int],
        only: Collection[TopicPartition] | None,
    ) -> list[tuple[TopicPartition, int, int]]:
        """Returns the shortest chain of brokers from `start` to a broker that has at least two leaderships fewer than
        `start` (breadth-first search).
        """
        came: dict[int, tuple[TopicPartition, int]] = {}
        queue = deque([start])
        while queue:
            giver = queue.popleft()
            for partition in sorted(leads[giver]):
                if only is not None and partition not in only:
                    continue
                for taker in self.replicas[partition][1:]:
                    if taker == start or taker in came or taker not in self.racks:
                        continue
                    came[taker] = (partition, giver)
                    if count[taker] <= count[start] - 2:
                        return _walk_back(taker, start, came)
                    queue.append(taker)
        return []

    def moves(self) -> list[Move]:
        return [
            Move(partition, tuple(self.before[partition]), tuple(replicas))
            for partition, replicas in self.replicas.items()
            if tuple(replicas) != tuple(self.before[partition])
        ]


def _walk_back(
    end: int, start: int, came: Mapping[int, tuple[TopicPartition, int]]
) -> list[tuple[TopicPartition, int, int]]:
    path = []
    taker = end
    while taker != start:
        partition, giver = came[taker]
        path.append((partition, giver, taker))
        taker = giver
    path.reverse()
    return path
