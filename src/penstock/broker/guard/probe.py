"""Asks a node for records of its replica, and whether it leads the partition, with the requests that a consumer sends.

So the guard gets the records that a consumer would get. If the guard asked for digests by a private request, a node
that serves forged records could answer with the digests of the true records.
`docs/decisions/0012-the-guard-asks-as-a-consumer.md` gives the reasons.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from penstock.guard.claims import Claim, Role
from penstock.guard.samples import Sample, Status
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_01_fetch import FetchPartition, FetchRequest, FetchTopic, PartitionData
from penstock.protocol.messages.api_23_offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)

if TYPE_CHECKING:
    from penstock.protocol.schema import Message

logger = logging.getLogger(__name__)

LANE = "guard"
TIMEOUT_MS = 10_000
#: Bytes of one sample. A batch that is larger is fetched whole.
SAMPLE_BYTES = 256 * 1024

_STATUS = {
    ErrorCode.NONE: Status.SERVED,
    ErrorCode.CORRUPT_MESSAGE: Status.DAMAGED,
    ErrorCode.OFFSET_OUT_OF_RANGE: Status.ABSENT,
}
_ROLE = {
    ErrorCode.NONE: Role.LEADS,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: Role.FOLLOWS,
    ErrorCode.FENCED_LEADER_EPOCH: Role.AHEAD,
}


class Place(NamedTuple):
    """Identifies a partition, and holds the leader epoch that this node's metadata has for it."""

    topic: str
    topic_id: bytes
    partition: int
    leader_epoch: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class PeerCalls(Protocol):
    async def ask(self, node_id: int, request: Message, *, lane: str = "", timeout_ms: int | None = None) -> Any: ...


class Probe:
    def __init__(self, peers: PeerCalls, refused: Callable[[int, str], None] = lambda node_id, reason: None) -> None:
        """Creates the probe. If another node can't be authenticated, calls `refused` with its id and the reason."""
        self._peers = peers
        self._refused = refused
        self._denied = False

    async def sample(self, node_id: int, place: Place, offset: int, max_bytes: int = SAMPLE_BYTES) -> Sample:
        """Returns a sample of the records that the node serves from `offset` on.

        Does not raise an exception: if the request fails, the status of the sample shows the failure.
        """
        wanted = FetchPartition(partition=place.partition, fetch_offset=offset, partition_max_bytes=max_bytes)
        asked = FetchTopic(topic=place.topic, topic_id=place.topic_id, partitions=[wanted])
        request = FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=max_bytes, topics=[asked])
        answer = await self._ask(node_id, request)
        parts = [] if answer is None else [part for topic in answer.responses for part in topic.partitions]
        if len(parts) != 1 or answer.error_code:
            return Sample(node_id, Status.UNKNOWN)
        part: PartitionData = parts[0]
        code = _code(part.error_code)
        if code is ErrorCode.TOPIC_AUTHORIZATION_FAILED and not self._denied:
            self._denied = True
            sentence = "node %d does not let the guard read %s: allow CLUSTER_ACTION to the brokers"
            logger.warning(sentence, node_id, place.topic)
        status = _STATUS.get(code, Status.UNKNOWN)
        return Sample(node_id, status, part.records or b"", part.high_watermark)

    async def claims(self, node_id: int, places: Sequence[Place]) -> dict[Place, Claim]:
        """Returns, for each partition, the role (such as leader) that the node claims to have.

        The role follows from the node's answer to an OffsetForLeaderEpoch request.
        """
        topics: dict[str, OffsetForLeaderTopic] = {}
        for place in places:
            topic = topics.setdefault(place.topic, OffsetForLeaderTopic(topic=place.topic))
            epoch = place.leader_epoch
            topic.partitions.append(
                OffsetForLeaderPartition(partition=place.partition, current_leader_epoch=epoch, leader_epoch=epoch)
            )
        answer = await self._ask(node_id, OffsetForLeaderEpochRequest(topics=list(topics.values())))
        found = {
            (topic.topic, part.partition): (_code(part.error_code), part.end_offset)
            for topic in (() if answer is None else answer.topics)
            for part in topic.partitions
        }
        claims: dict[Place, Claim] = {}
        for place in places:
            code, end = found.get((place.topic, place.partition), (ErrorCode.UNKNOWN_SERVER_ERROR, -1))
            claims[place] = Claim(node_id, _ROLE.get(code, Role.UNKNOWN), end)
        return claims

    async def _ask(self, node_id: int, request: Message) -> Any:
        try:
            return await self._peers.ask(node_id, request, lane=LANE, timeout_ms=TIMEOUT_MS)
        except KafkaError as error:
            if error.code is ErrorCode.SASL_AUTHENTICATION_FAILED or isinstance(error.__cause__, ssl.SSLError):
                self._refused(node_id, error.message or error.code.name)
            return None


def _code(number: int) -> ErrorCode:
    try:
        return ErrorCode(number)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR
