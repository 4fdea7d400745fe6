"""Names the points of an exactly-once write at which tests end a process.

`on_step` is called at each of these points. In production it is None.
"""

from __future__ import annotations

from collections.abc import Callable

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


def reached(step: str) -> None:
    if on_step is not None:
        on_step(step)
