"""Implements operations on records: read a limited number of records from an offset or a time on, and append records.

`record_rows` converts records to JSON, and `formats/views.py` decodes keys and values.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from penstock.client.consumer import Consumer, ConsumerSettings, Since
from penstock.client.offsets import list_offsets
from penstock.client.producer import Producer
from penstock.http.rest.fields import Field, FieldError, list_of, object_of
from penstock.http.rest.left_out import LeftOut
from penstock.http.rest.problems import Problem
from penstock.http.rest.record_rows import ANSWER_MAX_BYTES, VIEW_FIELDS, answer_size
from penstock.http.rest.routes import Call, Route
from penstock.protocol.vocabulary import EARLIEST, LATEST, READ_COMMITTED
from penstock.records.excerpts import Wanted

if TYPE_CHECKING:
    from penstock.client.fetched import Fetched
    from penstock.http.rest.record_decoder import RecordDecoder, Step
    from penstock.http.rest.service import Service
    from penstock.records.excerpts import Excerpt

RECORDS_MAX = 500
#: Bytes and seconds that one request may spend on a search for matching records.
READ_MAX_BYTES = 8 * 1024 * 1024
READ_S = 5.0
FETCH_BYTES = 256 * 1024
#: A fetch that is still parked when a page is full delays the next page, because pages share a channel.
FETCH_WAIT_MS = 20


@dataclass(slots=True)
class RecordPage:
    """Collects the matching records of one response, until a limit of the response is reached."""

    limit: int
    next_offset: int
    found: list[Excerpt] = field(default_factory=list)
    left_out: LeftOut = field(default_factory=LeftOut)
    full: bool = False
    _room: int = READ_MAX_BYTES
    _answer_room: int = ANSWER_MAX_BYTES

    def add(self, step: Step) -> None:
        for record in step.matches:
            size = answer_size(record)
            self._answer_room -= size
            if self._answer_room < 0 and self.found:
                self.next_offset, self.full = record.offset, True
                return
            self.found.append(record)
            self.spend(size)
            if len(self.found) == self.limit:
                self.next_offset, self.full = record.offset + 1, True
                return
        self.left_out.add(step.problem)
        self.next_offset = max(self.next_offset, step.next_offset)

    def spend(self, size: int) -> None:
        """Adds `size` to the bytes that were read for this response. Marks the page as full at READ_MAX_BYTES."""
        self._room -= size
        self.full = self.full or self._room <= 0


async def read_records(service: Service, call: Call) -> Any:
    """Answers with records of one partition.

    To read the next records, a client sends a request with the `next_offset` of this response as its offset.
    """
    topic, partition = call.path["topic"], call.query["partition"]
    service.partition(topic, partition)
    page, end = await _read(service, call, topic, partition)
    rows = await service.views.rows(partition, page.found, service.views.viewing(topic, call.query))
    return {
        "records": rows,
        "next_offset": page.next_offset,
        "end_offset": end,
        **page.left_out.as_json(),
    }


async def _read(service: Service, call: Call, topic: str, partition: int) -> tuple[RecordPage, int]:
    """Reads the records for one response. Returns them, and the end offset of the partition."""
    client, key = await service.client(), (topic, partition)
    end = (await list_offsets(client, {key: LATEST}))[key].offset
    contains = call.query.get("contains", "").encode()
    settings = ConsumerSettings(READ_COMMITTED, FETCH_WAIT_MS, max_bytes=FETCH_BYTES, partition_max_bytes=FETCH_BYTES)
    async with Consumer(client, settings) as consumer:
        await consumer.assign({key: _start(call)})
        stop_at = asyncio.get_running_loop().time() + READ_S
        page = RecordPage(call.query.get("limit", 50), consumer.position(key))
        if page.next_offset > end:
            raise Problem(
                400,
                f"'offset' can't be {page.next_offset}: {topic}-{partition} ends at offset {end}. Give {end} or less.",
            )
        while page.next_offset < end and not page.full and asyncio.get_running_loop().time() < stop_at:
            for fetched in await consumer.poll():
                await _add_fetched(service.decoder, fetched, contains, page, stop_at)
            if not page.full:
                page.next_offset = max(page.next_offset, consumer.position(key))
    return page, end


async def _add_fetched(
    decoder: RecordDecoder, fetched: Fetched, contains: bytes, page: RecordPage, stop_at: float
) -> None:
    """Adds the matching records of one fetch to the page, until the page is full or the time `stop_at` has come."""
    loop = asyncio.get_running_loop()
    first = page.next_offset
    for header, batch in fetched.batches:
        decoded = decoder.read(header, batch, Wanted(page.next_offset, contains, ANSWER_MAX_BYTES))
        while not page.full and (step := await decoded.next_step()) is not None:
            page.add(step)
            if loop.time() >= stop_at and page.next_offset > first:
                page.full = True
        if page.full:
            return
        page.next_offset = max(page.next_offset, header.next_offset)
        page.spend(len(batch))


def _start(call: Call) -> int | Since:
    if "timestamp_ms" in call.query:
        if "offset" in call.query:
            raise Problem(400, "The parameters 'offset' and 'timestamp_ms' exclude each other: give one of them.")
        return Since(call.query["timestamp_ms"])
    offset: int = call.query.get("offset", EARLIEST)
    return offset


async def produce_records(service: Service, call: Call) -> Any:
    """Appends records with acks=all. The answer has their offsets."""
    topic = call.path["topic"]
    service.topic(topic)
    rows = call.body["records"]
    if not 0 < len(rows) <= RECORDS_MAX:
        raise FieldError(f"'records' has to have 1 to {RECORDS_MAX} items.")
    prepared = [
        (_bytes(each, "key"), _bytes(each, "value"), each.get("partition"), _headers(each.get("headers", {})))
        for each in rows
    ]
    async with Producer(await service.client(), service.broker.clock) as producer:
        sent = [
            await producer.send(topic, value, key, partition=partition, headers=headers)
            for key, value, partition, headers in prepared
        ]
        return {"offsets": [{"partition": one.partition, "offset": one.offset} for one in await _all(sent)]}


async def _all(sent: list[Any]) -> list[Any]:
    return [await each for each in sent]


def _bytes(row: dict[str, Any], name: str) -> bytes | None:
    coded = row.get(f"{name}_base64")
    if coded is None:
        text: str | None = row.get(name)
        return None if text is None else text.encode()
    if name in row:
        raise FieldError(f"a record has both '{name}' and '{name}_base64': give one of them.")
    try:
        return base64.b64decode(coded, validate=True)
    except (binascii.Error, ValueError) as error:
        raise FieldError(f"'{name}_base64' is not base64: {error}") from error


def _headers(given: dict[str, str | None]) -> tuple[tuple[str, bytes | None], ...]:
    return tuple((name, None if value is None else value.encode()) for name, value in given.items())


TOPIC = {"topic": Field("string", "name of the topic")}
ROUTES = (
    Route(
        "GET",
        "/v1/topics/{topic}/records",
        "Reads records of a partition",
        read_records,
        path=TOPIC,
        query={
            "partition": Field("integer", required=True, low=0, high=2**31 - 1),
            "offset": Field("integer", "first offset; default: the first record", low=0),
            "timestamp_ms": Field("integer", "reads from the first record at or after this time", low=0),
            "limit": Field("integer", low=1, high=RECORDS_MAX),
            "contains": Field("string", "only records with this text in their key or value"),
            **VIEW_FIELDS,
        },
        own_acls=True,
    ),
    Route(
        "POST",
        "/v1/topics/{topic}/records",
        "Appends records",
        produce_records,
        path=TOPIC,
        body={
            "records": list_of(
                object_of(
                    {
                        "key": Field("string"),
                        "key_base64": Field("string"),
                        "value": Field("string"),
                        "value_base64": Field("string"),
                        "partition": Field("integer", "default: chosen by the key", low=0),
                        "headers": Field("object", "values by name"),
                    }
                ),
                required=True,
            )
        },
        status=201,
        own_acls=True,
    ),
)
