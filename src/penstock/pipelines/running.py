"""How long a pipeline runs and what ends it: until it has caught up, or until it is stopped, or until it fails."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.spark.errors import SourceError

if TYPE_CHECKING:
    from penstock.spark.progress import QueryState

#: How often a waiting command looks up: Ctrl-C and progress have to get through.
LOOK_EVERY_S = 0.5
#: A Python worker has ten seconds to start, which no setting changes; on a machine that is busy, that may not do.
TOO_SLOW = "Python worker failed to connect back"
ATTEMPTS = 10
#: What stands around a sentence of Spark's: its name for the error before it, its place in the query after it.
_AROUND = re.compile(r"^\[[A-Z0-9_.]+\]\s*|\s*SQLSTATE: \w+.*$")
#: What Java and Py4J put before it.
_THROWN = re.compile(r"^(?:: |Caused by: )*(?:[a-zA-Z_$][\w$]*\.)+\w*(?:Exception|Error): ")
_TRACEBACK = "Traceback (most recent call last):"
_NO_REASON = ("=== ", "at ", "Traceback", "File ", "An error occurred while calling")


@dataclass(frozen=True, slots=True)
class Pace:
    follow: bool = False
    """Goes on with what arrives, instead of ending when it has caught up with what was there."""
    every: str = "1 second"
    max_offsets: int | None = None
    """In one batch."""

    @property
    def trigger(self) -> dict[str, Any]:
        return {"processingTime": self.every} if self.follow else {"availableNow": True}

    @property
    def limits(self) -> dict[str, str]:
        return {} if self.max_offsets is None else {"maxOffsetsPerTrigger": str(self.max_offsets)}


def run(start: Callable[[], Any], *, until: Callable[[], bool] = lambda: False) -> None:
    """Starts a query and waits for its end; starts it again only where Spark itself was too impatient."""
    for attempt in range(ATTEMPTS):
        try:
            wait(start(), until=until)
            return
        except SourceError as problem:
            if TOO_SLOW not in str(problem) or attempt == ATTEMPTS - 1:
                raise


def wait(query: Any, *, until: Callable[[], bool] = lambda: False) -> None:
    """Returns when the query has ended, or has been stopped because `until` said so. Raises SourceError if it failed.

    Spark doesn't start a failed query again: what stopped it is what the user reads.
    """
    try:
        while not query.awaitTermination(LOOK_EVERY_S):
            if until():
                query.stop()
                return
    except KeyboardInterrupt:
        query.stop()
        raise
    except Exception as problem:
        raise SourceError(reason(problem)) from problem


def reason(problem: BaseException) -> str:
    """Our own sentence, if there is one in Spark's account of what happened; else its first lines' sense."""
    from penstock.spark.progress import sentence_in

    text = str(problem)
    if "SourceError: " in text:
        return sentence_in(text)
    if _TRACEBACK in text:
        raised = _raised(text)
        if raised:
            return raised
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    told = [line for line in lines if not line.startswith(_NO_REASON)]
    if not told:
        return type(problem).__name__
    sentence = told[0].rpartition("terminated with exception: ")[2]
    return _AROUND.sub("", _THROWN.sub("", sentence))


def _raised(text: str) -> str:
    """What the last of Python's tracebacks in a text ends with: an exception, with its name."""
    after = text.rpartition(_TRACEBACK)[2].splitlines()
    ends = [line.strip() for line in after if line.strip() and not line.startswith((" ", "\t"))]
    return ends[0] if ends else ""


def line(state: QueryState) -> str:
    """How far a query is, and how long it still takes at the pace of its last batch."""
    if not state.running or state.lag <= 0 or state.rows_per_second <= 0:
        return str(state)
    return f"{state}, {duration(state.lag / state.rows_per_second)} to go"


def duration(seconds: float) -> str:
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
