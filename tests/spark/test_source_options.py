from __future__ import annotations

import datetime
import json

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.datasource import EqualTo, GreaterThan, GreaterThanOrEqual, In, IsNotNull, LessThan, StringContains

from penstock.spark.errors import SourceError
from penstock.spark.filters import narrow
from penstock.spark.options import EARLIEST, LATEST, Position, parse_options
from penstock.spark.ranges import OffsetRange, from_json, limited, split, to_json

WHERE = {"kafka.bootstrap.servers": "localhost:9092", "subscribe": "orders"}


def test_options_are_spark_s_and_their_case_does_not_matter() -> None:
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


def test_times_come_before_offsets_and_a_time_for_all_before_times_by_partition() -> None:
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
        ({"assign": '{"orders":[0]}'}, "given is subscribe and assign"),
        ({"kafka.bootstrap.servers": ""}, "kafka.bootstrap.servers is missing"),
        ({"startingOffsets": "soonest"}, 'takes "earliest", "latest" or JSON'),
        ({"startingOffsets": '{"orders":{"0":-3}}'}, "-2 is earliest, -1 latest"),
        ({"startingOffsets": "latest"}, "A batch can't start at the latest offset"),
        ({"endingOffsets": "earliest"}, "A batch can't end at the earliest offset"),
        ({"startingOffsets": '{"other":{"0":1}}'}, "'other', which is not subscribed to"),
        ({"minPartitions": "0"}, "it takes 1 or more"),
        ({"includeHeaders": "yes"}, "it takes true or false"),
        ({"read.mode": "fast"}, "it takes auto, wire, files"),
        ({"value.format": "xml"}, "it takes binary, string, json"),
        ({"kafka.isolation.level": "some"}, "read_committed, read_uncommitted"),
        ({"kafka.auto.offset.reset": "earliest"}, "use startingOffsets instead"),
        ({"kafka.fetch.max.byte": "1"}, r"\(is kafka.fetch.max.bytes meant\?\)"),
        ({"includeheader": "true"}, r"\(is includeHeaders meant\?\)"),
        ({"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "3"}, "no batch could be both"),
        ({"maxTriggerDelay": "soon"}, "a duration such as"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(changes: dict[str, str], sentence: str) -> None:
    with pytest.raises(SourceError, match=sentence):
        parse_options(WHERE | changes)


def test_a_pattern_has_to_be_one_and_assigned_partitions_json() -> None:
    where = {"kafka.bootstrap.servers": "a:1"}
    assert parse_options(where | {"subscribePattern": "or.*"}).pattern == "or.*"
    assert parse_options(where | {"assign": '{"a":[1,0]}'}).assigned == (("a", 1), ("a", 0))
    for wrong in ({"subscribePattern": "or["}, {"assign": '{"a":5}'}, {"assign": "[]"}, {}):
        with pytest.raises(SourceError):
            parse_options(where | wrong)


def test_a_stream_has_no_end() -> None:
    with pytest.raises(SourceError, match="availableNow"):
        parse_options(WHERE | {"endingOffsets": "latest"}, streaming=True)


# Ranges


def test_long_ranges_are_cut_and_nothing_is_lost_or_doubled() -> None:
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


def test_a_limit_is_shared_in_proportion_and_nobody_starves() -> None:
    start = {("t", 0): 0, ("t", 1): 100, ("t", 2): 7}
    end = {("t", 0): 1000, ("t", 1): 101, ("t", 2): 7}
    moved = limited(start, end, 100)
    assert moved == {("t", 0): 99, ("t", 1): 101, ("t", 2): 7}
    assert limited(start, end, 5000) == end


def test_offsets_are_readable_json() -> None:
    offsets = {("b", 10): 5, ("b", 9): 4, ("a", 0): 1}
    assert to_json(offsets) == {"a": {"0": 1}, "b": {"9": 4, "10": 5}}
    assert from_json(to_json(offsets)) == offsets


# Filters


def test_filters_narrow_what_is_read() -> None:
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
