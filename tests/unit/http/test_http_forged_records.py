"""Tests REST reads of malformed records: wrong offsets, wrong lengths and a million headers.

Pages, searches and live tails continue after such records, and report which records they left out.
"""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from rest_harness import HTTP, LIMIT_S, append_batch, ask, ended, url_of

from penstock.http.messages import JSON_CHARACTERS, JSON_ITEMS, Encoded, as_json
from penstock.http.streams import message
from penstock.records.build import build_batch, encode_record, seal
from penstock.records.compression import Codec, compress
from penstock.records.header import HEADER_SIZE, parse_header
from penstock.records.varint import varint
from penstock.testing import Broker

pytestmark = pytest.mark.exhaustive

#: Records of 1970 would be deleted by retention.
NOW_MS = int(time.time() * 1000)
RECORDS = "/v1/topics/{}/records?partition=0"


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(config=HTTP) as running:
        yield running


def forged(payload: bytes, count: int, codec: Codec = Codec.NONE) -> bytes:
    """Returns a batch with a valid header and CRC around any payload."""
    packed = compress(codec, payload)
    header = parse_header(build_batch([(NOW_MS, None, b"", ())]))
    header = header._replace(records_count=count, last_offset_delta=count - 1, attributes=codec)
    return seal(header, packed) + packed


def honest(*values: bytes) -> bytes:
    return build_batch([(NOW_MS, None, value, ()) for value in values])


def undecodable(codec: Codec) -> bytes:
    """Returns a batch of two records. The second record has an invalid length."""
    payload = encode_record(0, 0, None, b"good") + varint(-7) + bytes(20)
    return forged(payload, 2, codec)


def damaged(codec: Codec) -> bytes:
    """Returns a batch with a valid CRC whose compressed bytes are damaged."""
    whole = build_batch([(NOW_MS, None, bytes(500), ())], compression=codec)
    payload = bytes(each ^ 0x5A for each in whole[HEADER_SIZE:])
    return seal(parse_header(whole), payload) + payload


def pages(broker: Broker, topic: str, limit: int) -> Iterator[dict[str, Any]]:
    """Reads a topic page by page, and checks that each page begins after the previous page."""
    offset = 0
    while True:
        answer = ask(broker, "GET", RECORDS.format(topic) + f"&limit={limit}&offset={offset}")
        assert answer.status == 200, answer
        page = answer.value
        assert all(offset <= each["offset"] < page["next_offset"] for each in page["records"]), page
        yield page
        if page["next_offset"] == page["end_offset"]:
            return
        assert offset < page["next_offset"], page
        offset = page["next_offset"]


def texts(rows: list[dict[str, Any]]) -> list[str]:
    return [each["value"]["text"] for each in rows]


@pytest.mark.parametrize("deltas", [(0, 0, 0, 0), (3, 2, 1, 0), (9, 9, 9, 9), (-(2**31), 2**31 - 1, 5, -1)])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_rest_pages_have_increasing_offsets_even_if_a_producer_wrote_wrong_offsets(
    broker: Broker, deltas: tuple[int, ...], codec: Codec
) -> None:
    topic = f"offsets-{codec}-{'-'.join(map(str, deltas))}".replace("--", "-m")
    broker.create_topic(topic, 1)
    append_batch(broker, topic, honest(b"first"))
    payload = b"".join(encode_record(0, delta, None, b"v%d" % number) for number, delta in enumerate(deltas))
    append_batch(broker, topic, forged(payload, 4, codec))
    append_batch(broker, topic, honest(b"last"))
    for limit in (1, 2, 50):
        rows = [row for page in pages(broker, topic, limit) for row in page["records"]]
        assert [each["offset"] for each in rows] == list(range(6))
        assert texts(rows) == ["first", "v0", "v1", "v2", "v3", "last"]
    operation = ask(broker, "POST", f"/v1/topics/{topic}/search", {"contains": "v"})
    result = ended(broker, operation)["result"]
    assert [each["offset"] for each in result["records"]] == [1, 2, 3, 4]
    assert result["complete"] is True


@pytest.mark.parametrize("codec", list(Codec))
def test_rest_pages_and_searches_omit_undecodable_batches_and_show_the_batches_after_them(
    broker: Broker, codec: Codec
) -> None:
    topic = f"undecodable-{codec}"
    broker.create_topic(topic, 1)
    append_batch(broker, topic, build_batch([(NOW_MS - 1000, None, b"good before", ())]))
    append_batch(broker, topic, undecodable(codec))
    if codec:
        append_batch(broker, topic, damaged(codec))
    append_batch(broker, topic, honest(b"good after"))
    expected, left_out = ["good before", "good", "good after"], 2 if codec else 1
    page = ask(broker, "GET", RECORDS.format(topic)).value
    assert texts(page["records"]) == expected
    assert page["next_offset"] == page["end_offset"]
    assert page["batches_left_out"] == len(page["problems"]) == left_out
    assert page["problems"][0].startswith("Offset 2 can't be shown: A record claims the impossible length -7")
    by_time = ask(broker, "GET", RECORDS.format(topic) + f"&timestamp_ms={NOW_MS}").value
    assert texts(by_time["records"]) == expected[1:]
    found = ended(broker, ask(broker, "POST", f"/v1/topics/{topic}/search", {"contains": "good"}))
    assert (found["state"], found["result"]["complete"]) == ("done", True)
    assert texts(found["result"]["records"]) == expected
    assert found["result"]["batches_left_out"] == left_out
    assert found["result"]["problems"][0].startswith(f"{topic}-0: Offset 2 can't be shown: ")


def test_record_stream_reports_an_undecodable_batch_and_continues_with_the_next_batch(broker: Broker) -> None:
    broker.create_topic("tailed", 1)
    for batch in (undecodable(Codec.NONE), honest(b"after")):
        append_batch(broker, "tailed", batch)
    url = f"{url_of(broker)}/v1/topics/tailed/records/stream?partition=0&offset=0"
    events: list[tuple[str, Any]] = []
    with urllib.request.urlopen(url, timeout=LIMIT_S) as answer:
        kind = ""
        while len(events) < 3:
            name, _, value = answer.readline().decode().rstrip("\n").partition(": ")
            if name == "event":
                kind = value
            elif name == "data":
                events.append((kind, json.loads(value)))
    assert [kind for kind, _ in events] == ["record", "left_out", "record"]
    assert events[1][1]["partition"] == 0
    assert events[1][1]["detail"].startswith("Offset 1 can't be shown: ")
    assert events[2][1]["offset"] == 2


def test_rest_read_shows_only_the_first_headers_of_a_record_with_a_million_headers(broker: Broker) -> None:
    broker.create_topic("headers", 1)
    count = 1_000_000
    body = b"\0\0\0" + varint(-1) + varint(1) + b"v" + varint(count) + b"\0\1" * count
    append_batch(broker, "headers", forged(varint(len(body)) + body, 1, Codec.ZSTD))
    few = build_batch([(NOW_MS, None, b"few", (("a", b"1"), ("b", None)))])
    append_batch(broker, "headers", few)
    long, short = ask(broker, "GET", RECORDS.format("headers")).value["records"]
    assert (long["value"], len(long["headers"]), long["headers_left_out"]) == ({"text": "v"}, 1000, count - 1000)
    assert short["headers"] == [{"name": "a", "value": {"text": "1"}}, {"name": "b", "value": None}]
    assert short["headers_left_out"] == 0


def test_json_encoder_returns_valid_json_for_long_strings_and_lists() -> None:
    long = 'ä"\\\n\0😀' * JSON_CHARACTERS
    value = {"text": long, "many": list(range(3 * JSON_ITEMS + 1)), "empty": {}, "rows": [Encoded(b'{"a":1}')] * 2}
    expected = value | {"rows": [{"a": 1}, {"a": 1}]}
    assert json.loads(as_json(value).body) == expected
    assert message("record", Encoded(b"{}")) == b"event: record\ndata: {}\n\n"
