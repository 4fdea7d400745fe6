"""Tests the JSON object of a record, which `consume -J` writes and `produce -J` reads."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.cli.envelope import envelopes, read_envelope
from penstock.cli.exit import Exit, Failure
from penstock.cli.format import Place
from penstock.records.record import Record

pytestmark = pytest.mark.exhaustive

RECORD = Record(42, 1_700_000_000_000, b"k", b"value", (("a", b"1"), ("b", None)))
maybe_bytes = st.none() | st.binary() | st.text().map(str.encode)


def test_record_is_written_as_one_line_of_json() -> None:
    line = envelopes(Place("t", 3), [RECORD])
    assert line.endswith(b"}\n")
    assert json.loads(line) == {
        "topic": "t",
        "partition": 3,
        "offset": 42,
        "tstype": "create",
        "ts": 1_700_000_000_000,
        "headers": ["a", "1", "b", None],
        "key": "k",
        "payload": "value",
    }


@given(
    key=maybe_bytes,
    value=maybe_bytes,
    headers=st.lists(st.tuples(st.text(), maybe_bytes)).map(tuple),
    timestamp=st.integers(-1, 2**63 - 1),
)
def test_record_with_any_bytes_is_written_as_json_and_read_back_unchanged(
    key: bytes | None, value: bytes | None, headers: tuple[tuple[str, bytes | None], ...], timestamp: int
) -> None:
    line = envelopes(Place("t", 0), [Record(0, timestamp, key, value, headers)])
    assert line.count(b"\n") == 1
    assert read_envelope(line) == (key, value, headers, timestamp)


def test_json_of_a_record_lists_the_fields_that_are_written_in_base64() -> None:
    shown = json.loads(
        envelopes(Place("t", 3), [RECORD._replace(value=b"\xff\xfe", headers=(("a", b"\x80"), ("b", None)))])
    )
    assert shown["payload"] == "//4="
    assert shown["headers"] == ["a", "gA==", "b", None]
    assert shown["key"] == "k"
    assert shown["base64"] == ["headers", "payload"]


def test_json_of_a_record_escapes_terminal_control_characters() -> None:
    line = envelopes(Place("t", 3), [RECORD._replace(value="\x1b[2J\x7f\x9b2J".encode())])
    assert line.isascii()
    assert b"\x1b" not in line
    assert b"\x7f" not in line
    assert read_envelope(line)[1] == "\x1b[2J\x7f\x9b2J".encode()


def test_produce_accepts_the_json_fields_that_kcat_writes() -> None:
    line = b'{"topic":"t","partition":0,"offset":1,"broker":2,"tstype":"create","ts":3,"key":null,"payload":"v"}'
    assert read_envelope(line) == (None, b"v", (), 3)


def test_null_payload_is_a_tombstone_and_a_missing_payload_is_refused() -> None:
    assert read_envelope(b'{"key":"k","payload":null}') == (b"k", None, (), None)
    with pytest.raises(Failure, match='the record has no "payload"') as refused:
        read_envelope(b'{"key":"k","value":"v"}')
    assert refused.value.code == Exit.USAGE


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"", "not JSON"),
        (b"\xff\xff\xff", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[]", "not a JSON object"),
        (b'{"payload":1}', "not text"),
        (b'{"payload":"\\ud800"}', "surrogate"),
        (b'{"payload":"!","base64":["payload"]}', "not valid base64"),
        (b'{"payload":"YQ==","base64":["value"]}', "list with any of key, payload, headers"),
        (b'{"payload":"YQ==","base64":"payload"}', "list with any of key, payload, headers"),
        (b'{"payload":"","headers":["a"]}', "names"),
        (b'{"payload":"","headers":[1,"a"]}', "names"),
        (b'{"payload":"","headers":["\\udfff","a"]}', "surrogate"),
        (b'{"payload":"","ts":"now"}', "milliseconds"),
        (b'{"payload":"","timestamp":"zz"}', 'timestamp" is not a field of a record: "ts" has the time'),
        (b'{"payload":"","colour":1}', 'colour" is not a field of a record'),
        (b'{"payload":"","partition":77}', "choose a partition with -p"),
        (b'{"payload":"","ts":1e400}', "milliseconds"),
        (b'{"payload":"","ts":9223372036854775808}', "milliseconds"),
    ],
)
def test_produce_refuses_an_invalid_json_object_in_one_sentence(line: bytes, reason: str) -> None:
    with pytest.raises(Failure, match=reason):
        read_envelope(line)
