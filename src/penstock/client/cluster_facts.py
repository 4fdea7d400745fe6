"""Summarizes the responses of a cluster's nodes: rows for nodes, rows for partitions, and problems. Pure code."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock.protocol.vocabulary import TopicPartition


@dataclass(frozen=True, slots=True)
class NodeFacts:
    node_id: int
    address: str
    rack: str | None
    fenced: bool
    quarantine: str | None = None
    """Why the guard put the node in quarantine; None if it is not in quarantine."""


@dataclass(frozen=True, slots=True)
class PartitionFacts:
    leader: int  # -1: none
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    min_isr: int = 1


@dataclass(slots=True)
class Facts:
    """Holds the state of a cluster at one time. Nodes that didn't respond are missing from the maps."""

    cluster_id: str
    controller: int
    controller_epoch: int
    nodes: list[NodeFacts]
    partitions: dict[TopicPartition, PartitionFacts]
    voters: list[int] = field(default_factory=list)
    metadata_lag: dict[int, int] = field(default_factory=dict)
    sizes: dict[int, dict[TopicPartition, int]] = field(default_factory=dict)
    ends: dict[int, dict[TopicPartition, int]] = field(default_factory=dict)
    heard: dict[TopicPartition, dict[int, int]] = field(default_factory=dict)
    """End offsets of followers as their leaders know them from fetches. Used for followers that don't respond."""
    moving: dict[TopicPartition, tuple[int, ...]] = field(default_factory=dict)  # partition → added replicas
    cordoned: set[int] = field(default_factory=set)  # cordoned nodes, which get no new replicas
    not_asked: set[int] = field(default_factory=set)  # nodes that were not asked: only their metadata is known

    def lag(self, partition: TopicPartition, replica: int) -> int | None:
        """Returns how many records a replica lacks: the leader's end offset minus the replica's end offset.

        Returns None if one of the two is unknown.
        """
        facts = self.partitions[partition]
        end = self.ends.get(facts.leader, {}).get(partition)
        own = self.ends.get(replica, {}).get(partition)
        if own is None:
            own = self.heard.get(partition, {}).get(replica)
        return None if end is None or own is None else max(0, end - own)


def largest(lags: Iterable[int | None]) -> int | None:
    """Returns the largest lag; None if any lag is unknown, because the unknown lag may be the largest."""
    found = list(lags)
    known = [lag for lag in found if lag is not None]
    return max(known) if known and len(known) == len(found) else None


PROBLEMS = ("offline", "under min ISR", "under-replicated")


def problem(facts: PartitionFacts) -> str | None:
    """Returns the worst problem of a partition; None if it has no problem."""
    offline, under_min_isr, under_replicated = PROBLEMS
    if facts.leader < 0:
        return offline
    if len(facts.isr) < min(facts.min_isr, len(facts.replicas)):
        return under_min_isr
    if len(facts.isr) < len(facts.replicas):
        return under_replicated
    return None


def partition_rows(
    facts: Facts, partitions: Mapping[TopicPartition, PartitionFacts] | None = None
) -> list[dict[str, Any]]:
    """Returns rows for the given partitions; all partitions by default."""
    rows = []
    for (topic, index), part in sorted((facts.partitions if partitions is None else partitions).items()):
        lags = {replica: facts.lag((topic, index), replica) for replica in part.replicas if replica != part.leader}
        sizes: Mapping[TopicPartition, int] = facts.sizes.get(part.leader, {})
        rows.append(
            {
                "topic": topic,
                "partition": index,
                "leader": part.leader if part.leader >= 0 else None,
                "leader_epoch": part.leader_epoch,
                "preferred": bool(part.replicas) and part.leader == part.replicas[0],
                "replicas": list(part.replicas),
                "isr": list(part.isr),
                "adding": list(facts.moving.get((topic, index), ())),
                "end_offset": facts.ends.get(part.leader, {}).get((topic, index)),
                "lag": largest(lags.values()),
                "lags": {str(replica): lag for replica, lag in lags.items()},
                "bytes": sizes.get((topic, index)),
                "problem": problem(part),
            }
        )
    return rows


def node_rows(facts: Facts) -> list[dict[str, Any]]:
    return [_node_row(facts, node) for node in sorted(facts.nodes, key=lambda node: node.node_id)]


def _node_row(facts: Facts, node: NodeFacts) -> dict[str, Any]:
    own = node.node_id
    held = {each: part for each, part in facts.partitions.items() if own in part.replicas}
    problems = [problem(part) for part in held.values()]
    lags = [facts.lag(each, own) for each, part in held.items() if part.leader not in (own, -1)]
    sizes = facts.sizes.get(own)
    return {
        "node": own,
        "address": node.address,
        "rack": node.rack,
        "state": _state(facts, node),
        "quarantine": node.quarantine,
        "controller": "active" if own == facts.controller else "voter" if own in facts.voters else None,
        "leaders": sum(part.leader == own for part in held.values()),
        "replicas": len(held),
        "out_of_sync": sum(own not in part.isr for part in held.values()),
        "under_replicated": sum(each is not None and each != "offline" for each in problems),
        "under_min_isr": problems.count("under min ISR"),
        "offline": problems.count("offline"),
        "bytes": None if sizes is None else sum(sizes.values()),
        "lag": largest(lags),
        "metadata_lag": facts.metadata_lag.get(own),
    }


def _state(facts: Facts, node: NodeFacts) -> str:
    if node.quarantine:
        return "quarantined"
    if node.fenced:
        return "fenced"
    if node.node_id in facts.cordoned:
        return "cordoned"
    return "up" if node.node_id in facts.sizes or node.node_id in facts.not_asked else "silent"


def summary(facts: Facts) -> dict[str, Any]:
    problems = [problem(part) for part in facts.partitions.values()]
    return {
        "cluster_id": facts.cluster_id,
        "controller": facts.controller,
        "controller_epoch": facts.controller_epoch,
        "nodes": len(facts.nodes),
        "fenced": sum(node.fenced for node in facts.nodes),
        "quarantined": sum(bool(node.quarantine) for node in facts.nodes),
        "topics": len({topic for topic, _ in facts.partitions}),
        "partitions": len(facts.partitions),
        "under_replicated": sum(each is not None and each != "offline" for each in problems),
        "under_min_isr": problems.count("under min ISR"),
        "offline": problems.count("offline"),
        "not_led_by_preferred": sum(
            part.leader >= 0 and bool(part.replicas) and part.leader != part.replicas[0]
            for part in facts.partitions.values()
        ),
        "moving": len(facts.moving),
        "bytes": sum(sum(sizes.values()) for sizes in facts.sizes.values()),
    }


def health(told: Mapping[str, Any], controller: int | None) -> dict[str, Any]:
    """Returns the cluster's status (healthy, degraded or unhealthy), the problem counts, and the controller.

    `told` is the result of `summary`. `controller` is None if the quorum has no leader.
    """
    counts = {name: told[name] for name in ("offline", "under_min_isr", "under_replicated", "fenced")}
    bad = controller is None or counts["offline"] or counts["under_min_isr"]
    status = "unhealthy" if bad else "degraded" if any(counts.values()) else "healthy"
    return {"status": status, "controller": controller, **counts}


def troubles(facts: Facts) -> list[str]:
    """Returns the cluster's problems as text, the worst first; empty if it is healthy."""
    states = {node.node_id: _state(facts, node) for node in sorted(facts.nodes, key=lambda node: node.node_id)}
    problems = [problem(part) for part in facts.partitions.values()]
    found = [] if facts.controller >= 0 else ["no active controller"]
    found += [f"{count} {each}" for each in PROBLEMS if (count := problems.count(each))]
    for state in ("quarantined", "fenced", "silent"):
        nodes = [node for node, each in states.items() if each == state]
        if nodes:
            found.append(f"node{'s' if len(nodes) > 1 else ''} {', '.join(map(str, nodes))} {state}")
    return found


UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def readable(count: int | None) -> str | None:
    """Returns a number of bytes with a unit, such as "1.5 MiB"; None stays None."""
    if count is None:
        return None
    value = float(count)
    for unit in UNITS[:-1]:
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} {UNITS[-1]}"
