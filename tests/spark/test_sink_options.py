"""Options and columns of the sink, and its messages about wrong ones."""

from __future__ import annotations

import pytest

from penstock.client.producer import ALL
from penstock.spark.errors import SourceError
from penstock.spark.sink_options import SinkOptions, parse_sink_options
from penstock.spark.sink_rows import check_columns

TO = {"kafka.bootstrap.servers": "here:9092"}


def test_sink_uses_acks_all_by_default_and_exactly_once_for_streams() -> None:
    batch, stream = (parse_sink_options(TO, streaming=streaming) for streaming in (False, True))
    assert (batch.acks, batch.idempotent, batch.exactly_once) == (ALL, True, False)
    assert (stream.acks, stream.idempotent, stream.exactly_once) == (ALL, True, True)


def test_option_names_ignore_case_and_producer_properties_take_effect() -> None:
    told = {
        "TOPIC": "t",
        "exactlyonce": "False",
        "kafka.Compression.Type": "zstd",
        "kafka.compression.zstd.level": "-5",
        "kafka.batch.size": "1000",
        "kafka.acks": "1",
        "kafka.linger.ms": "5",
    }
    options = parse_sink_options(TO | told, streaming=True)
    assert (options.topic, options.exactly_once, options.compression, options.compression_level) == ("t", False, 4, -5)
    assert (options.batch_bytes, options.acks, options.idempotent) == (1000, 1, False)


@pytest.mark.parametrize(
    ("told", "sentence"),
    [
        ({"topik": "t"}, "Option 'topik' is unknown (is topic meant?)"),
        ({"exactlyOnce": "maybe"}, "Option exactlyOnce is 'maybe': it takes true or false."),
        ({"kafka.compression.type": "rar"}, "Option kafka.compression.type is 'rar'"),
        ({"kafka.compresion.type": "gzip"}, "(is kafka.compression.type meant?)"),
        ({"kafka.transactional.id": "x"}, "Option kafka.transactional.id can't be set here"),
        ({"kafka.value.serializer": "x"}, "convert the column before"),
        ({"kafka.acks": "1"}, "kafka.acks=1 can lose records"),
        ({"kafka.acks": "2"}, "it takes all, 1 or 0"),
        ({"kafka.batch.size": "0"}, "it takes 1 or more"),
        ({"kafka.bootstrap.servers": ""}, "kafka.bootstrap.servers is missing"),
    ],
)
def test_sink_refuses_wrong_options_in_one_sentence(told: dict[str, str], sentence: str) -> None:
    with pytest.raises(SourceError) as refused:
        parse_sink_options(TO | told, streaming=True)
    assert sentence in str(refused.value)


@pytest.mark.parametrize(
    ("types", "topic", "sentence"),
    [
        ({"key": "binary"}, "t", "Column `value` is missing"),
        ({"value": "binary"}, None, "give option topic"),
        ({"value": "int"}, "t", "Column 'value' is int: cast it to binary or string."),
        ({"value": "string", "name": "string"}, "t", "Column 'name' is not a field of a record"),
        ({"value": "string", "partition": "bigint"}, "t", "cast it to int"),
        ({"value": "string", "headers": "array<string>"}, "t", "array<struct<key:string,value:binary>>"),
    ],
)
def test_sink_refuses_missing_columns_and_columns_of_wrong_types(
    types: dict[str, str], topic: str | None, sentence: str
) -> None:
    with pytest.raises(SourceError) as refused:
        check_columns(types, SinkOptions("", topic))
    assert sentence in str(refused.value)


def test_all_columns_of_sparks_own_sink_are_accepted() -> None:
    headers = "array<struct<key:string,value:binary>>"
    check_columns(
        {"topic": "string", "partition": "int", "key": "string", "value": "binary", "headers": headers}, SinkOptions("")
    )


def test_sink_leaves_out_extra_columns_with_option_extra_columns_ignore() -> None:
    types = {"key": "string", "value": "string", "offset": "bigint", "timestamp": "timestamp"}
    options = parse_sink_options(TO | {"topic": "t", "extraColumns": "ignore"}, streaming=False)
    assert check_columns(types, options) == ["offset"]
    # Spark's own sink does not write a record's timestamp.
    options = parse_sink_options(TO | {"topic": "t", "compatibility": "kafka"}, streaming=False)
    assert check_columns(types | {"timestamp": "string"}, options) == ["offset", "timestamp"]
    with pytest.raises(SourceError, match="Column 'value' is int"):
        check_columns({"value": "int"}, options)


def test_option_compatibility_sets_at_least_once_delivery_and_ignores_misspelt_options() -> None:
    given = TO | {"compatibility": "kafka", "topik": "t", "kafka.compresion.type": "gzip", "kafka.acks": "1"}
    options = parse_sink_options(given, streaming=True)
    assert (options.exactly_once, options.acks, options.create_topics) == (False, 1, True)
    assert options.without_effect == ("topik", "kafka.compresion.type")
    assert parse_sink_options(given | {"exactlyOnce": "true", "kafka.acks": "all"}, streaming=True).exactly_once


def test_sink_ignores_consumer_properties_without_a_warning() -> None:
    given = {"kafka.isolation.level": "read_committed", "kafka.fetch.max.bytes": "5", "kafka.max.poll.records": "3"}
    assert parse_sink_options(TO | given, streaming=True).without_effect == ()


def test_sink_ignores_option_names_of_a_vendor_with_a_warning() -> None:
    options = parse_sink_options(TO | {"kafka.some.vendor.prop": "1", "label": "x"}, streaming=True)
    assert options.without_effect == ("label", "kafka.some.vendor.prop")
