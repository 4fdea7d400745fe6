"""Reports the progress of batch jobs from Spark's counters of their stages. Batch jobs have no streaming query."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from penstock.pipelines.running import duration

LOOK_EVERY_S = 0.5


@dataclass(frozen=True, slots=True)
class Work:
    """Holds the total progress of all watched jobs."""

    tasks: int = 0
    all_tasks: int = 0
    """Number of tasks in the stages that Spark has planned so far; more may follow."""
    records_read: int = 0
    """Number of records that completed tasks have read from their source."""


class Watch:
    """Watches the Spark jobs that one thread starts.

    Jobs of Spark Connect are not seen, because their driver is another process.
    """

    def __init__(self, context: Any) -> None:
        self._context = context
        self.group = f"penstock {uuid4()}"
        self._stages: dict[int, Work] = {}  # kept here, because Spark drops old stages

    def look(self) -> Work:
        if self._context is not None:
            self._look()
        known = self._stages.values()
        return Work(
            sum(each.tasks for each in known),
            sum(each.all_tasks for each in known),
            sum(each.records_read for each in known),
        )

    def _look(self) -> None:
        from py4j.protocol import Py4JError

        try:
            tracker = self._context.statusTracker()
            store = self._context._jsc.sc().statusStore()
            for job in tracker.getJobIdsForGroup(self.group):
                info = tracker.getJobInfo(job)
                for stage in info.stageIds if info else ():
                    self._note(store, stage)
        except Py4JError:  # the session ends: the last known numbers stay
            return

    def _note(self, store: Any, stage: int) -> None:
        from py4j.protocol import Py4JJavaError

        try:
            data = store.lastStageAttempt(stage)
        except Py4JJavaError:  # the stage has not begun, or Spark has dropped it
            return
        self._stages[stage] = Work(data.numCompleteTasks(), data.numTasks(), data.inputRecords())


@contextmanager
def watched(spark: Any) -> Iterator[Watch]:
    """Watches the Spark jobs that this thread starts inside of the block."""
    context = getattr(spark, "_sc", None)
    watch = Watch(context)
    if context is None:
        yield watch
        return
    before = context.getLocalProperty("spark.jobGroup.id")
    context.setLocalProperty("spark.jobGroup.id", watch.group)
    try:
        yield watch
    finally:
        context.setLocalProperty("spark.jobGroup.id", before)


@contextmanager
def telling(tell: Callable[[float], None], *, every_s: float = LOOK_EVERY_S) -> Iterator[None]:
    """Calls `tell` regularly with the elapsed seconds while the `with` block runs.

    Calls `tell` once more if the block succeeds.
    """
    began = time.monotonic()
    over = threading.Event()

    def look() -> None:
        while not over.wait(every_s):
            tell(time.monotonic() - began)

    thread = threading.Thread(target=look, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    tell(time.monotonic() - began)


def told(label: str, done: int, total: int, unit: str, seconds: float) -> str:
    """Returns a line with the progress of a job, its rate, and the remaining time. The job began `seconds` ago.

    Returns an empty text while `total` is not known.
    """
    if not total:
        return ""
    rate = done / max(seconds, 1e-9)
    said = f"{label}: {done:,} of {total:,} {unit}, {rate:,.{0 if rate >= 10 else 1}f} {unit}/s"
    return said if not 0 < done < total else f"{said}, {duration((total - done) / rate)} to go"
