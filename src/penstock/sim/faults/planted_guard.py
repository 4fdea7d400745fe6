"""Defines planted bugs of the guard: it does not examine all replicas, or forgets its findings."""

from __future__ import annotations

from typing import Any

from penstock.broker.guard.scrubber import Scrubber
from penstock.guard import samples
from penstock.log.log import Log
from penstock.metadata.controller import broker_states


def _last_segment_skipped(old: Any) -> Any:
    def last(log: Log) -> int:
        return int(min(old(log), log.segments.active.base_offset))

    return staticmethod(last)


def _digest_of_the_first_bytes(old: Any) -> Any:
    return lambda data: old(data[:16])


def _forgotten_at_failover(old: Any) -> Any:
    first_epochs: dict[tuple[int, str], int] = {}

    def quarantine_reason(image: Any, broker_id: int) -> str | None:
        reason: str | None = old(image, broker_id)
        if reason is not None and image.epoch > first_epochs.setdefault((broker_id, reason), image.epoch):
            return None
        return reason

    return quarantine_reason


#: Length of a run that looks for one of these bugs.
GUARD_SECONDS = 40.0
#: name → (about, replacements, a seed that finds it)
GUARD_BUGS: dict[str, tuple[str, tuple[tuple[Any, str, Any], ...], int]] = {
    "scrubber-skips-the-last-segment": (
        "the guard does not compare the active segment of a log",
        ((Scrubber, "_last", _last_segment_skipped),),
        2,
    ),
    "digest-of-the-first-bytes": (
        "the guard compares only the offset, length and epoch of batches",
        ((samples, "_digest", _digest_of_the_first_bytes),),
        2,
    ),
    "quarantine-forgotten-at-failover": (
        "a new active controller unfences nodes that are in quarantine",
        ((broker_states, "quarantine_reason", _forgotten_at_failover),),
        3,
    ),
}
