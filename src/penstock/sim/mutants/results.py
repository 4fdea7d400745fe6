"""Stores the results of mutants, one JSON line each, so that an interrupted measurement continues where it stopped."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from penstock.sim.mutants.catalogue import Half, Mutant
from penstock.sim.mutants.worker import Outcome


@dataclass(frozen=True, slots=True)
class Result:
    """Holds the result of testing one mutant in one way (unit tests or simulator)."""

    id: str
    by: str
    killed: bool
    how: str
    command: str
    cpu_s: float
    runs: int
    reached: int
    budget_s: float
    source: str
    """A digest of the mutated file: after a change of the file the mutant is run again."""
    diff: str
    """The mutant's change of the code; empty for a mutant of the held-out half, which nobody should look at."""
    tests: str = ""
    """A digest of the unit tests that the mutant gets: after a change of them a survivor is run again."""

    @classmethod
    def of(cls, mutant: Mutant, by: str, outcome: Outcome, budget_s: float, source: str, tests: str = "") -> Self:
        diff = mutant.diff if mutant.half is Half.DEV else ""
        return cls(mutant.id, by, **asdict(outcome), budget_s=budget_s, source=source, diff=diff, tests=tests)

    @property
    def by_watchdog(self) -> bool:
        return self.how.startswith(WATCHDOG)

    def settles(self, budget_s: float, source: str, tests: str = "") -> bool:
        """Returns True if this result still holds, so that the mutant need not run again.

        The source must be unchanged. A killed mutant never runs again. A mutant that survived runs again with a larger
        budget of CPU time or with other tests.
        """
        return self.source == source and (self.killed or (self.budget_s >= budget_s and self.tests == tests))


#: The first word of `how` if a limit ended the mutant.
WATCHDOG = "watchdog"


class ResultFile:
    """Keeps the results of mutants in a file, to which each new result is appended at once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.results: dict[tuple[str, str], Result] = {}
        if path.exists():
            for line in path.read_text().splitlines():
                result = Result(**json.loads(line))
                self.results[result.id, result.by] = result

    @property
    def learned(self) -> Path:
        """Returns the path of the file that keeps which functions each test runs."""
        return self._path.with_suffix(".tests.json")

    @property
    def kinds(self) -> Path:
        """Returns the path of the file that keeps which kinds of simulated runs run each function."""
        return self._path.with_suffix(".runs.json")

    def get(self, mutant: Mutant, by: str) -> Result | None:
        return self.results.get((mutant.id, by))

    def add(self, result: Result) -> None:
        self.results[result.id, result.by] = result
        with self._path.open("a") as file:
            file.write(json.dumps(asdict(result)) + "\n")


def source_digest(root: Path, mutant: Mutant) -> str:
    return hashlib.sha256((root / mutant.path).read_bytes()).hexdigest()[:12]
