"""Identifies processes by pid and start time, because the system reuses pids."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

PS_TIMEOUT_S = 5.0
_START_TIME = 19  # index among the fields behind the command's name in /proc/PID/stat


def started(pid: int) -> str:
    """Returns the time at which the process started, in the system's own format; empty if there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return "" if Path("/proc/self/stat").exists() else _started_by_ps(pid)
    # The command's name stands in parentheses and may hold spaces and parentheses itself.
    return f"{boot} {stat.rpartition(')')[2].split()[_START_TIME]}"


def _started_by_ps(pid: int) -> str:
    """Returns the start time from `ps`, for systems without /proc."""
    asked = ["ps", "-o", "lstart=", "-p", str(pid)]
    try:
        done = subprocess.run(asked, capture_output=True, text=True, check=False, timeout=PS_TIMEOUT_S)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return " ".join(done.stdout.split())


def terminate(pid: int, when_started: str) -> bool:
    """Sends SIGTERM to the process with this pid and start time. Returns False if this process has ended."""
    if not hasattr(os, "pidfd_open"):
        if started(pid) != when_started:
            return False
        os.kill(pid, signal.SIGTERM)
        return True
    try:
        # The descriptor refers to the process that had the pid when it was opened, also if the pid is reused.
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        if started(pid) != when_started:
            return False
        signal.pidfd_send_signal(descriptor, signal.SIGTERM)
        return True
    except ProcessLookupError:
        return False
    finally:
        os.close(descriptor)
