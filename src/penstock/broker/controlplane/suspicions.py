"""Keeps the list of replicas that this broker suspects to have damaged or wrong records.

The broker's heartbeats send each suspicion every RESEND_S seconds. So a new active controller also gets it, and the
controller examines the replica several times. A suspicion that is not renewed is dropped after KEEP_S seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from penstock.protocol.messages.api_63_broker_heartbeat import Suspicion

MAX_SUSPICIONS = 100
#: Suspicions in one heartbeat.
PER_HEARTBEAT = 16
RESEND_S = 10.0
KEEP_S = 600.0


@dataclass(slots=True)
class _Entry:
    suspicion: Suspicion
    made_at: float
    sent_at: float = -RESEND_S


class Suspicions:
    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._entries: dict[tuple[int, bytes, int, int], _Entry] = {}

    def add(self, accused: int, topic_id: bytes, partition: int, offset: int) -> bool:
        """Adds a suspicion, or renews an equal suspicion. Returns True if the suspicion is new."""
        key = (accused, topic_id, partition, offset)
        known = self._entries.get(key)
        if known is not None:
            known.made_at = self._now_s()
            return False
        if len(self._entries) >= MAX_SUSPICIONS:
            del self._entries[next(iter(self._entries))]
        suspicion = Suspicion(node_id=accused, topic_id=topic_id, partition=partition, offset=offset)
        self._entries[key] = _Entry(suspicion, self._now_s())
        return True

    def due(self) -> list[Suspicion]:
        """Returns the suspicions for the next heartbeat. Drops suspicions that were not renewed for KEEP_S seconds."""
        now = self._now_s()
        self._entries = {key: each for key, each in self._entries.items() if now - each.made_at < KEEP_S}
        waiting = [each for each in self._entries.values() if now - each.sent_at >= RESEND_S]
        for each in waiting[:PER_HEARTBEAT]:
            each.sent_at = now
        return [each.suspicion for each in waiting[:PER_HEARTBEAT]]
