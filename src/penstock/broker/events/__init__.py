"""Defines the typed events of a node. The code that causes an event emits it once, to all observers of the node.

The composition root chooses the observers: the logger (`log_event`), the history (`broker.events.history`), and
observers that the caller of `Node` passes (the simulator's checks). No code parses log lines. An observer is called by
the code that emits the event: it must return at once and must not raise an exception. Nothing is emitted on the produce
and fetch path.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable
from typing import TypeAlias

from penstock.broker.events.kinds import NodeEvent, QuorumRoleChanged

__all__ = ["NodeEvent", "Observer", "QuorumRoleChanged", "log_event", "log_event_as_json", "notify_all"]

logger = logging.getLogger(__name__)

Observer: TypeAlias = Callable[[NodeEvent], None]


def log_event(event: NodeEvent) -> None:
    """Writes an event to the log as one line of text."""
    logger.log(event.level, "%s", event)


def log_event_as_json(event: NodeEvent) -> None:
    """Writes an event to the log as one JSON object on one line."""
    if logger.isEnabledFor(event.level):
        logger.log(event.level, "%s", json.dumps({"event": event.KIND, **event.fields()}))


def notify_all(observers: Iterable[Observer]) -> Observer:
    """Returns one observer that calls all of the given observers, in their order."""
    listed = tuple(observers)

    def notify(event: NodeEvent) -> None:
        for observer in listed:
            observer(event)

    return notify
