"""Archives of segments: the functions that tasks run, without Spark."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from s3_server import Server

pytest.importorskip("pyspark")

from penstock.client.producer import ProducerSettings
from penstock.log.cleaner import Cleaner
from penstock.pipelines.segment_archive import archive_partition, plan
from penstock.pipelines.segment_reading import arrow_schema, read_stretch, whole
from penstock.pipelines.segments import Catalog, Part, Piece, Written, catalog, gaps_in, parts_of, pieces_named
from penstock.pipelines.stores import Place, Store
from penstock.pipelines.topics import Topic
from penstock.spark.brokers import connect
from penstock.spark.errors import SourceError
from penstock.spark.options import parse_options
from penstock.spark.planner import Planner, ReadTask
from penstock.spark.tasks import read_task
from penstock.testing import Broker

PADDING = bytes(700)
Row = dict[str, Any]
Rows = dict[tuple[int, int], Row]
"""Records by partition and offset."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    config = {"log.segment.bytes": str(1 << 20), "log.cleaner.enable": "false"}
    with Broker(data=tmp_path_factory.mktemp("broker"), config=config) as made:
        yield made


def fill(broker: Broker, topic: str, numbers: range, *, compression: int = 0, keys: int = 1 << 30) -> None:
    settings = ProducerSettings(compression=compression, batch_bytes=16000)
    with broker.client() as client, client.producer(settings) as producer:
        producer.send_many(
            topic, [(b"k%d" % (n % keys), b"%d" % n + PADDING, (("n", b"%d" % n),), 1_000_000 + n) for n in numbers]
        )


def at(place: Path | Place) -> Place:
    return place if isinstance(place, Place) else Place(str(place))


def archive(broker: Broker, topic: str, place: Path | Place, *, everything: bool = False, **more: str) -> list[Written]:
    options = {name.replace("_", "."): text for name, text in more.items()}
    jobs = plan(Topic(broker.bootstrap, topic, options), at(place), everything=everything, now_ms=0)
    return [each for job in jobs for each in archive_partition(job)]


def found_in(place: Path | Place, topic: str) -> Catalog:
    found = catalog(at(place).open(), topic)
    assert found is not None
    return found


def archived(place: Path | Place, topic: str) -> Rows:
    rows: Rows = {}
    for partition, parts in whole(found_in(place, topic)).items():
        for part in parts:
            for batch in read_stretch(at(place), topic, partition, [part]):
                batch.validate(full=True)
                add(rows, batch.to_pylist())
    return rows


def add(rows: Rows, found: list[Row]) -> None:
    for row in found:
        place = (row["partition"], row["offset"])
        assert place not in rows, "a record came twice"
        rows[place] = row


def live(broker: Broker, topic: str, starts: dict[int, int] | None = None) -> Rows:
    """Returns the records that the source reads from the topic, from the beginning or from offsets."""
    given = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": topic, "includeHeaders": "true"}
    options = parse_options({**given, "kafka.isolation.level": "read_committed"})
    with connect(options) as client:
        planner = Planner(client, options)
        partitions = planner.partitions()
        first, last = planner.earliest(partitions), planner.latest(partitions)
    schema = arrow_schema()
    rows: Rows = {}
    for key in partitions:
        start = (starts or {}).get(key[1], first[key])
        assert start >= first[key], "the archive ends before the topic begins"
        for batch in read_task(options, schema, ReadTask(*key, start, last[key])):
            add(rows, batch.to_pylist())
    return rows


def both(broker: Broker, topic: str, place: Path) -> Rows:
    ends = {index: end for index in found_in(place, topic).parts if (end := found_in(place, topic).end(index))}
    return archived(place, topic) | live(broker, topic, ends)


# --- choosing pieces ------------------------------------------------------------------------------------------------


def piece(first: int, end: int) -> Piece:
    return Piece(first, end, f"{first:020d}-{end:020d}-{'0' * 16}")


def test_log_file_of_an_archive_is_used_only_if_its_json_file_exists() -> None:
    stem = piece(0, 7).stem
    assert pieces_named([f"{stem}.log", f"{stem}.json", f"{piece(7, 9).stem}.log", "notes.json"]) == [piece(0, 7)]


def test_every_offset_is_read_once_from_archive_files_that_overlap() -> None:
    pieces = [piece(0, 10), piece(0, 25), piece(10, 20), piece(20, 40), piece(50, 60)]
    parts = parts_of(pieces)
    assert parts == [Part(piece(0, 25), 0), Part(piece(20, 40), 25), Part(piece(50, 60), 50)]
    assert gaps_in(parts) == [(40, 50)]


# --- contents -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["files", "wire"])
def test_archive_has_the_same_records_as_the_topic(broker: Broker, tmp_path: Path, mode: str) -> None:
    topic = f"plain-{mode}"
    broker.create_topic(topic, 2, retention_ms="-1")
    for codec in range(5):
        fill(broker, topic, range(codec * 900, codec * 900 + 900), compression=codec)
    with broker.client() as client:
        with client.producer(ProducerSettings(transactional_id=f"id-{mode}")) as producer:
            for number in range(30):
                producer.begin()
                producer.send_many(topic, [(None, b"%d-%d" % (number, n) + PADDING, (), None) for n in range(40)])
                producer.flush()
                if number % 3:
                    producer.commit()
                else:
                    producer.abort()
        open_one = client.producer(ProducerSettings(transactional_id=f"open-{mode}"))
        open_one.start()
        open_one.begin()
        open_one.send_many(topic, [(None, b"undecided", (), None)], partition=0)
        open_one.flush()
        expected = live(broker, topic)
        assert len(expected) == 4500 + 20 * 40
        written = archive(broker, topic, tmp_path, everything=True, read_mode=mode)
        assert len(written) >= 2
        assert sum(each.records for each in written) == len(expected)
        assert archived(tmp_path, topic) == expected
        assert archive(broker, topic, tmp_path, everything=True, read_mode=mode) == []
        open_one.commit()
        open_one.close()
    [late] = archive(broker, topic, tmp_path, everything=True, read_mode=mode)
    assert (late.partition, late.records) == (0, 1)
    assert archived(tmp_path, topic) == live(broker, topic)


class Never:
    def __init__(self, *_: object) -> None:
        raise AssertionError("the broker was asked")


def test_sealed_segment_is_archived_byte_for_byte_and_the_active_segment_is_not_archived(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.create_topic("bytes", 1, retention_ms="-1")
    fill(broker, "bytes", range(4000))
    place = tmp_path / "archive"
    [job] = plan(Topic(broker.bootstrap, "bytes"), Place(str(place)), everything=False, now_ms=0)
    assert job.task.hint is not None
    directory = Path(job.task.hint.log_dir) / "bytes-0"
    monkeypatch.setattr("penstock.pipelines.segment_archive.wire_reader", Never)
    written = archive(broker, "bytes", place, read_mode="files")
    logs = sorted(directory.glob("*.log"))
    assert len(logs) > 2
    copies = sorted((place / "bytes-0").glob("*.log"))
    assert [path.name[:20] for path in copies] == [path.stem for path in logs[:-1]]
    assert [path.read_bytes() for path in copies] == [path.read_bytes() for path in logs[:-1]]
    assert written[-1].end == int(logs[-1].stem)
    assert archive(broker, "bytes", place, read_mode="files") == []
    assert both(broker, "bytes", place) == live(broker, "bytes")


def test_archive_files_with_batches_from_the_broker_are_as_large_as_segments(broker: Broker, tmp_path: Path) -> None:
    broker.create_topic("cut", 1, retention_ms="-1")
    fill(broker, "cut", range(4000))
    written = archive(broker, "cut", tmp_path, read_mode="wire", kafka_max_partition_fetch_bytes="200000")
    assert len(written) > 1
    assert all(1 << 20 <= each.bytes < 2 << 20 for each in written)
    assert written[-1].end < 4000
    assert both(broker, "cut", tmp_path) == live(broker, "cut")


def test_unsealed_records_that_retention_may_soon_delete_are_archived(broker: Broker, tmp_path: Path) -> None:
    broker.create_topic("idle", 1, retention_ms="1000000000000", segment_ms="1000000000000")
    fill(broker, "idle", range(10))
    topic, place = Topic(broker.bootstrap, "idle"), Place(str(tmp_path))
    soon = 1_000_000 + 500_000_000_000
    for now_ms, pieces in ((soon, 0), (soon + 1000, 1)):
        jobs = plan(topic, place, everything=False, now_ms=now_ms)
        assert len([each for job in jobs for each in archive_partition(job)]) == pieces


@pytest.mark.parametrize("mode", ["files", "wire"])
def test_archive_has_each_record_once_while_the_topic_is_written_trimmed_and_compacted(
    broker: Broker, tmp_path: Path, mode: str
) -> None:
    topic = f"lively-{mode}"
    broker.create_topic(topic, 1, cleanup_policy="compact,delete", retention_ms="-1", min_cleanable_dirty_ratio="0.01")
    ever: Rows = {}
    for number in range(3):
        fill(broker, topic, range(number * 2000, number * 2000 + 1700), keys=400)
        ever |= live(broker, topic)
        archive(broker, topic, tmp_path, everything=number % 2 == 1, read_mode=mode)
        fill(broker, topic, range(number * 2000, number * 2000 + 300), keys=50)
        ever |= live(broker, topic)
        end = found_in(tmp_path, topic).end(0)
        assert end is not None
        if number == 1:
            with broker.client() as client:
                client.delete_records({(topic, 0): end - 7})
        else:
            broker.run(Cleaner(broker.node.broker.logs).run())
        # Archived records stay as they were when they were archived; later records are those of the topic now.
        assert archived(tmp_path, topic) | live(broker, topic, {0: end}) == both(broker, topic, tmp_path)
        kept = archived(tmp_path, topic)
        assert kept == {place: ever[place] for place in kept}
        assert {place for place in ever if number == 0 and place[1] < end} <= kept.keys()
    newest = {row["key"]: row["value"] for _, row in sorted(ever.items())}
    assert {row["key"]: row["value"] for _, row in sorted(both(broker, topic, tmp_path).items())} == newest


def test_archive_job_that_is_killed_at_any_step_is_completed_by_the_next_run(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.create_topic("killed", 2, retention_ms="-1")
    fill(broker, "killed", range(6000))
    expected = live(broker, "killed")

    class Killed(BaseException):
        pass

    writing = Store.writing
    left = 0

    @contextmanager
    def mortal(store: Store, name: str) -> Iterator[Any]:
        nonlocal left
        if left == 0:
            if name.endswith(".log"):  # an object store has what was sent so far, under its name
                broken = tmp_path / name
                broken.parent.mkdir(parents=True, exist_ok=True)
                broken.write_bytes(b"half")
            raise Killed
        left -= 1
        with writing(store, name) as file:
            yield file

    monkeypatch.setattr(Store, "writing", mortal)
    for survived in range(4):  # the topic's description, then a piece and its description, and so on
        left = survived
        with pytest.raises(Killed):
            archive(broker, "killed", tmp_path, everything=True)
        if survived:
            assert archived(tmp_path, "killed").items() <= expected.items()
    monkeypatch.setattr(Store, "writing", writing)
    archive(broker, "killed", tmp_path, everything=True)
    assert archived(tmp_path, "killed") == expected
    assert archive(broker, "killed", tmp_path, everything=True) == []


def test_archive_in_an_object_store_has_the_same_files_as_in_a_directory(broker: Broker, tmp_path: Path) -> None:
    broker.create_topic("stored", 1, retention_ms="-1")
    fill(broker, "stored", range(1700))
    archive(broker, "stored", tmp_path, everything=True)
    with Server() as server:
        settings = {
            "fs.s3a.endpoint": server.endpoint,
            "fs.s3a.access.key": "key",
            "fs.s3a.secret.key": "secret",
            "fs.s3a.endpoint.region": "here",
        }
        place = Place("s3a://bucket/archives", settings)
        archive(broker, "stored", place, everything=True)
        local = {str(path.relative_to(tmp_path)): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
        stored = {key.removeprefix("bucket/archives/"): data for key, data in server.objects.items()}
        assert {name: data for name, data in stored.items() if not name.endswith("/")} == local
        assert archive(broker, "stored", place, everything=True) == []
        assert archived(place, "stored") == live(broker, "stored")
        [*_, last] = sorted(key for key in server.objects if key.endswith(".log"))
        server.objects[last] = server.objects[last][:-1]
        with pytest.raises(
            SourceError, match=r"s3a://bucket/archives/stored-0/.*\.log is damaged: the file is cut off"
        ):
            archived(place, "stored")
        del server.objects[last]
        with pytest.raises(SourceError, match=r"s3a://bucket/archives/stored-0/.*\.log can't be read: "):
            archived(place, "stored")


# --- errors ---------------------------------------------------------------------------------------------------------


def test_damaged_archive_file_is_reported_with_its_name_in_one_sentence(broker: Broker, tmp_path: Path) -> None:
    broker.create_topic("harmed", 1, retention_ms="-1")
    fill(broker, "harmed", range(300))
    archive(broker, "harmed", tmp_path, everything=True)
    [log] = (tmp_path / "harmed-0").glob("*.log")
    [described] = (tmp_path / "harmed-0").glob("*.json")
    good, words = log.read_bytes(), described.read_bytes()

    def sentence() -> str:
        with pytest.raises(SourceError) as caught:
            archived(tmp_path, "harmed")
        assert str(log.with_suffix("")) in str(caught.value)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    for harmed, why in (
        (good[:-1] + bytes([good[-1] ^ 1]), "the checksum of the batch at offset"),
        (good[:-1], "the file is cut off, or has bytes that are not a batch"),
        (good[:20000] + b"\xff" * 100 + good[20100:], "damaged"),
        (good + b"\0" * 100, "damaged"),
        (b"", "the file has 0 bytes"),
    ):
        log.write_bytes(harmed)
        assert why in sentence()
    log.unlink()
    assert "can't be read: " in sentence()
    log.write_bytes(good)
    described.write_text("{}")
    assert "does not describe its .log file" in sentence()
    described.write_text("half a")
    assert "it is not JSON" in sentence()
    other = json.loads(words)
    other["sha256"] = "0" * 64
    described.write_text(json.dumps(other))
    assert "the file's digest differs from the digest in its .json file" in sentence()
    described.write_bytes(words)
    assert archived(tmp_path, "harmed") == live(broker, "harmed")


def test_archive_job_reports_records_that_were_deleted_before_they_were_archived(
    broker: Broker, tmp_path: Path
) -> None:
    broker.create_topic("hasty", 1, retention_ms="-1")
    fill(broker, "hasty", range(100))
    archive(broker, "hasty", tmp_path, everything=True)
    fill(broker, "hasty", range(100, 300))
    with broker.client() as client:
        client.delete_records({("hasty", 0): 150})
    with pytest.raises(
        SourceError, match="hasty-0 begins at 150, but its archive ends at 100; the records between were deleted"
    ):
        archive(broker, "hasty", tmp_path, everything=True)
    [late] = archive(broker, "hasty", tmp_path, everything=True, failOnDataLoss="false")
    assert (late.first, late.end) == (150, 300)
    with pytest.raises(SourceError, match="lacks the offsets 100 to 149: set failOnDataLoss=false"):
        archived(tmp_path, "hasty")
    assert [part.start for part in whole(found_in(tmp_path, "hasty"), lossy=True)[0]] == [0, 150]


def test_recreated_topic_is_not_archived_into_the_old_archive(broker: Broker, tmp_path: Path) -> None:
    broker.create_topic("again", 1)
    fill(broker, "again", range(10))
    archive(broker, "again", tmp_path, everything=True)
    with broker.client() as client:
        client.delete_topics(["again"])
    broker.create_topic("again", 1)
    with pytest.raises(SourceError, match="has the archive of a deleted topic that was also named again"):
        archive(broker, "again", tmp_path, everything=True)


@pytest.mark.parametrize(
    ("uri", "known"),
    [("/a", True), ("a/b", True), ("file:/a", True), ("file:///a", True), ("s3a://b/c", True), ("ftp://b/c", False)],
)
def test_archive_of_segments_at_an_unsupported_address_is_refused(uri: str, known: bool) -> None:
    assert Place(uri).known is known
    if not known:
        with pytest.raises(SourceError, match="is not an address for an archive of segments: use file://, s3a://"):
            Place(uri).open()


def test_unwritable_archive_address_is_reported_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = Place(str(tmp_path / "file")).open()
    with pytest.raises(SourceError, match=r"file/t\.json can't be written: "), store.writing("t.json"):
        pass
