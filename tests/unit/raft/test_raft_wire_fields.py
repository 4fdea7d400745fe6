"""Tests single fields of the quorum's messages: partitions, replica ids, error codes, and endpoints."""

from __future__ import annotations

from typing import Any

import pytest
from raft_cluster import voter

from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.uuid import METADATA_TOPIC_ID
from penstock.raft.batches import encode_own
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
from penstock.raft.voters import ReplicaKey, Voter, VoterSet
from penstock.raft.wire_answers import answer_from_wire, answer_to_wire, endpoints_in
from penstock.raft.wire_requests import only_partition, request_from_wire, request_to_wire

ENDPOINTS = (("FIRST", "one.example", 1), ("SECOND", "two.example", 2))
ME = Voter(1, voter(1).directory_id, ENDPOINTS)
FETCH = Fetch(voter(2).key, 4, 100, 3, 90, 500, 77)
SNAPSHOT = OffsetAndEpoch(70, 2)
NONE = ErrorCode.NONE

PARTITIONED: list[Request] = [
    FETCH,
    Vote(ME.key, voter(2).key, 4, 3, 100, True),
    BeginEpoch(ME.key, 2, 4),
    EndEpoch(2, 4, (voter(3).key,)),
    FetchSnapshot(voter(2).key, 4, SNAPSHOT, 5, 6),
]
ANSWERS: list[tuple[Request, Answer]] = [
    (FETCH, FetchAnswer(NONE, 4, 2, 90)),
    (PARTITIONED[1], VoteAnswer(NONE, 4, 2, False)),
    (PARTITIONED[2], EpochAnswer(NONE, 4, 2)),
    (PARTITIONED[3], EpochAnswer(NONE, 4, 2)),
    (PARTITIONED[4], SnapshotChunk(NONE, 4, 2, SNAPSHOT, 3, 0, 9, b"x")),
]


def set_any(item: Any, names: tuple[str, ...], value: object) -> None:
    for name in names:
        if hasattr(item, name):
            setattr(item, name, value)


@pytest.mark.parametrize("request_", PARTITIONED, ids=lambda each: type(each).__name__)
@pytest.mark.parametrize("wrong", ["topic", "partition", "no topic", "no partition", "two topics", "two partitions"])
def test_request_that_names_anything_but_the_one_metadata_partition_is_refused(request_: Request, wrong: str) -> None:
    message = request_to_wire(request_, "cluster", ME)
    (topic,) = message.topics
    (partition,) = topic.partitions
    assert only_partition(message.topics) is partition
    match wrong:
        case "topic":
            set_any(topic, ("topic_name", "name", "topic"), "other")
            set_any(topic, ("topic_id",), b"x" * 16)
        case "partition":
            set_any(partition, ("partition_index", "partition", "index"), 1)
        case "no topic":
            message.topics = []
        case "no partition":
            topic.partitions = []
        case "two topics":
            message.topics = [topic, topic]
        case "two partitions":
            topic.partitions = [partition, partition]
    with pytest.raises(KafkaError) as error:
        request_from_wire(message, ME.key)
    assert error.value.code is ErrorCode.INVALID_REQUEST


def test_fetch_may_name_the_metadata_topic_by_its_name_or_by_its_id() -> None:
    for name, topic_id, accepted in (
        ("__cluster_metadata", METADATA_TOPIC_ID, True),
        ("", METADATA_TOPIC_ID, True),
        ("__cluster_metadata", bytes(16), True),
        ("", bytes(16), False),
    ):
        message = request_to_wire(FETCH, "cluster", ME)
        message.topics[0].topic, message.topics[0].topic_id = name, topic_id
        if accepted:
            assert request_from_wire(message, ME.key) == FETCH
        else:
            with pytest.raises(KafkaError):
                request_from_wire(message, ME.key)


def test_fetch_names_its_replica_in_the_old_or_in_the_new_field() -> None:
    for old, new, expected in ((-1, 2, 2), (2, -1, 2), (0, -1, 0), (-1, 0, 0), (-1, -1, -1)):
        message = request_to_wire(FETCH, "cluster", ME)
        message.replica_id, message.replica_state.replica_id = old, new
        found = request_from_wire(message, ME.key)
        assert isinstance(found, Fetch)
        assert found.replica == ReplicaKey(expected, voter(2).directory_id)


@pytest.mark.parametrize("request_", PARTITIONED[1:3], ids=["Vote", "BeginEpoch"])
def test_request_without_a_voter_is_for_the_receiver_and_any_other_for_the_voter_that_it_names(
    request_: Request,
) -> None:
    for named, expected in ((-1, 1), (0, 0), (1, 1), (7, 7)):
        message = request_to_wire(request_, "cluster", ME)
        message.voter_id = named
        found = request_from_wire(message, ME.key)
        assert isinstance(found, Vote | BeginEpoch)
        assert found.voter == ReplicaKey(expected, ME.directory_id)


def test_successors_of_an_ended_epoch_are_read_from_the_old_field_if_the_new_one_is_empty() -> None:
    message = request_to_wire(EndEpoch(2, 4, (voter(3).key, ME.key)), "cluster", ME)
    (partition,) = message.topics[0].partitions
    assert partition.preferred_successors == [3, 1]
    partition.preferred_candidates = []
    assert request_from_wire(message, ME.key) == EndEpoch(2, 4, (ReplicaKey(3), ReplicaKey(1)))


def test_message_that_is_no_request_of_the_quorum_is_refused() -> None:
    with pytest.raises(KafkaError) as error:
        request_from_wire(object(), ME.key)
    assert error.value.code is ErrorCode.INVALID_REQUEST


# --- answers


def partition_in(message: Any) -> Any:
    return only_partition(message.responses if hasattr(message, "responses") else message.topics)


@pytest.mark.parametrize(("request_", "answer"), ANSWERS)
def test_error_code_of_an_answer_is_read_even_if_it_is_unknown(request_: Request, answer: Answer) -> None:
    for value, code in ((0, NONE), (74, ErrorCode.FENCED_LEADER_EPOCH), (9999, ErrorCode.UNKNOWN_SERVER_ERROR)):
        message = answer_to_wire(request_, answer, b"", ME)
        partition_in(message).error_code = value
        found = answer_from_wire(message)
        assert (found.error, found.epoch, found.leader_id) == (code, 4, 2)


@pytest.mark.parametrize(("request_", "answer"), ANSWERS)
def test_answer_that_refuses_the_whole_request_or_names_another_partition_is_an_error(
    request_: Request, answer: Answer
) -> None:
    message = answer_to_wire(request_, answer, b"", ME)
    message.error_code = ErrorCode.INVALID_REQUEST
    with pytest.raises(KafkaError) as error:
        answer_from_wire(message)
    assert error.value.code is ErrorCode.INVALID_REQUEST
    message = answer_to_wire(request_, answer, b"", ME)
    set_any(partition_in(message), ("partition_index", "partition", "index"), 1)
    with pytest.raises(KafkaError):
        answer_from_wire(message)


@pytest.mark.parametrize(("request_", "answer"), ANSWERS)
def test_answer_names_the_first_endpoint_of_its_leader_if_it_knows_the_leader(
    request_: Request, answer: Answer
) -> None:
    assert endpoints_in(answer_to_wire(request_, answer, b"", ME)) == {1: ("one.example", 1)}
    assert endpoints_in(answer_to_wire(request_, answer, b"", None)) == {}
    assert endpoints_in(answer_to_wire(request_, answer, b"", voter(1))) == {}


@pytest.mark.parametrize("request_", [BeginEpoch(voter(2).key, 1, 4), EndEpoch(1, 4, ())])
def test_endpoint_of_the_wanted_listener_is_chosen_from_those_of_the_leader(request_: Request) -> None:
    message = request_to_wire(request_, "cluster", ME)
    for listener, expected in (
        (None, ("one.example", 1)),
        ("FIRST", ("one.example", 1)),
        ("SECOND", ("two.example", 2)),
        ("THIRD", ("one.example", 1)),
    ):
        assert endpoints_in(message, listener) == {1: expected}
    topics, message.topics = message.topics, []
    assert endpoints_in(message) == {}
    message.topics = topics
    topics[0].partitions = []
    assert endpoints_in(message) == {}
    assert endpoints_in(request_to_wire(request_, "cluster", voter(1))) == {}


def test_fetch_answer_carries_all_records_and_tells_divergence_and_snapshot_apart() -> None:
    first = encode_own(LeaderChange(2, (1, 2), (2,)), epoch=4, timestamp=7)
    second = encode_own(VotersChange(VoterSet.of([ME])), epoch=4, timestamp=7)
    for diverging, snapshot in ((None, None), (OffsetAndEpoch(0, 0), None), (None, OffsetAndEpoch(0, 0))):
        answer = FetchAnswer(NONE, 4, 2, 90, diverging, snapshot)
        found = answer_from_wire(answer_to_wire(FETCH, answer, first + second, ME))
        assert isinstance(found, FetchAnswer)
        assert (found.diverging, found.snapshot, found.high_watermark) == (diverging, snapshot, 90)
        assert [each.voters for each in found.batches] == [None, VoterSet.of([ME])]


def test_answers_about_voters_carry_the_error_its_text_and_the_leader() -> None:
    answer = VoterAnswer(ErrorCode.VOTER_NOT_FOUND, 4, 2, "why")
    for request in (AddVoter(ME), RemoveVoter(ME.key)):
        assert answer_from_wire(answer_to_wire(request, answer, b"", ME)) == VoterAnswer(answer.error, -1, -1, "why")
    message = answer_to_wire(UpdateVoter(4, ME), answer, b"", ME)
    assert (message.current_leader.host, message.current_leader.port) == ("one.example", 1)
    assert answer_from_wire(message) == VoterAnswer(answer.error, 4, 2)
    for unknown in (None, voter(1)):
        message = answer_to_wire(UpdateVoter(4, ME), answer, b"", unknown)
        assert (message.current_leader.host, message.current_leader.port) == ("", 0)
