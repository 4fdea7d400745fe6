"""Finds the places in a syntax tree where a node or a statement can be replaced.

A `Block` is a list of statements, a `Slot` is any other child of a node. Both know the function that they are in, so
that a mutant can be named after this function.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

Function = ast.FunctionDef | ast.AsyncFunctionDef
BLOCKS = ("body", "orelse", "finalbody")


@dataclass(frozen=True, slots=True)
class Slot:
    """Describes one expression, and the field of its parent that holds it."""

    parent: ast.AST
    field: str
    index: int | None
    node: ast.expr
    function: Function
    qualname: str
    statement: ast.stmt

    def put(self, node: ast.expr) -> None:
        if self.index is None:
            setattr(self.parent, self.field, node)
        else:
            getattr(self.parent, self.field)[self.index] = node


@dataclass(frozen=True, slots=True)
class Block:
    """Describes a list of statements inside a function."""

    parent: ast.AST
    statements: list[ast.stmt]
    function: Function
    qualname: str


Place = Slot | Block


def places(tree: ast.Module) -> Iterator[Place]:
    """Yields all places inside functions, in the order of the source."""
    yield from _outside(tree, ())


def functions(tree: ast.Module) -> Iterator[tuple[Function, str]]:
    """Yields all functions with their qualified names."""
    for place in places(tree):
        if isinstance(place, Block) and place.statements is place.function.body:
            yield place.function, place.qualname


def _outside(node: ast.AST, names: tuple[str, ...]) -> Iterator[Place]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Function):
            yield from _function(child, (*names, child.name))
        elif isinstance(child, ast.ClassDef):
            yield from _outside(child, (*names, child.name))
        elif isinstance(child, ast.stmt):
            yield from _outside(child, names)


def _function(function: Function, names: tuple[str, ...]) -> Iterator[Place]:
    yield from _block(function, function.body, function, names)


def _block(parent: ast.AST, statements: list[ast.stmt], function: Function, names: tuple[str, ...]) -> Iterator[Place]:
    yield Block(parent, statements, function, ".".join(names))
    for statement in statements:
        if isinstance(statement, Function):
            yield from _function(statement, (*names, statement.name))
        elif not isinstance(statement, ast.ClassDef):
            yield from _inside(statement, statement, function, names)


def _inside(node: ast.AST, statement: ast.stmt, function: Function, names: tuple[str, ...]) -> Iterator[Place]:
    """Yields the places below a statement: its expressions and its inner blocks."""
    for field, value in ast.iter_fields(node):
        if field in BLOCKS and isinstance(value, list) and value and isinstance(value[0], ast.stmt):
            yield from _block(node, value, function, names)
            continue
        if field == "annotation":
            continue
        for index, child in enumerate(value) if isinstance(value, list) else ((None, value),):
            if isinstance(child, ast.expr):
                yield Slot(node, field, index, child, function, ".".join(names), statement)
            if isinstance(child, ast.AST) and not isinstance(child, ast.expr_context):
                yield from _inside(child, statement, function, names)
