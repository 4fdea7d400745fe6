"""Keeps the last events of this node, and counts events by kind."""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.broker.events.kinds import NodeEvent

MAX_EVENTS = 1000


@dataclass(frozen=True, slots=True)
class Entry:
    """Holds an event with its time and its node."""

    at_ms: int
    node_id: int
    number: int
    """The number of the event on its node, counted from 1 since the node's start."""
    event: NodeEvent

    def as_json(self) -> dict[str, Any]:
        return {
            "at_ms": self.at_ms,
            "node": self.node_id,
            "kind": self.event.KIND,
            "text": str(self.event),
            "fields": self.event.fields(),
        }

    def encoded(self) -> bytes:
        return json.dumps(self.as_json()).encode()


class EventHistory:
    """Observes events: keeps the last MAX_EVENTS events of the node and counts all events."""

    def __init__(self, node_id: int, wall_ms: Callable[[], int]) -> None:
        self._node_id = node_id
        self._wall_ms = wall_ms
        self.entries: deque[Entry] = deque(maxlen=MAX_EVENTS)
        self.counts: Counter[str] = Counter()
        #: Called with each new entry, after the entry was added.
        self.listeners: list[Callable[[Entry], None]] = []

    def observe(self, event: NodeEvent) -> None:
        self.counts[event.KIND] += 1
        entry = Entry(self._wall_ms(), self._node_id, self.counts.total(), event)
        self.entries.append(entry)
        for listener in self.listeners:
            listener(entry)
