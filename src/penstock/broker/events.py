"""Defines the typed events of a node. The code that causes an event emits it once, to all observers of the node.

The composition root chooses the observers: the log line below, and observers that the caller of `Node` passes (the
simulator's checks, a metric). No code parses log lines. An observer runs inside the step that emitted the event: it
must return at once and must not raise. Nothing is emitted on the produce and fetch path.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

logger = logging.getLogger(__name__)

#: The text of the log line for an operator. Nothing else depends on it.
ROLE_LINE = "the quorum: %s in epoch %d, leader %d"


@dataclass(frozen=True, slots=True)
class QuorumRoleChanged:
    """Reports that this node has a new role in the metadata quorum, or the same role in a new epoch."""

    node_id: int
    role: str
    epoch: int
    leader_id: int
    """The leader of the epoch; -1 while this node knows no leader."""


#: Every kind of event; a union as soon as there is a second kind.
NodeEvent: TypeAlias = QuorumRoleChanged
Observer: TypeAlias = Callable[[NodeEvent], None]


def log_event(event: NodeEvent) -> None:
    """Writes an event to the log as one line."""
    logger.info(ROLE_LINE, event.role, event.epoch, event.leader_id)


def notify_all(observers: Iterable[Observer]) -> Observer:
    """Returns one observer that calls all of the given observers, in their order."""
    listed = tuple(observers)

    def notify(event: NodeEvent) -> None:
        for observer in listed:
            observer(event)

    return notify
