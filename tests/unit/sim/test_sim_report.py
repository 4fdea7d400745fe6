"""Tests the report page of a run."""

from pathlib import Path

from penstock.sim.checks.history import History, Outcome, Read, Write
from penstock.sim.checks.story import StoryLine, Violation
from penstock.sim.engine.machine import State
from penstock.sim.plan.draw import draw_plan
from penstock.sim.run.report import render, write_report
from penstock.sim.run.simulation import Verdict, run_plan


def verdict(*violations: Violation) -> Verdict:
    plan = draw_plan(3, "hostile", duration_s=20)
    history = History()
    name = f"{plan.actors[0].kind[:5]}{plan.actors[0].index}#1"
    history.writes.append(Write(name, 1, ("t", 0), b"x", 1.0, -1, True, outcome=Outcome.DONE, offset=4))
    history.reads.append(Read(name, ("t", 0), 4, b"x", False, 1.0, 2.0))
    story = [
        StoryLine(0.0, "n1", "starts", State.STARTING),
        StoryLine(0.1, "n1", "serves", State.SERVING),
        StoryLine(9.0, "n1", "loses power <and> more", State.OFF),
    ]
    return Verdict(plan, list(violations), story, "", 25.0, {}, history)


def test_report_page_shows_machines_and_faults_and_actors_and_the_story_of_the_run() -> None:
    page = render(verdict())
    assert "All promises kept" in page
    assert page.count("<svg") == 1
    assert "write 1: t-0 offset 4" in page
    assert "loses power &lt;and&gt; more" in page
    assert draw_plan(3, "hostile", duration_s=20).faults[0].kind in page


def test_report_page_lists_the_broken_rules(tmp_path: Path) -> None:
    path = tmp_path / "run.html"
    write_report(verdict(Violation("rule", "it <b>broke</b>")), str(path))
    page = path.read_text()
    assert "rule: it &lt;b&gt;broke&lt;/b&gt;" in page
    assert "All promises kept" not in page


def test_report_page_shows_a_timeline_for_each_machine_and_each_partition_leader() -> None:
    page = render(run_plan(draw_plan(1, "calm", nodes=3, duration_s=3)))
    for name in ("n1", "n2", "n3", "t0-0"):
        assert f">{name}</text>" in page
    assert "leads in epoch 0, in sync" in page
    assert "high watermark, up to" in page
