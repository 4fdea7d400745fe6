"""Tests the rules for the order of events that clients see: commit, then acknowledgement, then read."""

from dataclasses import replace

from penstock.sim.checks.history import FinalView, History, Outcome, Read, StoredRecord, Transaction, Write
from penstock.sim.checks.history_rules import judge
from penstock.sim.engine.cluster_layout import ClusterLayout
from penstock.sim.plan.plan import Plan, TopicPlan

P = ("t", 0)
PLAN = Plan(1, "calm", 1, 10, {}, (TopicPlan("t", 1, {}, fsync=False),), (), ())
CLUSTER = replace(PLAN, layout=ClusterLayout((1, 2, 3), (1, 2, 3), 3, 2))


def wrote(number: int, *, at: float = 1.0, acks: int = -1, transaction: Transaction | None = None) -> Write:
    value = f"w:{number}:".encode()
    return Write("w", number, P, value, at, acks, True, transaction, None, at + 0.1, Outcome.DONE, number)


def reads(*numbers: int, committed_only: bool = False) -> list[Read]:
    return [Read("r", P, each, f"w:{each}:".encode(), committed_only, 2.0, 3.0) for each in numbers]


def rules(plan: Plan, history: History, *, stored: int = 4) -> list[str]:
    records = {number: StoredRecord(f"w:{number}:".encode(), 0) for number in range(stored)}
    view = FinalView({P: records}, {P: dict(records)}, {P: 0}, {P: stored}, {"t": 1})
    return sorted({violation.rule for violation in judge(plan, history, view)})


def test_rule_finds_a_record_that_is_acknowledged_before_it_is_committed() -> None:
    history = History(writes=[wrote(0)], commit_time=lambda partition, offset: 1.2)
    assert rules(PLAN, history) == ["acknowledgements follow commits"]
    history.commit_time = lambda partition, offset: 1.05
    assert rules(PLAN, history) == []


def test_rule_finds_a_record_that_is_read_before_it_is_committed() -> None:
    assert rules(PLAN, History(reads=reads(0), commit_time=lambda partition, offset: 3.5)) == [
        "readers see committed records"
    ]


def test_rule_finds_a_reader_that_skips_an_acknowledged_record_or_goes_back() -> None:
    writes = [wrote(number) for number in range(4)]
    assert rules(PLAN, History(writes=writes, reads=reads(0, 1, 2, 3))) == []
    assert rules(PLAN, History(writes=writes, reads=reads(0, 2, 3))) == ["readers go forward"]
    assert rules(PLAN, History(writes=writes, reads=reads(0, 1, 0))) == ["readers go forward"]


def test_reader_may_go_back_after_a_power_loss_between_two_reads() -> None:
    writes = [wrote(number) for number in range(4)]
    assert rules(PLAN, History(writes=writes, reads=reads(0, 1, 0), power_losses=[2.5])) == []
    assert rules(PLAN, History(writes=writes, reads=reads(0, 1, 0), power_losses=[1.5])) == ["readers go forward"]


def test_rule_finds_a_read_committed_reader_that_gets_a_record_of_an_open_transaction() -> None:
    transaction = Transaction("x", 1.0, 4.1, Outcome.DONE, committed=True, decided=4.0)
    transaction.writes = [wrote(0, transaction=transaction)]
    history = History(writes=transaction.writes, transactions=[transaction], reads=reads(0, committed_only=True))
    assert rules(PLAN, history) == ["open transactions are hidden"]
    transaction.decided = 2.5
    assert rules(PLAN, history) == []


def test_rule_finds_a_lost_record_with_acks_1_if_the_leader_has_not_changed() -> None:
    history = History(writes=[wrote(7, acks=1)])
    assert rules(CLUSTER, history) == []
    history.one_leader_since[P] = 2.0
    assert rules(CLUSTER, history) == []
    history.one_leader_since[P] = 0.5
    assert rules(CLUSTER, history) == ["nothing acknowledged is lost"]
