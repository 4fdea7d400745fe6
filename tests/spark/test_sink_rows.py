"""Assignment of rows to topics and partitions."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from penstock.client.partitioner import partition_for_key
from penstock.spark.errors import SourceError
from penstock.spark.sink_options import SinkOptions
from penstock.spark.sink_rows import Router, chunks

PARTITIONS = {"t": 4, "u": 1}


def routed(columns: dict[str, Any], topic: str | None = "t", slot: int = 0) -> dict[tuple[str, int], list[Any]]:
    router = Router(SinkOptions("", topic), PARTITIONS.__getitem__, lambda: 1000, slot)
    return {
        (to, partition): list(zip(rows.keys.to_pylist(), rows.values.to_pylist(), strict=True))
        for to, partition, rows in router.route(pa.record_batch(columns))
    }


def test_rows_with_a_key_go_in_order_to_the_partition_that_kafkas_producer_chooses() -> None:
    keys = [f"k{index % 9}" for index in range(50)]
    found = routed({"key": pa.array(keys), "value": pa.array([str(index) for index in range(50)])})
    for (topic, partition), rows in found.items():
        assert topic == "t"
        assert {partition_for_key(key, 4) for key, _ in rows} == {partition}
        assert [int(value) for _, value in rows] == sorted(int(value) for _, value in rows)
    assert sum(map(len, found.values())) == 50


def test_rows_without_a_key_go_to_one_partition_that_changes_with_each_batch() -> None:
    router = Router(SinkOptions("", "t"), PARTITIONS.__getitem__, lambda: 1000, 0)
    batch = pa.record_batch({"value": pa.array(["a", "b"])})
    places = [[partition for _, partition, _ in router.route(batch)] for _ in range(5)]
    assert places == [[1], [2], [3], [0], [1]]


def test_column_partition_overrides_the_partition_of_the_key_if_its_value_is_not_null() -> None:
    columns = {"key": pa.array(["k", "k"]), "value": pa.array(["a", "b"]), "partition": pa.array([3, None], pa.int32())}
    by_key = partition_for_key(b"k", 4)
    assert by_key != 3
    assert routed(columns) == {("t", 3): [(b"k", b"a")], ("t", by_key): [(b"k", b"b")]}


@pytest.mark.parametrize("wanted", [4, -1])
def test_sink_refuses_a_row_for_a_partition_that_the_topic_does_not_have(wanted: int) -> None:
    with pytest.raises(SourceError, match=f"has partition {wanted}, but topic 't' has 4"):
        routed({"value": pa.array(["a"]), "partition": pa.array([wanted], pa.int32())})


def test_rows_go_to_the_topic_in_column_topic_unless_option_topic_is_set() -> None:
    columns = {"topic": pa.array(["u", "t", "u"]), "value": pa.array(["1", "2", "3"])}
    found = routed(columns, topic=None)
    assert found[("u", 0)] == [(None, b"1"), (None, b"3")]
    assert {topic for topic, _ in routed(columns, topic="u")} == {"u"}


def test_sink_refuses_a_row_without_a_topic() -> None:
    with pytest.raises(SourceError, match="has no topic"):
        routed({"topic": pa.array([None], pa.string()), "value": pa.array(["1"])}, topic=None)


def test_sink_combines_small_arrow_batches_and_drops_empty_batches() -> None:
    batches = [pa.record_batch({"value": pa.array(["x"] * count, pa.string())}) for count in (0, 3, 0, 4)]
    assert [chunk.num_rows for chunk in chunks(iter(batches))] == [7]


def test_column_timestamp_sets_the_record_timestamp_if_its_value_is_not_null() -> None:
    router = Router(SinkOptions("", "u"), PARTITIONS.__getitem__, lambda: 1000, 0)
    stamps = pa.array([5_000_000, None], pa.timestamp("us", tz="UTC"))
    [(_, _, rows)] = router.route(pa.record_batch({"value": pa.array(["a", "b"]), "timestamp": stamps}))
    assert rows.timestamps.tolist() == [5000, 1000]
