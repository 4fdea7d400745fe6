"""Tests the grammar of scenario scripts."""

import pytest

from penstock.sim.run.scenario import run_script
from penstock.sim.run.scenario_text import Line, parse


def test_parser_of_scenario_scripts_keeps_comments_and_drops_old_outputs() -> None:
    assert list(parse("# why\n\n> do a\nold answer\n> do b\n")) == [
        Line("# why"),
        Line(""),
        Line("> do a", ("do a",)),
        Line("> do b", ("do b",)),
    ]


def test_include_command_runs_another_script_without_showing_its_output() -> None:
    includes = {"inner": "> one\n1\n", "outer": "# both\n> include inner\n> two\n2\n"}
    assert list(parse("> include outer\n", includes)) == [Line("> include outer", ("one", "two"), shows_answers=False)]


def test_include_of_an_unknown_script_is_refused_with_the_names_of_all_scripts() -> None:
    with pytest.raises(ValueError, match="no script 'other' to include: name one of inner"):
        list(parse("> include other\n", {"inner": ""}))


def test_an_included_script_can_set_the_number_of_machines() -> None:
    script = "> include three\n> controller\n"
    found = run_script(script, includes={"three": "> nodes 3\n> wait 3\n"})
    assert found.startswith(script + "n")


def test_running_a_scenario_script_replaces_its_old_outputs_by_new_outputs() -> None:
    assert run_script("> topic t\nwrong\n> produce t a\na@7\n") == "> topic t\ncreated\n> produce t a\na@0\n"
