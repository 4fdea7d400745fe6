"""Missing topics when a sink writes to them. Needs PySpark, but no Java."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa

from penstock.spark.errors import SourceError
from penstock.spark.sink_options import SinkOptions
from penstock.spark.sink_write import Task, partition_counts, write_plain
from penstock.testing import Broker

FAST = {"retry.backoff.ms": "1", "retry.backoff.max.ms": "2"}


def rows() -> pa.RecordBatch:
    return pa.record_batch({"topic": pa.array(["new", "newer"]), "value": pa.array(["a", "b"])})


def test_broker_creates_a_missing_topic_for_the_sink_as_for_any_producer() -> None:
    with Broker(config={"num.partitions": "3"}) as broker:
        write_plain(SinkOptions(broker.bootstrap), Task("q", 0, 0), iter([rows()]))
        with broker.client() as client:
            assert partition_counts(client, create=False)("new") == 3
        found = [record.value for partition in range(3) for record in broker.records("newer", partition)]
        assert found == [b"b"]


def test_missing_topic_that_the_broker_does_not_create_is_reported_in_one_sentence() -> None:
    with Broker(config={"auto.create.topics.enable": "false"}) as broker:
        options = SinkOptions(broker.bootstrap, client=FAST)
        with pytest.raises(SourceError, match=r"the brokers do not create it \(auto.create.topics.enable\)"):
            write_plain(options, Task("q", 0, 0), iter([rows()]))
    with Broker() as broker:
        options = SinkOptions(broker.bootstrap, create_topics=False, client=FAST)
        with pytest.raises(SourceError, match="There is no topic 'new': create it with"):
            write_plain(options, Task("q", 0, 0), iter([rows()]))
        with broker.client() as client:
            assert client.list_topics() == []


def test_sink_reports_an_invalid_topic_name_in_one_sentence() -> None:
    with (
        Broker() as broker,
        broker.client() as client,
        pytest.raises(SourceError, match="Topic 'no/name' can't be written to: INVALID_TOPIC_EXCEPTION"),
    ):
        partition_counts(client, create=True)("no/name")
