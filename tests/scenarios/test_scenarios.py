"""Hard cases as scripts: each `.txt` here has its commands and what they must answer. The script is the explanation.

`PENSTOCK_REWRITE=1 pytest tests/scenarios` writes what they answer now into the files: look at the difference.
"""

import os
from pathlib import Path

import pytest

from penstock.sim.run.scenario import run_script

SCRIPTS = sorted(Path(__file__).parent.glob("*.txt"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_a_scenario_goes_as_its_script_says(script: Path) -> None:
    expected = script.read_text()
    found = run_script(expected)
    if os.environ.get("PENSTOCK_REWRITE"):
        script.write_text(found)
    else:
        assert found == expected
