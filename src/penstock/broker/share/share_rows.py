"""Makes rows about share groups on this node: which records are acquired, by which member, and for how long."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING, Any

from penstock.share.states import RecordState

if TYPE_CHECKING:
    from penstock.broker.share.led_partition import LedSharePartition
    from penstock.metadata.image import MetadataImage
    from penstock.share.locks import Lock
    from penstock.share.window import Run

PARTITIONS_MAX = 200
#: Runs of records in the same state that are shown of each partition, from the first one that is not done.
RUNS_MAX = 100


def share_rows(shares: Iterable[LedSharePartition], image: MetadataImage) -> list[dict[str, Any]]:
    """Returns a row for each share partition that is in use and that this node leads."""
    ordered = sorted(shares, key=lambda led: led.key)
    return [share_row(led, image) for led in ordered[:PARTITIONS_MAX]]


def share_row(led: LedSharePartition, image: MetadataImage, runs_max: int = RUNS_MAX) -> dict[str, Any]:
    """Returns a row about one share partition: counts by record state, and its first ranges of records."""
    topic = image.topics_by_id.get(led.key.topic_id)
    row: dict[str, Any] = {
        "group": led.key.group,
        "topic": topic.name if topic is not None else None,
        "partition": led.key.partition,
    }
    state = led.state
    if state is None:
        return {**row, "state": "loading"}
    totals = state.window.totals
    return {
        **row,
        "state": "active",
        "start_offset": state.start_offset,
        "end_offset": state.end_offset,
        "available": totals[RecordState.AVAILABLE],
        "acquired": totals[RecordState.ACQUIRED],
        "delayed": totals[RecordState.DELAYED],
        "being_written": totals[RecordState.PENDING],
        "waiting_for_dead_letters": totals[RecordState.ARCHIVING],
        "dead_letter_error": None if led.burial.error is None else str(led.burial.error),
        "complete": state.complete_count,
        "records": [
            {
                "first": run.first,
                "last": run.stop - 1,
                "state": RecordState(run.state).name.lower(),
                "deliveries": run.deliveries,
                **_holder(run, lock, led.now_ms),
            }
            for run, lock in islice(state.inspect(), runs_max)
        ],
    }


def _holder(run: Run, lock: Lock | None, now_ms: int) -> dict[str, Any]:
    """Returns the member that has acquired a range of records, and the age and remaining time of its lock.

    For records in a back-off, returns the time until they are available again.
    """
    if lock is None or lock.member is None:
        return {}
    left_ms = max(0, lock.deadline_ms - now_ms)
    if run.state == RecordState.DELAYED:
        return {"delay_ms": left_ms}
    return {"member": lock.member, "held_ms": max(0, now_ms - lock.since_ms), "lock_ms": left_ms}
