"""Learns which functions each fast test runs, and uses this to choose the tests for a mutant.

All tests of `tests/unit` and `tests/scenarios` run once without a mutant. The functions that each test runs are kept in
a file beside the results. After a change of the code or of a test file, the tests run again. A mutant gets the tests
that run its function, up to a bound in CPU time. Tests that run few other functions come first.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from penstock.sim.mutants.catalogue import PACKAGES, Mutant
from penstock.sim.mutants.worker import Observed

#: The directories of fast tests, below `tests`.
FAST_TESTS = ("unit", "scenarios")
#: CPU time of the tests that one mutant gets, as measured without a mutant.
MOST_TEST_CPU_S = 40.0


class Learned(NamedTuple):
    """Holds the tests of one file, with the functions that each test runs without a mutant."""

    digest: str
    """A digest of the test file, and of the helpers and data in its directory."""
    early: Sequence[str]
    """Functions that run while the modules are imported and the tests collected."""
    failed: Sequence[str]
    tests: Mapping[str, Observed]


class Choice(NamedTuple):
    """Holds the tests for a mutant, and a digest of these tests. A mutant that survived is run again if the digest
    changes."""

    tests: Sequence[str]
    digest: str


@dataclass(frozen=True, slots=True)
class Covering:
    """Maps each function of the mutated packages to the tests that run it. The most specific test comes first."""

    files: Mapping[str, Learned]
    early: frozenset[str]
    """Functions that run while modules are imported and tests collected."""
    tests: Mapping[str, Sequence[str]]

    @classmethod
    def of_files(cls, files: Mapping[str, Learned]) -> Covering:
        running: dict[str, list[tuple[int, str]]] = {}
        for learned in files.values():
            for test, observed in learned.tests.items():
                for function in observed.functions:
                    running.setdefault(function, []).append((len(observed.functions), test))
        tests = {function: [test for _, test in sorted(found)] for function, found in running.items()}
        early = frozenset(function for learned in files.values() for function in learned.early)
        return cls(files, early, tests)

    @property
    def failed(self) -> set[str]:
        """Returns the tests that fail without a mutant."""
        return {test for learned in self.files.values() for test in learned.failed}

    def is_early(self, mutant: Mutant) -> bool:
        """Returns True if the mutant's function runs while modules are imported and tests collected."""
        return f"{mutant.path}::{mutant.function}" in self.early

    def choose(self, mutant: Mutant, left_out: Collection[str] = (), most_cpu_s: float = MOST_TEST_CPU_S) -> Choice:
        """Returns the tests that run the mutant's function, within the bound of CPU time, but at least one of them.

        A function that runs at the import of a module may matter to every test. For such a function, the tests of its
        package are added.
        """
        function = f"{mutant.path}::{mutant.function}"
        running = dict.fromkeys(self.tests.get(function, ()))
        if self.is_early(mutant):
            running.update(dict.fromkeys(self._of_package(mutant.package)))
        chosen: list[str] = []
        spent_s = 0.0
        for test in running:
            if test not in left_out and (not chosen or spent_s < most_cpu_s):
                chosen.append(test)
                spent_s += self.files[file_of(test)].tests[test].cpu_s
        digests = [self.files[file].digest for file in sorted({file_of(test) for test in chosen})]
        return Choice(chosen, _digest(map(str.encode, (*chosen, *digests))))

    def _of_package(self, package: str) -> Iterator[str]:
        directories = tuple(f"tests/unit/{each}/" for each in PACKAGES[package][1])
        for file, learned in self.files.items():
            if file.startswith(directories):
                yield from learned.tests


def file_of(test: str) -> str:
    return test.partition("::")[0]


def learn(
    repository: Path, cache: Path, observe: Callable[[Sequence[str]], Mapping[str, Learned]], state: str
) -> Covering:
    """Returns the functions that each fast test runs. Takes them from the cache if code and tests have not changed.

    Calls `observe` for the other test files. Writes the cache after each directory, so that an interrupted call can be
    resumed.
    """
    files = test_files(repository, FAST_TESTS)
    kept = {file: one for file, one in _read(cache, state).items() if files.get(file) == one.digest}
    missing = [file for file in files if file not in kept]
    for _, group in groupby(missing, key=lambda file: file.rpartition("/")[0]):
        asked = list(group)
        found = observe(asked)
        for file in asked:
            kept[file] = found.get(file, Learned("", (), (), {}))._replace(digest=files[file])
        _write(cache, state, kept)
    return Covering.of_files({file: kept[file] for file in files})


def test_files(repository: Path, directories: Iterable[str]) -> dict[str, str]:
    """Returns the test files of these directories or files below `tests`, relative to the repository, with digests."""
    found: dict[str, str] = {}
    for each in directories:
        root = repository / "tests" / each
        for path in sorted(root.rglob("test_*.py")) if root.is_dir() else [root]:
            near = [one for one in sorted(path.parent.iterdir()) if one.is_file() and not one.name.startswith("test_")]
            found[path.relative_to(repository).as_posix()] = _digest(one.read_bytes() for one in (path, *near))
    return found


def code_state(root: Path) -> str:
    """Returns a digest of all code of the package `penstock`. Leaves out this package, because nodes do not use it."""
    own = root / "sim" / "mutants"
    return _digest(path.read_bytes() for path in sorted(root.rglob("*.py")) if own not in path.parents)


def _digest(parts: Iterable[bytes]) -> str:
    total = hashlib.sha256()
    for part in parts:
        total.update(hashlib.sha256(part).digest())
    return total.hexdigest()[:12]


def _read(cache: Path, state: str) -> dict[str, Learned]:
    try:
        saved: dict[str, Any] = json.loads(cache.read_text())
    except (FileNotFoundError, ValueError):
        return {}
    if saved["state"] != state:
        return {}
    names: list[str] = saved["functions"]

    def observed(cpu_s: float, functions: list[int]) -> Observed:
        return Observed(cpu_s, [names[each] for each in functions])

    return {
        file: Learned(digest, early, failed, {test: observed(*fields) for test, fields in tests.items()})
        for file, (digest, early, failed, tests) in saved["files"].items()
    }


def _write(cache: Path, state: str, files: Mapping[str, Learned]) -> None:
    """Writes the cache. The file lists the name of each function once, and tests refer to it by its number."""
    numbers: dict[str, int] = {}

    def fields(observed: Observed) -> tuple[float, list[int]]:
        return observed.cpu_s, [numbers.setdefault(each, len(numbers)) for each in observed.functions]

    rows = {
        file: (one.digest, one.early, one.failed, {test: fields(observed) for test, observed in one.tests.items()})
        for file, one in files.items()
    }
    cache.write_text(json.dumps({"state": state, "functions": list(numbers), "files": rows}))
