"""Tests the controller's settings and answers, the failovers that each node lists and counts, and sessions."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from test_controller import PARTITION, Stage, listeners, play

from penstock.broker.controlplane.controller import rules_of
from penstock.broker.controlplane.failovers import Failovers
from penstock.broker.events import NodeEvent
from penstock.broker.events.kinds import LeaderElected
from penstock.metadata.configs.settings import Settings
from penstock.metadata.controller.broker_states import fence_broker
from penstock.metadata.image import EMPTY_IMAGE, Fencing, ImageChanges


def test_rules_of_the_controller_are_its_settings() -> None:
    for least, unclean, interval in product((1, 3), (False, True), (1, 2)):
        settings = Settings(
            {
                "node.id": "4",
                "min.insync.replicas": str(least),
                "unclean.leader.election.enable": str(unclean).lower(),
                "log.flush.interval.messages": str(interval),
            }
        )
        rules = rules_of(settings)
        assert (rules.min_insync_replicas, rules.unclean_leader_election, rules.node_id) == (least, unclean, 4)
        assert rules.syncs_before_acks == (interval == 1)
    assert not rules_of(Settings({"node.id": "4"})).syncs_before_acks


def test_failover_counts_the_partitions_that_got_another_leader_and_those_without_one() -> None:
    alone = replace(PARTITION, replicas=(1,), isr=(1,), leader=1, directories=())

    async def script(stage: Stage) -> None:
        await stage.join(1, 2, 3)
        led = replace(PARTITION, leader=1)
        stage.topic(led, led, alone, replace(PARTITION, leader=2))
        stage.network.ports = {1: "refuses"}
        stage.connections[1].close()
        await asyncio.sleep(1)
        assert stage.fenced() == [1]
        failovers = stage.controller.failovers
        assert failovers.partitions == {"elected": 2, "leaderless": 1}
        assert (failovers.count, failovers.failed, len(list(failovers))) == (1, 0, 1)

    play(script)


def test_node_that_is_not_the_active_controller_lists_failovers_but_counts_and_reports_none() -> None:
    async def script(stage: Stage) -> None:
        await stage.join(1, 2, 3)
        stage.topic(replace(PARTITION, leader=1))
        stage.log.lead(False)
        events = len(stage.events)
        stage.log.write(fence_broker(stage.log.image, 1).records)
        failovers = stage.controller.failovers
        assert [(one.broker_id, one.partitions, one.how) for one in failovers] == [(1, 1, None)]
        assert (failovers.count, failovers.partitions) == (0, {"elected": 0, "leaderless": 0})
        assert len(stage.events) == events

    play(script)


def test_fencing_that_finds_the_broker_already_fenced_is_no_failed_failover() -> None:
    async def script(stage: Stage) -> None:
        await stage.join(1, 2)
        submit = stage.log.submit

        async def after_another_fencing(decide: Any) -> Any:
            stage.log.submit = submit  # type: ignore[method-assign]
            stage.log.write(fence_broker(stage.log.image, 1).records)
            return await submit(decide)

        stage.log.submit = after_another_fencing  # type: ignore[method-assign]
        stage.network.ports = {1: "refuses"}
        stage.connections[1].close()
        await asyncio.sleep(2)
        failovers = stage.controller.failovers
        assert stage.fenced() == [1]
        assert (failovers.count, failovers.failed, len(list(failovers))) == (0, 0, 1)

    play(script)


def test_elections_after_a_later_image_do_not_count_for_an_earlier_failover() -> None:
    events: list[NodeEvent] = []
    failovers = Failovers(lambda: 1000, events.append)
    failovers.apply(replace(EMPTY_IMAGE, changes=ImageChanges(fencings=(Fencing(1, 5, 1, 1),))))
    failovers.note(LeaderElected((), 2, 1, 3, unclean=False))
    assert failovers.partitions["elected"] == 2
    for fencings in ((), (Fencing(2, 6, 2, 2),)):
        failovers.apply(replace(EMPTY_IMAGE, changes=ImageChanges(fencings=fencings)))
        failovers.note(LeaderElected((), 4, 1, 3, unclean=False))
        assert failovers.partitions["elected"] == 2


@pytest.mark.parametrize("pause_s", [1.6, 3.0, 8.0, 60.0])
def test_session_lasts_as_much_longer_as_the_controller_was_paused(pause_s: float) -> None:
    async def script(stage: Stage) -> None:
        loop = asyncio.get_running_loop()
        await stage.join(1)
        await asyncio.sleep(0.9)
        loop.block(pause_s)  # type: ignore[attr-defined]
        await asyncio.sleep(0)
        # The pause counts from the check of the sessions that it delayed, at most a second after its beginning.
        timeout_s = stage.controller.beats.session_timeout_ms / 1000
        await asyncio.sleep(timeout_s - 1.2)
        assert stage.fenced() == []
        await asyncio.sleep(1.3)
        assert stage.fenced() == [1]

    play(script)


@pytest.mark.parametrize(("name", "probed"), [("INSIDE", 8), ("inside", 8), ("OUTSIDE", 7), ("MISSING", 0)])
def test_configured_inter_broker_listener_is_probed_alone_or_else_all_listeners(name: str, probed: int) -> None:
    async def script(stage: Stage) -> None:
        for refusing in ({7}, {8}, {7, 8}):
            stage.network.ports = {}
            broker_id = 1 + len(refusing) + max(refusing)
            await stage.register(broker_id, listeners=listeners(OUTSIDE=7, INSIDE=8))
            await stage.beat(broker_id)
            stage.network.ports = dict.fromkeys(refusing, "refuses")
            stage.connections[broker_id].close()
            await asyncio.sleep(2)
            is_dead = probed in refusing if probed else refusing == {7, 8}
            assert (broker_id in stage.fenced()) == is_dead, refusing

    inside = {"inter.broker.listener.name": name, "listener.security.protocol.map": f"{name}:PLAINTEXT"}
    play(script, inside)


def test_answer_to_a_heartbeat_tells_whether_the_broker_is_caught_up_fenced_and_may_stop() -> None:
    async def script(stage: Stage) -> None:
        def told(answer: Any) -> tuple[bool, bool, bool]:
            return answer.is_caught_up, answer.is_fenced, answer.should_shut_down

        await stage.register(1)
        assert told(await stage.beat(1, current_metadata_offset=-1)) == (False, True, False)
        assert told(await stage.beat(1, want_fence=True)) == (True, True, False)
        assert told(await stage.beat(1)) == (True, False, False)
        await stage.join(2)
        stage.topic(replace(PARTITION, replicas=(1, 2), isr=(1, 2), leader=1, directories=()))
        assert told(await stage.beat(1, want_shut_down=True)) == (True, False, False)
        await stage.beat(2)
        assert told(await stage.beat(1, want_shut_down=True)) == (True, True, True)

    play(script)
