"""Checks that the files, functions and tests that the docs name exist."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "penstock"
PAGES = [ROOT / "docs" / "architecture.md", ROOT / "CONTRIBUTING.md"]
HOP = re.compile(r"`([a-z_0-9/]+\.py):(\w+)`")
FILE = re.compile(r"`((?:[a-z_0-9.]+/)+[a-z_0-9]*\.?[a-z]*)`")
PLACES = (ROOT, ROOT / "src", SOURCE)


@cache
def functions(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_function_that_a_docs_page_names_exists(page: Path) -> None:
    hops = HOP.findall(page.read_text())
    missing = [f"{file}:{name}" for file, name in hops if name not in functions(SOURCE / file)]
    assert missing == []


def test_architecture_page_names_more_than_30_functions() -> None:
    assert len(HOP.findall(PAGES[0].read_text())) > 30


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_named_in_the_docs_exists(page: Path) -> None:
    named = FILE.findall(page.read_text())
    missing = [name for name in named if not any((place / name).exists() for place in PLACES)]
    assert missing == []


def named_tests(page: Path) -> Iterator[tuple[str, str]]:
    """Yields the file and the test of each `tests/…::test` on a page. `::test` alone belongs to the file named
    before."""
    file = ""
    for text in re.findall(r"`((?:tests/[\w/.]+)?(?:::\w+)?)(?:\[[^`]*\])?`", page.read_text()):
        found, _, name = text.partition("::")
        file = found or file
        if file:
            yield file, name


def test_every_test_named_in_the_list_of_failures_exists() -> None:
    shown = set(named_tests(ROOT / "docs" / "failures.md"))
    assert len(shown) > 150
    missing = [
        f"{file}::{name}"
        for file, name in sorted(shown)
        if not (ROOT / file).exists() or (name and name not in functions(ROOT / file))
    ]
    assert missing == []
