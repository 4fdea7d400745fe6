"""Defines the values of a plan: the cluster's settings, its topics, actors and faults.

If an actor or a fault is left out, the others do not change.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from penstock.sim.engine.cluster_layout import ClusterLayout
from penstock.sim.engine.links import Conditions
from penstock.sim.plan.points import PointFault

#: Suffix of topics that actors create with acknowledgements that promise fsync.
FSYNC_SUFFIX = "-fsync"


@dataclass(frozen=True, slots=True)
class TopicPlan:
    name: str
    partitions: int
    configs: Mapping[str, str]
    fsync: bool
    """True if an acknowledgement promises that the record is on disk."""
    mixed: bool = True
    """True if all kinds of actors use the topic; False if it belongs to one kind."""
    recreated: bool = False
    """True if an actor deletes the topic and creates it again under its name."""

    @property
    def compacted(self) -> bool:
        return self.configs.get("cleanup.policy") == "compact"

    @property
    def retention_ms(self) -> int:
        return int(self.configs.get("retention.ms", -1))

    @property
    def retained(self) -> bool:
        """Returns True if retention may delete records during a run."""
        return self.retention_ms >= 0

    @property
    def shrinks(self) -> bool:
        """Returns True if compaction or retention may delete records at any time."""
        return self.compacted or self.retained


@dataclass(frozen=True, slots=True)
class ActorPlan:
    index: int
    kind: str
    params: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class FaultPlan:
    index: int
    kind: str
    at: float
    lasts: float
    params: Mapping[str, Any]

    def __str__(self) -> str:
        return f"{self.index}: {self.kind} at {self.at:.1f} s for {self.lasts:.1f} s"


@dataclass(frozen=True, slots=True)
class Plan:
    seed: int
    profile: str
    nodes: int
    duration_s: float
    settings: Mapping[str, str]
    topics: tuple[TopicPlan, ...]
    actors: tuple[ActorPlan, ...]
    faults: tuple[FaultPlan, ...]
    network: Conditions = field(default_factory=Conditions)
    split: float = 0.1
    fsync_everywhere: bool = False
    """True if acknowledgements of all topics, internal topics included, promise fsync."""
    turn_cost_s: float = 0.0
    skew_ms: int = 0
    drift: float = 1.0
    layout: ClusterLayout = field(default_factory=ClusterLayout)
    first_producer_epoch: int = 0
    """Epoch that the first producer of each transactional id gets."""
    clocks: tuple[tuple[int, float], ...] = ()
    """Skew and drift of the clocks of the second and all later machines."""
    points: tuple[PointFault, ...] = ()
    """Faults to inject at chosen points (messages or steps on a disk) of the run."""

    other_version: str = ""
    """Directory of the code that all machines run at first, until they are upgraded; empty: this version."""

    def clock(self, node_id: int) -> tuple[int, float]:
        return (self.skew_ms, self.drift) if node_id == 1 else self.clocks[node_id - 2]

    @property
    def losses_covered(self) -> int:
        """Returns how many machines may lose page cache or disk at a time without loss of acknowledged records."""
        return self.layout.min_insync - 1

    def promises(self, acks: int) -> bool:
        """Returns True if an acknowledged record must not be lost: with acks=all, or with acks=1 and one replica."""
        return acks == -1 or (acks == 1 and self.layout.replication_factor == 1)

    def only(self, faults: frozenset[int] | None = None, actors: frozenset[int] | None = None) -> Plan:
        """Returns this plan with only the faults and the actors that have these indexes. None keeps all faults, or all
        actors."""
        kept_faults = self.faults if faults is None else tuple(each for each in self.faults if each.index in faults)
        kept_actors = self.actors if actors is None else tuple(each for each in self.actors if each.index in actors)
        return replace(self, faults=kept_faults, actors=kept_actors)

    def fsync(self, topic: str) -> bool:
        if self.fsync_everywhere or topic.endswith(FSYNC_SUFFIX):
            return True
        return any(each.fsync for each in self.topics if each.name == topic)
