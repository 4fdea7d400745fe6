"""JSON bodies that are long, deep, or ambiguous: they are refused with a sentence, and never hold the event loop."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from penstock.formats.gradual_json import SMALL_BYTES, loads
from penstock.http.rest import bodies
from penstock.http.rest.bodies import BodyReader
from penstock.http.rest.fields import INTEGER_MAX, MAX_TEXT, Field, FieldError, check_object, list_of, object_of

FIELDS = {
    "count": Field("integer"),
    "name": Field("string"),
    "configs": object_of({}),
    "items": list_of(list_of(Field("integer"))),
}
LONG = b" " * SMALL_BYTES


@pytest.fixture
def reader() -> Iterator[BodyReader]:
    made = BodyReader()
    yield made
    made.close()


def read(reader: BodyReader, body: bytes, fields: Mapping[str, Field] = FIELDS) -> dict[str, Any]:
    return asyncio.run(reader.read(fields, body))


@pytest.mark.parametrize("padding", [b"", LONG], ids=["short", "long"])
@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b'{"count": 1, "count": 2}', "field 'count' twice"),
        (b'{"configs": {"a": "1", "a": "2"}}', "field 'a' twice"),
        (b'{"count": ' + b"1" * 5_000 + b"}", "not JSON"),
        (b'{"count": 9223372036854775808}', "'count' has to be a whole number"),
        (b'{"count": 1e999}', "'count' has to be a whole number"),
        (b'{"count": NaN}', "'count' has to be a whole number"),
        (b'{"name": "\\ud800"}', "'name' has to be a string"),
        (b'{"\\ud800": 1}', "there is no field"),
        (b'{"configs": {"\\udfff": "1"}}', "each value in 'configs' has to be valid text"),
        (b'{"items": ' + b"[" * 5_000 + b"]" * 5_000 + b"}", "nested too deeply"),
        (b'{"items": ' + b'{"a":' * 2_500 + b"1" + b"}" * 2_500 + b"}", "nested too deeply"),
        (b'{"count": 1', "not JSON"),
        (b"\xff\xfe\xfd", "not JSON"),
    ],
)
def test_invalid_or_ambiguous_json_body_is_refused_with_the_reason(
    reader: BodyReader, padding: bytes, body: bytes, reason: str
) -> None:
    with pytest.raises(FieldError, match=reason):
        read(reader, padding + body)


def test_json_body_with_a_too_long_key_or_value_in_a_map_is_refused(reader: BodyReader) -> None:
    good = {"configs": {"k" * MAX_TEXT: "v" * MAX_TEXT, "none": None}}
    assert read(reader, json.dumps(good).encode()) == good
    for wrong in ({"k" * (MAX_TEXT + 1): ""}, {"k": "v" * (MAX_TEXT + 1)}):
        with pytest.raises(FieldError, match="at most 65536 characters"):
            read(reader, json.dumps({"configs": wrong}).encode())


def test_long_body_is_parsed_and_checked_in_a_thread_and_a_short_one_on_the_loop(
    reader: BodyReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = []

    def noted(fields: Mapping[str, Field], value: Any) -> dict[str, Any]:
        threads.append(threading.current_thread())
        return check_object(fields, value)

    monkeypatch.setattr(bodies, "check_object", noted)
    value = {"count": INTEGER_MAX, "items": [[-1 - INTEGER_MAX], []]}
    assert read(reader, json.dumps(value).encode()) == read(reader, LONG + json.dumps(value).encode()) == value
    assert threads[0] is threading.main_thread()
    assert threads[1].name.startswith("penstock-http-bodies")
    assert read(reader, b"") == {}


def test_long_json_is_parsed_by_python_code_so_that_other_threads_run_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    value = {"lists": [[], {}, [1, -2.5e3]], "text": 'a"b\\ä\U0001f600', "more": [True, False, None] * 6_000}
    data = json.dumps(value).encode()
    assert len(data) > SMALL_BYTES
    assert loads(data) == value
    monkeypatch.setattr(json, "loads", None)
    assert loads(data) == value
