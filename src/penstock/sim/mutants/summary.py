"""Counts the results of a measurement: the kills by unit tests, the kills by the simulator, and the survivors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from typing import Any

from penstock.sim.mutants.catalogue import Mutant
from penstock.sim.mutants.results import Result


@dataclass(frozen=True, slots=True)
class Count:
    """Holds the number of mutants that one way of testing killed, and the number of mutants that survived it."""

    by: str
    mutants: int
    killed: int
    by_watchdog: int
    cpu_hours: float
    not_reached: int
    """Number of survivors whose function never ran."""

    @property
    def row(self) -> dict[str, Any]:
        return {
            "by": self.by,
            "mutants": self.mutants,
            "killed": self.killed,
            "percent": round(100 * self.killed / max(self.mutants, 1), 1),
            "by_watchdog": self.by_watchdog,
            "survived": self.mutants - self.killed,
            "not_reached": self.not_reached,
            "cpu_hours": round(self.cpu_hours, 3),
            "kills_per_cpu_hour": round(self.killed / max(self.cpu_hours, 1e-9), 1),
        }


def count(by: str, results: Iterable[Result]) -> Count:
    mine = [result for result in results if result.by == by]
    killed = [result for result in mine if result.killed]
    return Count(
        by,
        len(mine),
        len(killed),
        sum(result.by_watchdog for result in killed),
        sum(result.cpu_s for result in mine) / 3600,
        sum(not result.killed and not result.reached for result in mine),
    )


def survivors(results: Sequence[Result], ways: Sequence[str]) -> list[Result]:
    """Returns one result for each mutant that was tested in every way and survived every time."""
    tried: dict[str, dict[str, Result]] = {}
    for result in results:
        tried.setdefault(result.id, {})[result.by] = result
    return [
        next(iter(by_way.values()))
        for by_way in tried.values()
        if all(way in by_way and not by_way[way].killed for way in ways)
    ]


def killed_by_any(results: Sequence[Result], ways: Sequence[str]) -> tuple[int, int]:
    """Returns two numbers: the killed mutants, and the mutants with a known result.

    A result is known if the mutant was killed, or survived every way of testing.
    """
    alive = {result.id for result in survivors(results, ways)}
    dead = {result.id for result in results if result.killed}
    return len(dead), len(dead | alive)


def reach_rows(mutants: Sequence[Mutant], reached: Set[str]) -> list[dict[str, Any]]:
    """Returns a row per package and a row for all packages.

    A row tells how many mutants are in functions that the simulator runs.
    """
    packages = list(dict.fromkeys(mutant.package for mutant in mutants))
    rows = [_reach_row(package, [one for one in mutants if one.package == package], reached) for package in packages]
    return [*rows, _reach_row("all", mutants, reached)]


def _reach_row(name: str, mutants: Sequence[Mutant], reached: Set[str]) -> dict[str, Any]:
    functions = {f"{one.path}::{one.function}" for one in mutants}
    inside = sum(f"{one.path}::{one.function}" in reached for one in mutants)
    return {
        "package": name,
        "functions": len(functions),
        "reached": len(functions & reached),
        "mutants": len(mutants),
        "in_reached": inside,
        "percent": round(100 * inside / max(len(mutants), 1), 1),
    }


def unreached(mutants: Sequence[Mutant], reached: Set[str]) -> list[tuple[str, int]]:
    """Returns the functions that the simulator never runs; functions with the most mutants come first."""
    counts = Counter(name for one in mutants if (name := f"{one.path}::{one.function}") not in reached)
    return counts.most_common()
