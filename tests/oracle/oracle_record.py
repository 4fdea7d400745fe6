"""Writes Apache Kafka's answers into the tests: `PENSTOCK_ORACLE_RECORD=1 pytest tests/oracle`.

Every `said(...)` that ran gets the recorded transcript as its literal. Review the difference before committing it: a
test is only as good as the understanding of why Kafka answers this way.
"""

from __future__ import annotations

import ast
import textwrap
from collections import defaultdict
from pathlib import Path


class Recorder:
    def __init__(self) -> None:
        self._taken: dict[str, dict[int, str]] = defaultdict(dict)

    def take(self, path: str, line: int, heard: str) -> None:
        self._taken[path][line] = heard

    def write(self) -> None:
        for path, heard in self._taken.items():
            source = Path(path).read_text()
            Path(path).write_text(_rewritten(source, heard))


def _rewritten(source: str, heard: dict[int, str]) -> str:
    lines = source.splitlines(keepends=True)
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call) and _is_said(node)]
    for call in sorted(calls, key=lambda node: node.lineno, reverse=True):
        spoken = next((heard[at] for at in range(call.lineno, (call.end_lineno or 0) + 1) if at in heard), None)
        if spoken is None:
            continue
        margin = " " * call.col_offset
        literal = call.args[0]
        end = literal.end_lineno or literal.lineno
        before = lines[literal.lineno - 1][: literal.col_offset]
        after = lines[end - 1][literal.end_col_offset :]
        text = textwrap.indent(spoken.replace("\\", "\\\\"), margin + "    ")
        lines[literal.lineno - 1 : end] = [f'{before}"""\n{text}\n{margin}"""{after}']
    return "".join(lines)


def _is_said(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr == "said" and len(call.args) == 1
