"""Commits a query's progress as the offsets of a consumer group, so that every Kafka tool can show the progress.

A query restarts from its checkpoint; the committed offsets are only for monitoring. So after a failed commit the query
logs a warning and continues; the next batch commits again.
"""

from __future__ import annotations

import logging

from penstock.client.errors import code_of
from penstock.client.sync import Client
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_08_offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from penstock.spark.ranges import Offsets

logger = logging.getLogger(__name__)

#: The group has no members; it only keeps the offsets.
NO_GENERATION = -1
#: The last version of OffsetCommit that names topics by name, as the offsets in a checkpoint do.
LAST_WITH_NAMES = 9


def commit_offsets(client: Client, group: str, offsets: Offsets) -> None:
    try:
        client.run(_commit(client, group, offsets))
    except KafkaError as error:
        reason = error.message or error.code.name
        logger.warning("The query's progress could not be committed to group %r: %s", group, reason)


async def _commit(client: Client, group: str, offsets: Offsets) -> None:
    asynchronous = client.asynchronous

    async def attempt() -> None:
        node = await asynchronous.coordinator(group)
        connection = await asynchronous.connection(node)
        version = connection.version_of(OffsetCommitRequest.API_KEY, at_most=LAST_WITH_NAMES)
        answer: OffsetCommitResponse = await connection.request(_request(group, offsets), version=version)
        for topic in answer.topics:
            for part in topic.partitions:
                if part.error_code:
                    code = code_of(part.error_code)
                    if code in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE):
                        asynchronous.forget_coordinator(group)
                    sentence = f"The offset of {topic.name}-{part.partition_index} was refused with {code.name}"
                    raise KafkaError(code, sentence)

    await asynchronous.retrying(attempt)


def _request(group: str, offsets: Offsets) -> OffsetCommitRequest:
    topics: dict[str, OffsetCommitRequestTopic] = {}
    for (name, partition), offset in sorted(offsets.items()):
        topic = topics.setdefault(name, OffsetCommitRequestTopic(name=name, partitions=[]))
        topic.partitions.append(
            OffsetCommitRequestPartition(partition_index=partition, committed_offset=offset, committed_metadata="")
        )
    return OffsetCommitRequest(
        group_id=group, generation_id_or_member_epoch=NO_GENERATION, member_id="", topics=list(topics.values())
    )
