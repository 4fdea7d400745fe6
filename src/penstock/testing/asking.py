"""Creates topics and reads records, for tests of a broker or a cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.client.connection import ConnectionSettings
    from penstock.records.record import Record

READ_LIMIT_S = 100.0


async def create_topics(
    bootstrap: str,
    topics: Mapping[str, int],
    replication_factor: int,
    configs: Mapping[str, str] | None,
    settings: ConnectionSettings | None = None,
) -> None:
    from penstock.client.admin import Admin, NewTopic
    from penstock.client.client import AsyncClient

    async with AsyncClient(bootstrap, settings=settings) as client:
        wanted = [
            NewTopic(name, partitions, replication_factor, configs=configs) for name, partitions in topics.items()
        ]
        await Admin(client).create_topics(wanted)


async def read_records(
    bootstrap: str, topic: str, partition: int | None, settings: ConnectionSettings | None = None
) -> list[Record]:
    """Returns all records of a topic, or of one partition, up to the current end offset, ordered by partition."""
    from penstock.client.client import AsyncClient
    from penstock.client.consumer import Consumer
    from penstock.client.offsets import list_offsets
    from penstock.protocol.vocabulary import EARLIEST, LATEST

    async with AsyncClient(bootstrap, settings=settings) as client, asyncio.timeout(READ_LIMIT_S):
        held = sorted((await client.topic(topic)).partitions)
        if partition is not None and partition not in held:
            raise ValueError(
                f"topic {topic!r} has no partition {partition}: it has {len(held)} partitions, counted from 0"
            )
        wanted = held if partition is None else [partition]
        found: list[Record] = []
        for each in wanted:
            key = (topic, each)
            end = (await list_offsets(client, {key: LATEST}))[key].offset
            async with Consumer(client) as consumer:
                await consumer.assign({key: EARLIEST})
                while consumer.position(key) < end:
                    for fetched in await consumer.poll():
                        found += [record for record in fetched.records() if record.offset < end]
        return found
