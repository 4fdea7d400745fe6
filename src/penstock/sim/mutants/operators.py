"""Defines the mutation operators: each operator takes one place of the code and yields small bugs for this place.

| operator           | example |
|--------------------|---------|
| boundary           | `a < b` becomes `a <= b` |
| off-by-one         | `offset < end` becomes `offset < end - 1`; `epoch + 1` becomes `epoch` |
| loose-equality     | `epoch != known` becomes `epoch < known` |
| dropped-fsync      | a call that syncs or flushes is removed |
| dropped-effect     | a call that is a statement of its own is removed |
| reordered-effect   | two neighbouring effects change places |
| early-return       | a function returns before its last statement, a loop ends after its first iteration |
| field-not-restored | a field keeps its old value where a state is loaded, replayed, truncated or reset |
| field-not-set      | a field keeps its old value in any other function |
| check-removed      | a guard that raises, returns or skips is removed, or one half of its condition |
| bound-removed      | `max(self.x, y)` becomes `y` |

Logging, texts for people and `check(...)` are not mutated: a change in them breaks no guarantee.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from penstock.sim.mutants.places import Block, Place, Slot

#: Names of values whose order matters to safety.
ORDERED = re.compile(r"epoch|offset|sequence|version|watermark|generation|term|end|start|position|last|base|point")
RESTORING = re.compile(
    r"load|restor|replay|appl|snapshot|recover|read|open|decode|from_|truncat|reset|restart|forget|clear|begin|become"
)
SYNCING = re.compile(r"sync|flush")
CHECKING = re.compile(r"^_?(check|require|validate|verify|ensure|refuse)")
LOGGING = frozenset({"debug", "info", "warning", "error", "exception", "log"})
#: Functions whose result only people read.
SPOKEN = re.compile(r"^(__repr__|__str__|_?describe.*|_?message.*)$")
#: Calls that only check an invariant, or only tell the type checker something.
HARMLESS = frozenset({"check", "assert_never", "cast"})
SHOWN = 100


@dataclass(frozen=True, slots=True)
class Change:
    """Describes a possible bug: its operator, its place in the code, its text, and a function that changes the syntax
    tree."""

    operator: str
    line: int
    before: str
    after: str
    make: Callable[[], None]


def changes_at(place: Place) -> Iterator[Change]:
    if SPOKEN.match(place.function.name):
        return
    if isinstance(place, Block):
        for index, statement in enumerate(place.statements):
            yield from _statement_changes(place, index, statement)
        yield from _endings(place)
    elif not _is_spoken(place.statement):
        yield from _expression_changes(place)


def _text(node: ast.AST) -> str:
    """Returns the first line of the source text of a syntax tree node, to show it to a person."""
    text = ast.unparse(node).splitlines()[0]
    return text if len(text) <= SHOWN else text[: SHOWN - 1] + "…"


def _called(node: ast.AST) -> ast.Call | None:
    """Returns the call if the statement is just a call, awaited or not; otherwise None."""
    value = node.value if isinstance(node, ast.Expr) else None
    if isinstance(value, ast.Await):
        value = value.value
    return value if isinstance(value, ast.Call) else None


def _name(call: ast.Call) -> str:
    match call.func:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
        case _:
            return ""


def _is_logging(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and _name(call) in LOGGING and "log" in ast.unparse(call.func.value)


def _is_spoken(statement: ast.stmt) -> bool:
    """Returns True if the statement only writes to the log, checks an invariant, or raises an error with a text."""
    call = _called(statement)
    return isinstance(statement, ast.Raise | ast.Assert) or (
        call is not None and (_is_logging(call) or _name(call) in HARMLESS)
    )


# Statements.


def _statement_changes(block: Block, index: int, statement: ast.stmt) -> Iterator[Change]:
    call = _called(statement)
    if call is not None and not _is_spoken(statement) and "super()" not in ast.unparse(call.func):
        yield _removed(block, index, statement, _kind_of_call(call))
    elif _sets_field(statement) and block.function.name != "__init__":
        restoring = RESTORING.search(block.function.name)
        yield _removed(block, index, statement, "field-not-restored" if restoring else "field-not-set")
    elif isinstance(statement, ast.If) and _is_guard(statement):
        yield _removed(block, index, statement, "check-removed")
    if index + 1 < len(block.statements) and block.function.name != "__init__":
        yield from _swapped(block, index)


def _kind_of_call(call: ast.Call) -> str:
    words = [_name(call), *(ast.unparse(arg) for arg in call.args)]
    if any(SYNCING.search(word) for word in words):
        return "dropped-fsync"
    return "check-removed" if CHECKING.match(_name(call)) else "dropped-effect"


def _sets_field(statement: ast.stmt) -> bool:
    match statement:
        case (
            ast.Assign(targets=[ast.Attribute() | ast.Subscript()])
            | ast.AugAssign(target=ast.Attribute() | ast.Subscript())
        ):
            return True
        case ast.AnnAssign(target=ast.Attribute(), value=ast.expr()):
            return True
        case ast.Delete(targets=[ast.Subscript()]):
            return True
        case _:
            return False


def _is_guard(statement: ast.If) -> bool:
    last = statement.body[-1]
    return not statement.orelse and isinstance(last, ast.Raise | ast.Return | ast.Continue | ast.Break)


def _removed(block: Block, index: int, statement: ast.stmt, operator: str) -> Change:
    def make() -> None:
        block.statements[index] = ast.copy_location(ast.Pass(), statement)

    return Change(operator, statement.lineno, _text(statement), "pass", make)


def _is_effect(statement: ast.stmt) -> bool:
    return (_called(statement) is not None and not _is_spoken(statement)) or _sets_field(statement)


def _swapped(block: Block, index: int) -> Iterator[Change]:
    first, second = block.statements[index], block.statements[index + 1]
    if not (_is_effect(first) and _is_effect(second)) or not _order_matters(first, second):
        return

    def make() -> None:
        block.statements[index], block.statements[index + 1] = second, first

    yield Change("reordered-effect", first.lineno, f"{_text(first)}; {_text(second)}", "in the other order", make)


def _order_matters(first: ast.stmt, second: ast.stmt) -> bool:
    """Returns False if the two statements can change places without effect: both only set a field, neither calls a
    function, and neither mentions the field that the other sets."""
    calls = [any(isinstance(node, ast.Call | ast.Await) for node in ast.walk(each)) for each in (first, second)]
    if any(calls):
        return True
    return _target(first) in _places_in(second) or _target(second) in _places_in(first)


def _places_in(statement: ast.stmt) -> set[str]:
    """Returns the names, fields and items that the statement reads or sets, as they are written in the code."""
    kinds = ast.Name | ast.Attribute | ast.Subscript
    return {ast.unparse(node) for node in ast.walk(statement) if isinstance(node, kinds)}


def _target(statement: ast.stmt) -> str:
    match statement:
        case ast.Assign(targets=[target]) | ast.AugAssign(target=target) | ast.AnnAssign(target=target):
            return ast.unparse(target)
        case _:
            return "?"


def _endings(block: Block) -> Iterator[Change]:
    statements, parent = block.statements, block.parent
    last = statements[-1]
    if isinstance(parent, ast.For | ast.AsyncFor) and statements is parent.body and not _leaves(last):

        def stop() -> None:
            statements.append(ast.copy_location(ast.Break(), last))

        yield Change("early-return", parent.lineno, _text(parent), "… break after the first round", stop)
    if parent is block.function and _returns_nothing(block) and len(statements) > 1 and _is_step(last):

        def leave() -> None:
            statements.insert(len(statements) - 1, ast.copy_location(ast.Return(), last))

        yield Change("early-return", last.lineno, _text(last), "return", leave)


def _leaves(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Return | ast.Raise | ast.Break | ast.Continue)


def _returns_nothing(block: Block) -> bool:
    returns = block.function.returns
    return isinstance(returns, ast.Constant) and returns.value is None


def _is_step(statement: ast.stmt) -> bool:
    """Returns True for a compound statement, such as `if` or `for`. Simple statements are changed by another
    operator."""
    return isinstance(statement, ast.If | ast.For | ast.AsyncFor | ast.While | ast.With | ast.AsyncWith | ast.Try)


# Expressions.

_BOUNDARY: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
}
#: The direction of the off-by-one that is not the same as the other boundary.
_SHIFT: dict[type[ast.cmpop], type[ast.operator]] = {
    ast.Lt: ast.Sub,
    ast.LtE: ast.Add,
    ast.Gt: ast.Add,
    ast.GtE: ast.Sub,
}
_LOOSE: dict[type[ast.cmpop], type[ast.cmpop]] = {ast.Eq: ast.GtE, ast.NotEq: ast.Lt}


def _expression_changes(slot: Slot) -> Iterator[Change]:
    match slot.node:
        case ast.Compare(ops=ops):
            for index in range(len(ops)):
                yield from _comparisons(slot, slot.node, index)
        case ast.BinOp(op=ast.Add() | ast.Sub(), left=left, right=ast.Constant(value=1)):
            yield _replaced(slot, "off-by-one", left)
        case ast.BoolOp(values=values) if slot.field == "test":
            for index in range(len(values)):
                yield _operand_dropped(slot, slot.node, index)
        case ast.Call(func=ast.Name(id="max" | "min"), args=[first, second], keywords=[]) if not (
            isinstance(first, ast.Starred) or isinstance(second, ast.Starred)
        ):
            yield _replaced(slot, "bound-removed", first)
            yield _replaced(slot, "bound-removed", second)
        case ast.Call(func=ast.Name(id="replace"), keywords=[*keywords]):
            for keyword in keywords:
                yield _field_kept(slot, slot.node, keyword)


def _comparisons(slot: Slot, node: ast.Compare, index: int) -> Iterator[Change]:
    """Yields the mutants of one comparison operator in a comparison such as `a <= b < c`."""
    op, right = node.ops[index], node.comparators[index]
    left = node.comparators[index - 1] if index else node.left
    if (other := _BOUNDARY.get(type(op))) is not None:
        yield _replaced(slot, "boundary", _compared(node, index, other(), right))
    if not (ORDERED.search(ast.unparse(left)) and ORDERED.search(ast.unparse(right))):
        return
    if (shift := _SHIFT.get(type(op))) is not None:
        yield _replaced(slot, "off-by-one", _compared(node, index, op, ast.BinOp(right, shift(), ast.Constant(1))))
    if (loose := _LOOSE.get(type(op))) is not None:
        yield _replaced(slot, "loose-equality", _compared(node, index, loose(), right))


def _compared(node: ast.Compare, index: int, op: ast.cmpop, right: ast.expr) -> ast.Compare:
    ops, comparators = [*node.ops], [*node.comparators]
    ops[index], comparators[index] = op, right
    return ast.Compare(node.left, ops, comparators)


def _replaced(slot: Slot, operator: str, node: ast.expr) -> Change:
    def make() -> None:
        slot.put(ast.copy_location(node, slot.node))

    return Change(operator, slot.node.lineno, _text(slot.node), _text(node), make)


def _operand_dropped(slot: Slot, node: ast.BoolOp, index: int) -> Change:
    rest = node.values[:index] + node.values[index + 1 :]
    return _replaced(slot, "check-removed", rest[0] if len(rest) == 1 else ast.BoolOp(node.op, rest))


def _field_kept(slot: Slot, node: ast.Call, keyword: ast.keyword) -> Change:
    rest = [each for each in node.keywords if each is not keyword]
    operator = "field-not-restored" if RESTORING.search(slot.function.name) else "field-not-set"
    return _replaced(slot, operator, ast.Call(node.func, node.args, rest))
