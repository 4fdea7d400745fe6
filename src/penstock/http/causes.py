"""Describes the health of a cluster, and the causes of its problems, in sentences for the console and the REST API.

This code is pure: it reads only its arguments.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.broker.controlplane.failovers import Failover
    from penstock.http.overview import Row

DAMAGED_SHOWN = 12


@dataclass(frozen=True, slots=True)
class NodeContext:
    """Holds facts that only this node knows: the failovers that it noticed, and its disk problems."""

    node_id: int
    failovers: Sequence[Failover] = ()
    failed_directories: Mapping[str, str] = field(default_factory=dict)
    """Offline directories of this node, with the error of the disk."""
    damaged: Sequence[Row] = ()
    """The replicas of this node with a damaged batch: topic, partition and reason."""
    short_of_space: Sequence[str] = ()
    """The reasons why directories accept no more records of clients, such as too little free space."""
    warnings: Sequence[str] = ()
    """Sentences about this node's configuration, such as listeners without TLS."""


def health(summary: Row, context: NodeContext) -> dict[str, str]:
    """Returns the level of the cluster's health (good, warn or bad), and a short text that lists the problems."""
    wrong = [
        f"{summary[name]:,} {words}"
        for name, words in (
            ("offline", "offline"),
            ("under_min_isr", "under min ISR"),
            ("under_replicated", "under-replicated"),
            ("quarantined", "in quarantine"),
            ("fenced", "node fenced" if summary["fenced"] == 1 else "nodes fenced"),
        )
        if summary[name]
    ]
    if context.failed_directories:
        wrong.append("a directory has failed")
    if context.short_of_space:
        wrong.append("a directory is short of space")
    if context.damaged:
        wrong.append(f"{len(context.damaged):,} damaged")
    if summary["offline"] or summary["under_min_isr"]:
        return {"mood": "bad", "text": ", ".join(wrong)}
    return {"mood": "warn", "text": ", ".join(wrong)} if wrong else {"mood": "good", "text": "all in sync"}


def causes(nodes: Sequence[Row], context: NodeContext) -> Iterator[str]:
    """Yields a sentence for each cause of a problem in the cluster, with the remedy if one is known."""
    gone = {each.broker_id: each for each in context.failovers}
    for row in nodes:
        name = f"Node {row['node']} ({row['address']})"
        failover = gone.get(row["node"])
        if row["quarantine"]:
            yield f"{name} is in quarantine ({row['quarantine']}): penstock guard release {row['node']} releases it."
        elif row["state"] == "fenced" and failover is not None:
            how = f": it {failover.how}" if failover.how else ""
            yield f"{name} was fenced at {_time(failover.elected_ms)}{how}."
        elif row["state"] == "fenced":
            yield f"{name} is fenced: it was stopped, or has not caught up since it started."
        elif row["state"] == "silent":
            yield f"{name} does not answer node {context.node_id}."
    for warning in context.warnings:
        yield f"Node {context.node_id}: {warning}"
    for directory, error in context.failed_directories.items():
        where = f"Directory {directory} of node {context.node_id}"
        yield f"{where} has failed ({error}): replace the disk and restart the node."
    for reason in context.short_of_space:
        yield f"{reason}: records of clients are refused until space is freed."
    for row in context.damaged[:DAMAGED_SHOWN]:
        name = f"{row['topic']}-{row['partition']} on node {context.node_id}"
        yield f"{name} is damaged ({row['reason']}): stop the node and move this replica away; it is then copied again."


def _time(wall_ms: int) -> str:
    return datetime.fromtimestamp(wall_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def move_row(figures: Any) -> Row:
    """Returns the state and the progress of a replica's move between log directories of its node."""
    return {
        "topic": figures.topic,
        "partition": figures.partition,
        "state": figures.state.value,
        "from": figures.source,
        "to": figures.target,
        "records_left": figures.records_left,
        "bytes_left": figures.bytes_left,
        "bytes_per_second": figures.bytes_per_second,
        "seconds_left": figures.seconds_left,
    }
