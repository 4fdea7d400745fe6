"""Tests decoded keys and values in REST responses: reads, streams and searches, with schema files and bad input."""

from __future__ import annotations

import base64
import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rest_harness import HTTP, LIMIT_S, ask, ended, url_of

from penstock.formats.views import VIEWS, AnswerLimits
from penstock.http.rest import record_search
from penstock.node.listeners import ListenerError
from penstock.testing import Broker

ORDER = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
FIVE = b"\x0a"
TOPIC = "/v1/topics/orders"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    directory: Path = tmp_path_factory.mktemp("schemas")
    (directory / "orders-value.avsc").write_text(json.dumps(ORDER))
    with Broker(topics={"orders": 1}, config={**HTTP, "penstock.schemas.dir": str(directory)}) as running:
        with running.client() as client, client.producer() as producer:
            for key, value in ((b"needle", FIVE), (b"\xff", b"broken!"), (None, None)):
                producer.send("orders", value, key).result()
        yield running


def values(broker: Broker, query: str = "") -> list[Any]:
    answer = ask(broker, "GET", f"{TOPIC}/records?partition=0{query}")
    assert answer.status == 200
    return [(each["key"], each["value"]) for each in answer.value["records"]]


def test_rest_read_decodes_values_with_the_schema_file_and_gives_a_reason_for_undecodable_values(
    broker: Broker,
) -> None:
    first, second, third = values(broker)
    assert first == (
        {"text": "needle"},
        {"text": "\n", "view": "avro", "decoded": {"id": 5}, "schema": "orders-value.avsc"},
    )
    key, value = second
    assert (key, value["text"]) == ({"base64": "/w=="}, "broken!")
    assert "can't be shown by its schema: 6 bytes follow the Avro value" in value["problem"]
    assert third == (None, None)


@pytest.mark.parametrize("view", VIEWS)
def test_rest_read_returns_every_record_in_every_requested_format(broker: Broker, view: str) -> None:
    found = values(broker, f"&key_view={view}&value_view={view}")
    assert len(found) == 3
    for key, value in found[:2]:
        for each in (key, value):
            assert each.keys() & {"text", "base64"}
            assert each.keys() <= {"text", "base64", "view", "decoded", "schema", "problem"}


def test_rest_read_shows_values_as_bytes_and_keys_as_protobuf_if_requested(broker: Broker) -> None:
    (_, value), *_ = values(broker, "&value_view=bytes")
    assert value == {"base64": base64.b64encode(FIVE).decode()}
    (key, _), *_ = values(broker, "&key_view=protobuf")
    assert key["problem"].startswith("The key can't be shown as Protobuf: ")


def test_rest_request_with_an_unknown_record_format_is_refused(broker: Broker) -> None:
    for path in (f"{TOPIC}/records?partition=0&", f"{TOPIC}/records/stream?"):
        answer = ask(broker, "GET", f"{path}value_view=thrift")
        assert (answer.status, answer.kind) == (400, "application/problem+json")
        assert "'value_view' can't be 'thrift': give one of auto, text" in answer.value["detail"]
    assert ask(broker, "POST", f"{TOPIC}/search", {"contains": "x", "key_view": "thrift"}).status == 400


def test_record_streams_and_searches_decode_records_like_a_read(broker: Broker) -> None:
    expected = values(broker)[0]
    stream = f"{url_of(broker)}{TOPIC}/records/stream?partition=0&offset=0&contains=needle"
    with urllib.request.urlopen(stream, timeout=LIMIT_S) as lines:
        row = next(json.loads(line[5:]) for line in lines if line.startswith(b"data:"))
    assert (row["key"], row["value"]) == expected
    found = ended(broker, ask(broker, "POST", f"{TOPIC}/search", {"contains": "needle"}))["result"]
    assert [(each["key"], each["value"]) for each in found["records"]] == [expected]
    body = {"contains": "needle", "value_view": "bytes"}
    found = ended(broker, ask(broker, "POST", f"{TOPIC}/search", body))["result"]
    assert found["records"][0]["value"] == {"base64": "Cg=="}


def test_record_search_decodes_a_limited_number_of_values(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_search, "SEARCH_LIMITS", AnswerLimits(values=4))
    broker.create_topic("lists", 2)
    with broker.client() as client, client.producer() as producer:
        for partition in (0, 1):  # each partition is a step of its own
            producer.send("lists", b"[1, 2]", partition=partition).result()
    body = {"contains": "[", "value_view": "json"}
    found = ended(broker, ask(broker, "POST", "/v1/topics/lists/search", body))["result"]["records"]
    assert sorted("decoded" in each["value"] for each in found) == [False, True]


def test_openapi_document_lists_the_record_formats(broker: Broker) -> None:
    served = ask(broker, "GET", "/v1/openapi.json").value
    fields = {
        each["name"]: each["schema"] for each in served["paths"]["/v1/topics/{topic}/records"]["get"]["parameters"]
    }
    assert fields["key_view"]["enum"] == fields["value_view"]["enum"] == list(VIEWS)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"penstock.schemas.dir": "/nowhere/at/all"}, "is not a directory"),
        (
            {"penstock.schema.registry.url": "registry:8081"},
            "penstock.schema.registry.url can't be used: the URL must begin with http",
        ),
        (
            {
                "penstock.schema.registry.url": "http://registry",
                "penstock.schema.registry.basic.auth.user.info": "ann:secret",
            },
            "is not protected",
        ),
        (
            {
                "penstock.schema.registry.url": "https://registry",
                "penstock.schema.registry.ssl.truststore.location": "/nowhere/at/all",
            },
            "penstock.schema.registry.ssl.truststore.location",
        ),
    ],
)
def test_node_with_unusable_schema_settings_does_not_start_and_the_error_has_the_reason(
    config: dict[str, str], reason: str
) -> None:
    with pytest.raises(ListenerError, match=reason), Broker(config={**HTTP, **config}):
        pass
