"""Reads the topic of cluster events. Checks each record, because any client with write access can write to the
topic."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from penstock.client.client import AsyncClient
from penstock.client.consumer import Consumer
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
    """Returns the events that the cluster keeps, oldest first. Raises KafkaError if the cluster has no topic of
    events."""
    await client.topic(EVENT_TOPIC)
    key = (EVENT_TOPIC, 0)
    end = (await list_offsets(client, {key: LATEST}))[key].offset
    rows: list[EventRow] = []
    async with Consumer(client) as consumer:
        await consumer.assign({key: EARLIEST})
        while consumer.position(key) < end:
            for fetched in await consumer.poll():
                rows += event_rows(record.value for record in fetched.records())
    return sorted(rows, key=lambda row: (row["at_ms"], row["node"]))
