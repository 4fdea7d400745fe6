"""Tests how brokers and controllers register, and how controllers become voters."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from lifecycle_stage import DIRECTORY, INCARNATION, ME, Stage, broker, lost, now, play

from penstock.broker.controlplane.lifecycle import REFUSALS, RefusedError
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_62_broker_registration import BrokerRegistrationRequest, BrokerRegistrationResponse
from penstock.protocol.messages.api_70_controller_registration import (
    ControllerRegistrationRequest,
    ControllerRegistrationResponse,
)
from penstock.protocol.messages.api_80_add_raft_voter import AddRaftVoterRequest, AddRaftVoterResponse
from penstock.protocol.messages.api_81_remove_raft_voter import RemoveRaftVoterRequest, RemoveRaftVoterResponse
from penstock.protocol.uuid import ZERO_UUID
from penstock.raft.voters import Voter

# --- registration ----------------------------------------------------------------------------------------------


def test_registration_ends_when_the_own_image_has_all_records_before_it() -> None:
    async def script() -> None:
        stage = Stage()
        stage.image = replace(stage.image, offset=2)
        task = asyncio.ensure_future(stage.lifecycle.register())
        for offset in range(2, 6):
            stage.show(offset=offset)
            await asyncio.sleep(1)
            assert task.done() == (offset >= 5)
        await task
        assert stage.lifecycle.broker_epoch == 5
        assert stage.noted == [(3, INCARNATION), (5, ZERO_UUID)]
        assert len(stage.asked) == 1

    play(script)


def test_registration_has_all_data_of_the_broker() -> None:
    async def script() -> None:
        stage = Stage(replace(ME, synced={bytes([1] * 16): (0, 2), bytes([2] * 16): (1,)}))
        await stage.lifecycle.register()
        (request,) = stage.requests(BrokerRegistrationRequest)
        assert (request.broker_id, request.cluster_id, request.incarnation_id) == (1, "c", INCARNATION)
        listed = [(one.name, one.host, one.port, one.security_protocol) for one in request.listeners]
        assert listed == [("PLAINTEXT", "h", 9092, 0), ("OTHER", "i", 9093, 1)]
        assert (request.rack, request.log_dirs, request.previous_broker_epoch) == ("rack", [DIRECTORY], 3)
        synced = [(one.topic_id, one.partitions) for one in request.synced_topics]
        assert synced == [(bytes([1] * 16), [0, 2]), (bytes([2] * 16), [1])]
        assert request.ended_broker_epoch == -1
        assert request.features

    play(script)


@pytest.mark.parametrize("code", REFUSALS)
def test_refusal_that_a_retry_cannot_change_ends_the_registration_at_once(code: ErrorCode) -> None:
    async def script() -> None:
        stage = Stage()
        stage.answers[BrokerRegistrationRequest] = [BrokerRegistrationResponse(error_code=code)]
        with pytest.raises(RefusedError, match="Broker 1 with directories of cluster c was refused"):
            await stage.lifecycle.register()
        assert len(stage.asked) == 1

    play(script)


def test_other_refusals_are_retried_for_a_limited_time_that_begins_when_a_controller_answers() -> None:
    async def script() -> None:
        stage = Stage(settings={"initial.broker.registration.timeout.ms": "5000"})
        duplicate = BrokerRegistrationResponse(error_code=ErrorCode.DUPLICATE_BROKER_REGISTRATION)
        stage.answers[BrokerRegistrationRequest] = [*(lost() for _ in range(100)), duplicate]
        start = now()
        with pytest.raises(RefusedError, match=r"another broker with the same node\.id"):
            await stage.lifecycle.register()
        assert 14.9 < now() - start < 15.5
        assert len(stage.asked) == pytest.approx(151, abs=3)
        stage = Stage(settings={"initial.broker.registration.timeout.ms": "5000"})
        accepted = BrokerRegistrationResponse(broker_epoch=6)
        stage.answers[BrokerRegistrationRequest] = [*[duplicate] * 40, accepted]
        await stage.lifecycle.register()
        assert stage.lifecycle.broker_epoch == 6

    play(script)


def test_registration_ends_if_only_controllers_of_another_cluster_answer() -> None:
    async def script() -> None:
        stage = Stage()
        stage.answers[BrokerRegistrationRequest] = [lost()]
        task = asyncio.ensure_future(stage.lifecycle.register())
        await asyncio.sleep(90)
        assert not task.done()
        stage.reaches_other_cluster = True
        with pytest.raises(RefusedError, match="belong to another cluster"):
            await task

    play(script)


def test_broker_repeats_the_epoch_of_its_ended_incarnation_soon() -> None:
    async def script() -> None:
        stage = Stage()
        named = BrokerRegistrationResponse(error_code=ErrorCode.BROKER_ID_NOT_REGISTERED, broker_epoch=4)
        stage.answers[BrokerRegistrationRequest].insert(0, named)
        await stage.lifecycle.register()
        assert [one.ended_broker_epoch for one in stage.requests(BrokerRegistrationRequest)] == [-1, 4]
        (first, _), (second, _) = stage.asked
        assert 0.01 < second - first < 0.1

    play(script)


def test_broker_is_unfenced_when_the_image_has_its_registration_without_a_fence() -> None:
    async def script() -> None:
        stage = Stage()
        stage.image = replace(stage.image, brokers={})
        stage.lifecycle.broker_epoch = 5
        task = asyncio.ensure_future(stage.lifecycle.unfence())
        for brokers in (
            {2: broker(2)},
            {1: broker(1, epoch=4)},
            {1: broker(1, epoch=6)},
            {1: broker(1, fenced=True)},
        ):
            stage.show(brokers=brokers)
            await asyncio.sleep(5)
            assert not task.done(), brokers
        stage.show(brokers={1: broker(1)})
        await asyncio.sleep(0.1)
        assert task.done()
        await stage.lifecycle.close()

    play(script)


def test_waiting_for_an_image_ends_with_the_image_or_after_the_limit() -> None:
    async def script() -> None:
        stage = Stage()
        start = now()
        assert await stage.lifecycle.sees(lambda image: image.offset == 10, 5)
        assert now() - start < 0.1
        assert not await stage.lifecycle.sees(lambda image: image.offset == 12, 5)
        assert 4.9 < now() - start < 5.1
        task = asyncio.ensure_future(stage.lifecycle.sees(lambda image: image.offset == 12, 5))
        for offset in (11, 12):
            await asyncio.sleep(1)
            assert not task.done()
            stage.show(offset=offset)
        assert await task
        assert 6.9 < now() - start < 7.1

    play(script)


# --- controllers ---------------------------------------------------------------------------------------------------


CONTROLLER = replace(ME, is_broker=False, is_controller=True)


def test_controller_registers_until_it_is_accepted() -> None:
    async def script() -> None:
        stage = Stage(CONTROLLER)
        refused = ControllerRegistrationResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
        other = ControllerRegistrationResponse(error_code=ErrorCode.UNKNOWN_SERVER_ERROR)
        stage.delay_s = 0.1
        stage.image = replace(stage.image, features={"metadata.version": 7})
        accepted = ControllerRegistrationResponse()
        stage.answers[ControllerRegistrationRequest] = [lost(), other, refused, accepted]
        await stage.lifecycle.register()
        await asyncio.sleep(30)
        assert len(stage.asked) == 3  # it waits for a metadata.version that has controllers
        stage.show(features={"metadata.version": 30})
        await asyncio.sleep(30)
        assert len(stage.asked) == 4
        request = stage.asked[-1][1]
        assert (request.controller_id, request.incarnation_id) == (1, INCARNATION)
        assert [(one.name, one.host, one.port) for one in request.listeners] == [("CONTROLLER", "h", 9094)]
        await stage.lifecycle.close()

    play(script)


def test_controller_whose_registration_fails_at_once_retries_after_a_pause() -> None:
    async def script() -> None:
        stage = Stage(CONTROLLER)
        stage.delay_s = 0.001
        refused = KafkaError(ErrorCode.SASL_AUTHENTICATION_FAILED, "the login was refused")
        stage.answers[ControllerRegistrationRequest] = [refused]
        await stage.lifecycle.register()
        await asyncio.sleep(2)
        assert 2 <= len(stage.requests(ControllerRegistrationRequest)) <= 20
        stage.answers[ControllerRegistrationRequest] = [ControllerRegistrationResponse()]
        await asyncio.sleep(1)
        asked = len(stage.asked)
        await asyncio.sleep(10)
        assert len(stage.asked) == asked
        await stage.lifecycle.close()

    play(script)


@pytest.mark.parametrize("joins", [True, False])
def test_controller_that_is_no_voter_asks_to_become_one_if_auto_join_is_on(joins: bool) -> None:
    async def script() -> None:
        stage = Stage(CONTROLLER, {"controller.quorum.auto.join.enable": str(joins).lower()})
        stage.answers[ControllerRegistrationRequest] = [ControllerRegistrationResponse()]
        stage.answers[AddRaftVoterRequest] = [lost(), AddRaftVoterResponse()]
        stage.answers[RemoveRaftVoterRequest] = [RemoveRaftVoterResponse()]
        stage.image = replace(stage.image, offset=-1)
        stage.voters = (Voter(1, INCARNATION), Voter(2, bytes([2] * 16)))
        await stage.lifecycle.register()
        await asyncio.sleep(5)
        assert stage.requests(RemoveRaftVoterRequest) == []  # it knows no voters before its first record
        stage.show(offset=0)
        await asyncio.sleep(1.5)
        removals = stage.requests(RemoveRaftVoterRequest)
        assert len(removals) == 2 * joins
        assert {(one.voter_id, one.voter_directory_id) for one in removals} == ({(1, INCARNATION)} if joins else set())
        stage.voters = stage.voters[1:]
        await asyncio.sleep(2.5)
        additions = stage.requests(AddRaftVoterRequest)
        assert bool(additions) == joins
        for request in additions:
            assert (request.cluster_id, request.voter_id, request.voter_directory_id) == ("c", 1, DIRECTORY)
            assert [(one.name, one.host, one.port) for one in request.listeners] == [("CONTROLLER", "h", 9094)]
        stage.voters = (stage.voter, *stage.voters)
        await asyncio.sleep(2)
        before = len(stage.asked)
        stage.voters = ()
        await asyncio.sleep(5)
        assert len(stage.asked) == before
        await stage.lifecycle.close()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    play(script)


@pytest.mark.parametrize("voters", [(), (Voter(1, ZERO_UUID),), (Voter(1, DIRECTORY),)], ids=["none", "static", "own"])
def test_controller_that_is_listed_or_knows_no_voters_asks_for_no_change_of_the_voters(
    voters: tuple[Voter, ...],
) -> None:
    async def script() -> None:
        stage = Stage(CONTROLLER, {"controller.quorum.auto.join.enable": "true"})
        stage.answers[ControllerRegistrationRequest] = [ControllerRegistrationResponse()]
        stage.voters = voters
        await stage.lifecycle.register()
        await asyncio.sleep(5)
        assert [type(request) for _, request in stage.asked] == [ControllerRegistrationRequest]
        assert all(task.done() for task in stage.lifecycle._tasks), "a voter has nothing to wait for"
        await stage.lifecycle.close()

    play(script)


def test_closed_lifecycle_ends_all_its_tasks() -> None:
    async def script() -> None:
        stage = Stage(CONTROLLER)
        refused = ControllerRegistrationResponse(error_code=ErrorCode.UNKNOWN_SERVER_ERROR)
        stage.answers[ControllerRegistrationRequest] = [refused]
        stage.voters = (Voter(9, DIRECTORY),)
        await stage.lifecycle.register()
        await asyncio.sleep(3)
        tasks = list(stage.lifecycle._tasks)
        assert [task.done() for task in tasks] == [False, False]
        async with asyncio.timeout(5):
            await stage.lifecycle.close()
        assert [task.cancelled() for task in tasks] == [True, True]

    play(script)
