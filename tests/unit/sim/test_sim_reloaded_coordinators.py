"""Tests the check that compares coordinators with a load of their logs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from penstock.broker.broker import Broker
from penstock.client.admin import Admin, NewTopic
from penstock.client.group_admin import GroupAdmin
from penstock.client.producer import Producer, ProducerSettings
from penstock.protocol.vocabulary import TopicPartition
from penstock.sim.checks.reloaded_coordinators import PAUSE_S, RULE, ReloadedCoordinators
from penstock.sim.run.cluster import SimCluster

pytestmark = pytest.mark.programs


def problems_after(change: Callable[[Broker], None], damaged: frozenset[TopicPartition] = frozenset()) -> list[str]:
    """Commits an offset and leaves a transaction open, then changes the broker's memory. Returns the violations."""

    async def app(cluster: SimCluster) -> list[str]:
        machine, found = cluster.machine(), list[tuple[str, str]]()
        clock = [0.0]
        check = ReloadedCoordinators([machine], lambda: clock[0], lambda *rule: found.append(rule), damaged)
        async with cluster.client() as client:
            await Admin(client).create_topics([NewTopic("t", 1, 1)])
            producer = Producer(client, machine.clock, ProducerSettings(transactional_id="tx"))
            await producer.start()
            producer.begin()
            await producer.send("t", value=b"v")
            await producer.flush()
            await producer.send_offsets("copier", {("t", 0): 1})
            await GroupAdmin(client).commit("g", {("t", 0): 1})
            check.look()
            assert found == []
            assert machine.broker is not None
            change(machine.broker)
            check.look()
            assert found == []  # until the pause is over
            clock[0] += PAUSE_S
            check.look()
            check.compare_all()
            assert {rule for rule, _ in found} <= {RULE}
        return [what for _, what in found]

    return SimCluster(nodes=1, seed=2).run(app)


def test_coordinators_that_agree_with_their_logs_break_no_rule() -> None:
    assert problems_after(lambda broker: None) == []


def offsets_of(broker: Broker, group: str) -> Any:
    return broker.groups.coordinator(group).machine.offsets


def forget_committed(broker: Broker) -> None:
    del offsets_of(broker, "g").committed["g"]


def forget_pending(broker: Broker) -> None:
    offsets_of(broker, "copier").pending.clear()


def forget_partitions(broker: Broker) -> None:
    shard = broker.transactions.coordinators.of("tx").machine
    shard.transactions["tx"] = replace(shard.transactions["tx"], partitions=frozenset())


@pytest.mark.parametrize(
    ("change", "where"),
    [(forget_committed, "committed g"), (forget_pending, "pending 0"), (forget_partitions, "key tx")],
)
def test_rule_finds_a_coordinator_whose_memory_differs_from_its_log(
    change: Callable[[Broker], None], where: str
) -> None:
    [problem] = problems_after(change)
    assert f" on n1: {where} is " in problem


def test_rule_ignores_partitions_whose_files_a_fault_has_damaged() -> None:
    everything = frozenset(("__consumer_offsets", index) for index in range(50))
    assert problems_after(forget_committed, everything) == []
