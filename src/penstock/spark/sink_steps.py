"""The steps of an exactly-once write, by name: tests kill a process at each of them.

`PENSTOCK_SINK_STEPS` names a directory, for Spark's processes share no Python objects. A file there with the name of a
step holds a process group to be killed, or nothing for just this process; it is removed first, so that the step passes
the next time.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

VARIABLE = "PENSTOCK_SINK_STEPS"

TASK_STEPS = ("task-begins", "task-owns", "task-wrote", "task-prepared")
DRIVER_STEPS = (
    "driver-begins",
    "driver-owns",
    "driver-checked",
    "driver-decided",
    "driver-completed-one",
    "driver-completed",
    "driver-done",
)

on_step: Callable[[str], None] | None = None
"""In tests within one process."""


def reached(step: str) -> None:
    if on_step is not None:
        on_step(step)
    directory = os.environ.get(VARIABLE)
    if directory:
        _kill_at(os.path.join(directory, step))


def _kill_at(path: str) -> None:
    try:
        with open(path) as file:
            group = file.read().strip()
        os.remove(path)
    except OSError:
        return
    if group:
        os.killpg(int(group), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)
