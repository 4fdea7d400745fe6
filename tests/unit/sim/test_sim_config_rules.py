"""Tests the rule for changing configs: a lost record breaks the rule if its acknowledgement promised fsync."""

from dataclasses import replace

import pytest

from penstock.sim.checks.history import ConfigChange, FinalView, History, Loss, Outcome, Write
from penstock.sim.checks.history_rules import judge
from penstock.sim.engine.cluster_layout import simple_layout
from penstock.sim.plan.plan import Plan, TopicPlan

P = ("t", 0)
PLAN = Plan(1, "configs", 1, 10, {}, (TopicPlan("t", 1, {}, fsync=False),), (), ())
BROKEN = ["promised fsync survives power loss"]


def switched(value: str | None, at: float, outcome: Outcome = Outcome.DONE) -> ConfigChange:
    return ConfigChange("t", "penstock.acks.fsync", value, at, outcome, at + 0.1)


def lost(at: float, *configs: ConfigChange, plan: Plan = PLAN) -> list[str]:
    """Returns the rules that are broken if a power loss erases a record that was acknowledged at the time `at`."""
    write = Write("w", 0, P, b"w:0:", at, -1, True, None, None, at + 0.1, Outcome.DONE, 0)
    history = History(writes=[write], configs=list(configs), power_losses=[99.0], losses=[Loss(99.0, P, 0)])
    found = FinalView({P: {}}, {P: {}}, {P: 0}, {P: 0}, {"t": 1})
    return sorted({violation.rule for violation in judge(plan, history, found)})


@pytest.mark.parametrize(
    ("at", "configs", "broken"),
    [
        (9.0, [], []),
        (9.0, [switched("true", 5.0)], BROKEN),
        (5.2, [switched("true", 5.0)], []),
        (9.0, [switched("true", 5.0, Outcome.UNKNOWN)], []),
        (9.0, [switched("true", 5.0), switched(None, 8.0)], []),
        (9.0, [switched("true", 5.0), switched(None, 12.0)], BROKEN),
    ],
)
def test_lost_record_breaks_the_rule_only_if_the_record_was_acknowledged_after_fsync(
    at: float, configs: list[ConfigChange], broken: list[str]
) -> None:
    assert lost(at, *configs) == broken


def test_rule_ignores_an_fsync_config_that_was_just_set_or_is_removed_later() -> None:
    cluster = replace(PLAN, layout=simple_layout(3))
    assert lost(9.0, switched("true", 5.0), plan=cluster) == []
    assert lost(30.0, switched("true", 5.0), plan=cluster) == BROKEN
    assert lost(30.0, switched("true", 5.0), switched(None, 40.0), plan=cluster) == []
