"""Draws the layout of a cluster: voters, machines that hold partitions, replication factor, min.insync.replicas.

Layouts are drawn from their own random streams, so a seed's workload is the same for any number of machines.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from random import Random

from penstock.raft.voters import Voter

CONTROLLER_PORT = 9093
RACK_AWARE = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
#: Timeouts of long runs: Kafka's own session timeout, and three times its fetch timeout of the quorum.
LEAST_LAG_MS = 6_000
LONG_SESSION_MS = 9_000
LONG_QUORUM_MS = 6_000


@dataclass(frozen=True, slots=True)
class ClusterLayout:
    brokers: tuple[int, ...] = (1,)
    controllers: tuple[int, ...] = (1,)
    replication_factor: int = 1
    min_insync: int = 1
    dynamic: bool = True
    """True: voters are in the metadata log (KIP-853). False: voters are in the properties of every node."""
    racks: int = 0
    """Number of racks among which the machines are dealt; 0: none, and consumers read from leaders only."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Settings that the cluster adds to those of each node."""

    @property
    def single_node(self) -> bool:
        return self.brokers == self.controllers == (1,)

    @property
    def nodes(self) -> tuple[int, ...]:
        return tuple(sorted({*self.brokers, *self.controllers}))

    def roles(self, node_id: int) -> str:
        roles = [name for name, ids in (("broker", self.brokers), ("controller", self.controllers)) if node_id in ids]
        return ",".join(roles)

    def voters(self) -> tuple[Voter, ...]:
        """Returns the voters that are written to all disks when the cluster is formatted."""
        return tuple(
            Voter(
                node_id, f"directory of n{node_id:<4}".encode()[:16], (("CONTROLLER", f"n{node_id}", CONTROLLER_PORT),)
            )
            for node_id in self.controllers
        )

    def with_long_waits(self) -> ClusterLayout:
        """Returns this layout with longer intervals between polls and between heartbeats.

        With short intervals, a long run would consist mostly of empty requests.
        """
        if self.single_node:
            return self
        lag_ms = max(LEAST_LAG_MS, int(self.settings["replica.lag.time.max.ms"]))
        waits = {
            "replica.lag.time.max.ms": lag_ms,
            "replica.fetch.wait.max.ms": min(5_000, lag_ms // 3),
            "broker.session.timeout.ms": LONG_SESSION_MS,
            "broker.heartbeat.interval.ms": LONG_SESSION_MS // 4,
            "controller.quorum.fetch.timeout.ms": LONG_QUORUM_MS,
        }
        return replace(self, settings={**self.settings, **{name: str(value) for name, value in waits.items()}})

    def node_settings(self, node_id: int, host: str, port: int) -> dict[str, str]:
        """Returns the properties of a node in a cluster of several nodes."""
        listeners = []
        if node_id in self.brokers:
            listeners.append(f"PLAINTEXT://{host}:{port}")
        if node_id in self.controllers:
            listeners.append(f"CONTROLLER://{host}:{CONTROLLER_PORT}")
        voters = [(voter, f"n{voter}:{CONTROLLER_PORT}") for voter in self.controllers]
        quorum = {"controller.quorum.bootstrap.servers": ",".join(address for _, address in voters)}
        if not self.dynamic:
            quorum = {"controller.quorum.voters": ",".join(f"{voter}@{address}" for voter, address in voters)}
        racks = {"broker.rack": f"r{node_id % self.racks}", "replica.selector.class": RACK_AWARE} if self.racks else {}
        return {
            **racks,
            "process.roles": self.roles(node_id),
            "listeners": ",".join(listeners),
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "PLAINTEXT",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            **quorum,
            **replicated(self.replication_factor, self.min_insync),
            **self.settings,
        }


def replicated(replication_factor: int, min_insync: int) -> dict[str, str]:
    return {
        "default.replication.factor": str(replication_factor),
        "min.insync.replicas": str(min_insync),
        "offsets.topic.replication.factor": str(replication_factor),
        "transaction.state.log.replication.factor": str(replication_factor),
        "transaction.state.log.min.isr": str(min_insync),
        "share.coordinator.state.topic.replication.factor": str(replication_factor),
        "share.coordinator.state.topic.min.isr": str(min_insync),
    }


def simple_layout(nodes: int) -> ClusterLayout:
    """Returns the layout of `penstock up --nodes K`: every node is a broker, and the first nodes (at most five) are
    controllers too."""
    if nodes == 1:
        return ClusterLayout()
    ids = tuple(range(1, nodes + 1))
    factor = min(3, nodes)
    return ClusterLayout(ids, ids[: 3 if nodes < 5 else 5], factor, min(2, factor - 1) or 1)


def draw_layout(random: Random, nodes: int) -> ClusterLayout:
    if nodes == 1:
        return ClusterLayout()
    ids = tuple(range(1, nodes + 1))
    brokers, controllers = ids, ids
    separate = random.random() < 0.35
    if separate and nodes >= 4:
        count = 1 if nodes == 4 else 3
        controllers, brokers = ids[:count], ids[count:]
    elif nodes > 3:
        controllers = ids[: random.choice((3, 3, 5 if nodes >= 5 else 3))]
    factor = min(len(brokers), random.choice((2, 3, 3, 3, 3)))
    min_insync = min(factor, random.choice((1, 2, 2, 2, 2)))
    return ClusterLayout(
        brokers, controllers, factor, min_insync, dynamic=random.random() < 0.5, settings=_timing(random)
    )


def _timing(random: Random) -> dict[str, str]:
    """Draws the timeouts: Kafka's defaults, or shorter timeouts, so that more happens in a minute of virtual time."""
    session = random.choice((3_000, 3_000, 9_000))
    return {
        "broker.session.timeout.ms": str(session),
        "broker.heartbeat.interval.ms": str(session // 4),
        "replica.lag.time.max.ms": str(random.choice((1_500, 5_000, 30_000))),
        "replica.fetch.wait.max.ms": "500",
        "num.replica.fetchers": str(random.choice((1, 1, 2))),
        "leader.imbalance.check.interval.seconds": str(random.choice((5, 30))),
        "auto.leader.rebalance.enable": random.choice(("true", "true", "false")),
        "unclean.leader.election.enable": "false",
    }
