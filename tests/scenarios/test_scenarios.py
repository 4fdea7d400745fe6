"""Runs difficult cases as scripts: each `.txt` file here has commands, their expected output, and an explanation.

`pytest tests/scenarios tests/unit/raft/test_raft_scenarios.py --rewrite` writes the answers that all scripts get now
into their files: review the difference before you commit it.
"""

import logging
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.sim.run.scenario import run_script

SCRIPTS = sorted(Path(__file__).parent.glob("*.txt"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_every_command_of_a_scenario_prints_the_output_that_its_script_expects(
    script: Path, compare_scenario: Callable[[Path, str], None]
) -> None:
    includes = {each.stem: each.read_text() for each in SCRIPTS}
    compare_scenario(script, run_script(includes[script.stem], includes=includes))


def test_log_lines_of_other_threads_are_not_in_the_output_of_a_scenario() -> None:
    ended = threading.Event()

    def keep_logging() -> None:
        while not ended.is_set():
            logging.getLogger("penstock.elsewhere").warning("a log line of another thread")

    thread = threading.Thread(target=keep_logging)
    thread.start()
    try:
        assert "a log line of another thread" not in run_script("> start\n> log\n", includes={})
    finally:
        ended.set()
        thread.join()
