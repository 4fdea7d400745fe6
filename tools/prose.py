"""Prints a random sample of docstrings, error messages and test names, for a second reader to mark.

    python -m tools.prose --seed 7 > sample.txt

The reader marks every line that needed a second reading. CONTRIBUTING has the rules that the lines follow.
"""

from __future__ import annotations

import argparse
import ast
import random
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
LOG_METHODS = frozenset({"debug", "info", "warning", "error", "critical", "exception"})
SHORTEST_MESSAGE = 15  # characters; anything shorter is a name or a separator


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                name = getattr(node, "name", "module")
                yield getattr(node, "lineno", 1), f"{name}: {text}"


def messages(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yields the texts of raised errors and log lines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            call = node.exc
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in LOG_METHODS:
            call = node
        else:
            continue
        for argument in call.args:
            text = _text(argument)
            if len(text) >= SHORTEST_MESSAGE:
                yield node.lineno, text
                break


def _text(node: ast.expr) -> str:
    """Returns the text of a string or f-string, with {…} for values; empty for any other expression."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) if isinstance(part, ast.Constant) else "{…}" for part in node.values)
    return ""


def test_names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            yield node.lineno, node.name


def _sample(title: str, found: Iterable[str], count: int, rng: random.Random) -> None:
    lines = sorted(found)
    chosen = rng.sample(lines, min(count, len(lines)))
    print(f"# {title}: {len(chosen)} of {len(lines)}\n")
    for number, line in enumerate(chosen, 1):
        print(f"{number}. {line}")
    print()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--docstrings", type=int, default=100)
    parser.add_argument("--messages", type=int, default=40)
    parser.add_argument("--tests", type=int, default=40)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    source = [(path.relative_to(ROOT), ast.parse(path.read_text())) for path in sorted((ROOT / "src").rglob("*.py"))]
    tests = [(path.relative_to(ROOT), ast.parse(path.read_text())) for path in sorted((ROOT / "tests").rglob("*.py"))]
    for title, trees, find, count in (
        ("docstrings", source, docstrings, options.docstrings),
        ("messages", source, messages, options.messages),
        ("test names", tests, test_names, options.tests),
    ):
        found = (f"{path}:{line}: {text}" for path, tree in trees for line, text in find(tree))
        _sample(title, found, count, rng)


if __name__ == "__main__":
    main()
