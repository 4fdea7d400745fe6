"""Runs every case of the comparison with Spark's own Kafka connector, in one session with both sources.

    python connector_job.py JARS PLACE > outcomes.json

An outcome is the result of a case, or {"refused": sentence}. `test_connector_parity` decides which outcomes must be
equal.
"""

from __future__ import annotations

import datetime
import json
import re
import sys
from collections.abc import Callable, Iterable
from itertools import count
from pathlib import Path
from typing import Any

from pyspark.sql import functions as f

from penstock.spark import session
from penstock.spark.progress import with_metrics
from penstock.testing import Broker

T0 = 1_700_000_000_000
COLUMNS = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]
PATIENCE_S = 300
BOTH = ("kafka", "penstock")
_SENTENCES = re.compile(r"(?:SourceError|Exception|UNSUPPORTED[A-Z_]*\]):? ([^\n]*)")

Case = Callable[["Bench", str], Any]
CASES: dict[str, Case] = {}


def case(name: str) -> Callable[[Case], Case]:
    def add(run: Case) -> Case:
        CASES[name] = run
        return run

    return add


class Bench:
    """One broker and one session; topics and checkpoints have unique names."""

    def __init__(self, broker: Broker, spark: Any, place: Path) -> None:
        self.broker = broker
        self.spark = spark
        self._place = place
        self._names = count()

    def checkpoint(self) -> str:
        return str(self._place / f"checkpoint-{next(self._names)}")

    def topic(self, values: int = 0, partitions: int = 1, **configs: str) -> str:
        name = f"own{next(self._names)}"
        self.broker.create_topic(name, partitions, **configs)
        self.send(name, range(values), partitions)
        return name

    def send(self, topic: str, values: Iterable[int], partitions: int = 1) -> None:
        with self.broker.client() as client, client.producer() as producer:
            for index in values:
                producer.send(topic, b"%d" % index, key=b"k%d" % (index % 7), partition=index % partitions)

    def read(self, source: str, **options: str) -> Any:
        return self._with(self.spark.read.format(source), options).load()

    def stream(self, source: str, **options: str) -> Any:
        return self._with(self.spark.readStream.format(source), {"startingOffsets": "earliest", **options}).load()

    def write(self, frame: Any, sink: str, topic: str | None, *, mode: str | None = "append", **options: str) -> None:
        writer = self._with(frame.write.format(sink), options)
        writer = writer.option("topic", topic) if topic is not None else writer
        (writer.mode(mode) if mode is not None else writer).save()

    def write_stream(self, frame: Any, sink: str, topic: str, mode: str = "append", **options: str) -> Any:
        writer = self._with(frame.writeStream.format(sink), {"topic": topic, **options})
        return self.finish(writer.outputMode(mode), self.checkpoint())

    def batches(self, frame: Any, checkpoint: str | None = None, **trigger: bool) -> list[Any]:
        """Returns the partitions and offsets of every micro-batch."""
        seen: list[Any] = []

        def keep(batch: Any, _: int) -> None:
            seen.append(rows(batch, ["partition", "offset"]))

        self.finish(frame.writeStream.foreachBatch(keep), checkpoint or self.checkpoint(), **trigger)
        return seen

    @staticmethod
    def finish(writer: Any, checkpoint: str, **trigger: bool) -> Any:
        query = writer.option("checkpointLocation", checkpoint).trigger(**trigger or {"availableNow": True}).start()
        try:
            if not query.awaitTermination(PATIENCE_S):
                raise TimeoutError("the query did not end")
        finally:
            query.stop()
        return query

    def written(self, topic: str) -> list[Any]:
        with self.broker.client() as client:
            [info] = client.describe_topics([topic])
        return [
            sorted(
                (plain([each.key, each.value, each.headers]) for each in self.broker.records(topic, partition)), key=str
            )
            for partition in sorted(info.partitions)
        ]

    def _with(self, builder: Any, options: dict[str, str]) -> Any:
        return builder.option("kafka.bootstrap.servers", self.broker.bootstrap).options(**options)


def plain(found: Any) -> Any:
    match found:
        case bytes() | bytearray():
            return bytes(found).decode("latin-1")
        case datetime.datetime():
            return found.isoformat()
        case list() | tuple():
            return [plain(each) for each in found]
    return found


def rows(frame: Any, columns: Iterable[str] = COLUMNS) -> list[Any]:
    return sorted((plain(tuple(row)) for row in frame.select(*columns).collect()), key=str)


def reading(name: str, **options: str) -> None:
    """Adds a case of a batch read, whose rows are the outcome."""
    given = {key.replace("__", "."): value for key, value in options.items()}
    CASES[name] = lambda bench, source: rows(bench.read(source, **given))


def writing(
    name: str, *columns: str, mode: str | None = "append", to: str | None = "option", count: int = 9, **options: str
) -> None:
    """Adds a case of a batch write to a topic of three partitions, whose records are the outcome."""
    given = {key.replace("__", "."): value for key, value in options.items()}

    def run(bench: Bench, sink: str) -> Any:
        topic = bench.topic(partitions=3)
        frame = bench.spark.range(count).selectExpr(*(each.format(topic=topic) for each in columns))
        bench.write(frame, sink, topic if to == "option" else None, mode=mode, **given)
        return bench.written(topic)

    CASES[name] = run


CASES["schema"] = lambda bench, source: bench.read(source, subscribe="a").schema.json()
CASES["schema with headers"] = lambda bench, source: bench.read(
    source, subscribe="a", includeHeaders="true"
).schema.json()
CASES["case of names"] = lambda bench, source: rows(bench.read(source, SUBSCRIBE="a"))
CASES["count"] = lambda bench, source: bench.read(source, subscribe="a").count()
CASES["tasks of minPartitions"] = lambda bench, source: bench.read(
    source, subscribe="a", minPartitions="7"
).rdd.getNumPartitions()
CASES["tasks of maxRecordsPerPartition"] = lambda bench, source: bench.read(
    source, subscribe="a", maxRecordsPerPartition="10"
).rdd.getNumPartitions()
CASES["headers"] = lambda bench, source: rows(
    bench.read(source, subscribe="a", includeHeaders="true").withColumn("headers", f.expr("to_json(headers)")),
    ["partition", "offset", "headers"],
)
CASES["pattern for all"] = lambda bench, source: sorted(
    row.topic for row in bench.read(source, subscribePattern="[^o].*|.").select("topic").distinct().collect()
)
reading("subscribe", subscribe="a")
reading("subscribe several", subscribe="b1, b2")
reading("pattern", subscribePattern="b.*")
reading("pattern with a class of Java's", subscribePattern=r"b\p{Digit}")
reading("assign", assign='{"a":[0,2]}')
reading("starting offsets", subscribe="a", startingOffsets='{"a":{"0":5,"1":-2,"2":29}}')
reading("ending offsets", subscribe="a", endingOffsets='{"a":{"0":5,"1":-1,"2":7}}')
reading("starting timestamp", subscribe="a", startingTimestamp=str(T0 + 5_000))
reading("ending timestamp", subscribe="a", endingTimestamp=str(T0 + 5_500))
reading(
    "late starting timestamp with strategy latest",
    subscribe="a",
    startingTimestamp=str(T0 + 15_000),
    startingOffsetsByTimestampStrategy="latest",
)
reading(
    "timestamps by partition", subscribe="a", startingOffsetsByTimestamp=f'{{"a":{{"0":{T0},"1":-2,"2":{T0 + 9000}}}}}'
)
reading("the latest as a timestamp", subscribe="a", startingOffsetsByTimestamp='{"a":{"0":-2,"1":-1,"2":-1}}')
reading("group id", subscribe="a", kafka__group__id="g", groupIdPrefix="p")
reading("names without effect", subscribe="a", kafka__some__vendor__property="1", myTeamLabel="x")
reading("patience", subscribe="a", kafkaConsumer__pollTimeoutMs="5000", fetchOffset__numRetries="3")
reading("uncommitted", subscribe="tx")
reading("committed", subscribe="tx", kafka__isolation__level="read_committed")
for codec in ("gzip", "snappy", "lz4", "zstd"):
    reading(f"read {codec}", subscribe=f"c.{codec}")
reading("refused: latest of a batch", subscribe="a", startingOffsets="latest")
reading("refused: missing topic", subscribe="a,nowhere")
reading("refused: a partition left out", subscribe="a", startingOffsets='{"a":{"0":5}}')
reading("refused: late starting timestamp", subscribe="a", startingTimestamp=str(T0 + 15_000))
reading("refused: auto.offset.reset", subscribe="a", kafka__auto__offset__reset="earliest")
reading("refused: key.deserializer", subscribe="a", kafka__key__deserializer="x")
reading("refused: two ways to subscribe", subscribe="a", subscribePattern="b.*")
reading("past the end", subscribe="a", startingOffsets='{"a":{"0":500,"1":-2,"2":0}}', failOnDataLoss="false")
reading("a slip in a name", subscribe="a", maxOffsetPerTrigger="5")
reading("a slip in a name, compatible", subscribe="a", maxOffsetPerTrigger="5", compatibility="kafka")


@case("SQL")
def _(bench: Bench, source: str) -> Any:
    where = f"`kafka.bootstrap.servers` '{bench.broker.bootstrap}', subscribe 'a'"
    bench.spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW v USING {source} OPTIONS ({where})")
    return bench.spark.sql("SELECT count(*), max(offset) FROM v").collect()[0]


_KEY, _VALUE = "string(id) AS key", "concat('v', id) AS value"
_HEADERS = (
    "array(struct('h' AS key, binary('x') AS value), struct('g' AS key, CAST(NULL AS BINARY) AS value)) AS headers"
)
writing("write strings", _KEY, _VALUE)
writing("write bytes", "binary(string(id)) AS key", "binary(string(id)) AS value")
writing("write nulls", "CAST(NULL AS STRING) AS key", "CAST(NULL AS BINARY) AS value", "int(1) AS partition", count=1)
writing("write partition", _KEY, _VALUE, "int(id % 3) AS partition")
writing("write headers", _KEY, _VALUE, _HEADERS)
writing("write topic column", _KEY, _VALUE, "'{topic}' AS topic", to=None)
writing("write acks 1", _KEY, _VALUE, kafka__acks="1", kafka__linger__ms="5", kafka__retries="3")
writing("write sasl option", _KEY, _VALUE, kafka__sasl__mechanism="PLAIN")
writing("write zstd", _KEY, _VALUE, kafka__compression__type="zstd")
writing("extra columns, compatible", _KEY, _VALUE, "id", "now() AS timestamp", compatibility="kafka")
writing("extra columns", _KEY, _VALUE, "id")
writing("no mode", _KEY, _VALUE, mode=None)
writing("refused: overwrite", _KEY, _VALUE, mode="overwrite")
writing("refused: ignore", _KEY, _VALUE, mode="ignore")
writing("refused: integers as values", _KEY, "id AS value")
writing("refused: no value", _KEY)
writing("refused: no topic", _KEY, _VALUE, to=None)
writing("refused: topic null", _KEY, _VALUE, "CAST(NULL AS STRING) AS topic", to=None)
writing("refused: a partition that is not there", _VALUE, "int(17) AS partition", kafka__max__block__ms="2000")


@case("write to a missing topic")
def _(bench: Bench, sink: str) -> Any:
    frame = bench.spark.range(9).selectExpr(_KEY, _VALUE)
    bench.write(frame, sink, f"missing.{sink}")
    bench.write(frame.withColumn("topic", f.lit(f"absent.{sink}")), sink, None)
    return bench.written(f"missing.{sink}"), bench.written(f"absent.{sink}")


@case("records above max.request.size")
def _(bench: Bench, sink: str) -> Any:
    topic = bench.topic(max_message_bytes="4000000")
    bench.write(bench.spark.range(1).selectExpr("repeat('x', 2000000) AS value"), sink, topic)
    return [len(record.value or b"") for record in bench.broker.records(topic)]


# Streams


@case("micro-batches of maxOffsetsPerTrigger")
def _(bench: Bench, source: str) -> Any:
    return bench.batches(bench.stream(source, subscribe="st", maxOffsetsPerTrigger="30"))


@case("micro-batches of minOffsetsPerTrigger")
def _(bench: Bench, source: str) -> Any:
    return bench.batches(bench.stream(source, subscribe="st", minOffsetsPerTrigger="1000", maxTriggerDelay="1h"))


@case("a stream from given offsets")
def _(bench: Bench, source: str) -> Any:
    return bench.batches(bench.stream(source, subscribe="st", startingOffsets='{"st":{"0":45,"1":-2}}'), once=True)


@case("refused: a stream's end")
def _(bench: Bench, source: str) -> Any:
    return bench.batches(bench.stream(source, subscribe="st", endingOffsets="latest"))


@case("refused: minOffsetsPerTrigger above maxOffsetsPerTrigger")
def _(bench: Bench, source: str) -> Any:
    given = {"minOffsetsPerTrigger": "50", "maxOffsetsPerTrigger": "10"}
    return bench.batches(bench.stream(source, subscribe="st", **given))


@case("metrics of a query's progress")
def _(bench: Bench, source: str) -> Any:
    frame = bench.stream(source, subscribe="st", maxOffsetsPerTrigger="30")
    query = bench.finish(frame.writeStream.format("noop"), bench.checkpoint())
    told = [with_metrics(progress) if source == "penstock" else progress for progress in query.recentProgress]
    return [dict(progress["sources"][0]["metrics"]) for progress in told if progress["numInputRows"]]


@case("two actions on a micro-batch, and a topic twice")
def _(bench: Bench, source: str) -> Any:
    found: list[Any] = []
    frame = bench.stream(source, subscribe="st")

    def look(batch: Any, _: int) -> None:
        found.extend((batch.count(), batch.filter("partition = 0").count()))

    bench.finish(frame.union(frame).writeStream.foreachBatch(look), bench.checkpoint())
    return found


@case("a partition that is added")
def _(bench: Bench, source: str) -> Any:
    topic, checkpoint = bench.topic(5), bench.checkpoint()
    first = bench.batches(bench.stream(source, subscribe=topic), checkpoint)
    with bench.broker.client() as client:
        client.create_partitions(topic, 2)
    bench.send(topic, [1, 3, 5], 2)
    return first, bench.batches(bench.stream(source, subscribe=topic), checkpoint)


def _trimmed(bench: Bench, source: str, **options: str) -> Any:
    topic, checkpoint = bench.topic(20), bench.checkpoint()
    frame = bench.stream(source, subscribe=topic, maxOffsetsPerTrigger="5", **options)
    first = bench.batches(frame, checkpoint, once=True)
    bench.send(topic, range(5))
    with bench.broker.client() as client:
        client.delete_records({(topic, 0): 23})
    return first, bench.batches(bench.stream(source, subscribe=topic, **options), checkpoint)


CASES["refused: records deleted before a stream read them"] = _trimmed
CASES["records deleted before a stream read them"] = lambda bench, source: _trimmed(
    bench, source, failOnDataLoss="false"
)


def _counts(bench: Bench, source: str, mode: str) -> Any:
    topic = bench.topic()
    counted = bench.stream(source, subscribe="st", maxOffsetsPerTrigger="50").groupBy(f.expr("partition")).count()
    bench.write_stream(counted.selectExpr("string(partition) AS key", "string(count) AS value"), source, topic, mode)
    return bench.written(topic)


CASES["output mode complete"] = lambda bench, source: _counts(bench, source, "complete")
CASES["output mode update"] = lambda bench, source: _counts(bench, source, "update")


@case("output mode append, into a missing topic")
def _(bench: Bench, source: str) -> Any:
    bench.write_stream(bench.stream(source, subscribe="st").select("key", "value"), source, f"grown.{source}")
    return bench.written(f"grown.{source}")


# Checkpoints


def _continued(bench: Bench, first: str, second: str) -> Any:
    """Returns the rows that a query reads with one source, then with the other, then with the first again."""
    topic, checkpoint = bench.topic(40, 2), bench.checkpoint()
    seen = []
    for source in (first, second, first):
        seen.append(bench.batches(bench.stream(source, subscribe=topic), checkpoint))
        bench.send(topic, range(10), 2)
    return seen


CASES["checkpoint of the other source"] = lambda bench, source: _continued(
    bench, source, "penstock" if source == "kafka" else "kafka"
)


def fill(bench: Bench) -> None:
    broker = bench.broker
    for name, partitions in (("a", 3), ("b1", 2), ("b2", 1), ("st", 2), ("tx", 1)):
        broker.create_topic(name, partitions, retention_ms="-1")
    with broker.client() as client, client.producer() as producer:
        for partition in range(3):
            for index in range(10 * (partition + 1)):
                headers = (("h", b"x"), ("h", None)) if index % 3 == 0 else ()
                producer.send(
                    "a",
                    b"v%d-%d" % (partition, index),
                    key=b"k%d" % index if index % 5 else None,
                    partition=partition,
                    timestamp_ms=T0 + index * 1000,
                    headers=headers,
                )
    bench.send("b1", range(20), 2)
    bench.send("b2", range(20))
    bench.send("st", range(100), 2)
    _fill_compressed(bench)
    _fill_transactions(bench)


def _fill_compressed(bench: Bench) -> None:
    for number, codec in enumerate(("gzip", "snappy", "lz4", "zstd"), 1):
        bench.broker.create_topic(f"c.{codec}", compression_type=codec)
        bench.send(f"c.{codec}", range(100 * number))


def _fill_transactions(bench: Bench) -> None:
    from penstock.client.producer import ProducerSettings

    with bench.broker.client() as client, client.producer(ProducerSettings(transactional_id="t")) as producer:
        producer.start()
        for number in range(4):
            producer.begin()
            for index in range(5):
                producer.send("tx", b"%d-%d" % (number, index))
            producer.flush()
            (producer.abort if number % 2 else producer.commit)()


def outcome(run: Case, bench: Bench, source: str) -> Any:
    try:
        return plain(run(bench, source))
    except Exception as error:
        text = str(error) or repr(error)
        found = _SENTENCES.findall(text)
        return {"refused": (found[-1] if found else text.strip().splitlines()[0])[:300]}


def main(jars: str, place: str, *wanted: str) -> None:
    config = {
        "spark.jars": jars,
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.log.level": "OFF",
        "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    }
    spark = session("connector-parity", master="local[2]", memory="1g", config=config)
    with Broker(data=Path(place) / "broker") as broker:
        bench = Bench(broker, spark, Path(place))
        fill(bench)
        for name, run in CASES.items():
            if wanted and name not in wanted:
                continue
            found = {source: outcome(run, bench, source) for source in BOTH}
            print(json.dumps({"case": name, **found}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
