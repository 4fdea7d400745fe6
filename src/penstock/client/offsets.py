"""Looks up offsets by position or time: sends ListOffsets to each partition's leader."""

from collections.abc import Mapping
from typing import NamedTuple

from penstock.client.client import AsyncClient
from penstock.client.errors import code_of
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_02_list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from penstock.protocol.vocabulary import EARLIEST_LOCAL, LATEST_TIERED, MAX_TIMESTAMP, NO_LEADER_EPOCH, READ_UNCOMMITTED

#: Partitions in one request: a request for more would hold the event loops of client and broker for too long.
PARTITIONS_AT_ONCE = 1000
# The first version that supports each special timestamp: an older broker would treat it as a time.
_SINCE = {MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9}


class FoundOffset(NamedTuple):
    offset: int
    """The offset that was found; -1 if all records are older than the timestamp."""
    timestamp: int
    leader_epoch: int


async def list_offsets(
    client: AsyncClient, wanted: Mapping[tuple[str, int], int], *, isolation_level: int = READ_UNCOMMITTED
) -> dict[tuple[str, int], FoundOffset]:
    """Returns each partition's offset for its timestamp or special position.

    Raises KafkaError if one partition fails.
    """
    found: dict[tuple[str, int], FoundOffset] = {}
    topics = sorted({topic for topic, _ in wanted})

    async def ask_the_rest() -> None:
        missing = [each for each in wanted if each not in found]
        for node, partitions in (await client.by_leader(missing)).items():
            for start in range(0, len(partitions), PARTITIONS_AT_ONCE):
                some = partitions[start : start + PARTITIONS_AT_ONCE]
                await ask(node, {each: wanted[each] for each in some})

    async def ask(node: int, some: Mapping[tuple[str, int], int]) -> None:
        connection = await client.connection(node)
        version = connection.version_of(ListOffsetsRequest.API_KEY)
        for timestamp in some.values():
            if version < _SINCE.get(timestamp, 0):
                raise KafkaError(
                    ErrorCode.UNSUPPORTED_VERSION,
                    f"{connection.address} is too old to look up the special timestamp {timestamp}.",
                )
        _take(await connection.request(_request(client, some, isolation_level), version=version), found)

    await client.retrying(ask_the_rest, refresh=topics)
    return found


def _request(client: AsyncClient, wanted: Mapping[tuple[str, int], int], isolation_level: int) -> ListOffsetsRequest:
    topics: dict[str, ListOffsetsTopic] = {}
    for (topic, partition), timestamp in wanted.items():
        info = client.cluster.topics.get(topic)  # None: deleted since the leader was looked up
        known = None if info is None else info.partitions.get(partition)
        epoch = NO_LEADER_EPOCH if known is None else known.leader_epoch
        topics.setdefault(topic, ListOffsetsTopic(name=topic, partitions=[])).partitions.append(
            ListOffsetsPartition(partition_index=partition, timestamp=timestamp, current_leader_epoch=epoch)
        )
    timeout_ms = int(client.settings.request_timeout_s * 1000)
    return ListOffsetsRequest(
        replica_id=-1, isolation_level=isolation_level, topics=list(topics.values()), timeout_ms=timeout_ms
    )


def _take(answer: ListOffsetsResponse, found: dict[tuple[str, int], FoundOffset]) -> None:
    failure: KafkaError | None = None
    for topic in answer.topics:
        for part in topic.partitions:
            if part.error_code:
                sentence = f"The offset of {topic.name}-{part.partition_index} could not be looked up."
                failure = KafkaError(code_of(part.error_code), sentence)
            else:
                key = (topic.name, part.partition_index)
                found[key] = FoundOffset(part.offset, part.timestamp, part.leader_epoch)
    if failure is not None:
        raise failure
