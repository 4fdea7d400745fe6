"""Tasks without Spark: fetches from the broker and reads of its files give the same records."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa

from penstock.client.producer import ProducerSettings
from penstock.log.cleaner import Cleaner
from penstock.records.batches import iter_batches
from penstock.spark import files
from penstock.spark.brokers import connect
from penstock.spark.decode import HEADERS_TYPE
from penstock.spark.errors import SourceError
from penstock.spark.options import SourceOptions, parse_options
from penstock.spark.planner import FileHint, Planner, ReadTask
from penstock.spark.tasks import read_task
from penstock.testing import Broker

SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("timestampType", pa.int32()),
        ("headers", HEADERS_TYPE),
    ]
)
PADDING = bytes(700)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    config = {"log.segment.bytes": str(1 << 20), "log.cleaner.enable": "false"}
    with Broker(data=tmp_path_factory.mktemp("broker"), config=config) as made:
        yield made


def options(broker: Broker, topic: str, **more: str) -> SourceOptions:
    named = {name.replace("_", "."): text for name, text in more.items()}
    return parse_options({"kafka.bootstrap.servers": broker.bootstrap, "subscribe": topic, **named})


def tasks_of(wanted: SourceOptions, start: int | None = None, end: int | None = None) -> list[ReadTask]:
    with connect(wanted) as client:
        planner = Planner(client, wanted)
        partitions = planner.partitions()
        first, last = planner.earliest(partitions), planner.latest(partitions)
        hints = planner.file_hints(partitions)
    return [
        ReadTask(topic, index, first[topic, index] if start is None else start, end or last[topic, index], hint)
        for topic, index in partitions
        for hint in [hints.get((topic, index))]
    ]


def rows(wanted: SourceOptions, tasks: list[ReadTask] | None = None) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for task in tasks_of(wanted) if tasks is None else tasks:
        for batch in read_task(wanted, SCHEMA, task):
            batch.validate(full=True)
            found += batch.to_pylist()
    return found


def fill(broker: Broker, topic: str, numbers: range, *, keys: int = 1 << 30, compression: int = 0) -> None:
    settings = ProducerSettings(compression=compression, batch_bytes=16000)
    with broker.client() as client, client.producer(settings) as producer:
        producer.send_many(
            topic, [(f"k{i % keys}".encode(), b"%d" % i + PADDING, (("n", b"%d" % i),), None) for i in numbers]
        )


class Never:
    def __init__(self, *_: object) -> None:
        raise AssertionError("the broker was asked")


def test_task_reads_the_same_records_from_files_and_by_fetch_for_any_range(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.create_topic("plain", 1)
    for codec in range(5):
        fill(broker, "plain", range(codec * 1500, codec * 1500 + 1500), compression=codec)
    expected = {row["offset"]: row for row in rows(options(broker, "plain", read_mode="wire"))}
    assert len(expected) == 7500
    wanted = options(broker, "plain", read_mode="files")
    ranges = [(0, 7500), (0, 1), (1499, 1501), (2345, 5432), (7499, 7500), (3000, 3000)]
    tasks = [task for start, end in ranges for task in tasks_of(wanted, start, end)]
    # No byte is fetched from the broker.
    monkeypatch.setattr("penstock.spark.tasks.WireReader", Never)
    for task in tasks:
        assert rows(wanted, [task]) == [expected[offset] for offset in range(task.start, task.end)]


def test_task_reads_the_same_records_of_a_compacted_log_from_files_and_by_fetch(broker: Broker) -> None:
    broker.create_topic("compacted", 1, cleanup_policy="compact", min_cleanable_dirty_ratio="0.01")
    for _ in range(3):
        fill(broker, "compacted", range(2000), keys=50)
    wanted = options(broker, "compacted", read_mode="files")
    # A reader continues with the files that it has opened while compaction swaps them.
    (task,) = tasks_of(wanted)
    before = rows(wanted, [task])
    reading = read_task(wanted, SCHEMA, task)
    found = next(reading).to_pylist()
    broker.run(Cleaner(broker.node.broker.logs).run())
    found += [row for batch in reading for row in batch.to_pylist()]
    assert found == before
    after = rows(wanted, [task])
    assert len(after) < 3000 < len(before)
    assert after == rows(options(broker, "compacted", read_mode="wire"))
    assert {row["key"]: row["value"] for row in after} == {row["key"]: row["value"] for row in before}


@pytest.mark.parametrize("mode", ["wire", "files"])
def test_task_with_read_committed_returns_no_records_of_aborted_or_open_transactions(broker: Broker, mode: str) -> None:
    topic = f"transactions-{mode}"
    broker.create_topic(topic, 1)
    with broker.client() as client:
        open_one = client.producer(ProducerSettings(transactional_id=f"open-{mode}"))
        with client.producer(ProducerSettings(transactional_id=f"id-{mode}")) as producer:
            for number in range(40):
                producer.begin()
                producer.send_many(
                    topic, [(None, b"%d-%d" % (number, i) + PADDING * 2, (), None) for i in range(30)], partition=0
                )
                producer.flush()
                if number % 3:
                    producer.commit()
                else:
                    producer.abort()
        open_one.start()
        open_one.begin()
        open_one.send_many(topic, [(None, b"undecided", (), None)], partition=0)
        open_one.flush()
        committed = options(broker, topic, read_mode=mode, kafka_isolation_level="read_committed")
        found = rows(committed)
        assert [row["value"].rstrip(b"\0") for row in found] == [
            b"%d-%d" % (number, i) for number in range(40) if number % 3 for i in range(30)
        ]
        # A part of the log has the same records as the same range of the whole log.
        for start, end in ((15, 500), (700, 1200)):
            part = rows(committed, tasks_of(committed, start, end))
            assert part == [row for row in found if start <= row["offset"] < end]
        everything = rows(options(broker, topic, read_mode=mode))
        assert len(everything) == 40 * 30 + 1
        open_one.abort()
        open_one.close()


def test_records_deleted_by_retention_are_reported_as_data_loss_but_offset_gaps_are_not(broker: Broker) -> None:
    broker.create_topic("trimmed", 1)
    fill(broker, "trimmed", range(200))
    early = tasks_of(options(broker, "trimmed", read_mode="wire"))
    with broker.client() as client:
        client.delete_records({("trimmed", 0): 150})
    with pytest.raises(SourceError, match=r"trimmed-0 holds offsets 150 to 200 now, and 0 was deleted"):
        rows(options(broker, "trimmed", read_mode="wire"), early)
    found = rows(options(broker, "trimmed", read_mode="wire", failOnDataLoss="false"), early)
    assert [row["offset"] for row in found] == list(range(150, 200))


def test_task_does_not_read_a_log_directory_of_another_cluster(broker: Broker, tmp_path: Path) -> None:
    broker.create_topic("elsewhere", 1)
    fill(broker, "elsewhere", range(10))
    wanted = options(broker, "elsewhere", read_mode="files")
    (task,) = tasks_of(wanted)
    assert task.hint is not None
    assert files.partition_directory(task.hint, "elsewhere", 0) is not None
    copy = tmp_path / "copy"
    shutil.copytree(Path(task.hint.log_dir) / "elsewhere-0", copy / "elsewhere-0")
    (copy / "meta.properties").write_text("version=1\nnode.id=1\ncluster.id=another\n")
    other = FileHint(str(copy), task.hint.cluster_id, task.hint.node_id, task.hint.topic_id)
    assert files.partition_directory(other, "elsewhere", 0) is None
    task.hint = other
    with pytest.raises(SourceError, match="run where the broker's files are"):
        rows(wanted, [task])
    assert len(rows(options(broker, "elsewhere", read_mode="auto"), [task])) == 10


def test_task_fetches_from_the_broker_if_compaction_swaps_files_or_a_file_is_damaged(
    broker: Broker, tmp_path: Path
) -> None:
    broker.create_topic("damaged", 1)
    fill(broker, "damaged", range(4000))
    (task,) = tasks_of(options(broker, "damaged"))
    assert task.hint is not None
    directory = tmp_path / "damaged-0"
    shutil.copytree(Path(task.hint.log_dir) / "damaged-0", directory)
    whole = [after for _, after in files.read_files(str(directory), 0, 4000, read_committed=False)]
    assert whole[-1] == 4000
    logs = sorted(directory.glob("*.log"))
    assert len(logs) > 1
    with logs[1].open("r+b") as file:
        file.seek(100_000)
        file.write(b"\xff" * 100)
    ends = [after for _, after in files.read_files(str(directory), 0, 4000, read_committed=False)]
    assert ends
    assert ends[-1] < 4000
    (directory / "00000000000000000000.log.swap").write_bytes(b"")
    assert list(files.read_files(str(directory), 0, 4000, read_committed=False)) == []


def test_read_of_segment_files_ends_at_a_damaged_part_instead_of_skipping_records(
    broker: Broker, tmp_path: Path
) -> None:
    broker.create_topic("holed", 1)
    fill(broker, "holed", range(4000))
    (task,) = tasks_of(options(broker, "holed"))
    assert task.hint is not None
    directory = tmp_path / "holed-0"
    shutil.copytree(Path(task.hint.log_dir) / "holed-0", directory)
    first = min(directory.glob("*.log"))
    batches = list(iter_batches(first.read_bytes(), allow_partial=True))
    with first.open("r+b") as file:  # a block of zeros looks like preallocated space
        file.seek(sum(len(batch) for _, batch in batches[:3]))
        file.write(bytes(len(batches[3][1])))
    ends = [after for _, after in files.read_files(str(directory), 0, 4000, read_committed=False)]
    assert ends[-1] == batches[3][0].base_offset


def test_task_continues_when_the_log_moves_to_another_directory_during_the_read(tmp_path: Path) -> None:
    config = {"log.dirs": f"{tmp_path}/a,{tmp_path}/b", "log.segment.bytes": "1048576"}
    with Broker(data=tmp_path / "a", topics={"moving": 1}, config=config) as broker:
        fill(broker, "moving", range(4000))
        wanted = options(broker, "moving", read_mode="auto")
        (task,) = tasks_of(wanted)
        assert task.hint is not None
        directory = files.partition_directory(task.hint, "moving", 0)
        assert directory is not None
        scan = files.read_files(directory, 0, 4000, read_committed=False)
        ends = [next(scan)[1]]
        assert ends[0] < 4000
        parts = broker.node.broker

        async def move() -> None:
            partition = parts.partitions.get("moving", 0)
            target = next(each for each in parts.logs.dirs if each.path != partition.log.log_dir)
            assert not parts.moves.request("moving", 0, target, partition)
            await parts.moves.settle()
            assert partition.log.log_dir == target.path
            await parts.logs.removal.run(all_of_them=True)

        broker.run(move())
        assert not Path(directory).exists()
        ends += [after for _, after in scan]
        assert ends[-1] == 4000, "files that a task has open stay readable"
        assert len(rows(wanted, [task])) == 4000, "a task that starts later fetches from the broker"


def test_arrow_batches_of_a_task_are_limited_by_the_fetch_size(broker: Broker) -> None:
    broker.create_topic("portions", 1)
    fill(broker, "portions", range(3000))
    wanted = options(broker, "portions", read_mode="wire", kafka_max_partition_fetch_bytes="50000")
    (task,) = tasks_of(wanted)
    sizes = [batch.nbytes for batch in read_task(wanted, SCHEMA, task)]
    assert len(sizes) > 20
    assert max(sizes) < 200_000


def test_task_continues_at_the_same_offset_after_a_broker_restart(tmp_path: Path) -> None:
    with Broker(data=tmp_path / "data", topics={"t": 1}) as mortal:
        fill(mortal, "t", range(2000))
        wanted = options(mortal, "t", read_mode="wire", kafka_max_partition_fetch_bytes="100000")
        (task,) = tasks_of(wanted)
        reading = read_task(wanted, SCHEMA, task)
        found = [next(reading)]
        mortal.kill()
        mortal.start()
        found += reading
        assert [offset for batch in found for offset in batch.column("offset").to_pylist()] == list(range(2000))
