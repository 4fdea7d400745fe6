"""Kills Spark's Python processes at steps of the exactly-once sink, for drivers with this directory in PYTHONPATH.

`PENSTOCK_TEST_STEPS` names a directory, because Spark's processes share no Python objects. A file in it with the name
of a step has the process group to kill, or is empty to kill only this process. The file is removed first, so that the
step passes the next time.
"""

from __future__ import annotations

import os
import signal

from penstock.spark import sink_steps


def kill_at(step: str) -> None:
    path = os.path.join(os.environ["PENSTOCK_TEST_STEPS"], step)
    try:
        with open(path) as file:
            group = file.read().strip()
        os.remove(path)
    except FileNotFoundError:
        return
    if group:
        os.killpg(int(group), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


if "PENSTOCK_TEST_STEPS" in os.environ:
    sink_steps.on_step = kill_at
