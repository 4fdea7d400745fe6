"""Runs a pipeline until it has caught up, is stopped, or fails."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.spark.errors import SourceError

if TYPE_CHECKING:
    from penstock.spark.progress import QueryState

#: Seconds after which a waiting command looks again for Ctrl-C and progress.
LOOK_EVERY_S = 0.5
#: Spark's message if a Python worker has not started in ten seconds. No setting changes this, and a busy machine may
#: need longer.
TOO_SLOW = "Python worker failed to connect back"
ATTEMPTS = 10
#: Parts of Spark's messages around the sentence: the error's name before it, the position in the query after it.
_AROUND = re.compile(r"^\[[A-Z0-9_.]+\]\s*|\s*SQLSTATE: \w+.*$")
#: Prefixes that Java and Py4J add to a message.
_THROWN = re.compile(r"^(?:: |Caused by: )*(?:[a-zA-Z_$][\w$]*\.)+\w*(?:Exception|Error): ")
_TRACEBACK = "Traceback (most recent call last):"
_NO_REASON = ("=== ", "at ", "Traceback", "File ", "An error occurred while calling")


@dataclass(frozen=True, slots=True)
class Pace:
    follow: bool = False
    """True: keep running for new records. False: end at the offsets that were the newest at the start."""
    every: str = "1 second"
    max_offsets: int | None = None
    """The largest number of offsets in one batch."""

    @property
    def trigger(self) -> dict[str, Any]:
        return {"processingTime": self.every} if self.follow else {"availableNow": True}

    @property
    def limits(self) -> dict[str, str]:
        return {} if self.max_offsets is None else {"maxOffsetsPerTrigger": str(self.max_offsets)}


def run(start: Callable[[], Any], *, until: Callable[[], bool] = lambda: False) -> None:
    """Starts a query and waits for its end.

    Starts the query again if Spark gave up waiting for a Python worker to start. Any other failure is raised.
    """
    for attempt in range(ATTEMPTS):
        try:
            wait(start(), until=until)
            return
        except SourceError as problem:
            if TOO_SLOW not in str(problem) or attempt == ATTEMPTS - 1:
                raise


def wait(query: Any, *, until: Callable[[], bool] = lambda: False) -> None:
    """Waits until the query ends. Stops the query when `until` returns True. Raises SourceError if the query failed.

    Spark does not restart a failed query. The message of the SourceError is the reason of the failure.
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
    """Returns the reason of a failure in one sentence, from Spark's error text.

    Looks first for the message of a SourceError, then for the exception of the last Python traceback, and then for the
    first line with a reason.
    """
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
    """Returns the exception line at the end of the last Python traceback in a text; empty if there is no traceback."""
    after = text.rpartition(_TRACEBACK)[2].splitlines()
    ends = [line.strip() for line in after if line.strip() and not line.startswith((" ", "\t"))]
    return ends[0] if ends else ""


def line(state: QueryState) -> str:
    """Returns one line about a query's progress, with its remaining time at the rate of the last batch."""
    if not state.running or state.lag <= 0 or state.rows_per_second <= 0:
        return str(state)
    return f"{state}, {duration(state.lag / state.rows_per_second)} to go"


def duration(seconds: float) -> str:
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
