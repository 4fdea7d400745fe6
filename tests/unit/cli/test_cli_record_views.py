"""Tests `penstock consume -s`: decoded keys and values, data that can't be decoded, and invalid options."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.cli.exit import Exit
from penstock.cli.main import main
from penstock.cli.record_views import parse_views
from penstock.testing import Broker

ORDER = '{"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}'


def test_consume_with_option_s_decodes_values_and_prints_undecodable_values_unchanged(
    penstock: Broker, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    penstock.create_topic("orders", 1)
    (tmp_path / "orders-value.avsc").write_text(ORDER)
    with penstock.client() as client, client.producer() as producer:
        for key, value in ((b"\x08\x05", b"\x0a"), (b"k", b"plain"), (None, None)):
            producer.send("orders", value, key).result()
    words = ["consume", "-t", "orders", "-e", "--bootstrap", penstock.bootstrap]
    assert main([*words, "-K", ":", "-s", "value=avro", "-s", "key=protobuf", "--schemas", str(tmp_path)]) == Exit.OK
    said = capfdbinary.readouterr()
    assert said.out == b'{"1": 5}:{"id": 5}\nk:plain\n:\n'
    assert b"2 keys and values were printed as they are. The key can't be shown as Protobuf: " in said.err
    assert main([*words, "-s", "auto", "--schemas", str(tmp_path), "-J"]) == Exit.OK
    first = capfdbinary.readouterr().out.splitlines()[0]
    assert json.loads(json.loads(first)["payload"]) == {"id": 5}


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["-s", "thrift"], "-s thrift is no format"),
        (["-s", "header=avro"], "is no format"),
        (
            ["-s", "avro", "-r", "registry:8081"],
            "-r registry:8081 can't be used: the URL must begin with http:// or https://",
        ),
        (["-r", "http://registry"], "need a view"),
        (["--schemas", "."], "need a view"),
    ],
)
def test_consume_refuses_invalid_decoding_options_before_it_connects_to_a_broker(
    words: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["consume", "-t", "x", *words, "--bootstrap", "127.0.0.1:1"]) == Exit.USAGE
    assert reason in capsys.readouterr().err


def test_option_s_without_key_or_value_prefix_sets_the_format_of_both_keys_and_values() -> None:
    assert parse_views([]) == {}
    assert parse_views(["avro"]) == {"key": "avro", "value": "avro"}
    assert parse_views(["avro", "key=json"]) == {"key": "json", "value": "avro"}
