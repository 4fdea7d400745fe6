"""Reads the topic of cluster events. Checks each record, because any client with write access can write to the
topic."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from contextlib import aclosing, suppress
from typing import Any, NamedTuple, NoReturn

from penstock.client.client import AsyncClient
from penstock.client.consumer import Consumer, ConsumerSettings
from penstock.client.fetched import Fetched
from penstock.client.offsets import list_offsets
from penstock.protocol.errors import KafkaError
from penstock.protocol.vocabulary import EARLIEST, EVENT_TOPIC, LATEST
from penstock.records.excerpts import Wanted, excerpt_steps

EventRow = dict[str, Any]
_TYPES = {"at_ms": int, "node": int, "kind": str, "text": str, "fields": dict}
MAX_VALUE_BYTES = 64 * 1024
#: Texts, numbers, lists and objects in the fields of one event, and how deeply they may be nested.
MAX_FIELD_VALUES = 1_000
MAX_DEPTH = 4
#: Bytes of a batch after decompression.
MAX_BATCH_BYTES = 1024 * 1024
MAX_NODE = 2**31 - 1
#: The end of the year 9999, after which dates can't be shown.
LAST_MS = 253_402_300_800_000


class EventRows(NamedTuple):
    rows: list[EventRow]
    left_out: int
    """The number of values that are not events."""


def event_rows(values: Iterable[bytes | None]) -> EventRows:
    """Returns the events in the given record values. Counts the values that are not events."""
    found = [_event(value) for value in values if value is not None]
    rows = [row for row in found if row is not None]
    return EventRows(rows, len(found) - len(rows))


def _event(value: bytes) -> EventRow | None:
    if len(value) > MAX_VALUE_BYTES:
        return None
    try:
        found = json.loads(value)
        # Strict JSON has no NaN, no infinity (1e999 is one) and no half of a character: each of them is a ValueError.
        json.dumps(found, allow_nan=False, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    if any(type(found.get(name)) is not expected for name, expected in _TYPES.items()):
        return None
    if not (0 <= found["at_ms"] < LAST_MS and 0 <= found["node"] <= MAX_NODE):
        return None
    return {name: found[name] for name in _TYPES} if _is_small(found["fields"]) else None


def _is_small(fields: dict[str, Any]) -> bool:
    """Returns True if the fields of an event are within the limits MAX_FIELD_VALUES and MAX_DEPTH."""
    level: list[Any] = [fields]
    room = MAX_FIELD_VALUES
    for _ in range(MAX_DEPTH):
        inner: list[Any] = []
        for each in level:
            inner += each.values() if isinstance(each, dict) else each if isinstance(each, list) else ()
        room -= len(inner)
        if not inner or room < 0:
            return room >= 0
        level = inner
    return not any(isinstance(each, dict | list) for each in level)


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
    raise AssertionError("the loop over new events never ends, so this line is not reached")


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
    return [row for each in await consumer.poll() for row in event_rows(_values(each)).rows]


def _values(fetched: Fetched) -> Iterator[bytes | None]:
    """Yields the values of the fetched records. Leaves out the rest of a batch that can't be decoded."""
    wanted = Wanted(fetched.fetch_offset, record_bytes=MAX_VALUE_BYTES, headers=0)
    for _, batch in fetched.batches:
        with suppress(KafkaError):
            for matches, _ in excerpt_steps(batch, wanted, MAX_BATCH_BYTES):
                yield from (record.value for record in matches)
