"""No module imports itself through others, imports for type checkers included."""

from __future__ import annotations

import grimp

#: Packages that still have cycles. A package leaves this list when its cycles are gone, and none is added.
STILL_WITH_CYCLES = ("cli", "groups", "http", "log", "metadata", "net", "protocol", "spark", "transactions")


def cycles(graph: grimp.ImportGraph) -> list[list[str]]:
    """Groups of modules that reach each other: strongly connected components, by Tarjan's algorithm."""
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(module: str) -> None:
        number[module] = lowest[module] = len(number)
        stack.append(module)
        imported = graph.find_modules_directly_imported_by(module)
        for other in sorted(imported):
            if other not in number:
                visit(other)
            if other in stack:
                lowest[module] = min(lowest[module], lowest[other])
        if lowest[module] == number[module]:
            start = stack.index(module)
            component = stack[start:]
            del stack[start:]
            if len(component) > 1 or module in imported:
                found.append(sorted(component))

    for module in sorted(graph.modules):
        if module not in number:
            visit(module)
    return found


def test_modules_have_no_import_cycles() -> None:
    graph = grimp.build_graph("penstock", exclude_type_checking_imports=False, cache_dir=None)
    allowed = tuple(f"penstock.{package}." for package in STILL_WITH_CYCLES)
    assert [each for each in cycles(graph) if not all(module.startswith(allowed) for module in each)] == []


def test_search_for_import_cycles_finds_a_planted_cycle() -> None:
    graph = grimp.ImportGraph()
    for importer, imported in (("a", "b"), ("b", "c"), ("c", "b"), ("a", "d"), ("d", "e"), ("e", "a"), ("f", "a")):
        graph.add_import(importer=importer, imported=imported)
    assert sorted(cycles(graph)) == [["a", "d", "e"], ["b", "c"]]
