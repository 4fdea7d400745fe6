"""Puts a mutant into this process: the import of its module compiles the changed tree instead of the file.

The hook is installed before the module is first imported. It counts how often the mutated function runs, because a
mutant whose function never ran says that a workload is missing, not a rule.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType

from penstock.check import check
from penstock.sim.mutants.catalogue import Mutant, mutants_of, mutated

COUNTER = "__mutant_reached__"


#: The directory of the package `penstock`.
ROOT = Path(__file__).parents[2]


def install(name: str) -> MutantFinder:
    """Puts the mutant with this id into this process. Raises KeyError if the code has no such mutant."""
    finder = MutantFinder(ROOT, find_mutant(ROOT, name))
    finder.install()
    return finder


def installed() -> str:
    """Returns the id of the mutant in this process; empty if it has none."""
    return next((finder.id for finder in sys.meta_path if isinstance(finder, MutantFinder)), "")


def find_mutant(root: Path, name: str) -> Mutant:
    """Returns the mutant with this id. Raises KeyError if the code has none."""
    path = name.partition("::")[0]
    if not (root / path).is_file():
        raise KeyError(name)
    for mutant in mutants_of((root / path).read_text(), path, ""):
        if mutant.id == name:
            return mutant
    raise KeyError(name)


class MutantFinder(MetaPathFinder):
    """Finds the mutated module, and no other."""

    def __init__(self, root: Path, mutant: Mutant) -> None:
        self._file = root / mutant.path
        self._mutant = mutant
        self.reached: list[int] = [0]

    @property
    def id(self) -> str:
        return self._mutant.id

    def install(self) -> None:
        """Imports the mutated module at once, because another finder may later be put before this one."""
        check(self._mutant.module not in sys.modules, f"{self._mutant.module} was imported before its mutant")
        sys.meta_path.insert(0, self)
        import_module(self._mutant.module)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._mutant.module:
            return None
        loader = _MutantLoader(fullname, str(self._file), self._mutant, self.reached)
        return spec_from_file_location(fullname, self._file, loader=loader)


class _MutantLoader(SourceFileLoader):
    def __init__(self, fullname: str, path: str, mutant: Mutant, reached: list[int]) -> None:
        super().__init__(fullname, path)
        self._mutant = mutant
        self._reached = reached

    def get_code(self, fullname: str) -> CodeType:
        source = Path(self.path).read_text()
        tree = mutated(source, self._mutant.path, self._mutant.id)
        _count_calls(tree, self._mutant.id.split("::")[1].split("."))
        code: CodeType = compile(ast.fix_missing_locations(tree), self.path, "exec")
        return code

    def exec_module(self, module: ModuleType) -> None:
        setattr(module, COUNTER, self._reached)
        super().exec_module(module)


def _count_calls(tree: ast.Module, names: list[str]) -> None:
    """Inserts a count of calls at the start of each function with this qualified name."""
    found: list[ast.AST] = [tree]
    for name in names:
        inner = (node for outer in found for node in ast.walk(outer) if node is not outer)
        found = [
            node
            for node in inner
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name
        ]
    for function in found:
        assert isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        counting = ast.parse(f"{COUNTER}[0] += 1").body[0]
        at = 1 if ast.get_docstring(function) is not None else 0
        function.body.insert(at, counting)
