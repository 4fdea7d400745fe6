"""Places the replicas of new partitions: round-robin over the racks, and round-robin over the brokers of each rack.

The first replica (the preferred leader) rotates over the racks, so that leaders spread evenly. The other replicas
follow in the next racks, so that a partition survives the loss of a rack if possible. Fenced brokers get replicas only
if there are too few unfenced brokers, and never the first replica. The caller's random numbers decide with which rack
and broker the round-robin begins.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from random import Random

from penstock.metadata.image import BrokerImage
from penstock.protocol.errors import ErrorCode, KafkaError


@dataclass(slots=True)
class _Rack:
    unfenced: list[int] = field(default_factory=list)
    fenced: list[int] = field(default_factory=list)
    leaders_given: int = 0
    followers_given: int = 0

    def leader(self) -> int:
        chosen = self.unfenced[self.leaders_given % len(self.unfenced)]
        self.leaders_given += 1
        return chosen

    def followers(self, leader: int | None) -> list[int]:
        """Returns the rack's brokers in the order in which a partition with the leader `leader` gets its other
        replicas."""
        others = [broker for broker in self.unfenced if broker != leader]
        if leader in self.unfenced:
            # Start after the leader, and one further each time the leadership has rotated, so that pairs vary.
            start = self.unfenced.index(leader) + (self.leaders_given - 1) // len(self.unfenced)
        else:
            start = self.followers_given
            self.followers_given += 1
        return _rotated(others, start) + _rotated(self.fenced, start)


def _rotated(values: list[int], start: int) -> list[int]:
    if not values:
        return []
    start %= len(values)
    return values[start:] + values[:start]


def place(brokers: Iterable[BrokerImage], partitions: int, replication_factor: int, random: Random) -> list[list[int]]:
    """Returns the list of replicas of each partition. The preferred leader is first in each list."""
    racks = _racks(brokers, random)
    registered = sum(len(rack.unfenced) + len(rack.fenced) for rack in racks)
    _check_possible(racks, registered, replication_factor)
    leading = [rack for rack in racks if rack.unfenced]
    assignments: list[list[int]] = []
    for index in range(partitions):
        first = leading[index % len(leading)]
        leader = first.leader()
        start = racks.index(first)
        order = racks[start:] + racks[:start]
        assignments.append(_replicas(order, leader, replication_factor))
    return assignments


def _replicas(racks: list[_Rack], leader: int, replication_factor: int) -> list[int]:
    replicas = [leader]
    if replication_factor == 1:
        return replicas
    queues = [rack.followers(leader if index == 0 else None) for index, rack in enumerate(racks)]
    # The leader's own rack comes last in the first round, then all racks take turns.
    turn = 1 % len(queues)
    while len(replicas) < replication_factor:
        if queues[turn]:
            replicas.append(queues[turn].pop(0))
        turn = (turn + 1) % len(queues)
    return replicas


def _racks(brokers: Iterable[BrokerImage], random: Random) -> list[_Rack]:
    by_name: dict[str, _Rack] = {}
    for broker in sorted(brokers, key=lambda one: one.broker_id):
        rack = by_name.setdefault("" if broker.rack is None else broker.rack, _Rack())
        if broker.log_dirs and set(broker.log_dirs) <= set(broker.cordoned_log_dirs):
            continue  # every directory is cordoned
        if broker.in_controlled_shutdown and not broker.fenced:
            continue  # it is shutting down
        (rack.fenced if broker.fenced else rack.unfenced).append(broker.broker_id)
    racks = [by_name[name] for name in sorted(by_name)]
    random.shuffle(racks)
    for rack in racks:
        random.shuffle(rack.unfenced)
        random.shuffle(rack.fenced)
    return racks


def _check_possible(racks: list[_Rack], registered: int, replication_factor: int) -> None:
    problem = ""
    if replication_factor <= 0:
        problem = f"A partition can't have {replication_factor} replicas: request 1 or more."
    elif not any(rack.unfenced for rack in racks):
        problem = "No broker can take a replica: each is fenced, cordoned or shutting down. Start or uncordon a broker."
    elif replication_factor > registered:
        problem = (
            f"{replication_factor} replicas need as many brokers, but only {registered} can take one: request fewer."
        )
    if problem:
        raise KafkaError(ErrorCode.INVALID_REPLICATION_FACTOR, problem)
