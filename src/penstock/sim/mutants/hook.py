"""Puts a mutant into this process, in memory: no file is written.

If the mutated module is not imported yet, an import finder compiles its changed syntax tree. If it is imported, `patch`
changes the code of its functions. The mutated function counts its calls: if it never runs, the tests lack a workload,
not a rule.
"""

from __future__ import annotations

import ast
import gc
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from types import CodeType, FunctionType, ModuleType

from penstock.check import check
from penstock.sim.mutants.catalogue import PACKAGES, Mutant, module_of, mutants_of, mutated
from penstock.sim.mutants.places import Function, functions

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
    """Returns the mutant with this id. Raises KeyError if the code has no such mutant."""
    path = name.partition("::")[0]
    if not (root / path).is_file():
        raise KeyError(name)
    for mutant in mutants_of((root / path).read_text(), path, ""):
        if mutant.id == name:
            return mutant
    raise KeyError(name)


class MutantFinder(MetaPathFinder):
    """Implements an import finder that finds only the mutated module."""

    def __init__(self, root: Path, mutant: Mutant) -> None:
        self._file = root / mutant.path
        self._mutant = mutant
        self.reached: list[int] = [0]

    @property
    def id(self) -> str:
        return self._mutant.id

    def install(self) -> None:
        """Installs the finder and imports the mutated module at once.

        A later import could miss the mutant: another import finder may be installed with a higher precedence.
        """
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
        return _mutated_code(self._mutant, Path(self.path))

    def exec_module(self, module: ModuleType) -> None:
        setattr(module, COUNTER, self._reached)
        super().exec_module(module)


def imported_functions() -> Mapping[str, Sequence[FunctionType]]:
    """Returns all functions of the modules that this process has imported, by file."""
    gc.unfreeze()  # the collector does not list frozen objects
    found: dict[str, list[FunctionType]] = {}
    for each in gc.get_objects():
        if isinstance(each, FunctionType):
            found.setdefault(each.__code__.co_filename, []).append(each)
    return found


def patch(name: str, imported: Mapping[str, Sequence[FunctionType]]) -> list[int]:
    """Puts a mutant into a process that has imported its module: changes the code of the functions that differ.

    Returns the counter of the mutated function's calls. Raises KeyError if the code has no such mutant, and ValueError
    if the code can't be changed after the import.
    """
    mutant = find_mutant(ROOT, name)
    file = ROOT / mutant.path
    codes = {(code.co_qualname, code.co_firstlineno): code for code in _codes_in(_mutated_code(mutant, file))}
    differing = [
        (function, code)
        for function in imported.get(str(file), ())
        if (code := codes.get((function.__code__.co_qualname, function.__code__.co_firstlineno)))
        if code != function.__code__
    ]
    if not differing:
        raise ValueError(f"no imported function changes, so a fresh process must test mutant {name}")
    reached = [0]
    setattr(sys.modules[mutant.module], COUNTER, reached)
    for function, code in differing:
        function.__code__ = code
    return reached


def _codes_in(code: CodeType) -> Iterator[CodeType]:
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield each
            yield from _codes_in(each)


def _mutated_code(mutant: Mutant, file: Path) -> CodeType:
    """Returns the code of the module with the mutant. The mutated function counts its calls."""
    tree = mutated(file.read_text(), mutant.path, mutant.id)
    for function, qualname in list(functions(tree)):
        if qualname == mutant.function:
            _begin_with(function, f"{COUNTER}[0] += 1")
    return _compiled(tree, str(file))


class ReachFinder(MetaPathFinder):
    """Notes which functions of the mutated packages run, as `path::qualified name`."""

    def __init__(self, root: Path) -> None:
        self.reached: set[str] = set()
        paths = [path for directory, _ in PACKAGES.values() for path in (root / directory).rglob("*.py")]
        self._files = {module_of(path.relative_to(root).as_posix()): path for path in paths}
        self._root = root

    def install(self, *, at_once: bool = False) -> None:
        """Installs the finder.

        With `at_once`, imports all modules now. Later imports could miss this finder: another import finder may be
        installed with a higher precedence.
        """
        sys.meta_path.insert(0, self)
        for module in sorted(self._files) if at_once else ():
            import_module(module)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        file = self._files.get(fullname)
        if file is None:
            return None
        loader = _ReachLoader(fullname, str(file), file.relative_to(self._root).as_posix(), self.reached)
        return spec_from_file_location(fullname, file, loader=loader)


class _ReachLoader(SourceFileLoader):
    def __init__(self, fullname: str, path: str, name: str, reached: set[str]) -> None:
        super().__init__(fullname, path)
        self._name = name
        self._reached = reached

    def get_code(self, fullname: str) -> CodeType:
        tree = ast.parse(Path(self.path).read_text())
        for function, qualname in list(functions(tree)):
            _begin_with(function, f"{COUNTER}.add({f'{self._name}::{qualname}'!r})")
        return _compiled(tree, self.path)

    def exec_module(self, module: ModuleType) -> None:
        setattr(module, COUNTER, self._reached)
        super().exec_module(module)


def _begin_with(function: Function, statement: str) -> None:
    at = 1 if ast.get_docstring(function) is not None else 0
    function.body.insert(at, ast.parse(statement).body[0])


def _compiled(tree: ast.Module, path: str) -> CodeType:
    code: CodeType = compile(ast.fix_missing_locations(tree), path, "exec")
    return code
