"""Tests what the active controller remembers about each broker: sessions, shutdowns, registrations and suspicions."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from test_controller import PARTITION, Stage, play

from penstock.broker.controlplane.controller import RECHECK_MS
from penstock.broker.events.kinds import BrokerRegistered
from penstock.metadata.controller.broker_states import unfence_broker


def test_controller_that_cannot_commit_checks_silent_brokers_only_now_and_then() -> None:
    async def script(stage: Stage) -> None:
        await stage.join(1, 2)
        tried = 0

        async def hanging(decide: Any) -> Any:
            nonlocal tried
            tried += 1
            await asyncio.Event().wait()

        stage.log.submit = hanging  # type: ignore[method-assign]
        await asyncio.sleep(9.1)
        before = tried
        await asyncio.sleep(5)
        assert 0 < tried - before <= 5000 / RECHECK_MS + 1

    play(script)


def test_connection_of_a_fenced_broker_is_not_probed() -> None:
    async def script(stage: Stage) -> None:
        await stage.join(1, 2)
        assert (await stage.beat(1, want_fence=True)).is_fenced
        stage.connections[1].close()
        await asyncio.sleep(5)
        assert stage.network.tried == []
        stage.connections[2].close()
        await asyncio.sleep(5)
        assert set(stage.network.tried) == {2}

    play(script)


def test_new_controller_probes_a_broker_that_is_unfenced_by_an_earlier_record() -> None:
    async def script(stage: Stage) -> None:
        await stage.join(1)
        epoch = await stage.register(2)
        stage.log.lead(False)
        stage.network.ports = {2: "refuses"}
        submit = stage.log.submit

        async def after_earlier_records(decide: Any) -> Any:
            stage.log.submit = submit  # type: ignore[method-assign]
            await asyncio.sleep(0.5)
            stage.log.write(unfence_broker(stage.log.image, 2, epoch).records)
            return await submit(decide)

        stage.log.submit = after_earlier_records  # type: ignore[method-assign]
        stage.log.lead(True)
        await asyncio.sleep(0.4)
        assert stage.network.tried == []
        await asyncio.sleep(0.2)
        assert set(stage.network.tried) == {1, 2}
        assert stage.fenced() == [2]

    play(script)


def test_repeated_registration_of_the_same_process_extends_its_session() -> None:
    async def script(stage: Stage) -> None:
        await stage.join(1, 2)
        epoch = stage.log.image.brokers[1].epoch
        await stage.keep_beating(2, seconds=8)
        assert await stage.register(1) == epoch
        await stage.keep_beating(2, seconds=8)
        assert stage.fenced() == []
        await stage.keep_beating(2, seconds=3)
        assert stage.fenced() == [1]

    play(script)


def test_only_accepted_registrations_are_reported() -> None:
    async def script(stage: Stage) -> None:
        first = await stage.register(1)
        await stage.refused(1, life=2)
        second = await stage.register(2)
        found = [(one.broker_id, one.broker_epoch) for one in stage.events if isinstance(one, BrokerRegistered)]
        assert found == [(1, first), (2, second)]

    play(script)


@pytest.mark.parametrize("how", ["completed", "silent", "refused connections"])
def test_broker_that_returns_after_an_ended_shutdown_is_not_told_to_stop(how: str) -> None:
    async def script(stage: Stage) -> None:
        await stage.join(1, 2, 3)
        stage.topic(PARTITION)
        answer = await stage.beat(1, want_shut_down=True)
        assert not answer.should_shut_down
        assert stage.log.image.brokers[1].in_controlled_shutdown
        assert not (await stage.beat(1)).should_shut_down, "broker 2 does not know its new leaderships yet"
        if how == "completed":
            for broker_id in (2, 3):
                await stage.beat(broker_id)
            assert (await stage.beat(1)).should_shut_down
        elif how == "silent":
            await stage.keep_beating(3, seconds=11)
        else:
            stage.network.ports = {1: "refuses"}
            stage.connections[1].close()
            await asyncio.sleep(0.5)
        assert 1 in stage.fenced()
        for _ in range(3):
            for broker_id in (2, 3):
                await stage.beat(broker_id)
            answer = await stage.beat(1)
            assert (answer.is_fenced, answer.should_shut_down) == (False, False)
        assert stage.fenced() == []

    play(script)


def test_shutdown_of_one_broker_does_not_wait_for_brokers_that_also_stop_or_are_fenced() -> None:
    async def script(stage: Stage) -> None:
        await stage.join(1, 2, 3, 4)
        stage.topic(PARTITION)
        begun = stage.log.image.offset
        await stage.beat(4, want_fence=True)
        assert not (await stage.beat(1, want_shut_down=True)).should_shut_down
        assert not (await stage.beat(2, want_shut_down=True, current_metadata_offset=begun)).should_shut_down
        assert not (await stage.beat(1, want_shut_down=True)).should_shut_down, "broker 3 has not answered"
        await stage.beat(3)
        assert (await stage.beat(1, want_shut_down=True)).should_shut_down
        assert (await stage.beat(2, want_shut_down=True)).should_shut_down

    play(script)
