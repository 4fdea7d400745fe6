"""The scripts in tests/scenarios/raft print what stands beside their commands."""

from __future__ import annotations

from pathlib import Path

import pytest
from raft_script import run_script

SCRIPTS = sorted((Path(__file__).parents[2] / "scenarios" / "raft").glob("*.txt"))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_the_script_prints_what_it_says(path: Path) -> None:
    text = path.read_text()
    assert run_script(text) == text


def test_every_rule_has_a_script() -> None:
    assert len(SCRIPTS) >= 15
