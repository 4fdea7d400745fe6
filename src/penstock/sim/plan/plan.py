"""The values of a plan: the cluster's settings, its topics, actors and faults. Leaving out an actor or a fault changes
nothing about the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from penstock.sim.engine.cluster_layout import ClusterLayout
from penstock.sim.engine.links import Conditions

#: Topics that actors make for themselves with acknowledgements that promise fsync are named so.
FSYNC_SUFFIX = "-fsync"


@dataclass(frozen=True, slots=True)
class TopicPlan:
    name: str
    partitions: int
    configs: Mapping[str, str]
    fsync: bool
    """Whether an acknowledgement promises that the record is on disk."""
    mixed: bool = True
    """Whether all kinds of actors use it; else it is some actor's own."""

    @property
    def compacted(self) -> bool:
        return self.configs.get("cleanup.policy") == "compact"


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
    """Internal topics promise what fsync topics do."""
    turn_cost_s: float = 0.0
    skew_ms: int = 0
    drift: float = 1.0
    layout: ClusterLayout = field(default_factory=ClusterLayout)
    clocks: tuple[tuple[int, float], ...] = ()
    """Skew and drift of the second machine and those after it."""

    def clock(self, node_id: int) -> tuple[int, float]:
        return (self.skew_ms, self.drift) if node_id == 1 else self.clocks[node_id - 2]

    @property
    def losses_covered(self) -> int:
        """How many machines may lose their page cache or their disk at the same time, and nothing acknowledged goes."""
        return self.layout.min_insync - 1

    def promises(self, acks: int) -> bool:
        """Whether an answer to a write says that it stays. With acks=1, only its leader has it: alone that is all."""
        return acks == -1 or (acks == 1 and self.layout.replication_factor == 1)

    def only(self, faults: frozenset[int] | None = None, actors: frozenset[int] | None = None) -> Plan:
        """The same run with these faults and actors and no others."""
        kept_faults = self.faults if faults is None else tuple(each for each in self.faults if each.index in faults)
        kept_actors = self.actors if actors is None else tuple(each for each in self.actors if each.index in actors)
        return replace(self, faults=kept_faults, actors=kept_actors)

    def fsync(self, topic: str) -> bool:
        if self.fsync_everywhere or topic.endswith(FSYNC_SUFFIX):
            return True
        return any(each.fsync for each in self.topics if each.name == topic)
