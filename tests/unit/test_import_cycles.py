"""Checks that no module imports itself through other modules. Imports for type checkers count as well."""

from __future__ import annotations

import grimp

#: Cycles that remain. In all but two the way back is a type annotation: a module whose functions take the log, the
#: shard or the server as an argument, and which that object calls. `protocol` compiles codecs on first use, and
#: `cli.sim` imports its sub-command on first use.
REMAINING = {
    frozenset({"cli.sim", "cli.sim_points"}),
    frozenset({"groups.shard", "groups.consumer.leave", "groups.migration", "groups.offset_requests", "groups.room"}),
    frozenset(
        f"log.{name}"
        for name in (
            *("log", "appending", "environment", "flush", "replay"),
            *("segment_list", "shorten", "slices", "swap", "timestamps"),
        )
    ),
    frozenset({"net.connection", "net.server"}),
    frozenset(f"protocol.{name}" for name in ("compile", "emit_reader", "emit_writer", "schema", "source")),
    frozenset({"transactions.ending", "transactions.shard"}),
}


def cycles(graph: grimp.ImportGraph) -> list[list[str]]:
    """Returns groups of modules that import each other: strongly connected components, by Tarjan's algorithm."""
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


def test_modules_have_no_import_cycles_except_the_listed_cycles() -> None:
    graph = grimp.build_graph("penstock", exclude_type_checking_imports=False, cache_dir=None)
    found = {frozenset(module.removeprefix("penstock.") for module in each) for each in cycles(graph)}
    assert found - REMAINING == set()
    assert REMAINING - found == set(), "these cycles are gone: remove them from the list"


def test_search_for_import_cycles_finds_a_planted_cycle() -> None:
    graph = grimp.ImportGraph()
    for importer, imported in (("a", "b"), ("b", "c"), ("c", "b"), ("a", "d"), ("d", "e"), ("e", "a"), ("f", "a")):
        graph.add_import(importer=importer, imported=imported)
    assert sorted(cycles(graph)) == [["a", "d", "e"], ["b", "c"]]
