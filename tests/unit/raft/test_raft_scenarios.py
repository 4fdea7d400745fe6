"""Runs scenarios of the Raft state machine: tests/scenarios/raft has commands and the answers that they must get."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from raft_script import run_script

SCRIPTS = sorted((Path(__file__).parents[2] / "scenarios" / "raft").glob("*.txt"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_every_command_of_a_raft_scenario_gets_the_answer_in_its_script(
    script: Path, compare_scenario: Callable[[Path, str], None]
) -> None:
    includes = {each.stem: each.read_text() for each in SCRIPTS}
    compare_scenario(script, run_script(includes[script.stem], includes))


def test_every_rule_of_the_quorum_has_a_scenario_script() -> None:
    assert len(SCRIPTS) >= 15
