"""Reads the topic of cluster events. Checks each record, because any client with write access can write to the
topic."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing
from typing import Any, NoReturn

from penstock.client.client import AsyncClient
from penstock.client.consumer import Consumer, ConsumerSettings
from penstock.client.offsets import list_offsets
from penstock.protocol.vocabulary import EARLIEST, EVENT_TOPIC, LATEST

EventRow = dict[str, Any]
_TYPES = {"at_ms": int, "node": int, "kind": str, "text": str, "fields": dict}
MAX_VALUE_BYTES = 64 * 1024
#: The end of the year 9999, after which dates can't be shown.
LAST_MS = 253_402_300_800_000


def event_rows(values: Iterable[bytes | None]) -> list[EventRow]:
    """Returns the events in the given record values. Leaves out values that are not events."""
    return [row for value in values if value is not None and (row := _event(value)) is not None]


def _event(value: bytes) -> EventRow | None:
    if len(value) > MAX_VALUE_BYTES:
        return None
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    if any(type(found.get(name)) is not expected for name, expected in _TYPES.items()):
        return None
    if not 0 <= found["at_ms"] < LAST_MS:
        return None
    return {name: found[name] for name in _TYPES}


async def read_events(client: AsyncClient) -> list[EventRow]:
    """Returns the events that the cluster keeps, oldest first. Raises KafkaError if there is no topic of events."""
    async with aclosing(_follow(client)) as found:
        return await anext(found)


async def watch_events(client: AsyncClient, show: Callable[[list[EventRow]], None]) -> NoReturn:
    """Calls `show` with the events that the cluster keeps, oldest first, and then with each list of new events.

    Raises KafkaError if there is no topic of events.
    """
    async with aclosing(_follow(client)) as found:
        async for rows in found:
            show(rows)
    raise AssertionError("the topic of events has no end")


async def _follow(client: AsyncClient) -> AsyncGenerator[list[EventRow], None]:
    await client.topic(EVENT_TOPIC)
    key = (EVENT_TOPIC, 0)
    end = (await list_offsets(client, {key: LATEST}))[key].offset
    rows: list[EventRow] = []
    async with Consumer(client, ConsumerSettings(reset=EARLIEST)) as consumer:
        await consumer.assign({key: EARLIEST})
        while consumer.position(key) < end:
            rows += await _polled(consumer)
        yield sorted(rows, key=lambda row: (row["at_ms"], row["node"]))
        while True:
            if fresh := await _polled(consumer):
                yield fresh


async def _polled(consumer: Consumer) -> list[EventRow]:
    return [row for each in await consumer.poll() for row in event_rows(record.value for record in each.records())]
