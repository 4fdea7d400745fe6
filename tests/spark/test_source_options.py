from __future__ import annotations

import datetime
import json
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.datasource import EqualTo, GreaterThan, GreaterThanOrEqual, In, IsNotNull, LessThan, StringContains
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StringType, StructField, StructType

from penstock.client.cluster import TopicInfo
from penstock.client.login import TokenLogin
from penstock.protocol.uuid import ZERO_UUID
from penstock.protocol.vocabulary import EARLIEST, LATEST
from penstock.spark.brokers import connection_settings
from penstock.spark.errors import SourceError
from penstock.spark.filters import narrow
from penstock.spark.options import Position, parse_options
from penstock.spark.planner import matching
from penstock.spark.ranges import OffsetRange, from_json, limited, split, to_json
from penstock.spark.stream import StreamReader

WHERE = {"kafka.bootstrap.servers": "localhost:9092", "subscribe": "orders"}


def test_source_options_have_the_names_of_sparks_kafka_source_and_ignore_case() -> None:
    options = parse_options(
        {
            "Kafka.Bootstrap.Servers": "a:1,b:2",
            "SUBSCRIBE": "orders, payments",
            "startingoffsets": "earliest",
            "endingOffsets": json.dumps({"orders": {"0": 5}, "payments": {"0": -1}}),
            "failOnDataLoss": "false",
            "minPartitions": "8",
            "maxRecordsPerPartition": "100",
            "includeHeaders": "true",
            "kafka.isolation.level": "read_committed",
            "kafka.session.timeout.ms": "1000",
            "maxTriggerDelay": "30s",
        }
    )
    assert options.bootstrap == "a:1,b:2"
    assert options.topics == ("orders", "payments")
    assert options.starting == Position(everywhere=EARLIEST)
    assert options.ending.offsets == {("orders", 0): 5, ("payments", 0): LATEST}
    assert (options.fail_on_data_loss, options.min_partitions, options.max_records_per_partition) == (False, 8, 100)
    assert (options.include_headers, options.read_committed, options.max_trigger_delay_ms) == (True, True, 30_000)


def test_starting_timestamp_overrides_timestamps_by_partition_and_both_override_starting_offsets() -> None:
    given = WHERE | {
        "startingOffsets": "earliest",
        "startingOffsetsByTimestamp": json.dumps({"orders": {"0": 100}}),
    }
    assert parse_options(given).starting == Position(timestamps={("orders", 0): 100})
    assert parse_options(given | {"startingTimestamp": "7"}).starting == Position(timestamp_ms=7)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"subscribe": ""}, "names no topic"),
        ({"assign": '{"orders":[0]}'}, "contain subscribe and assign of"),
        ({"kafka.bootstrap.servers": ""}, "kafka.bootstrap.servers is missing"),
        ({"startingOffsets": "soonest"}, 'takes "earliest", "latest" or JSON'),
        ({"startingOffsets": '{"orders":{"0":-3}}'}, "-2 is earliest, -1 latest"),
        ({"startingOffsets": "latest"}, "A batch query that starts at the latest offset reads no records"),
        ({"endingOffsets": "earliest"}, "A batch query that ends at the earliest offset reads no records"),
        ({"startingOffsets": '{"other":{"0":1}}'}, "'other', which is not in subscribe"),
        ({"minPartitions": "0"}, "it takes 1 or more"),
        ({"includeHeaders": "yes"}, "it takes true or false"),
        ({"read.mode": "fast"}, "it takes auto, wire, files"),
        ({"value.format": "xml"}, "it takes binary, string, json"),
        ({"kafka.isolation.level": "some"}, "read_committed, read_uncommitted"),
        ({"kafka.auto.offset.reset": "earliest"}, "use startingOffsets instead"),
        ({"kafka.fetch.max.byte": "1"}, r"\(is kafka.fetch.max.bytes meant\?\)"),
        ({"includeheader": "true"}, r"\(is includeHeaders meant\?\)"),
        (
            {"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "3"},
            "minOffsetsPerTrigger is above maxOffsetsPerTrigger",
        ),
        ({"maxTriggerDelay": "soon"}, "a duration such as"),
    ],
)
def test_source_refuses_wrong_options_in_one_sentence(changes: dict[str, str], sentence: str) -> None:
    with pytest.raises(SourceError, match=sentence):
        parse_options(WHERE | changes)


def test_source_refuses_options_with_invalid_patterns_or_invalid_json() -> None:
    where = {"kafka.bootstrap.servers": "a:1"}
    assert parse_options(where | {"subscribePattern": "or.*"}).pattern == "or.*"
    assert parse_options(where | {"assign": '{"a":[1,0]}'}).assigned == (("a", 1), ("a", 0))
    for wrong in ({"subscribePattern": "or["}, {"assign": '{"a":5}'}, {"assign": "[]"}, {}):
        with pytest.raises(SourceError):
            parse_options(where | wrong)


def test_unknown_option_names_are_ignored_and_misspelt_option_names_are_refused() -> None:
    carried = {"kafka.some.vendor.prop": "1", "myTeamLabel": "x"}
    assert parse_options(WHERE | carried).without_effect == ("myTeamLabel", "kafka.some.vendor.prop")
    slip = {"kafka.fetch.max.byte": "1", "maxOffsetPerTrigger": "5"}
    with pytest.raises(SourceError, match="With compatibility=kafka"):
        parse_options(WHERE | slip)
    lenient = parse_options(WHERE | slip | {"compatibility": "kafka"})
    assert lenient.without_effect == ("maxOffsetPerTrigger", "kafka.fetch.max.byte")
    assert lenient.max_offsets is None


@pytest.mark.parametrize("name", ["security.protocol", "sasl.jaas.config", "SSL.truststore.location"])
@pytest.mark.parametrize("compatibility", ["safe", "kafka"])
def test_security_option_without_its_prefix_is_always_refused(name: str, compatibility: str) -> None:
    with pytest.raises(SourceError, match=f"has no effect: write kafka.{name}"):
        parse_options(WHERE | {name: "SASL_SSL", "compatibility": compatibility})


def test_misspelt_security_option_is_refused_even_if_option_compatibility_is_kafka() -> None:
    misspelt = parse_options(WHERE | {"kafka.security.protocl": "SSL", "compatibility": "kafka"})
    with pytest.raises(SourceError, match=r"kafka\.security\.protocl is not a known property: did you mean"):
        connection_settings(misspelt)


def test_source_logs_in_with_access_tokens_from_the_endpoint_in_its_options(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("t0k")
    security = {"kafka.security.protocol": "SASL_SSL", "kafka.sasl.mechanism": "OAUTHBEARER"}
    endpoint = {"kafka.sasl.oauthbearer.token.endpoint.url": (tmp_path / "token").as_uri()}
    login = connection_settings(parse_options({**WHERE, **security, **endpoint})).login
    assert isinstance(login, TokenLogin)
    assert login.source() == "t0k"
    with pytest.raises(SourceError, match=r"OAUTHBEARER needs tokens: set sasl.oauthbearer.token.endpoint.url"):
        connection_settings(parse_options({**WHERE, **security}))


def test_earliest_and_latest_are_accepted_in_options_that_take_times() -> None:
    times = {"startingOffsetsByTimestamp": '{"orders":{"0":-2,"1":-1}}', "endingTimestamp": "-1"}
    options = parse_options(WHERE | times)
    assert options.starting == Position(timestamps={("orders", 0): EARLIEST, ("orders", 1): LATEST})
    assert options.ending == Position(timestamp_ms=LATEST)
    with pytest.raises(SourceError, match="-2 is earliest, -1 latest"):
        parse_options(WHERE | {"startingOffsetsByTimestamp": '{"orders":{"0":-3}}'})


def test_pattern_does_not_match_internal_topics_of_brokers_and_sinks() -> None:
    topics = [
        TopicInfo(name, ZERO_UUID, name.startswith("__c"), {})
        for name in ("orders", "__consumer_offsets", "__penstock_spark_commits-1", "__mine")
    ]
    assert matching(".*", topics) == ["orders", "__mine"]
    assert matching("__.*", topics) == ["__mine"]


def test_stream_reader_reports_wrong_options_in_its_first_method_call() -> None:
    given = WHERE | {"endingOffsets": "latest"}
    reader = StreamReader(given, StructType())  # Spark drops the message of an error in the constructor
    for call in (reader.initialOffset, reader.getDefaultReadLimit, lambda: reader.latestOffset({}, ReadAllAvailable())):
        with pytest.raises(SourceError, match="availableNow"):
            call()
    reader.stop()
    wrong = StreamReader(WHERE, StructType([StructField("value", StringType())]))
    with pytest.raises(SourceError, match="cast the column after the read"):
        wrong.getDefaultReadLimit()


def test_stream_refuses_ending_offsets() -> None:
    with pytest.raises(SourceError, match="availableNow"):
        parse_options(WHERE | {"endingOffsets": "latest"}, streaming=True)


# Ranges


def test_long_offset_ranges_are_split_without_gaps_or_overlaps() -> None:
    whole = [OffsetRange("t", 0, 10, 110), OffsetRange("t", 1, 0, 3), OffsetRange("t", 2, 5, 5)]
    for pieces in (split(whole), split(whole, min_partitions=7), split(whole, max_records=9)):
        for each in whole:
            mine = [piece for piece in pieces if piece.key == each.key]
            assert [offset for piece in mine for offset in range(piece.start, piece.end)] == list(
                range(each.start, each.end)
            )
    assert len(split(whole)) == 2
    assert len(split(whole, min_partitions=7)) == 7
    assert max(piece.size for piece in split(whole, max_records=9)) <= 9


def test_record_limit_of_a_batch_is_divided_in_proportion_to_partition_sizes() -> None:
    start = {("t", 0): 0, ("t", 1): 100, ("t", 2): 7}
    end = {("t", 0): 1000, ("t", 1): 101, ("t", 2): 7}
    moved = limited(start, end, 100)
    assert moved == {("t", 0): 99, ("t", 1): 101, ("t", 2): 7}
    assert limited(start, end, 5000) == end


def test_stream_offsets_are_written_as_readable_json() -> None:
    offsets = {("b", 10): 5, ("b", 9): 4, ("a", 0): 1}
    assert to_json(offsets) == {"a": {"0": 1}, "b": {"9": 4, "10": 5}}
    assert from_json(to_json(offsets)) == offsets


# Filters


def test_filters_of_a_query_limit_the_topics_partitions_and_offsets_that_are_read() -> None:
    moment = datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)
    later = GreaterThanOrEqual(("timestamp",), moment)
    text = StringContains(("topic",), "x")
    narrowed, rest = narrow(
        [
            IsNotNull(("offset",)),
            In(("partition",), (1, 2)),
            GreaterThan(("offset",), 9),
            LessThan(("offset",), 20),
            EqualTo(("topic",), "t"),
            later,
            text,
        ]
    )
    assert rest == [later, text]
    assert narrowed.min_timestamp_ms == 1_704_067_200_000
    assert narrowed.cut(OffsetRange("t", 1, 0, 100)) == OffsetRange("t", 1, 10, 20)
    assert narrowed.cut(OffsetRange("t", 0, 0, 100)).size == 0
    assert narrowed.cut(OffsetRange("u", 1, 0, 100)).size == 0
