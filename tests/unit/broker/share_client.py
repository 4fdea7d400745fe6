"""Provides share consumers and a producer for tests of share groups on one node."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from penstock.client.client import AsyncClient
from penstock.client.producer import Producer
from penstock.client.share_consumer import Delivered, ShareConsumer, ShareConsumerSettings
from penstock.node.clock import SystemClock
from penstock.protocol.errors import ErrorCode
from penstock.protocol.messages.api_44_incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from penstock.protocol.vocabulary import Acknowledge, ResourceType
from penstock.testing import Broker

ACCEPT = Acknowledge.ACCEPT
SET = 0


async def until(condition: Callable[[], object]) -> None:
    """Waits until the condition is true. The time limit of the scenario ends a wait that would never end."""
    while not condition():  # noqa: ASYNC110 - the node runs on a loop of its own
        await asyncio.sleep(0.01)


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(120):
            await scenario()

    asyncio.run(bounded())


async def configure(client: AsyncClient, group: str, **configs: str) -> None:
    """Sets configs of the group. By default the group starts at the earliest record."""
    settings = {
        "share.auto.offset.reset": "earliest",
        **{name.replace("_", "."): text for name, text in configs.items()},
    }
    resource = AlterConfigsResource(
        resource_type=ResourceType.GROUP,
        resource_name=group,
        configs=[AlterableConfig(name=name, config_operation=0, value=text) for name, text in settings.items()],
    )
    answer = await client.request(IncrementalAlterConfigsRequest(resources=[resource]))
    assert not answer.responses[0].error_code, answer.responses[0].error_message


async def produce(client: AsyncClient, topic: str, *values: str) -> None:
    producer = Producer(client, SystemClock())
    for value in values:
        await producer.send(topic, value.encode(), partition=0)
    await producer.flush()
    await producer.close()


@asynccontextmanager
async def consumer(node: Broker, topic: str, **settings: Any) -> AsyncIterator[ShareConsumer]:
    """Yields a share consumer with its own client. The group has the name of the topic."""
    async with (
        AsyncClient(f"{node.host}:{node.port}") as client,
        ShareConsumer(client, topic, [topic], ShareConsumerSettings(max_wait_ms=200, **settings)) as joined,
    ):
        yield joined


@asynccontextmanager
async def client_of(node: Broker) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(f"{node.host}:{node.port}") as client:
        yield client


async def take(consumer: ShareConsumer, count: int) -> list[Delivered]:
    """Polls until the consumer has `count` records."""
    found: list[Delivered] = []
    while len(found) < count:
        found += await consumer.poll()
    return found


def values(delivered: list[Delivered]) -> list[str]:
    return [(each.record.value or b"").decode() for each in delivered]


async def settle(consumer: ShareConsumer, delivered: list[Delivered], kind: Acknowledge = ACCEPT) -> list[ErrorCode]:
    for each in delivered:
        consumer.acknowledge(each, kind)
    return [error.code if error is not None else ErrorCode.NONE for _, _, error in await consumer.commit()]
