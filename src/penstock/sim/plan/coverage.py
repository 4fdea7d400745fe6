"""Counts how often each kind of fault was injected at each kind of point, by the role of the machine that it hit.

A point is a message or a step on a disk at which a fault can be injected (see `points`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from penstock.sim.plan.points import Cell, PointLog

VERSION = 1


class Coverage:
    """Holds the number of injected faults for each cell (see `points.Cell`).

    The number is 0 if runs passed points of the cell but no fault was injected there.
    """

    def __init__(self, counts: Mapping[Cell, int] | None = None) -> None:
        self.counts: dict[Cell, int] = dict(counts or {})

    def passed(self, cells: Iterable[Cell]) -> None:
        for cell in cells:
            self.counts.setdefault(cell, 0)

    def add(self, log: PointLog) -> None:
        """Adds the points that a run passed, and the faults that were injected in it."""
        self.passed(log.cells())
        for cell in log.covered():
            self.counts[cell] = self.counts.get(cell, 0) + 1

    def merge(self, other: Mapping[Cell, int]) -> None:
        for cell, count in other.items():
            self.counts[cell] = self.counts.get(cell, 0) + count

    @property
    def covered(self) -> int:
        return sum(1 for count in self.counts.values() if count)

    def uncovered(self) -> list[Cell]:
        return sorted(cell for cell, count in self.counts.items() if not count)

    def save(self, path: Path) -> None:
        kinds: dict[str, dict[str, dict[str, int]]] = {}
        for cell in sorted(self.counts):
            kinds.setdefault(cell.kind, {}).setdefault(cell.role, {})[cell.fault] = self.counts[cell]
        path.write_text(json.dumps({"version": VERSION, "kinds": kinds}, indent=1) + "\n", encoding="utf-8")


def load_coverage(path: Path) -> Coverage:
    """Reads a file that `save` wrote; returns empty coverage if there is no file.

    Raises ValueError if the file is not a coverage file.
    """
    if not path.exists():
        return Coverage()
    try:
        saved = json.loads(path.read_text(encoding="utf-8"))
        if saved["version"] != VERSION:
            raise ValueError(f"the file has version {saved['version']}, but version {VERSION} is needed")
        return Coverage(
            {
                Cell(kind, fault, role): int(count)
                for kind, roles in saved["kinds"].items()
                for role, faults in roles.items()
                for fault, count in faults.items()
            }
        )
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"{path} is not a coverage file ({error}): remove it, or name another file") from error
