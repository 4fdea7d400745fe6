"""Implements operations on records: read a limited number of records from an offset or a time on, and append records.

`record_rows` says how an answer shows a record, and `formats/views.py` how it shows a key or value.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.client.consumer import Consumer, ConsumerSettings, Since
from penstock.client.offsets import list_offsets
from penstock.client.producer import Producer
from penstock.http.rest.fields import Field, FieldError, list_of, object_of
from penstock.http.rest.problems import Problem
from penstock.http.rest.record_rows import ANSWER_MAX_BYTES, VIEW_FIELDS, matching_records, record_size
from penstock.http.rest.routes import Call, Route
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.vocabulary import EARLIEST, LATEST, READ_COMMITTED

if TYPE_CHECKING:
    from penstock.http.rest.service import Service
    from penstock.records.record import Record

RECORDS_MAX = 500
#: Bytes and seconds that one request may spend on a search for matching records.
READ_MAX_BYTES = 8 * 1024 * 1024
READ_S = 5.0
FETCH_BYTES = 256 * 1024


async def read_records(service: Service, call: Call) -> Any:
    """Reads records of one partition.

    To go on, a client passes `next_offset` of the answer as the offset of its next request.
    """
    topic, partition = call.path["topic"], call.query["partition"]
    service.partition(topic, partition)
    found = await _read(service, call, topic, partition)
    rows = await service.views.rows(partition, found.records, service.views.viewing(topic, call.query))
    return {**found._asdict(), "records": rows}


class _Found(NamedTuple):
    records: list[Record]
    next_offset: int
    end_offset: int
    batches_left_out: int


async def _read(service: Service, call: Call, topic: str, partition: int) -> _Found:
    client, key = await service.client(), (topic, partition)
    end = (await list_offsets(client, {key: LATEST}))[key].offset
    limit, wanted = call.query.get("limit", 50), call.query.get("contains", "").encode()
    found: list[Record] = []
    room, answer_room, left_out = READ_MAX_BYTES, ANSWER_MAX_BYTES, 0
    settings = ConsumerSettings(READ_COMMITTED, max_bytes=FETCH_BYTES, partition_max_bytes=FETCH_BYTES)
    stop_at = asyncio.get_running_loop().time() + READ_S
    async with Consumer(client, settings) as consumer:
        await consumer.assign({key: _start(call)})
        next_offset = consumer.position(key)
        if next_offset > end:
            raise Problem(400, f"offset can't be {next_offset}: {topic}-{partition} ends at {end}.")
        while next_offset < end and len(found) < limit and room > 0 and asyncio.get_running_loop().time() < stop_at:
            for fetched in await consumer.poll():
                for header, batch in fetched.batches:
                    try:
                        records = await asyncio.to_thread(matching_records, batch, fetched.fetch_offset, wanted)
                    except KafkaError as error:
                        if error.code is not ErrorCode.MESSAGE_TOO_LARGE:
                            raise
                        records, left_out = [], left_out + 1
                    for record in records:
                        answer_room -= record_size(record)
                        if len(found) >= limit or (answer_room < 0 and found):
                            return _Found(found, record.offset, end, left_out)
                        found.append(record)
                    next_offset = header.base_offset + header.last_offset_delta + 1
                    room -= len(batch) + sum(map(record_size, records))
                    if room <= 0:
                        return _Found(found, next_offset, end, left_out)
            next_offset = max(next_offset, consumer.position(key))
    return _Found(found, next_offset, end, left_out)


def _start(call: Call) -> int | Since:
    if "timestamp_ms" in call.query:
        if "offset" in call.query:
            raise Problem(400, "The parameters offset and timestamp_ms exclude each other: give one of them.")
        return Since(call.query["timestamp_ms"])
    offset: int = call.query.get("offset", EARLIEST)
    return offset


async def produce_records(service: Service, call: Call) -> Any:
    """Appends records with acks=all. The answer has their offsets."""
    topic = call.path["topic"]
    service.topic(topic)
    rows = call.body["records"]
    if not 0 < len(rows) <= RECORDS_MAX:
        raise FieldError(f"records has to have 1 to {RECORDS_MAX} items.")
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
        raise FieldError(f"a record has both {name} and {name}_base64: give one of them.")
    try:
        return base64.b64decode(coded, validate=True)
    except (binascii.Error, ValueError) as error:
        raise FieldError(f"{name}_base64 is not base64: {error}") from error


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
