"""Loads the code of the node on a machine: this version, or another version from a directory with the package
`penstock`.

The other version is loaded into the same process under the name `penstock.other`: its modules are compiled with the
package's name replaced in their imports, so that the two versions share no class, cache or constant. The modules in
`SHARED` are the exception: through them the simulator and a node talk to each other.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from pathlib import Path
from types import ModuleType
from typing import Any

PACKAGE = "penstock"
OTHER = "penstock.other"
#: Modules that both versions use as they are in this version: what a node gets from the simulator, and what it reports.
SHARED = ("penstock.disk", "penstock.clock", "penstock.check", "penstock.protocol.errors", "penstock.broker.events")


class VersionError(Exception):
    """Raised if the code of another version can't be loaded. The message has cause and remedy."""


@dataclass(frozen=True, slots=True)
class NodeCode:
    """Holds the functions with which a machine formats its disks and starts a node, from one version of the code."""

    version: str
    """Empty for this version; the directory of the package for another one."""
    node: Callable[..., Any]
    settings: Callable[..., Any]
    alone: dict[str, str]
    format_if_new: Callable[..., Any]
    format_plan: Callable[..., Any]
    format_storage: Callable[..., Any]
    read_meta_properties: Callable[..., Any]
    package: str = PACKAGE

    def twin(self, owner: type) -> type | None:
        """Returns the class of this version that has the same name and module as `owner`; None if there is no such
        class."""
        try:
            found = getattr(import_module(_renamed(owner.__module__, self.package)), owner.__qualname__, None)
        except ImportError:
            return None
        return found if isinstance(found, type) and found is not owner else None


def _code(package: str, version: str) -> NodeCode:
    local = import_module(f"{package}.node.local")
    storage = import_module(f"{package}.node.storage")
    return NodeCode(
        version,
        import_module(f"{package}.node.node").Node,
        import_module(f"{package}.metadata.configs.settings").Settings,
        dict(local.ALONE),
        local.format_if_new,
        storage.FormatPlan,
        storage.format_storage,
        storage.read_meta_properties,
        package,
    )


def this_version() -> NodeCode:
    return _code(PACKAGE, "")


def other_version(path: str) -> NodeCode:
    """Loads and returns the version in a directory: a checkout, its `src`, or the package itself.

    Raises VersionError if the version can't be loaded.
    """
    root = _package_directory(path)
    loaded = next((each for each in sys.meta_path if isinstance(each, _OtherVersion)), None)
    if loaded is None or loaded.root != root:
        if loaded is not None:
            sys.meta_path.remove(loaded)
        for name in [each for each in sys.modules if each == OTHER or each.startswith(f"{OTHER}.")]:
            del sys.modules[name]
        sys.meta_path.insert(0, _OtherVersion(root))
    try:
        return _code(OTHER, str(root))
    except (ImportError, AttributeError, SyntaxError) as error:
        raise VersionError(
            f"the version in {root} can't be loaded ({error}): use a version with the same modules"
        ) from error


def _package_directory(path: str) -> Path:
    start = Path(path).resolve()
    for root in (start, start / PACKAGE, start / "src" / PACKAGE):
        if (root / "node" / "node.py").is_file():
            return root
    raise VersionError(
        f"{path} has no package {PACKAGE}: name a directory with a checkout, its src, or the package itself"
    )


def _renamed(name: str, package: str = OTHER) -> str:
    """Returns the name under which the module `name` of another version is loaded. Shared modules and modules of other
    packages keep their names."""
    if name.startswith(f"{OTHER}.") or any(name == each or name.startswith(f"{each}.") for each in SHARED):
        return name
    inside = name == PACKAGE or name.startswith(f"{PACKAGE}.")
    return package + name.removeprefix(PACKAGE) if inside else name


class _OtherVersion(MetaPathFinder, Loader):
    """Finds and loads the modules of the other version of this package, under the package name `OTHER`."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != OTHER and not fullname.startswith(f"{OTHER}."):
            return None
        place = self.root.joinpath(*fullname.removeprefix(OTHER).strip(".").split("."))
        for file, is_package in ((place / "__init__.py", True), (place.with_suffix(".py"), False)):
            if file.is_file():
                return spec_from_loader(fullname, self, origin=str(file), is_package=is_package)
        return None

    def exec_module(self, module: ModuleType) -> None:
        spec = module.__spec__
        assert spec is not None
        assert spec.origin is not None
        tree = _Renaming().visit(ast.parse(Path(spec.origin).read_text(), spec.origin))
        module.__dict__["__renamed__"] = _renamed
        exec(compile(ast.fix_missing_locations(tree), spec.origin, "exec"), module.__dict__)  # noqa: S102


class _Renaming(ast.NodeTransformer):
    """Replaces the package's name in imports, and in the names that are given to `import_module`."""

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST:
        if node.module is not None and not node.level:
            node.module = _renamed(node.module)
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id == "import_module":
            renamed = ast.Name("__renamed__", ast.Load())
            node.args[:1] = [ast.Call(renamed, node.args[:1], [])]
        return node
