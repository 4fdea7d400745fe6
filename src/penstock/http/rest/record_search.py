"""Streams new records of a topic as server-sent events, and searches a whole topic in the background.

Both use a separate channel of the client, and decode in the thread of `RecordDecoder`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.client.consumer import Consumer, ConsumerSettings, Position
from penstock.client.offsets import list_offsets
from penstock.http.rest.fields import Field, list_of
from penstock.http.rest.groups import partitions_of_topics
from penstock.http.rest.left_out import LeftOut
from penstock.http.rest.problems import Problem
from penstock.http.rest.record_decoder import Step
from penstock.http.rest.record_rows import ANSWER_MAX_BYTES, SEARCH_LIMITS, VIEW_FIELDS, answer_size
from penstock.http.rest.records import FETCH_BYTES, RECORDS_MAX, TOPIC
from penstock.http.rest.routes import Call, Route
from penstock.http.streams import HEARTBEAT, HEARTBEAT_S, message
from penstock.protocol.errors import KafkaError
from penstock.protocol.vocabulary import EARLIEST, LATEST, READ_COMMITTED
from penstock.records.excerpts import Wanted

if TYPE_CHECKING:
    from penstock.client.client import AsyncClient
    from penstock.client.fetched import Fetched
    from penstock.http.messages import Encoded
    from penstock.http.operations import Operation
    from penstock.http.rest.record_decoder import RecordDecoder
    from penstock.http.rest.service import Service
    from penstock.http.streams import Chunks
    from penstock.protocol.vocabulary import TopicPartition
    from penstock.records.excerpts import Excerpt

Rows = Callable[[int, "Sequence[Excerpt]"], Awaitable["list[Encoded]"]]
"""Converts the records of a partition to JSON."""
Decode = Callable[["list[Fetched]"], AsyncIterator[tuple[int, "Step"]]]
"""Yields the steps of fetched batches, with their partitions."""
#: Partitions that one stream or search may read.
PARTITIONS_MAX = 1000
#: Records that a stream sends after one fetch; the others are skipped and counted.
ROUND_MAX = 100
#: Pause between two fetches of a stream. With ROUND_MAX it bounds the rate of a stream.
ROUND_S = 0.5
#: A longer record is sent without its value.
STREAMED_MAX_BYTES = 64 * 1024


# --- live tail


async def stream_records(service: Service, call: Call) -> Any:
    """Sends new records of a topic. If records arrive too fast, skips some of them and sends their number."""
    wanted = _wanted(service, call.path["topic"], call.query.get("partition"))
    client = await service.client()
    position: Position = LATEST
    if "offset" in call.query:
        if len(wanted) != 1:
            raise Problem(
                400,
                "The parameter 'offset' needs the parameter 'partition', because each partition has its own offsets.",
            )
        position = call.query["offset"]
    contains = call.query.get("contains", "").encode()

    def rows(partition: int, records: Sequence[Excerpt]) -> Awaitable[list[Encoded]]:
        return service.views.rows(partition, records, service.views.viewing(call.path["topic"], call.query))

    start, decode = dict.fromkeys(wanted, position), partial(_decoded, service.decoder, contains)
    return service.streams.open(service.caller.user, lambda slot: _tail(client, slot, start, decode, rows))


async def _tail(
    client: AsyncClient, slot: int, start: Mapping[TopicPartition, Position], decode: Decode, rows: Rows
) -> Chunks:
    settings = ConsumerSettings(
        READ_COMMITTED,
        max_bytes=FETCH_BYTES,
        partition_max_bytes=FETCH_BYTES,
        reset=LATEST,
        channel=f"stream-{slot}",
    )
    yield HEARTBEAT
    try:
        async with Consumer(client, settings) as consumer:
            await consumer.assign(start)
            async for chunk in _followed(consumer, decode, rows):
                yield chunk
    except KafkaError as error:  # the topic was deleted, for example, or an ACL
        yield message("problem", {"detail": error.message or error.code.name, "kafka_error": error.code.name})


async def _followed(consumer: Consumer, decode: Decode, rows: Rows) -> AsyncIterator[bytes]:
    silent_s = 0.0
    while True:
        fetched = await consumer.poll(ROUND_S)
        sent = 0
        async for partition, step in decode(fetched):
            for row in await rows(partition, step.matches[: max(0, ROUND_MAX - sent)]):
                yield message("record", row)
            sent += len(step.matches)
            if step.problem:
                yield message("left_out", {"partition": partition, "detail": step.problem})
        skipped = max(0, sent - ROUND_MAX) + await _catch_up(consumer, fetched)
        if skipped:
            yield message("skipped", {"records": skipped})
        silent_s = 0.0 if sent or skipped else silent_s + ROUND_S
        if silent_s >= HEARTBEAT_S:
            yield HEARTBEAT
            silent_s = 0.0
        if fetched:
            await asyncio.sleep(ROUND_S)


async def _catch_up(consumer: Consumer, fetched: list[Fetched]) -> int:
    """Skips to the end of each partition in which the consumer is far behind. Returns the number of skipped offsets."""
    behind = {
        (each.topic, each.partition): each.last_stable_offset
        for each in fetched
        if each.last_stable_offset - each.next_offset > ROUND_MAX
    }
    if not behind:
        return 0
    skipped = sum(end - consumer.position(key) for key, end in behind.items())
    await consumer.seek(behind)
    return max(0, skipped)


async def _decoded(decoder: RecordDecoder, contains: bytes, fetched: list[Fetched]) -> AsyncIterator[tuple[int, Step]]:
    """Decodes fetched batches. Yields (partition, decoded part) for parts with matching records or a problem."""
    for each in fetched:
        first = each.fetch_offset
        for header, batch in each.batches:
            decoded = decoder.read(header, batch, Wanted(first, contains, STREAMED_MAX_BYTES))
            while (step := await decoded.next_step()) is not None:
                if step.matches or step.problem:
                    yield each.partition, step
            first = max(first, header.next_offset)


# --- search


async def search_records(service: Service, call: Call) -> Any:
    """Searches a topic for records that contain a text in key or value, as an operation."""
    topic, body = call.path["topic"], call.body
    if not body["contains"]:
        raise Problem(400, "The field 'contains' is empty: give the text to search for.")
    known = _wanted(service, topic, None)
    wanted = [(topic, index) for index in dict.fromkeys(body["partitions"])] if "partitions" in body else known
    for each in wanted:
        if each not in known:
            raise Problem(404, f"There is no partition {topic}-{each[1]}.")
    client, since = await service.client(), body.get("timestamp_ms", EARLIEST)
    ends = await list_offsets(client, dict.fromkeys(wanted, LATEST), isolation_level=READ_COMMITTED)
    starts = await list_offsets(client, dict.fromkeys(wanted, since))
    ranges = {
        key: (starts[key].offset, ends[key].offset) for key in wanted if 0 <= starts[key].offset < ends[key].offset
    }
    limit, contains = body.get("limit", 100), body["contains"]

    async def work(operation: Operation) -> None:
        rows: list[Encoded] = []
        left_out = LeftOut()
        operation.result.update(records=rows, complete=False, **left_out.as_json())
        room = ANSWER_MAX_BYTES
        viewing = service.views.viewing(topic, body, SEARCH_LIMITS)
        decode = partial(_decoded, service.decoder, contains.encode())
        for key, (start, end) in ranges.items():
            async for step, moved in _found(client, key, start, end, decode):
                operation.advance(moved)
                left_out.add(step.problem and f"{topic}-{key[1]}: {step.problem}")
                operation.result.update(left_out.as_json())
                taken = _fitting(step.matches, limit - len(rows), room)
                room -= sum(map(answer_size, taken))
                rows += await service.views.rows(key[1], taken, viewing)
                if len(taken) < len(step.matches):
                    operation.note("The search stopped, because the result is full: search for a longer text.")
                    return
        operation.result["complete"] = True

    about = f"searches {topic} for {contains[:60]!r}"
    total = sum(end - start for start, end in ranges.values())
    return service.begin("search", about, work, unit="offsets", total=total)


def _fitting(records: Sequence[Excerpt], limit: int, room: int) -> list[Excerpt]:
    """Returns the first records, as many as fit into a result: at most `limit` records and `room` bytes."""
    taken: list[Excerpt] = []
    for each in records:
        room -= answer_size(each)
        if len(taken) >= limit or room < 0:
            break
        taken.append(each)
    return taken


async def _found(
    client: AsyncClient, key: TopicPartition, start: int, end: int, decode: Decode
) -> AsyncIterator[tuple[Step, int]]:
    """Reads the offsets from `start` to `end` - 1 of a partition, and yields the decoded parts of batches.

    Yields (decoded part, 0) for each part, and (empty part, number of offsets read) after each fetch.
    """
    settings = ConsumerSettings(
        READ_COMMITTED, max_bytes=FETCH_BYTES, partition_max_bytes=FETCH_BYTES, reset=EARLIEST, channel="search"
    )
    async with Consumer(client, settings) as consumer:
        await consumer.assign({key: start})
        at = start
        while at < end:
            fetched = await consumer.poll()
            async for _, step in decode(fetched):
                yield step._replace(matches=[each for each in step.matches if each.offset < end]), 0
            reached = min(end, max(at, consumer.position(key)))
            yield Step([], reached), reached - at
            at = reached


def _wanted(service: Service, topic: str, partition: int | None) -> list[TopicPartition]:
    wanted = partitions_of_topics(service, [topic])
    if partition is not None:
        wanted = [each for each in wanted if each[1] == partition]
        if not wanted:
            raise Problem(404, f"There is no partition {topic}-{partition}.")
    if len(wanted) > PARTITIONS_MAX:
        raise Problem(400, f"Topic {topic!r} has {len(wanted)} partitions: name one of them.")
    return wanted


ROUTES = (
    Route(
        "GET",
        "/v1/topics/{topic}/records/stream",
        "Sends new records of a topic as server-sent events",
        stream_records,
        path=TOPIC,
        query={
            "partition": Field("integer", "default: all partitions", low=0, high=2**31 - 1),
            "offset": Field("integer", "first offset of the partition; default: the end", low=0),
            "contains": Field("string", "only records with this text in their key or value"),
            **VIEW_FIELDS,
        },
        streams=True,
        own_acls=True,
    ),
    Route(
        "POST",
        "/v1/topics/{topic}/search",
        "Searches all records of a topic for a text in their key or value",
        search_records,
        path=TOPIC,
        body={
            "contains": Field("string", "the text", required=True),
            "partitions": list_of(Field("integer", low=0), "default: all partitions"),
            "timestamp_ms": Field("integer", "only records at or after this time", low=0),
            "limit": Field("integer", "records in the result; default: 100", low=1, high=RECORDS_MAX),
            **VIEW_FIELDS,
        },
        status=202,
        own_acls=True,
    ),
)
