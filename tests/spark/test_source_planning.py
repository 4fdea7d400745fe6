"""The driver's plans without Spark: the ranges of a batch, and consecutive batches of a stream."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import count
from types import SimpleNamespace

import pytest

pytest.importorskip("pyspark")

from pyspark import cloudpickle
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType

from penstock.protocol.messages.api_09_offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from penstock.spark import stream
from penstock.spark.batch import BatchReader
from penstock.spark.errors import SourceError
from penstock.spark.options import parse_options
from penstock.spark.planner import ReadTask
from penstock.spark.progress import QueryState, QueryWatcher, figures, sentence_in, state_of
from penstock.spark.schema import check_schema, source_schema
from penstock.spark.stream import StreamReader
from penstock.testing import Broker

NAMES = count()
ALL = ReadAllAvailable()


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as made:
        yield made


@pytest.fixture
def topic(broker: Broker) -> str:
    name = f"t{next(NAMES)}"
    broker.create_topic(name, 2, retention_ms="-1")
    return name


def send(broker: Broker, topic: str, partition: int, count: int, *, since_ms: int = 1000) -> None:
    with broker.client() as client, client.producer() as producer:
        records = [(None, b"%d" % number, (), since_ms + number) for number in range(count)]
        producer.send_many(topic, records, partition=partition)


def planned(broker: Broker, **options: str) -> list[tuple[int, int, int]]:
    given = {"kafka.bootstrap.servers": broker.bootstrap, "read.mode": "wire", **options}
    reader = BatchReader(parse_options(given), source_schema(given))
    return [(task.partition, task.start, task.end) for task in reader.partitions()]


def streaming(broker: Broker, topic: str, **options: str) -> StreamReader:
    given = {"kafka.bootstrap.servers": broker.bootstrap, "read.mode": "wire", "startingOffsets": "earliest"}
    given |= {"subscribe": topic} if not {"subscribePattern", "assign"} & set(options) else {}
    given |= options
    return StreamReader(given, source_schema(given))


def plain(offset: dict[str, dict[str, int]]) -> dict[str, dict[str, int]]:
    """Returns an offset without its topic ids."""
    return {topic: offsets for topic, offsets in offset.items() if offsets}


def made_again(broker: Broker, topic: str, counts: tuple[int, ...]) -> None:
    """Deletes a topic and creates it again, with the given number of records in its partitions."""
    with broker.client() as client:
        client.delete_topics([topic])
    broker.create_topic(topic, len(counts), retention_ms="-1")
    for partition, number in enumerate(counts):
        send(broker, topic, partition, number)


def spans(tasks: list[ReadTask]) -> list[tuple[str, int, int, int]]:
    return [(task.topic, task.partition, task.start, task.end) for task in tasks]


# Batch


def test_batch_reads_the_offset_ranges_given_in_the_options(broker: Broker, topic: str) -> None:
    send(broker, topic, 0, 100)
    send(broker, topic, 1, 50)
    assert planned(broker, subscribe=topic) == [(0, 0, 100), (1, 0, 50)]
    assert planned(broker, assign=json.dumps({topic: [1]})) == [(1, 0, 50)]
    assert planned(broker, subscribePattern=topic[:-1] + f"[{topic[-1]}]") == [(0, 0, 100), (1, 0, 50)]
    some = json.dumps({topic: {"0": 5, "1": -2}})
    most = json.dumps({topic: {"0": -1, "1": 40}})
    assert planned(broker, subscribe=topic, startingOffsets=some, endingOffsets=most) == [(0, 5, 100), (1, 0, 40)]
    assert len(planned(broker, subscribe=topic, minPartitions="6")) == 6
    assert len(planned(broker, subscribe=topic, maxRecordsPerPartition="10")) == 15


def test_starting_and_ending_times_are_resolved_to_offsets(broker: Broker, topic: str) -> None:
    send(broker, topic, 0, 100, since_ms=1000)
    send(broker, topic, 1, 100, since_ms=1050)
    assert planned(broker, subscribe=topic, startingTimestamp="1060", endingTimestamp="1090") == [
        (0, 60, 90),
        (1, 10, 40),
    ]
    by_partition = json.dumps({topic: {"0": 1001, "1": 1149}})
    assert planned(broker, subscribe=topic, startingOffsetsByTimestamp=by_partition) == [(0, 1, 100), (1, 99, 100)]
    with pytest.raises(SourceError, match="has no record at or after 1100 ms"):
        planned(broker, subscribe=topic, startingTimestamp="1100")
    late = {"startingTimestamp": "1100", "startingOffsetsByTimestampStrategy": "latest"}
    assert planned(broker, subscribe=topic, **late) == [(1, 50, 100)]


def test_read_of_missing_offsets_is_refused_with_the_range_of_existing_offsets(broker: Broker, topic: str) -> None:
    send(broker, topic, 0, 10)
    beyond = json.dumps({topic: {"0": 11, "1": 0}})
    with pytest.raises(SourceError, match="-0 holds offsets 0 to 10, but 11 to 10 were requested"):
        planned(broker, subscribe=topic, startingOffsets=beyond)
    assert planned(broker, subscribe=topic, startingOffsets=beyond, failOnDataLoss="false") == []
    with pytest.raises(SourceError, match="it has to name every partition"):
        planned(broker, subscribe=topic, startingOffsets=json.dumps({topic: {"0": 1}}))
    with pytest.raises(SourceError, match="-7, which does not exist"):
        planned(broker, subscribe=topic, startingOffsets=json.dumps({topic: {"0": 1, "1": 0, "7": 0}}))
    with pytest.raises(SourceError, match="has 2 partitions and no partition 9"):
        planned(broker, assign=json.dumps({topic: [9]}))
    with pytest.raises(SourceError, match="There is no topic 'nothing-here'"):
        planned(broker, subscribe="nothing-here")
    assert planned(broker, subscribePattern="nothing-here.*") == []


def test_source_reports_an_unreachable_broker_in_one_sentence() -> None:
    options = parse_options({"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "t"})
    with pytest.raises(SourceError, match=r"Can't connect to 127.0.0.1:1: .* Is the broker up"):
        BatchReader(options, None).partitions()


def test_schema_of_the_user_may_omit_columns_but_not_change_them(broker: Broker, topic: str) -> None:
    send(broker, topic, 0, 3)
    options = parse_options({"kafka.bootstrap.servers": broker.bootstrap, "subscribe": topic})
    narrow = StructType([StructField("offset", LongType()), StructField("value", BinaryType())])
    check_schema(narrow, options)
    reader = BatchReader(options, narrow)
    (task,) = reader.partitions()
    assert [batch.to_pydict() for batch in reader.read(task)] == [{"offset": [0, 1, 2], "value": [b"0", b"1", b"2"]}]
    with pytest.raises(SourceError, match="column 'id', which topics don't have"):
        check_schema(StructType([StructField("id", LongType())]), options)
    with pytest.raises(SourceError, match="gives column 'value' the type string, but its type is binary: cast"):
        check_schema(StructType([StructField("value", StringType())]), options)


# Streams


def test_stream_plans_consecutive_batches_within_its_limit(broker: Broker, topic: str) -> None:
    send(broker, topic, 0, 100)
    reader = streaming(broker, topic, maxOffsetsPerTrigger="40")
    start = reader.initialOffset()
    assert plain(start) == {topic: {"0": 0, "1": 0}}
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMaxRows(40)
    ends = []
    while (end := reader.latestOffset(start, limit)) != start:
        assert spans(reader.partitions(start, end)) == [(topic, 0, start[topic]["0"], end[topic]["0"])]
        ends.append(end[topic]["0"])
        start = end
    assert ends == [40, 80, 100]
    assert reader.reportLatestOffset() == {topic: {"0": 100, "1": 0}}
    # Executors get a copy of the reader, without the driver's connection.
    assert cloudpickle.loads(cloudpickle.dumps(reader))._driver is None
    reader.stop()


def test_stream_reads_new_partitions_and_topics_from_their_beginning(broker: Broker) -> None:
    first = f"grow-{next(NAMES)}"
    second = f"{first}-later"  # sorts after the first, whatever the number
    broker.create_topic(first, 1)
    reader = streaming(broker, "", subscribePattern=f"{first}(-later)?", startingOffsets="latest")
    start = reader.initialOffset()
    with broker.client() as client:
        client.create_partitions(first, 2)
    broker.create_topic(second, 1)
    send(broker, first, 1, 5)
    send(broker, second, 0, 7)
    end = reader.latestOffset(start, ALL)
    assert plain(end) == {first: {"0": 0, "1": 5}, second: {"0": 7}}
    assert spans(reader.partitions(start, end)) == [(first, 1, 0, 5), (second, 0, 0, 7)]
    reader.stop()


def test_available_now_query_ends_at_the_offsets_that_were_the_latest_at_its_start(broker: Broker, topic: str) -> None:
    send(broker, topic, 0, 10)
    reader = streaming(broker, topic, minOffsetsPerTrigger="1000")
    reader.prepareForTriggerAvailableNow()
    send(broker, topic, 0, 10)
    start = reader.initialOffset()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    assert plain(end) == {topic: {"0": 10, "1": 0}}
    assert reader.latestOffset(end, ALL) == end
    # A query restarted from a later checkpoint has no rows to read, and has lost none.
    assert plain(reader.latestOffset({topic: {"0": 15, "1": 0}}, ALL)) == {topic: {"0": 15, "1": 0}}
    reader.stop()


def test_stream_batch_waits_for_min_offsets_but_not_longer_than_max_trigger_delay(
    broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(stream, "time", SimpleNamespace(monotonic=lambda: now))
    reader = streaming(broker, topic, minOffsetsPerTrigger="20", maxOffsetsPerTrigger="25", maxTriggerDelay="60s")
    start = reader.initialOffset()
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMinRows(20)
    send(broker, topic, 0, 10)
    assert reader.latestOffset(start, limit) == start
    now = 61.0
    assert plain(reader.latestOffset(start, limit)) == {topic: {"0": 10, "1": 0}}
    send(broker, topic, 0, 40)
    assert plain(reader.latestOffset({topic: {"0": 10, "1": 0}}, limit)) == {topic: {"0": 35, "1": 0}}
    reader.stop()


def test_lost_data_stops_a_stream_unless_fail_on_data_loss_is_false(broker: Broker, topic: str) -> None:
    send(broker, topic, 0, 10)
    ahead = {topic: {"0": 50, "1": 0}}
    reader = streaming(broker, topic)
    with pytest.raises(SourceError, match="-0 ends at 10, but was read up to 50: set failOnDataLoss=false"):
        reader.latestOffset(ahead, ALL)
    with pytest.raises(SourceError, match="-5 no longer exists; it was read up to 3"):
        reader.latestOffset({topic: {"0": 0, "1": 0, "5": 3}}, ALL)
    reader.stop()
    tolerant = streaming(broker, topic, failOnDataLoss="false")
    assert plain(tolerant.latestOffset(ahead, ALL)) == {topic: {"0": 10, "1": 0}}
    tolerant.stop()


@pytest.mark.parametrize("now", [True, False], ids=["available-now", "following"])
@pytest.mark.parametrize("counts", [(2, 0), (20, 0)], ids=["shorter", "grown past the old end"])
def test_stream_stops_at_a_recreated_topic_unless_fail_on_data_loss_is_false(
    broker: Broker, topic: str, counts: tuple[int, ...], now: bool
) -> None:
    send(broker, topic, 0, 5)
    reader = streaming(broker, topic)
    start = reader.latestOffset(reader.initialOffset(), ALL)
    reader.stop()
    assert plain(start) == {topic: {"0": 5, "1": 0}}
    made_again(broker, topic, counts)
    reader, tolerant = streaming(broker, topic), streaming(broker, topic, failOnDataLoss="false")
    if now:
        reader.prepareForTriggerAvailableNow()
        tolerant.prepareForTriggerAvailableNow()
    with pytest.raises(SourceError, match=f"Topic {topic} was deleted and created again"):
        reader.latestOffset(start, ALL)
    end = tolerant.latestOffset(start, ALL)
    assert plain(end) == {topic: {"0": counts[0], "1": 0}}
    assert spans(tolerant.partitions(start, end)) == [(topic, 0, 0, counts[0])]
    assert tolerant.latestOffset(end, ALL) == end
    reader.stop()
    tolerant.stop()


def test_available_now_detects_that_a_topic_of_a_pattern_was_deleted(broker: Broker) -> None:
    first = f"gone-{next(NAMES)}"
    broker.create_topic(f"{first}-a", 1)
    broker.create_topic(f"{first}-b", 1)
    send(broker, f"{first}-b", 0, 3)
    reader = streaming(broker, "", subscribePattern=f"{first}-.")
    start = reader.initialOffset()
    with broker.client() as client:
        client.delete_topics([f"{first}-b"])
    reader.prepareForTriggerAvailableNow()
    with pytest.raises(SourceError, match=f"{first}-b-0 no longer exists; it was read up to 0"):
        reader.latestOffset(start, ALL)
    reader.stop()
    tolerant = streaming(broker, "", subscribePattern=f"{first}-.", failOnDataLoss="false")
    tolerant.prepareForTriggerAvailableNow()
    assert plain(tolerant.latestOffset(start, ALL)) == {f"{first}-a": {"0": 0}}
    tolerant.stop()


def test_available_now_detects_lost_records_by_offsets_if_the_checkpoint_has_no_topic_ids(
    broker: Broker, topic: str
) -> None:
    send(broker, topic, 0, 2)
    reader = streaming(broker, topic)
    reader.prepareForTriggerAvailableNow()
    with pytest.raises(SourceError, match=f"{topic}-0 ends at 2, but was read up to 5"):
        reader.latestOffset({topic: {"0": 5, "1": 0}}, ALL)
    reader.stop()


def test_stream_keeps_the_offset_of_a_partition_that_is_no_longer_subscribed(broker: Broker, topic: str) -> None:
    send(broker, topic, 0, 5)
    reader = streaming(broker, "", assign=json.dumps({topic: [1]}))
    assert plain(reader.latestOffset({topic: {"0": 3, "1": 0}}, ALL)) == {topic: {"0": 3, "1": 0}}
    reader.stop()


def test_batch_planned_before_a_topic_was_recreated_reads_none_of_its_new_records(broker: Broker, topic: str) -> None:
    send(broker, topic, 0, 5)
    reader = streaming(broker, topic)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    (task,) = reader.partitions(start, end)
    made_again(broker, topic, (9, 0))
    with pytest.raises(SourceError, match=f"Topic {topic} was deleted after a batch of this query was planned"):
        reader.partitions(start, end)
    reader.stop()
    tolerant = streaming(broker, topic, failOnDataLoss="false", **{"kafkaConsumer.pollTimeoutMs": "1"})
    assert tolerant.partitions(start, end) == []
    after = tolerant.latestOffset(end, ALL)
    assert spans(tolerant.partitions(end, after)) == [(topic, 0, 0, 9)]
    with pytest.raises(SourceError, match="could not be read"):
        list(tolerant.read(task))
    tolerant.stop()


def test_stream_commits_its_progress_to_the_group_in_option_commit_group(broker: Broker, topic: str) -> None:
    send(broker, topic, 0, 10)
    reader = streaming(broker, topic, **{"commit.group": "watched"})
    reader.commit({topic: {"0": 7, "1": 0}})
    reader.stop()
    with broker.client() as client:
        node = client.run(client.asynchronous.coordinator("watched"))
        topics = [OffsetFetchRequestTopics(name=topic, partition_indexes=[0, 1])]
        request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="watched", topics=topics)])
        answer = client.request(request, node=node, version=8)
    (group,) = answer.groups
    assert [part.committed_offset for part in group.topics[0].partitions] == [7, 0]


# Progress


def progress(**changes: object) -> dict[str, object]:
    return {
        "id": "q1",
        "name": "orders",
        "batchId": 4,
        "numInputRows": 30,
        "processedRowsPerSecond": 15.5,
        "batchDuration": 2000,
        "sources": [
            {"endOffset": {"t": {"0": 10, "1": 5}}, "latestOffset": '{"t": {"0": 25, "1": 5, "2": 3}}'},
            {"endOffset": "7", "latestOffset": None},
        ],
        **changes,
    }


def test_lag_of_a_query_is_the_latest_offset_minus_the_read_offset() -> None:
    state = state_of(progress())
    assert state.lag == 18
    assert state.lags == {("t", 0): 15, ("t", 1): 0, ("t", 2): 3}
    assert state_of(progress(), state).total_rows == 60
    assert str(state) == "orders: batch 4, 30 rows in 2,000 ms, 16 rows/s, lag 18"


def test_state_of_a_query_contains_the_ids_of_its_topics() -> None:
    sources = [{"endOffset": {"t": {"0": 1}, "t id=B": {}}, "latestOffset": '{"u": {"0": 2}, "u id=A": {}}'}]
    state = state_of(progress(sources=sources))
    assert (state.topic_ids, state.lag) == (("A", "B"), 2)
    assert figures(state).topic_ids == ("A", "B")


def test_watcher_keeps_the_last_state_of_a_query_and_the_reason_why_the_query_ended() -> None:
    seen: list[QueryState] = []
    watcher = QueryWatcher(seen.append)
    watcher.onQueryProgress(SimpleNamespace(progress=SimpleNamespace(json=json.dumps(progress()))))
    failure = "org.apache.spark.SomeException: x\npenstock.spark.errors.SourceError: t-0 is gone.\n\tat java"
    watcher.onQueryTerminated(SimpleNamespace(id="q1", exception=failure))
    assert [state.running for state in seen] == [True, False]
    assert str(watcher.queries["q1"]) == "orders: stopped, t-0 is gone."
    assert sentence_in("plain\nmore") == "plain"
