"""What a process has used so far, from /proc: CPU seconds and memory, with its children."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")


def family(pid: int) -> list[int]:
    """The process and every living descendant: helper processes are part of what a broker costs."""
    found = [pid]
    for each in found:
        for task in Path(f"/proc/{each}/task").glob("*/children"):
            try:
                found += [int(child) for child in task.read_text().split()]
            except OSError:
                continue  # a thread that ended meanwhile
    return found


def cpu_seconds(pid: int) -> float:
    """User and system time, living descendants and those already waited for included."""
    total = 0
    for each in family(pid):
        try:
            stat = Path(f"/proc/{each}/stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended meanwhile: whoever waited for it has its time
        # The name in parentheses may hold blanks: count fields from behind it.
        fields = stat.rpartition(")")[2].split()
        total += sum(int(ticks) for ticks in fields[11:15])
    return total / TICKS


@dataclass(slots=True, frozen=True)
class Memory:
    rss_mb: float
    pss_mb: float


def memory(pid: int) -> Memory:
    rss = pss = 0
    for each in family(pid):
        for line in Path(f"/proc/{each}/smaps_rollup").read_text().splitlines():
            if line.startswith("Rss:"):
                rss += int(line.split()[1])
            elif line.startswith("Pss:"):
                pss += int(line.split()[1])
    return Memory(rss / 1024, pss / 1024)
