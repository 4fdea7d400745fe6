"""Chooses where a run injects faults: at points that an earlier run of the same plan passed.

Most of a run's points are fetches and writes of segments. To hit rare points as often as frequent points, the choice
takes the kind of point with the lowest coverage, then the cell (kind, fault and role of the machine) of this kind with
the lowest coverage, then a random point of this cell. Half of the faults hit messages between nodes. About half of the
faults get a second fault, at the same point or soon after it. Many bugs need this second fault before the effects of
the first fault are repaired.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from random import Random
from typing import TypeVar

from penstock.sim.plan.coverage import Coverage
from penstock.sim.plan.points import (
    ANSWER,
    CLIENT,
    DROP,
    DUPLICATE,
    HOLD,
    REORDER,
    REQUEST,
    SENDER,
    Cell,
    Point,
    PointFault,
    PointLog,
    faults_at,
)

T = TypeVar("T")

#: Most faults of a run, pairs counted as one.
MOST_FAULTS = 6
PAIRED = 0.5
#: The second fault of a pair comes within this time of the first.
NEAR_S = 1.0
#: Share of pairs whose two faults are at the same point.
SAME_POINT = 0.3
#: Shares of the faults that hit messages between nodes, messages of clients, and steps on disks.
SHARES = {"nodes": 0.5, "clients": 0.2, "disks": 0.3}
#: Faults of the network that a stop of the sender can follow at the same point.
BEFORE_A_STOP = frozenset({DROP, HOLD, REORDER, DUPLICATE})


class PointChoice:
    """Chooses, for each run of one plan, the faults and the points at which they are injected."""

    def __init__(self, log: PointLog, coverage: Coverage, random: Random) -> None:
        self._passed = log.passed
        self._times = [point.time for point in log.passed]
        self._coverage = coverage
        self._random = random
        self._by_cell: dict[Cell, list[Point]] = {}
        for point in log.passed:
            for fault in faults_at(point.kind):
                self._by_cell.setdefault(Cell(point.kind, fault, point.role_for(fault)), []).append(point)
        #: How often this object has chosen each cell: a run may end before it reaches its later points.
        self._chosen: dict[Cell, int] = {}

    def faults(self) -> tuple[PointFault, ...]:
        """Returns the faults of the next run, in the order of their points."""
        if not self._passed:
            return ()
        found: dict[tuple[str, int], tuple[Point, tuple[str, ...]]] = {}
        for _ in range(self._random.randint(1, MOST_FAULTS)):
            cell = self._next(self._by_cell)
            point = self._random.choice(self._by_cell[cell])
            if (point.kind, point.nth) in found:
                continue
            found[point.kind, point.nth] = (point, (cell.fault,))
            if self._random.random() < PAIRED:
                self._pair(found, point, cell.fault)
        in_order = sorted(found.values(), key=lambda each: (each[0].time, each[0].kind, each[0].nth))
        return tuple(PointFault(point.kind, point.nth, faults) for point, faults in in_order)

    def _next(self, cells: Iterable[Cell]) -> Cell:
        """Returns a random cell (kind, fault and role) among the least covered cells of the least covered kinds of
        points."""
        by_kind: dict[str, dict[Cell, int]] = {}
        for cell in cells:
            count = self._coverage.counts.get(cell, 0) + self._chosen.get(cell, 0)
            by_kind.setdefault(cell.kind, {})[cell] = count
        groups: dict[str, dict[str, int]] = {}
        for kind, counts in by_kind.items():
            groups.setdefault(_group(kind), {})[kind] = sum(counts.values())
        group = self._random.choices(list(groups), [SHARES[each] for each in groups])[0]
        cell = self._least(by_kind[self._least(groups[group])])
        self._chosen[cell] = self._chosen.get(cell, 0) + 1
        return cell

    def _least(self, counts: dict[T, int]) -> T:
        least = min(counts.values())
        return self._random.choice([each for each, count in counts.items() if count == least])

    def _pair(self, found: dict[tuple[str, int], tuple[Point, tuple[str, ...]]], point: Point, fault: str) -> None:
        if fault in BEFORE_A_STOP and self._random.random() < SAME_POINT:
            stops = [each for each in faults_at(point.kind) if each.endswith(SENDER)]
            if stops:
                found[point.kind, point.nth] = (point, (fault, self._random.choice(stops)))
            return
        after = bisect_right(self._times, point.time)
        near = self._passed[after : bisect_right(self._times, point.time + NEAR_S)]
        cells: dict[Cell, list[Point]] = {}
        for each in near:
            for second in faults_at(each.kind):
                cells.setdefault(Cell(each.kind, second, each.role_for(second)), []).append(each)
        if cells:
            cell = self._next(cells)
            second_point = self._random.choice(cells[cell])
            found.setdefault((second_point.kind, second_point.nth), (second_point, (cell.fault,)))


def _group(kind: str) -> str:
    if kind.startswith(CLIENT):
        return "clients"
    return "nodes" if kind.endswith((REQUEST, ANSWER)) else "disks"
