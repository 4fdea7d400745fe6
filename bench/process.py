"""Reads the CPU seconds and memory of a process and its children from /proc."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")


def family(pid: int) -> list[int]:
    """Returns the process and all its running descendants, because helper processes are part of a broker's cost."""
    found = [pid]
    for each in found:
        for task in Path(f"/proc/{each}/task").glob("*/children"):
            try:
                found += [int(child) for child in task.read_text().split()]
            except OSError:
                continue  # the thread ended meanwhile
    return found


def cpu_seconds(pid: int) -> float:
    """Returns user and system time, including running descendants and ended children."""
    total = 0
    for each in family(pid):
        try:
            stat = Path(f"/proc/{each}/stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended meanwhile: its time counts for the parent that waited for it
        # The name in parentheses may have blanks: fields are counted after it.
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
