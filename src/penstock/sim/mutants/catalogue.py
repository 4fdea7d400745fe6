"""Lists all mutants: every change that an operator can make in the packages whose bugs would lose data.

A mutant's id is path, function, operator and ordinal: `raft/leader.py::Leader.on_fetch::boundary::2`. The ordinal
counts the operator's changes within that function, so a change of the code elsewhere keeps the id.
"""

from __future__ import annotations

import ast
import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from random import Random

from penstock.sim.mutants.operators import Change, changes_at
from penstock.sim.mutants.places import places

#: The name of a package on the command line → its directory below `penstock`, and the directories of its own tests.
PACKAGES: dict[str, tuple[str, tuple[str, ...]]] = {
    "raft": ("raft", ("raft",)),
    "replication": ("replication", ("replication",)),
    "log": ("log", ("log",)),
    "transactions": ("transactions", ("transactions",)),
    "groups": ("groups", ("groups",)),
    "controller": ("metadata/controller", ("metadata",)),
    "replicas": ("broker/replicas", ("broker",)),
    "controlplane": ("broker/controlplane", ("broker",)),
    "coordinators": ("broker/coordinators", ("broker",)),
}


class Half(Enum):
    """Names the two halves of the mutants. Rules and workloads are tuned on one half only; the other half is held
    out."""

    DEV = "dev"
    HELD_OUT = "held-out"


@dataclass(frozen=True, slots=True)
class Mutant:
    id: str
    package: str
    path: str
    """The file, relative to the directory of the package `penstock`."""
    line: int
    operator: str
    before: str
    after: str

    @property
    def half(self) -> Half:
        odd = hashlib.sha256(self.id.encode()).digest()[0] & 1
        return Half.HELD_OUT if odd else Half.DEV

    @property
    def module(self) -> str:
        return module_of(self.path)

    @property
    def function(self) -> str:
        """Returns the qualified name of the changed function."""
        return self.id.split("::")[1]

    @property
    def diff(self) -> str:
        """Returns the mutant's code change as one line of text."""
        return f"{self.path}:{self.line}  {self.before}  →  {self.after}"


def module_of(path: str) -> str:
    return "penstock." + path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def changes_in(tree: ast.Module, path: str) -> Iterator[tuple[str, Change]]:
    """Yields the id and the change of every mutant of a file."""
    ordinals: Counter[tuple[str, str]] = Counter()
    for place in places(tree):
        for change in changes_at(place):
            key = (place.qualname, change.operator)
            ordinals[key] += 1
            yield f"{path}::{place.qualname}::{change.operator}::{ordinals[key]}", change


def mutants_of(source: str, path: str, package: str) -> list[Mutant]:
    return [
        Mutant(name, package, path, change.line, change.operator, change.before, change.after)
        for name, change in changes_in(ast.parse(source), path)
    ]


def mutated(source: str, path: str, name: str) -> ast.Module:
    """Returns the syntax tree of the file with this mutant in it. Raises KeyError if the file has no such mutant."""
    tree = ast.parse(source)
    for found, change in changes_in(tree, path):
        if found == name:
            change.make()
            return ast.fix_missing_locations(tree)
    raise KeyError(name)


def all_mutants(root: Path, packages: Sequence[str] = ()) -> list[Mutant]:
    """Returns the mutants of the given packages; of all packages by default. `root` is the directory of `penstock`."""
    found: list[Mutant] = []
    for package in packages or PACKAGES:
        for path in sorted((root / PACKAGES[package][0]).rglob("*.py")):
            found += mutants_of(path.read_text(), path.relative_to(root).as_posix(), package)
    return found


def naming(mutants: Sequence[Mutant], texts: Sequence[str]) -> list[Mutant]:
    """Returns the mutants whose id contains one of the texts; all of them if `texts` is empty."""
    return [mutant for mutant in mutants if not texts or any(text in mutant.id for text in texts)]


def sample(mutants: Sequence[Mutant], count: int | None, seed: int) -> list[Mutant]:
    """Draws `count` mutants in random order; None draws all of them. If a measurement is interrupted, the mutants
    tested so far are a fair sample, because the order is random."""
    order = sorted(mutants, key=lambda mutant: mutant.id)
    Random(f"mutants/{seed}").shuffle(order)  # noqa: S311
    return order if count is None else order[:count]
