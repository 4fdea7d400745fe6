"""The ready-made pipelines on a Spark session, with Parquet tables, which need no jars from the network."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sink_driver import committed_rows

from penstock.pipelines.archive import read_with_archive, start_archive
from penstock.pipelines.backfill import BackfillJob, backfill
from penstock.pipelines.copying import CopyJob, start_mirror, start_repartition, translate
from penstock.pipelines.parquet_files import compact
from penstock.pipelines.report import examine
from penstock.pipelines.report_page import page
from penstock.pipelines.running import Pace, reason, run
from penstock.pipelines.segment_archive import archive_segments
from penstock.pipelines.table import TableJob, keep_current, start_table
from penstock.pipelines.topics import Topic
from penstock.spark.errors import SourceError
from penstock.testing import Broker

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

NewTopic = Callable[..., str]
FIRST_MS = 1_780_000_000_000
SCHEMA = "user STRING, n BIGINT"


def produce(broker: Broker, topic: str, numbers: range) -> None:
    """Sends records with keys k0 … k4, users u0 … u3 and ascending numbers."""
    with broker.client() as client, client.producer() as producer:
        values = ((n, json.dumps({"user": f"u{n % 4}", "n": n}).encode()) for n in numbers)
        producer.send_many(topic, [(f"k{n % 5}".encode(), value, (), FIRST_MS + n) for n, value in values])


def numbers_by_key(broker: Broker, topic: str, partitions: int) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for partition in range(partitions):
        for record in broker.records(topic, partition):
            if record.key is not None and record.value is not None:
                found.setdefault(record.key.decode(), []).append(json.loads(record.value)["n"])
    return found


def test_table_follows_its_topic_and_can_be_written_back_to_a_topic(
    spark: Any, spark_broker: Broker, new_topic: NewTopic, tmp_path: Path
) -> None:
    source, target = new_topic(3), new_topic(3)
    job = TableJob(
        Topic(spark_broker.bootstrap, source),
        str(tmp_path / "table"),
        format="parquet",
        value_schema=SCHEMA,
        partition_by=("user",),
    )
    for numbers in (range(60), range(60, 100)):
        produce(spark_broker, source, numbers)
        run(lambda: start_table(spark, job))
    table = spark.read.parquet(job.path)
    assert sorted(row.n for row in table.select("n").collect()) == list(range(100))
    assert {place.name for place in (tmp_path / "table").glob("user=*")} == {f"user=u{n}" for n in range(4)}

    back = BackfillJob(job.path, Topic(spark_broker.bootstrap, target), format="parquet", where="n < 80")
    assert backfill(spark, back) == 80
    assert len(committed_rows(spark_broker, target)) == 80
    restored = numbers_by_key(spark_broker, target, 3)
    assert restored == {f"k{key}": list(range(key, 80, 5)) for key in range(5)}


def test_parquet_table_gets_columns_for_new_fields_when_its_query_restarts(
    spark: Any, spark_broker: Broker, new_topic: NewTopic, tmp_path: Path
) -> None:
    name = new_topic(2)
    job = TableJob(Topic(spark_broker.bootstrap, name), str(tmp_path / "t"), format="parquet", partition_by=("day",))
    for values in (
        [{"n": n, "day": "20260101"} for n in range(10)],
        [{"n": n, "day": "20260102", "city": {"name": "Bern"}} for n in range(10, 20)],
        [{"n": "many", "day": "20260102"}],
    ):
        with spark_broker.client() as client, client.producer() as producer:
            producer.send_many(name, [(b"k", json.dumps(each).encode(), (), None) for each in values])
        keep_current(spark, job)
    rows = spark.read.option("mergeSchema", "true").parquet(job.path).collect()
    assert {(row["n"], row["city"] and row["city"]["name"]) for row in rows} == {
        *((n, None) for n in range(10)),
        *((n, "Bern") for n in range(10, 20)),
        (None, None),  # the column keeps its numeric type
    }
    [bad] = [row for row in rows if row["n"] is None]
    assert json.loads(bad["_bad"]) == {"n": "many", "day": "20260102"}


class Killed(BaseException):
    pass


def test_merging_small_parquet_files_keeps_all_rows(
    spark: Any, spark_broker: Broker, new_topic: NewTopic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, place = new_topic(1), tmp_path / "a table"
    job = TableJob(
        Topic(spark_broker.bootstrap, name),
        str(place),
        format="parquet",
        value_schema=SCHEMA,
        partition_by=("user",),
        optimize_every=8,
        pace=Pace(max_offsets=6),
    )

    def on_disk() -> list[str]:
        return sorted(str(path.relative_to(place)) for path in place.glob("user=*/*.parquet"))

    def numbers(expected: int) -> None:
        """Returns the rows that Spark reads through the log, and those of all files, as other tools read them."""
        found = spark.read.parquet(str(place)).collect()
        assert sorted(row["n"] for row in found) == list(range(expected))
        assert {(row["user"], row["n"]) for row in found} == {(f"u{n % 4}", n) for n in range(expected)}
        assert sorted(row["n"] for row in spark.read.parquet(str(place / "user=*")).collect()) == list(range(expected))

    spark.conf.set("spark.sql.streaming.fileSink.log.compactInterval", "3")
    try:
        produce(spark_broker, name, range(36))
        run(lambda: start_table(spark, job))  # six batches, four files of each
        before = on_disk()
        numbers(36)
        for step in ("move_in", "replace", "delete"):  # killed there

            def die(*_: object, step: str = step) -> None:
                raise Killed(step)

            with monkeypatch.context() as patched:
                patched.setattr(f"penstock.pipelines.parquet_files.Files.{step}", die)
                with pytest.raises(Killed):
                    compact(spark, str(place), least=8)
            assert sorted(row["n"] for row in spark.read.parquet(str(place)).collect()) == list(range(36))
            assert compact(spark, str(place), least=100) == 0  # completes the interrupted merge
            numbers(36)
            assert (len(on_disk()) < len(before)) is (step == "delete")
        assert {path.name for path in place.iterdir()} == {"_spark_metadata", *(f"user=u{n}" for n in range(4))}

        produce(spark_broker, name, range(36, 72))
        keep_current(spark, job)
        numbers(72)
        assert len(on_disk()) < len(before)
    finally:
        spark.conf.unset("spark.sql.streaming.fileSink.log.compactInterval")


def test_continuous_query_is_stopped_while_the_files_of_its_table_are_merged(
    spark: Any, spark_broker: Broker, new_topic: NewTopic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, place = new_topic(1), str(tmp_path / "table")
    job = TableJob(
        Topic(spark_broker.bootstrap, name),
        place,
        format="parquet",
        value_schema=SCHEMA,
        optimize_every=2,
        pace=Pace(follow=True, every="0 seconds"),
    )
    together: list[int] = []

    def counted(*args: Any, **more: Any) -> int:
        together.append(compact(*args, **more))
        return together[-1]

    produced = 0

    def until() -> bool:
        """Sends more records at each call until files were merged; True once all are in the table."""
        nonlocal produced
        if not any(together):
            produce(spark_broker, name, range(produced, produced + 6))
            produced += 6
            return False
        return bool(spark.read.parquet(place).count() == produced)

    monkeypatch.setattr("penstock.pipelines.table.compact_files", counted)
    monkeypatch.setattr("penstock.pipelines.table.STANDSTILL", 2)
    spark.conf.set("spark.sql.streaming.fileSink.log.compactInterval", "2")
    try:
        keep_current(spark, job, until=until)
    finally:
        spark.conf.unset("spark.sql.streaming.fileSink.log.compactInterval")
    assert any(together)
    assert sorted(row["n"] for row in spark.read.parquet(place).collect()) == list(range(produced))


@pytest.mark.parametrize("key", [None, "get_json_object(value, '$.user')"])
def test_a_repartitioned_topic_has_every_record_once_and_each_key_in_order(
    spark: Any, spark_broker: Broker, new_topic: NewTopic, tmp_path: Path, key: str | None
) -> None:
    source = new_topic(3)
    target = f"{source}-again"
    bootstrap = spark_broker.bootstrap
    job = CopyJob(Topic(bootstrap, source), Topic(bootstrap, target), str(tmp_path / "at"), partitions=2, key=key)
    for numbers in (range(60), range(60, 100)):
        produce(spark_broker, source, numbers)
        run(lambda: start_repartition(spark, job))
    step, name = (5, "k") if key is None else (4, "u")
    assert numbers_by_key(spark_broker, target, 2) == {f"{name}{n}": list(range(n, 100, step)) for n in range(step)}


def test_mirror_keeps_partitions_and_translates_the_offsets_of_a_group(
    spark: Any, spark_broker: Broker, new_topic: NewTopic, tmp_path: Path
) -> None:
    source = new_topic(2)
    produce(spark_broker, source, range(40))
    bootstrap = spark_broker.bootstrap
    with spark_broker.client() as client:  # the source's first records are deleted, so that offsets differ
        client.delete_records({(source, 0): 4, (source, 1): 4})
        ends = {index: len(spark_broker.records(source, index)) + 4 for index in range(2)}
    mirrored = Topic(bootstrap, f"{source}-mirror")
    run(lambda: start_mirror(spark, CopyJob(Topic(bootstrap, source), mirrored, str(tmp_path / "at"))))
    for index in range(2):
        there = [(record.key, record.value) for record in spark_broker.records(source, index)]
        here = [record for record in spark_broker.records(mirrored.name, index) if record.value is not None]
        assert [(record.key, record.value) for record in here] == there
    found = translate(spark, mirrored, {0: 6, 1: ends[1]})
    assert found[mirrored.name, 0] == 2
    assert found[mirrored.name, 1] == ends[1] - 4


def test_invalid_pipeline_jobs_are_refused_with_an_error_of_one_sentence(
    spark: Any, spark_broker: Broker, new_topic: NewTopic
) -> None:
    topic = Topic(spark_broker.bootstrap, new_topic())
    with pytest.raises(SourceError, match="use a Delta table for upserts"):
        start_table(spark, TableJob(topic, "/nowhere", format="parquet", mode="upsert"))
    with pytest.raises(SourceError, match="There is no topic 'missing'"):
        start_repartition(spark, CopyJob(Topic(topic.bootstrap, "missing"), topic, "/nowhere"))
    with pytest.raises(SourceError, match="can't be copied into itself"):
        start_repartition(spark, CopyJob(topic, topic, "/nowhere"))


def test_topic_report_has_sizes_and_keys_and_duplicates_and_gaps(
    spark: Any, spark_broker: Broker, new_topic: NewTopic
) -> None:
    topic = new_topic(3)
    produce(spark_broker, topic, range(50))
    produce(spark_broker, topic, range(10))
    [found] = examine(spark, [Topic(spark_broker.bootstrap, topic)])
    assert found.records == 60
    assert found.duplicates == 10
    assert found.top_keys[0] == ("k0", 12)
    assert sum(part.gaps for part in found.partitions) == 0
    assert "user" in found.fields
    shown = page("Topics", [found])
    assert "<svg" in shown
    assert topic in shown


@pytest.mark.parametrize("kind", ["records", "segments"])
def test_records_of_an_archive_and_of_its_topic_are_read_as_one_table(
    spark: Any, spark_broker: Broker, new_topic: NewTopic, tmp_path: Path, kind: str
) -> None:
    name = new_topic(2)
    topic, place = Topic(spark_broker.bootstrap, name), str(tmp_path / "archive")
    produce(spark_broker, name, range(50))
    if kind == "records":
        run(lambda: start_archive(spark, topic, place))
    else:
        assert sum(each.records for each in archive_segments(spark, topic, place, everything=True)) == 50
    ends = {(name, index): len(spark_broker.records(name, index)) for index in range(2)}
    with spark_broker.client() as client:  # retention deletes records that are in the archive
        client.delete_records(ends)
    produce(spark_broker, name, range(50, 80))
    rows = read_with_archive(spark, topic, place).collect()
    assert sorted(json.loads(row["value"])["n"] for row in rows) == list(range(80))
    assert len({(row["partition"], row["offset"]) for row in rows}) == 80
    for row in rows:
        number = json.loads(row["value"])["n"]
        assert (row["key"], row["topic"]) == (f"k{number % 5}".encode(), name)
        assert row["timestamp"].timestamp() * 1000 == FIRST_MS + number
    with spark_broker.client() as client:  # and now records that are not
        client.delete_records({(name, 0): ends[name, 0] + 3})
    with pytest.raises(Exception, match=f"{name}-0 holds offsets"):
        read_with_archive(spark, topic, place).collect()


def test_spark_archives_each_segment_once_and_reports_a_damaged_segment_in_one_sentence(
    spark: Any, spark_broker: Broker, new_topic: NewTopic, tmp_path: Path
) -> None:
    name = new_topic(2)
    topic, place = Topic(spark_broker.bootstrap, name), str(tmp_path / "archive")
    with spark_broker.client() as client, client.producer() as producer:
        producer.send_many(name, [(b"%d" % n, bytes(900), (("n", b"%d" % n),), FIRST_MS + n) for n in range(5000)])
    first = archive_segments(spark, topic, place)
    assert {each.partition for each in first} == {0, 1}
    assert archive_segments(spark, topic, f"file://{place}") == []
    rows = read_with_archive(spark, topic, place).select("key", "headers").collect()
    assert sorted(int(row["key"]) for row in rows) == list(range(5000))
    assert all(row["headers"][0]["value"] == row["key"] for row in rows)
    [log, *_] = Path(place).glob("*/*.log")
    log.write_bytes(log.read_bytes()[:-1])
    with pytest.raises(Exception, match="is damaged: the file is cut off") as caught:
        read_with_archive(spark, topic, place).count()
    assert reason(caught.value).startswith(f"{place}/{log.parent.name}/{log.name} is damaged")
