"""Tests that the quorum's messages survive encoding and decoding as Kafka messages."""

from __future__ import annotations

import pytest
from raft_cluster import voter

from penstock.protocol.apis import APIS, request_class, response_class
from penstock.protocol.codec import decode, encode
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_52_vote import VoteRequest
from penstock.raft.batches import encode_own, parse_batches
from penstock.raft.events import LeaderChange, VotersChange
from penstock.raft.log_view import OffsetAndEpoch
from penstock.raft.messages import (
    AddVoter,
    Answer,
    BeginEpoch,
    EndEpoch,
    EpochAnswer,
    Fetch,
    FetchAnswer,
    FetchSnapshot,
    RemoveVoter,
    Request,
    SnapshotChunk,
    UpdateVoter,
    Vote,
    VoteAnswer,
    VoterAnswer,
)
from penstock.raft.voters import Voter, VoterSet
from penstock.raft.wire_answers import answer_from_wire, answer_to_wire, endpoints_in
from penstock.raft.wire_requests import request_from_wire, request_to_wire

ME = Voter(1, voter(1).directory_id, (("CONTROLLER", "one.example", 9093),))
TWO = voter(2).key
FETCH = Fetch(TWO, 4, 100, 3, 90, 500)
SNAPSHOT = OffsetAndEpoch(70, 2)

REQUESTS: list[tuple[int, Request]] = [
    (1, FETCH),
    (52, Vote(ME.key, TWO, 4, 3, 100, True)),
    (53, BeginEpoch(ME.key, 2, 4)),
    (54, EndEpoch(2, 4, (voter(3).key, ME.key))),
    (59, FetchSnapshot(TWO, 4, SNAPSHOT, 1024, 4096)),
    (80, AddVoter(ME, 1000, False)),
    (81, RemoveVoter(TWO)),
    (82, UpdateVoter(4, ME)),
]
NONE = ErrorCode.NONE
ANSWERS: list[tuple[int, Request, Answer]] = [
    (1, FETCH, FetchAnswer(NONE, 4, 2, 90)),
    (1, FETCH, FetchAnswer(NONE, 4, 2, 90, diverging=OffsetAndEpoch(50, 3))),
    (1, FETCH, FetchAnswer(NONE, 4, 2, 90, snapshot=SNAPSHOT)),
    (1, FETCH, FetchAnswer(ErrorCode.FENCED_LEADER_EPOCH, 5, 3)),
    (52, REQUESTS[1][1], VoteAnswer(NONE, 4, -1, True)),
    (53, REQUESTS[2][1], EpochAnswer(ErrorCode.FENCED_LEADER_EPOCH, 5, 3)),
    (54, REQUESTS[3][1], EpochAnswer(NONE, 4, 2)),
    (59, REQUESTS[4][1], SnapshotChunk(NONE, 4, 2, SNAPSHOT, 1024, 0, 2048, b"bytes")),
    (80, REQUESTS[5][1], VoterAnswer(ErrorCode.DUPLICATE_VOTER, -1, -1, "no")),
    (81, REQUESTS[6][1], VoterAnswer(NONE, -1)),
    (82, REQUESTS[7][1], VoterAnswer(ErrorCode.FENCED_LEADER_EPOCH, 5, 1)),
]


@pytest.mark.parametrize(("key", "request_"), REQUESTS, ids=lambda value: type(value).__name__)
def test_quorum_request_survives_encoding_and_decoding(key: int, request_: Request) -> None:
    version = APIS[key].latest_stable
    message = request_to_wire(request_, "cluster", ME)
    assert message.cluster_id == "cluster"
    decoded = decode(request_class(key), version, encode(message, version))
    assert request_from_wire(decoded, ME.key) == request_


@pytest.mark.parametrize(("key", "request_", "answer"), ANSWERS)
def test_quorum_answer_survives_encoding_and_decoding(key: int, request_: Request, answer: Answer) -> None:
    version = APIS[key].latest_stable
    message = answer_to_wire(request_, answer, b"", ME)
    decoded = decode(response_class(key), version, encode(message, version))
    assert answer_from_wire(decoded) == answer
    if key in (1, 52, 53, 54, 59):
        assert endpoints_in(decoded) == {1: ("one.example", 9093)}


def test_begin_quorum_epoch_contains_the_leaders_endpoints() -> None:
    message = request_to_wire(BeginEpoch(TWO, 1, 4), "cluster", ME)
    assert endpoints_in(message) == {1: ("one.example", 9093)}


def test_requests_for_other_partitions_than_the_metadata_log_are_refused() -> None:
    message = request_to_wire(REQUESTS[1][1], "cluster", ME)
    message.topics[0].partitions[0].partition_index = 1
    with pytest.raises(KafkaError):
        request_from_wire(message, ME.key)
    with pytest.raises(KafkaError):
        request_from_wire(VoteRequest(), ME.key)


def test_decoding_an_answer_that_refuses_the_whole_request_raises_a_kafka_error() -> None:
    message = answer_to_wire(REQUESTS[1][1], VoteAnswer(NONE, 4, -1), b"", None)
    message.error_code = ErrorCode.INCONSISTENT_CLUSTER_ID
    with pytest.raises(KafkaError):
        answer_from_wire(message)


def test_vote_request_of_version_0_is_addressed_to_the_receiving_node() -> None:
    message = decode(VoteRequest, 0, encode(request_to_wire(Vote(ME.key, TWO, 4, 3, 100, False), "c", ME), 0))
    vote = request_from_wire(message, ME.key)
    assert isinstance(vote, Vote)
    assert vote.voter.node_id == 1


def test_followers_read_the_batches_that_a_leader_writes() -> None:
    voters = VoterSet.of([ME, voter(2)])
    first = parse_batches(encode_own(LeaderChange(1, (1, 2), (1, 2), voters), epoch=4, timestamp=7))[0]
    assert (first.base_offset, first.last_offset, first.epoch, first.voters) == (0, 2, 4, voters)
    second = parse_batches(encode_own(LeaderChange(1, (1, 2), (1, 2)), epoch=4, timestamp=7))[0]
    assert (second.last_offset, second.voters) == (0, None)
    changed = parse_batches(encode_own(VotersChange(voters), epoch=4, timestamp=7))[0]
    assert changed.voters == voters
