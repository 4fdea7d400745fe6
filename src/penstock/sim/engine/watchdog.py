"""Implements a watchdog, which stops a turn (one iteration of an event loop) that never ends.

Virtual time stands still inside a turn, so no limit in virtual time can end an endless loop. The watchdog has a timer
that ticks after a fixed amount of CPU time. If the same turn runs at two successive ticks, the watchdog stops the turn
and names it in the error. A normal turn takes milliseconds. The timer costs nothing per turn, and does not change any
run.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from penstock.sim.engine.loop import Timeline

#: A turn may take between one and two times as much CPU time.
TURN_CPU_S = 4.0
#: Number of functions that are named, from the innermost on.
NAMED = 3


class EndlessTurnError(KeyboardInterrupt):
    """Raised inside a callback that does not end. It is a KeyboardInterrupt, because asyncio stores other exceptions in
    the task."""


@contextmanager
def watched(timeline: Timeline, cpu_s: float = TURN_CPU_S) -> Iterator[None]:
    """Raises EndlessTurnError inside a turn (one iteration of an event loop) that takes too much CPU time. Does nothing
    outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    last = -1

    def tick(_: int, frame: FrameType | None) -> None:
        nonlocal last
        process = timeline.running
        if process is not None and last == timeline.turns:
            raise EndlessTurnError(
                f"An event loop turn of {process.name} at {timeline.now:.3f} s has not ended after {cpu_s:g} s of "
                f"CPU time: it is in {_place(frame)}."
            )
        last = timeline.turns

    before = signal.signal(signal.SIGPROF, tick)
    signal.setitimer(signal.ITIMER_PROF, cpu_s, cpu_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def _place(frame: FrameType | None) -> str:
    places: list[str] = []
    while frame is not None and len(places) < NAMED:
        name = frame.f_code.co_filename.rpartition("/penstock/")[2]
        places.append(f"{name}:{frame.f_lineno} {frame.f_code.co_name}")
        frame = frame.f_back
    return ", called from ".join(places)
