"""Tests what one replica of the quorum keeps over a restart, where it begins, and which failures end its part."""

from __future__ import annotations

import asyncio

import pytest
from test_quorum_steps import CLUSTER, Stage, play, voter

from penstock.check import InvariantError
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.raft.config import RaftConfig
from penstock.raft.messages import Fetch, FetchAnswer, Vote, VoteAnswer
from penstock.raft.voters import VoterSet
from penstock.raft.wire_answers import answer_from_wire
from penstock.raft.wire_requests import request_to_wire

NONE = ErrorCode.NONE


async def asked_for_vote(stage: Stage, candidate: int, epoch: int) -> VoteAnswer:
    request = Vote(voter(1).key, voter(candidate).key, epoch, 9, 100, False)
    answer = answer_from_wire(await stage.quorum.answer(request_to_wire(request, CLUSTER, voter(candidate))))
    assert isinstance(answer, VoteAnswer)
    return answer


@pytest.mark.parametrize("clean", [False, True])
def test_restarted_voter_votes_for_no_second_candidate_of_an_epoch(clean: bool) -> None:
    async def script() -> None:
        stage = Stage(voters=3)
        stage.quorum.start(stage)
        assert (await asked_for_vote(stage, 2, 5)).granted
        if clean:
            await stage.quorum.close()
        else:
            await stage.quorum.abandon()
        stage.log.close()
        again = Stage(voters=3, disk=stage.disk)
        again.quorum.start(again)
        assert again.quorum.epoch == 5
        assert await asked_for_vote(again, 3, 5) == VoteAnswer(NONE, 5, -1, False)
        assert await asked_for_vote(again, 2, 5) == VoteAnswer(NONE, 5, -1, True)
        assert (await asked_for_vote(again, 3, 6)).granted
        await again.quorum.abandon()

    play(script)


def test_restarted_leader_does_not_lead_its_epoch_again() -> None:
    async def script() -> None:
        stage = Stage(voters=3)
        await stage.leading()
        led = stage.quorum.epoch
        await stage.quorum.abandon()
        stage.log.close()
        again = Stage(voters=3, disk=stage.disk)
        await again.leading()
        assert again.quorum.epoch > led
        assert min(epoch for _, epoch in again.roles) >= led
        await again.quorum.abandon()

    play(script)


def test_replica_whose_log_names_no_voters_asks_the_bootstrap_servers() -> None:
    async def script() -> None:
        stage = Stage(listed=VoterSet(), bootstrap={5: ("boot", 1), 6: ("boot", 2)})
        stage.quorum.start(stage)
        stage.peers.errors = {5: ErrorCode.NETWORK_EXCEPTION, 6: ErrorCode.NETWORK_EXCEPTION}
        stage.peers.fetches = [FetchAnswer(NONE, 3, 2, 0)] * 10
        await asyncio.sleep(5)
        assert {node_id for node_id, request in stage.peers.asked if isinstance(request, Fetch)} == {5, 6}
        await stage.quorum.abandon()

    play(script)


def test_refused_proposal_tells_a_full_leader_from_a_replica_that_does_not_lead() -> None:
    async def script() -> None:
        stage = Stage(voters=3, config=RaftConfig(max_uncommitted_records=5))
        stage.quorum.start(stage)
        with pytest.raises(KafkaError, match="has no leader") as refused:
            stage.propose()
        assert refused.value.code is ErrorCode.NOT_CONTROLLER
        await asyncio.sleep(3)
        assert stage.quorum.is_leader
        stage.propose(2)  # after the three records with which a leader begins the log
        end = stage.log.log_end_offset
        with pytest.raises(KafkaError, match="not committed yet") as refused:
            stage.propose()
        assert refused.value.code is ErrorCode.THROTTLING_QUOTA_EXCEEDED
        assert stage.log.log_end_offset == end
        await stage.quorum.abandon()

    play(script)


def test_replica_that_breaks_an_invariant_leaves_the_quorum() -> None:
    async def script() -> None:
        stage = Stage(voters=3)
        await stage.leading()
        error = InvariantError("the log ends at the end offset of raft")

        def fail(*_: object) -> None:
            raise error

        stage.files.append = fail  # type: ignore[assignment, method-assign]
        with pytest.raises(KafkaError) as refused:
            stage.propose()
        assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
        assert stage.failures == [error]
        await stage.left()

    play(script)
