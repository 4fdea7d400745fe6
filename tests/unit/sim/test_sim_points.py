"""Tests points: their kinds and numbers, the faults at them, coverage, the choice of faults, and how runs repeat."""

from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random

import pytest

from penstock.sim.engine.point_kinds import file_kind
from penstock.sim.plan.coverage import Coverage, load_coverage
from penstock.sim.plan.draw import draw_plan
from penstock.sim.plan.plan import Plan
from penstock.sim.plan.point_choice import PointChoice
from penstock.sim.plan.points import Cell, Point, PointFault, PointLog, faults_at, parse_point_fault
from penstock.sim.run.point_runs import point_runs
from penstock.sim.run.shrink import command
from penstock.sim.run.simulation import Verdict, run_plan

pytestmark = pytest.mark.programs

SECONDS = 8.0


@cache
def plan_of_three() -> Plan:
    return draw_plan(3, "points", nodes=3, duration_s=SECONDS)


@cache
def recorded() -> Verdict:
    return run_plan(plan_of_three(), record_points=True)


def with_faults(*texts: str) -> Plan:
    return replace(plan_of_three(), points=tuple(parse_point_fault(text) for text in texts))


# Kinds.


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/data/t0-1/00000000000000000042.log", "segment"),
        ("/data/t0-1/00000000000000000042.timeindex.cleaned", "time index cleaned"),
        ("/data/t0-1/00000000000000000042.snapshot.tmp", "producer snapshot tmp"),
        ("/data/__transaction_state-0/00000000000000000000.txnindex", "internal transaction index"),
        ("/meta/__cluster_metadata-0/00000000000000000042-0000000003.checkpoint", "metadata snapshot"),
        ("/meta/__cluster_metadata-0/quorum-state.tmp", "metadata quorum-state tmp"),
        ("/data/t0-1/leader-epoch-checkpoint.tmp", "leader-epoch-checkpoint tmp"),
        ("/data/replication-offset-checkpoint.17.tmp", "replication-offset-checkpoint tmp"),
        ("/data/own-topic-2-0", "directory"),
        ("/data", "data"),
    ],
)
def test_simulator_finds_the_kind_of_a_file_from_its_path(path: str, kind: str) -> None:
    assert file_kind(path).name == kind


def test_a_file_belongs_to_the_partition_of_its_directory() -> None:
    assert file_kind("/data/own-topic-2-7/00000000000000000000.log")[1:] == ("own-topic-2", 7)


# Recording.


def test_recording_fault_points_does_not_change_the_trace_of_a_run() -> None:
    assert recorded().digest == run_plan(plan_of_three()).digest


def test_recorded_fault_points_contain_disk_changes_and_messages_of_nodes_and_clients() -> None:
    kinds = {point.kind for point in recorded().points.passed}
    assert {
        "Fetch(follower) request",
        "Fetch(follower) answer",
        "Fetch(quorum) answer",
        "BrokerHeartbeat request",
        "client Produce answer",
        "write segment",
        "sync metadata segment",
        "rename producer snapshot tmp",
    } <= kinds


def test_fault_points_of_each_kind_are_numbered_from_one() -> None:
    numbers = [point.nth for point in recorded().points.passed if point.kind == "BrokerHeartbeat request"]
    assert numbers == list(range(1, len(numbers) + 1))


def test_fault_point_names_the_role_of_the_machine_that_the_fault_hits() -> None:
    beats = [point for point in recorded().points.passed if point.kind == "BrokerHeartbeat request"]
    assert {point.role_for("kill-receiver") for point in beats} == {"controller"}
    assert "controller" not in {point.role_for("kill-sender") for point in beats}


# Faults at points.


@pytest.mark.parametrize(
    "text",
    [
        "Fetch(follower) request#20:hold",
        "Fetch(follower) request#20:reorder",
        "Fetch(follower) request#20:duplicate",
        "Fetch(follower) answer#20:drop",
        "Fetch(follower) answer#20:drop+kill-sender",
        "Fetch(follower) answer#20:kill-receiver",
        "Fetch(quorum) answer#9:pause-sender",
        "client Produce answer#5:drop",
        "write segment#9:kill",
        "sync metadata segment#3:power",
        "sync segment#9:pause",
        "sync segment#9:error",
    ],
)
def test_fault_planned_for_a_certain_message_or_disk_write_happens_exactly_there(text: str) -> None:
    wanted = parse_point_fault(text)
    verdict = run_plan(with_faults(text))
    assert [str(violation) for violation in verdict.violations] == []
    happened = [(point.kind, point.nth, fault.replace("power", "kill")) for point, fault in verdict.points.happened]
    assert happened == [(wanted.kind, wanted.nth, fault.replace("power", "kill")) for fault in wanted.faults]


def test_run_with_the_same_seed_and_the_same_faults_has_the_same_trace() -> None:
    plan = with_faults("write segment#9:kill", "Fetch(follower) request#20:duplicate")
    assert run_plan(plan).digest == run_plan(plan).digest != recorded().digest


def test_run_with_planned_faults_equals_the_recorded_run_up_to_the_first_fault() -> None:
    verdict = run_plan(with_faults("BrokerHeartbeat request#9:hold"), record_points=True)
    passed = [(point.kind, point.nth) for point in verdict.points.passed]
    at = passed.index(("BrokerHeartbeat request", 9))
    assert verdict.points.passed[: at + 1] == recorded().points.passed[: at + 1]


def test_command_that_repeats_a_run_names_its_faults_at_points() -> None:
    plan = with_faults("Fetch(follower) answer#20:drop+kill-sender", "sync segment#9:error")
    assert command(plan).endswith("--at 'Fetch(follower) answer#20:drop+kill-sender' --at 'sync segment#9:error'")
    assert command(plan_of_three()).endswith("--at none")


@pytest.mark.parametrize("text", ["Vote request", "Vote request#0:drop", "Vote request#1:burn", "write segment#2:drop"])
def test_invalid_text_of_a_planned_fault_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"(?i)fault"):
        parse_point_fault(text)


# Coverage and choice.


def log_of(*kinds: str) -> PointLog:
    return PointLog([Point(float(index), kind, 1, "leader") for index, kind in enumerate(kinds)])


def test_coverage_counts_injected_faults_and_lists_possible_faults_that_were_not_injected(tmp_path: Path) -> None:
    log = log_of("write segment")
    log.happened.append((log.passed[0], "kill"))
    coverage = Coverage()
    coverage.add(log)
    assert coverage.covered == 1
    assert Cell("write segment", "kill", "leader") not in coverage.uncovered()
    assert len(coverage.uncovered()) == len(faults_at("write segment")) - 1
    coverage.save(tmp_path / "coverage.json")
    assert load_coverage(tmp_path / "coverage.json").counts == coverage.counts


def test_a_file_that_is_not_a_coverage_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "coverage.json").write_text("[]")
    with pytest.raises(ValueError, match="not a coverage file"):
        load_coverage(tmp_path / "coverage.json")


def test_faults_that_no_run_has_injected_yet_are_chosen_first() -> None:
    log = log_of("write segment", "sync segment")
    coverage = Coverage(dict.fromkeys(log.cells(), 1))
    coverage.counts[Cell("sync segment", "power", "leader")] = 0
    first = [PointChoice(log, coverage, Random(seed)).faults() for seed in range(20)]
    assert all(PointFault("sync segment", 1, ("power",)) in faults for faults in first)


def test_every_possible_fault_is_chosen_within_forty_runs() -> None:
    log = log_of(*(f"write file{index}" for index in range(5)))
    choice = PointChoice(log, Coverage(), Random(1))
    chosen: set[tuple[str, str]] = set()
    for _ in range(40):
        chosen |= {(point.kind, fault) for point in choice.faults() for fault in point.faults}
    assert chosen == {(point.kind, fault) for point in log.passed for fault in faults_at(point.kind)}


def test_runs_with_faults_at_points_add_their_faults_to_the_coverage() -> None:
    coverage = Coverage()
    verdicts = list(point_runs(plan_of_three(), coverage, runs=2))
    assert len(verdicts) == 3
    assert [verdict.ok for verdict in verdicts] == [True, True, True]
    assert coverage.covered == len({cell for verdict in verdicts for cell in verdict.points.covered()})
    assert coverage.covered > 0


def test_faults_are_planned_only_for_the_requested_kinds_of_messages() -> None:
    verdicts = list(point_runs(plan_of_three(), Coverage(), runs=1, kinds=("BrokerHeartbeat",)))
    assert {point.kind for point in verdicts[-1].plan.points} <= {"BrokerHeartbeat request", "BrokerHeartbeat answer"}
    assert verdicts[-1].plan.points
