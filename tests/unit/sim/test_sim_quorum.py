"""Tests checks of the quorum: comparison of metadata logs, events of role changes, and replacement of a voter."""

import logging
from dataclasses import replace
from pathlib import Path

import pytest

from penstock import sim
from penstock.broker.events import NodeEvent, QuorumRoleChanged
from penstock.client.admin import Admin, NewTopic
from penstock.client.producer import Producer
from penstock.protocol.vocabulary import TopicPartition
from penstock.sim.checks.quorum_logs import QuorumLogs
from penstock.sim.checks.replica_rules import indexes_fit
from penstock.sim.engine.machine import Machine
from penstock.sim.faults.planted import FOUND_BY, PLANTS
from penstock.sim.plan.draw import draw_plan
from penstock.sim.plan.plan import FaultPlan, Plan
from penstock.sim.run.cluster import SimCluster
from penstock.sim.run.simulation import run_plan

pytestmark = pytest.mark.programs


def test_check_finds_differing_metadata_logs_and_a_quorum_leader_that_lacks_committed_records() -> None:
    async def app(cluster: SimCluster) -> list[list[str]]:
        found: list[str] = []
        logs = QuorumLogs(cluster.machines, lambda rule, what: found.append(rule))
        async with cluster.client() as client:
            await Admin(client).create_topics([NewTopic("t", 1, 3)])
        logs.look()
        told = [list(found)]
        assert logs.committed > 0
        other = QuorumLogs(cluster.machines, lambda rule, what: found.append(rule))
        other._batches[0] = (0, "n9")
        other.look()
        told.append(found.copy())
        found.clear()
        logs.committed = 1_000_000
        logs.look()
        logs.look()
        return [*told, found]

    assert SimCluster(nodes=3, seed=2).run(app) == [[], ["log matching"], ["leader completeness"]]


def test_check_finds_an_index_entry_that_points_to_no_batch() -> None:
    async def app(cluster: SimCluster) -> list[list[str]]:
        async with cluster.client() as client:
            await Admin(client).create_topics([NewTopic("t", 1, 1, configs={"index.interval.bytes": "1"})])
            producer = Producer(client, cluster.clock)
            for _ in range(4):
                await (await producer.send("t", b"v", partition=0))
            await producer.close()
        damaged: set[TopicPartition] = set()
        broker = cluster.machine().broker
        assert broker is not None
        log = broker.partitions.get("t", 0).log
        assert len(log.segments.active.index.entries()) > 1
        before = list(indexes_fit(cluster.machines, damaged))
        log.segments.active.index.append(log.log_end_offset + 5, log.size + 100)
        return [before, list(indexes_fit(cluster.machines, damaged)), list(indexes_fit(cluster.machines, {("t", 0)}))]

    before, after, excused = SimCluster(seed=2).run(app)
    assert before == []
    assert len(after) == 1
    assert after[0].startswith("t-0 on n1: the index of segment 0 has offset 9 at byte")
    assert excused == []


def _dynamic() -> Plan:
    """Returns a plan for three machines without faults: voters are dynamic, and records survive the loss of a disk."""
    plans = (draw_plan(seed, "calm", nodes=3, duration_s=10) for seed in range(1, 100))
    return next(plan for plan in plans if plan.layout.dynamic and plan.losses_covered)


def test_a_voter_that_lost_its_disk_is_removed_and_added_again() -> None:
    plan = _dynamic()
    fault = FaultPlan(1, "lose a voter", 2.0, 0.5, {"draw": 0.5})
    verdict = run_plan(replace(plan, faults=(fault,), actors=plan.actors[:1]))
    assert [str(violation) for violation in verdict.violations] == []
    told = [event.what for event in verdict.story]
    lost = next(event.who for event in verdict.story if event.what == "has a new, empty disk")
    assert f"has put {lost} back among the voters" in told


def test_simulator_does_not_erase_the_disk_of_a_voter_that_no_majority_could_replace() -> None:
    plan = _dynamic()
    fault = FaultPlan(1, "lose a voter", 2.0, 0.5, {"draw": 0.5})
    static = replace(plan, layout=replace(plan.layout, dynamic=False), faults=(fault,), actors=(), duration_s=4)
    told = " ".join(event.what for event in run_plan(static).story)
    assert "no majority could replace it" in told
    assert "empty disk" not in told


def test_observer_of_a_simulated_machine_receives_role_changes_of_its_node() -> None:
    seen: list[tuple[str, NodeEvent]] = []

    def observe(machine: Machine, event: NodeEvent) -> None:
        seen.append((machine.name, event))

    async def app(cluster: SimCluster) -> None:
        """Does nothing: the cluster has elected its leader before the app begins."""

    cluster = SimCluster(nodes=3, seed=2)
    for machine in cluster.machines:
        machine.on_node_event = observe
    cluster.run(app)
    roles = [(name, event) for name, event in seen if isinstance(event, QuorumRoleChanged)]
    leaders = {event.node_id for _, event in roles if event.role == "leader"}
    assert len(leaders) == 1
    assert {name for name, event in roles if event.leader_id in leaders} == {"n1", "n2", "n3"}


@pytest.mark.parametrize("bug", ["vote-forgotten", "vote-not-synced"])
def test_simulator_finds_planted_election_bugs_without_reading_event_texts(
    bug: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(QuorumRoleChanged, "__str__", lambda event: "another wording")
    plant, (seed, seconds) = PLANTS[bug], FOUND_BY[bug]
    with plant.planted():
        verdict = run_plan(draw_plan(seed, plant.profile, nodes=plant.nodes, duration_s=seconds))
    assert not verdict.ok


def test_no_module_of_the_simulator_parses_log_records() -> None:
    """A module may show the text of a log line. Only code that parses log lines needs the template and its
    arguments."""
    fields = {name for name in vars(logging.makeLogRecord({})) if name in ("msg", "args")}
    assert fields == {"msg", "args"}
    for path in Path(sim.__path__[0]).rglob("*.py"):
        text = path.read_text()
        assert not any(f"record.{field}" in text for field in fields), path
