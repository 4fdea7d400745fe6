"""Tests when a broker sends heartbeats, what they contain, and its controlled shutdown."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from lifecycle_stage import DIRECTORY, INCARNATION, INTERVAL_S, ME, SESSION_S, Stage, broker, lost, now, play

from penstock.broker.controlplane.lifecycle import Directories
from penstock.broker.events.kinds import NetworkPartitionSuspected
from penstock.metadata.quarantine import QUARANTINED
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_62_broker_registration import BrokerRegistrationRequest, BrokerRegistrationResponse
from penstock.protocol.messages.api_63_broker_heartbeat import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    Suspicion,
)
from penstock.protocol.uuid import ZERO_UUID

# --- heartbeats --------------------------------------------------------------------------------------------------


def test_heartbeat_has_the_state_of_the_broker() -> None:
    async def script() -> None:
        stage = Stage()
        other = bytes([9] * 16)
        for version, cordoned in ((26, None), (30, [other])):
            stage.asked.clear()
            stage.directories = Directories([DIRECTORY], [INCARNATION], [other])
            stage.suspicions = [Suspicion(node_id=2)]
            stage.show(features={"metadata.version": version}, offset=version)
            await stage.beating()
            await asyncio.sleep(0.1)
            request = stage.requests(BrokerHeartbeatRequest)[-1]
            assert (request.broker_id, request.broker_epoch, request.current_metadata_offset) == (1, 5, version)
            assert (request.want_fence, request.want_shut_down) == (False, False)
            assert (request.offline_log_dirs, request.cordoned_log_dirs) == ([INCARNATION], cordoned)
            assert request.suspicions == stage.suspicions
            await stage.lifecycle.close()

    play(script)


@pytest.mark.parametrize(
    ("answer", "pause_s"),
    [
        (BrokerHeartbeatResponse(is_fenced=False), INTERVAL_S),
        (BrokerHeartbeatResponse(is_fenced=True), 0.0),
        (BrokerHeartbeatResponse(error_code=ErrorCode.NOT_CONTROLLER), 0.1),
        (lost(), 0.1),
        (ValueError("unexpected"), 0.1),
    ],
)
def test_pause_after_a_heartbeat_follows_its_answer(answer: Any, pause_s: float) -> None:
    async def script() -> None:
        stage = Stage()
        stage.answers[BrokerHeartbeatRequest] = [answer]
        await stage.beating()
        await asyncio.sleep(5)
        assert stage.pauses()
        assert set(stage.pauses()) == {pause_s}
        await stage.lifecycle.close()
        before = len(stage.asked)
        await asyncio.sleep(5)
        assert len(stage.asked) == before

    play(script)


def test_broker_in_quarantine_waits_the_whole_interval_and_logs_each_quarantine_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def script() -> None:
        stage = Stage()
        stage.answers[BrokerHeartbeatRequest] = [BrokerHeartbeatResponse(is_fenced=True)]
        quarantine = {(4, "1"): {QUARANTINED: "damaged records"}}
        stage.image = replace(stage.image, configs=quarantine)
        await stage.beating()
        for count in (1, 2):
            stage.asked.clear()
            stage.show(configs=quarantine)
            await asyncio.sleep(11)
            assert set(stage.pauses()) == {INTERVAL_S}
            errors = [one.getMessage() for one in caplog.records if one.levelname == "ERROR"]
            assert len(errors) == count
            assert "penstock guard release 1" in errors[-1]
            stage.show(configs={})
            await asyncio.sleep(5)
        stage.show(configs=quarantine)
        await asyncio.sleep(5)
        stage.asked.clear()
        stage.lifecycle._wants_shut_down = True
        stage.lifecycle.beat_now()
        await asyncio.sleep(5)
        assert max(stage.pauses()) < INTERVAL_S / 2, "a broker that stops does not wait for its release"
        await stage.lifecycle.close()

    play(script)


def test_heartbeat_is_sent_at_once_on_request_and_when_another_broker_begins_to_shut_down() -> None:
    async def script() -> None:
        stage = Stage()
        two = {1: broker(1), 2: broker(2), 3: broker(3)}
        stage.image = replace(stage.image, brokers=two)
        await stage.beating()
        leaving = {**two, 2: broker(2, in_controlled_shutdown=True)}
        both = {**leaving, 3: broker(3, in_controlled_shutdown=True)}
        for brokers, is_sent in (
            (two, False),
            ({**two, 2: broker(2, epoch=9)}, False),
            (leaving, True),
            ({**leaving, 3: broker(3, epoch=9)}, False),
            (both, True),
            (two, False),
            ({**two, 2: broker(2, in_controlled_shutdown=True, fenced=True)}, False),
        ):
            while not stage.asked or now() - stage.asked[-1][0] < 0.4:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            before = len(stage.asked)
            stage.show(brokers=brokers)
            await asyncio.sleep(0.1)
            assert len(stage.asked) == before + is_sent, brokers
        stage.delay_s = 0.5
        stage.lifecycle.beat_now()
        await asyncio.sleep(0.1)
        before = len(stage.asked)
        stage.lifecycle.beat_now()  # while a heartbeat is in flight: the next one follows its answer
        await asyncio.sleep(0.1)
        assert len(stage.asked) == before
        await asyncio.sleep(0.4)
        assert len(stage.asked) == before + 1
        await stage.lifecycle.close()

    play(script)


def test_each_outage_of_all_controllers_is_one_suspected_partition_after_the_session_timeout() -> None:
    async def script() -> None:
        stage = Stage()
        heartbeat = stage.answers[BrokerHeartbeatRequest]
        stage.answers[BrokerHeartbeatRequest] = [lost()]
        await stage.beating()
        await asyncio.sleep(30)
        assert stage.events == []  # no controller has answered yet: the cluster may just be starting
        for outage in (1, 2):
            stage.answers[BrokerHeartbeatRequest] = heartbeat
            await asyncio.sleep(1)
            answered = stage.asked[-1][0]
            stage.answers[BrokerHeartbeatRequest] = [lost()]
            await asyncio.sleep(answered + SESSION_S - 0.2 - now())
            assert len(stage.events) == outage - 1
            await asyncio.sleep(0.5)
            assert len(stage.events) == outage
            await asyncio.sleep(30)
            assert len(stage.events) == outage
        assert all(isinstance(one, NetworkPartitionSuspected) and "broker 1" in one.reason for one in stage.events)
        await stage.lifecycle.close()

    play(script)


@pytest.mark.parametrize("code", [ErrorCode.STALE_BROKER_EPOCH, ErrorCode.BROKER_ID_NOT_REGISTERED])
@pytest.mark.parametrize("epoch", [0, 5])
def test_broker_whose_registration_is_unknown_registers_again(code: ErrorCode, epoch: int) -> None:
    async def script() -> None:
        stage = Stage()
        stage.image = replace(stage.image, brokers={1: broker(1, epoch=epoch)})
        stage.lifecycle.broker_epoch = epoch
        stage.answers[BrokerHeartbeatRequest].insert(0, BrokerHeartbeatResponse(error_code=code))
        stage.answers[BrokerRegistrationRequest] = [BrokerRegistrationResponse(broker_epoch=8)]
        await stage.lifecycle.unfence()
        await asyncio.sleep(1)
        assert stage.noted == [(epoch, INCARNATION), (8, ZERO_UUID)]
        kinds = [type(request) for _, request in stage.asked]
        assert kinds == [BrokerHeartbeatRequest, BrokerRegistrationRequest, BrokerHeartbeatRequest]
        assert stage.asked[-1][1].broker_epoch == 8
        await stage.lifecycle.close()

    play(script)


def test_registration_in_a_later_hour_is_retried_as_patiently_as_the_first() -> None:
    async def script() -> None:
        stage = Stage()
        await stage.beating()
        await asyncio.sleep(3600)
        stage.asked.clear()
        ended = BrokerHeartbeatResponse(error_code=ErrorCode.STALE_BROKER_EPOCH)
        stage.answers[BrokerHeartbeatRequest].insert(0, ended)
        refused = BrokerRegistrationResponse(error_code=ErrorCode.DUPLICATE_BROKER_REGISTRATION)
        stage.answers[BrokerRegistrationRequest] = [refused, refused, BrokerRegistrationResponse(broker_epoch=8)]
        await asyncio.sleep(INTERVAL_S + 1)
        kinds = [type(request) for _, request in stage.asked]
        first = kinds.index(BrokerRegistrationRequest)
        assert kinds[first : first + 4] == [BrokerRegistrationRequest] * 3 + [BrokerHeartbeatRequest]
        assert stage.asked[-1][1].broker_epoch == 8
        await stage.lifecycle.close()

    play(script)


def test_heartbeat_without_an_answer_is_given_up_in_time_for_another_within_the_session() -> None:
    async def script() -> None:
        stage = Stage()
        sent: list[float] = []

        async def silent(request: Any, *, timeout_ms: int, lane: str = "") -> Any:
            sent.append(now())
            await asyncio.sleep(timeout_ms / 1000)
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "no controller answers")

        await stage.beating()
        stage.ask = silent  # type: ignore[method-assign]
        await asyncio.sleep(INTERVAL_S + SESSION_S)
        assert len([time for time in sent if time < sent[0] + SESSION_S]) >= 2
        await stage.lifecycle.close()

    play(script)


def test_directories_are_registered_once_the_cluster_supports_them() -> None:
    async def script() -> None:
        for registered, version in (
            (broker(1, log_dirs=()), 30),
            (broker(1, log_dirs=()), 7),
            (broker(1), 30),
            (broker(1, epoch=4, log_dirs=()), 30),
            (broker(1, epoch=6, log_dirs=()), 30),
        ):
            stage = Stage()
            await stage.beating()
            stage.show(brokers={1: registered}, features={"metadata.version": version})
            await asyncio.sleep(INTERVAL_S + 0.1)
            is_due = registered.epoch == 5 and not registered.log_dirs and version == 30
            assert bool(stage.requests(BrokerRegistrationRequest)) == is_due, (registered, version)
            assert stage.noted == []
            await stage.lifecycle.close()

    play(script)


# --- controlled shutdown -------------------------------------------------------------------------------------------


def test_shutdown_is_requested_only_if_another_broker_can_take_over() -> None:
    async def script() -> None:
        usable, fenced, leaving = broker(2), broker(2, fenced=True), broker(2, in_controlled_shutdown=True)
        for others, is_broker, enabled, is_fenced in product(
            ({2: usable}, {2: fenced}, {2: leaving}, {}, {2: fenced, 3: broker(3)}),
            (True, False),
            ("true", "false"),
            (False, True),
        ):
            stage = Stage(replace(ME, is_broker=is_broker), {"controlled.shutdown.enable": enabled})
            stage.lifecycle.broker_epoch = 5
            stage.image = replace(stage.image, brokers={1: broker(1, fenced=is_fenced), **others})
            start = now()
            await stage.lifecycle.hand_over(1.0)
            waited = now() - start > 0.5
            can = any(one.usable for one in others.values())
            assert waited == (can and is_broker and enabled == "true" and not is_fenced), (others, is_broker, enabled)

    play(script)


def test_shutdown_ends_with_the_controllers_permission_or_after_the_limit_or_after_silence() -> None:
    async def script() -> None:
        granted = BrokerHeartbeatResponse(is_fenced=False, should_shut_down=True)
        going = BrokerHeartbeatResponse(is_fenced=False)
        for answers, limit_s, shortest, longest in (
            ([going, *[going] * 20, granted], 60.0, 0.4, 0.6),
            ([going], 3.0, 3.0, 3.3),
            ([lost()], 60.0, 1.5, 1.8),
        ):
            stage = Stage()
            stage.image = replace(stage.image, brokers={1: broker(1), 2: broker(2)})
            await stage.beating()
            await asyncio.sleep(1)
            stage.answers[BrokerHeartbeatRequest] = list(answers)
            stage.asked.clear()
            start = now()
            await stage.lifecycle.hand_over(limit_s)
            assert shortest <= now() - start <= longest, (limit_s, now() - start)
            assert all(one.want_shut_down for one in stage.requests(BrokerHeartbeatRequest))
            assert stage.asked[0][0] - start < 0.1
            await stage.lifecycle.close()

    play(script)
