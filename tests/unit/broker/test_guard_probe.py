"""Tests how the guard asks a node for records of its replica, and whether the node claims to lead."""

from __future__ import annotations

import asyncio
import ssl
from typing import Any

import pytest

from penstock.broker.guard.probe import Place, Probe
from penstock.guard.claims import Role
from penstock.guard.samples import Status
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_01_fetch import FetchableTopicResponse, FetchRequest, FetchResponse, PartitionData
from penstock.protocol.messages.api_23_offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)

PLACE = Place("t", bytes(range(16)), 2, 7)


class Peer:
    """Replaces the peers: returns one response or raises one error, and keeps the requests."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer
        self.asked: list[Any] = []

    async def ask(self, node_id: int, request: Any, *, lane: str = "", timeout_ms: int | None = None) -> Any:
        self.asked.append(request)
        if isinstance(self._answer, KafkaError):
            raise self._answer
        return self._answer


def fetched(code: int, records: bytes = b"", mark: int = -1) -> FetchResponse:
    part = PartitionData(partition_index=2, error_code=code, high_watermark=mark, records=records)
    return FetchResponse(responses=[FetchableTopicResponse(topic_id=PLACE.topic_id, partitions=[part])])


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (ErrorCode.NONE, Status.SERVED),
        (ErrorCode.CORRUPT_MESSAGE, Status.DAMAGED),
        (ErrorCode.OFFSET_OUT_OF_RANGE, Status.ABSENT),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, Status.UNKNOWN),
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, Status.UNKNOWN),
        (12_345, Status.UNKNOWN),
    ],
)
def test_guard_derives_the_status_of_a_sample_from_the_error_code_of_its_fetch(code: int, status: Status) -> None:
    sample = asyncio.run(Probe(Peer(fetched(code, b"records", 9))).sample(3, PLACE, 5))
    assert (sample.node_id, sample.status, sample.high_watermark) == (3, status, 9)


def test_guard_fetches_samples_without_a_replica_id_as_a_consumer_does() -> None:
    peer = Peer(fetched(0))
    asyncio.run(Probe(peer).sample(3, PLACE, 5, 100))
    (request,) = peer.asked
    assert isinstance(request, FetchRequest)
    assert (request.replica_id, request.replica_state.replica_id, request.max_wait_ms) == (-1, -1, 0)
    wanted = request.topics[0].partitions[0]
    assert (request.topics[0].topic_id, wanted.partition, wanted.fetch_offset) == (PLACE.topic_id, 2, 5)
    assert (request.max_bytes, wanted.partition_max_bytes) == (100, 100)


@pytest.mark.parametrize("answer", [FetchResponse(), FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)])
def test_sample_has_an_unknown_status_if_the_fetch_response_lacks_the_partition(answer: FetchResponse) -> None:
    assert asyncio.run(Probe(Peer(answer)).sample(3, PLACE, 5)).status is Status.UNKNOWN


@pytest.mark.parametrize(
    ("code", "role"),
    [
        (ErrorCode.NONE, Role.LEADS),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, Role.FOLLOWS),
        (ErrorCode.FENCED_LEADER_EPOCH, Role.AHEAD),
        (ErrorCode.UNKNOWN_LEADER_EPOCH, Role.UNKNOWN),
    ],
)
def test_guard_derives_the_claimed_role_from_the_error_code_of_offset_for_leader_epoch(
    code: ErrorCode, role: Role
) -> None:
    result = EpochEndOffset(error_code=code, partition=2, leader_epoch=7, end_offset=40)
    answer = OffsetForLeaderEpochResponse(topics=[OffsetForLeaderTopicResult(topic="t", partitions=[result])])
    peer = Peer(answer)
    claim = asyncio.run(Probe(peer).claims(3, [PLACE]))[PLACE]
    assert (claim.node_id, claim.role, claim.end_offset) == (3, role, 40)
    (request,) = peer.asked
    assert isinstance(request, OffsetForLeaderEpochRequest)
    assert request.topics[0].partitions[0].current_leader_epoch == 7


def test_claimed_role_is_unknown_if_the_response_lacks_the_partition() -> None:
    claim = asyncio.run(Probe(Peer(OffsetForLeaderEpochResponse())).claims(3, [PLACE]))[PLACE]
    assert claim.role is Role.UNKNOWN


def caused_by(cause: Exception) -> KafkaError:
    error = KafkaError(ErrorCode.NETWORK_EXCEPTION, "Can't connect to n3:9092.")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "reported"),
    [
        (KafkaError(ErrorCode.SASL_AUTHENTICATION_FAILED, "n3:9092 refused node."), True),
        (caused_by(ssl.SSLCertVerificationError("self-signed certificate")), True),
        (caused_by(ConnectionRefusedError()), False),
        (KafkaError(ErrorCode.REQUEST_TIMED_OUT), False),
    ],
    ids=["SASL", "TLS", "refused connection", "timeout"],
)
def test_guard_reports_a_node_that_fails_authentication(error: KafkaError, reported: bool) -> None:
    refused: list[int] = []
    probe = Probe(Peer(error), lambda node_id, reason: refused.append(node_id))
    assert asyncio.run(probe.sample(3, PLACE, 5)).status is Status.UNKNOWN
    assert asyncio.run(probe.claims(3, [PLACE]))[PLACE].role is Role.UNKNOWN
    assert refused == ([3, 3] if reported else [])
