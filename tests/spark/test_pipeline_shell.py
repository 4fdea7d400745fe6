"""Pipeline commands as a user types them, correct and wrong, in one Java process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from pipeline_shell import Shell

from penstock import runs
from penstock.cli.exit import Exit
from penstock.cli.main import main
from penstock.client.sync import Client
from penstock.protocol.vocabulary import EARLIEST, LATEST
from penstock.spark.commits import commit_offsets
from penstock.testing import Broker
from tools import kafka

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(1200)]

FIRST_MS = 1_780_000_000_000  # 2026-05-28 20:26:40
NUMBERS = count()
NOBODY = "127.0.0.1:1"
SMALL = ("--master", "local[2]", "--memory", "700m")


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    pytest.importorskip("pyspark")
    with Shell(tmp_path_factory.mktemp("state")) as made:
        yield made


def fresh_broker(place: Path) -> Broker:
    return Broker(data=place, config={"log.retention.ms": "-1"})  # the records' timestamps are fixed


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with fresh_broker(tmp_path_factory.mktemp("broker")) as made:
        yield made


@pytest.fixture
def topic(broker: Broker) -> str:
    """Returns a topic of three partitions with sixty records."""
    name = f"orders-{next(NUMBERS)}"
    broker.create_topic(name, 3)
    produce(broker.bootstrap, name, range(60))
    return name


def produce(bootstrap: str, topic: str, numbers: range) -> None:
    """Sends records with keys k0 … k4 and users u0 … u3, a second apart."""
    with Client(bootstrap) as client, client.producer() as producer:
        values = ((n, json.dumps({"user": f"u{n % 4}", "n": n}).encode()) for n in numbers)
        producer.send_many(topic, [(f"k{n % 5}".encode(), value, (), FIRST_MS + 1000 * n) for n, value in values])


def numbers_by_key(broker: Broker, topic: str) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    with broker.client() as client:
        partitions = len(client.metadata([topic]).topics[0].partitions)
    for partition in range(partitions):
        for record in broker.records(topic, partition):
            if record.key is not None and record.value is not None:
                found.setdefault(record.key.decode(), []).append(json.loads(record.value)["n"])
    return found


def expected(numbers: range) -> dict[str, list[int]]:
    return {f"k{key}": [n for n in numbers if n % 5 == key] for key in range(5)}


def test_table_follows_its_topic_and_backfill_writes_rows_up_to_a_given_time_to_a_new_topic(
    shell: Shell, broker: Broker, topic: str, tmp_path: Path
) -> None:
    table = str(tmp_path / "table")
    words = ["table", topic, table, "--format", "parquet", "--partition-by", "user", "-b", broker.bootstrap, *SMALL]
    done = shell.run("pipeline", *words)
    assert done.code == Exit.OK, done.err
    assert "60 rows" in done.err
    assert "lag 0" in done.err
    produce(broker.bootstrap, topic, range(60, 100))
    done = shell.run("pipeline", *words)
    assert done.code == Exit.OK, done.err
    assert "40 rows" in done.err
    assert {place.name for place in Path(table).glob("user=*")} == {f"user=u{n}" for n in range(4)}

    restored = f"{topic}-restored"
    at = "2026-05-28 20:27:59"  # the 79th second; the topic is made
    words = ["backfill", table, restored, "--format", "parquet", "--until", at, "-b", broker.bootstrap, *SMALL]
    done = shell.run("pipeline", *words, "--json")
    assert done.code == Exit.OK, done.err
    assert done.json() == {"topic": restored, "records": 80}
    assert numbers_by_key(broker, restored) == expected(range(80))
    done = shell.run("pipeline", *words, "-p", "7")
    assert done.code == Exit.FAILED
    assert "partitions already, not 7" in done.last


def test_a_repartitioned_topic_has_the_requested_partitions_and_keeps_each_key_in_order(
    shell: Shell, broker: Broker, topic: str, tmp_path: Path
) -> None:
    target = f"{topic}-again"
    words = ["repartition", topic, target, "--checkpoint", str(tmp_path), "-b", broker.bootstrap, *SMALL]
    done = shell.run("pipeline", *words, "-p", "2")
    assert done.code == Exit.OK, done.err
    produce(broker.bootstrap, topic, range(60, 100))
    done = shell.run("pipeline", *words)
    assert done.code == Exit.OK, done.err
    assert numbers_by_key(broker, target) == expected(range(100))
    done = shell.run("pipeline", *words, "-p", "5")
    assert done.code == Exit.FAILED
    assert "has 2 partitions already, not 5" in done.last


def mirrored(shell: Shell, source: str, topic: str, tmp_path: Path) -> None:
    """Mirrors a topic without its first four offsets, so that offsets differ, and checks a group's new offsets."""
    with Client(source) as client:
        client.delete_records({(topic, index): 4 for index in range(3)})
        commit_offsets(client, "readers", {(topic, 0): 6, (topic, 1): 4})
    with fresh_broker(tmp_path / "target") as target:
        words = ["mirror", topic, "--from", source, "--checkpoint", str(tmp_path / "at"), "-b", target.bootstrap]
        done = shell.run("pipeline", *words, *SMALL, "--group", "readers", "--group", "nobody", "--json")
        assert done.code == Exit.OK, done.err
        assert [(row["partition"], row["there"], row["here"]) for row in done.json()] == [(0, 6, 2), (1, 4, 0)]
        assert f"group nobody has no offsets of {topic}" in done.err
        with Client(source) as there, target.client() as here:
            for index in range(3):
                old = read(there, topic, index)
                assert old
                assert read(here, topic, index) == old
        produce(source, topic, range(60, 70))
        done = shell.run("pipeline", *words, *SMALL)
        assert done.code == Exit.OK, done.err
        assert "10 rows" in done.err


def read(client: Client, topic: str, partition: int) -> list[tuple[bytes | None, bytes | None, int]]:
    place = (topic, partition)
    end = client.list_offsets({place: LATEST})[place].offset
    found = []
    with client.consumer() as consumer:
        consumer.assign({place: EARLIEST})
        while consumer.position(place) < end:
            for fetched in consumer.poll():
                found += [(record.key, record.value, record.timestamp) for record in fetched.records()]
    return found


def test_mirrored_topic_of_another_broker_keeps_the_progress_of_its_groups(
    shell: Shell, broker: Broker, topic: str, tmp_path: Path
) -> None:
    mirrored(shell, broker.bootstrap, topic, tmp_path)


@pytest.mark.java
def test_mirrored_topic_of_apache_kafka_keeps_the_progress_of_its_groups(
    shell: Shell, kafka_jars: None, tmp_path: Path
) -> None:
    with kafka.KafkaCluster(data=tmp_path / "kafka") as cluster:
        with Client(cluster.bootstrap) as client:
            client.create_topic("orders", 3, 1, retention_ms="-1")
        produce(cluster.bootstrap, "orders", range(60))
        mirrored(shell, cluster.bootstrap, "orders", tmp_path)


def test_archive_of_records_has_one_directory_for_each_partition(
    shell: Shell, broker: Broker, topic: str, tmp_path: Path
) -> None:
    place = tmp_path / "archive"
    done = shell.run("pipeline", "archive", topic, str(place), "-b", broker.bootstrap, *SMALL)
    assert done.code == Exit.OK, done.err
    assert {each.name for each in place.glob("partition=*")} == {f"partition={index}" for index in range(3)}
    listed = {row["pipeline"]: row for row in shell.run("pipeline", "list", "--json").json()}
    assert listed[f"archive-{topic}"]["state"] == "done"
    assert "60 rows" in listed[f"archive-{topic}"]["last"]


def whole(broker: Broker, topic: str, partition: int) -> list[tuple[bytes | None, bytes | None, int, object]]:
    """Returns the records of a partition in order, with all fields that the producer set."""
    found = broker.records(topic, partition)
    return [(each.key, each.value, each.timestamp, each.headers) for each in found if each.value is not None]


def test_archived_segments_are_restored_with_keys_times_and_headers_after_a_kill(
    shell: Shell, broker: Broker, topic: str, tmp_path: Path
) -> None:
    place = tmp_path / "archive"
    with Client(broker.bootstrap) as client, client.producer() as producer:
        records = [(b"k%d" % (n % 5), b"%d" % n, (("n", b"%d" % n), ("none", None)), FIRST_MS + n) for n in range(90)]
        producer.send_many(topic, records)
    words = ["archive", topic, str(place), "--segments", "-b", broker.bootstrap, *SMALL]

    command = [sys.executable, "-m", "penstock.cli.main", "pipeline", *words, "--all"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while process.poll() is None and not list(place.glob(f"{topic}-*/*.json")):
            time.sleep(0.01)
        process.kill()
    expected = [whole(broker, topic, index) for index in range(3)]
    done = shell.run("pipeline", *words, "--all")
    assert done.code == Exit.OK, done.err
    done = shell.run("pipeline", *words, "--all", "--json", "--option", "read.mode=wire")
    assert (done.code, done.json()) == (Exit.OK, []), done.err
    with broker.client() as client:
        client.delete_records({(topic, index): len(expected[index]) for index in range(3)})

    restored = f"{topic}-restored"
    words = ["backfill", str(place), restored, "--format", "archive", "--archived", topic, "--same-partitions"]
    done = shell.run("pipeline", *words, "-b", broker.bootstrap, *SMALL, "--json")
    assert done.code == Exit.OK, done.err
    assert done.json() == {"topic": restored, "records": 150}
    assert f"backfill {restored}: 15" in done.err
    assert [whole(broker, restored, index) for index in range(3)] == expected

    [damaged, *_] = place.glob(f"{topic}-0/*.log")
    damaged.write_bytes(damaged.read_bytes()[:-1])
    done = shell.run("pipeline", *words, "-b", broker.bootstrap, *SMALL, "--json")
    assert (done.code, "is damaged: the file is cut off" in done.last) == (Exit.FAILED, True), done.err
    assert "Traceback" not in done.err


def test_pipeline_report_prints_a_table_and_writes_an_html_page(
    shell: Shell, broker: Broker, topic: str, tmp_path: Path
) -> None:
    page = tmp_path / "report.html"
    done = shell.run("pipeline", "report", topic, "--html", str(page), "-b", broker.bootstrap, *SMALL, "--json")
    assert done.code == Exit.OK, done.err
    [row] = done.json()
    assert (row["topic"], row["partitions"], row["records"], row["duplicates"], row["gaps"]) == (topic, 3, 60, 0, 0)
    assert "report: 60 of 60 records" in done.err
    assert "<svg" in page.read_text()


def test_pipeline_commands_report_errors_of_the_user_in_one_sentence(
    shell: Shell, broker: Broker, topic: str, tmp_path: Path
) -> None:
    broker.create_topic(f"{topic}-empty", 1)
    (tmp_path / "file").write_text("")
    here, gone = str(tmp_path / "t"), str(tmp_path / "gone")
    parquet = ["--format", "parquet"]
    at = ["--checkpoint", str(tmp_path / "at")]
    for words, code, sentence in (
        (["table", "missing", here], Exit.NOT_FOUND, "there is no topic missing"),
        (["table", f"{topic}-empty", here, *parquet], Exit.FAILED, "has no JSON objects to infer columns from"),
        (["table", topic, here, *parquet, "--value-schema", "a of b"], Exit.FAILED, "'a of b' is not a schema such as"),
        (["table", topic, here, *parquet, "--option", "startingOffset=1"], Exit.FAILED, "is startingOffsets meant?"),
        (["table", topic, here, *parquet, "--partition-by", "no"], Exit.FAILED, "Partition column no not found"),
        (["table", topic, f"{tmp_path}/file/t", *parquet], Exit.FAILED, "is not a directory"),
        (["table", topic, here, *parquet, "--follow", "--every", "often"], Exit.FAILED, "'often' to interval"),
        (["backfill", gone, topic, *parquet], Exit.FAILED, "Path does not exist: file:"),
        (["backfill", gone, "missing", *parquet], Exit.FAILED, "Path does not exist: file:"),
        (["backfill", gone, topic, *parquet, "--as-of", "3"], Exit.FAILED, "Only Delta tables have earlier versions"),
        (["repartition", topic, topic, *at], Exit.USAGE, "source and target are the same topic"),
        (
            ["repartition", topic, f"{topic}-x", *at, "--key", "no + 1"],
            Exit.FAILED,
            "with name `no` cannot be resolved",
        ),
        (["mirror", topic, *at, "--from", NOBODY], Exit.CANNOT_CONNECT, f"nothing listens at {NOBODY}"),
        (["mirror", topic, *at, "--from", broker.bootstrap], Exit.USAGE, "are the same cluster"),
        (["archive", "missing", here], Exit.NOT_FOUND, "there is no topic missing"),
        (["archive", topic, here, "--segments", "--follow"], Exit.USAGE, "run it again for more"),
        (["archive", topic, here, "--all"], Exit.USAGE, "--all needs --segments"),
        (["archive", topic, "ftp://x/y", "--segments"], Exit.FAILED, "is not an address for an archive of segments"),
        (["archive", topic, f"{tmp_path}/file/a", "--segments"], Exit.FAILED, "can't be"),
        (["backfill", gone, topic, "--format", "archive"], Exit.FAILED, "Path does not exist: file:"),
        (["report", "missing"], Exit.NOT_FOUND, "there is no topic missing"),
        (["report", topic, "--html", f"{tmp_path}/file/r.html"], Exit.STORAGE, "can't be written"),
        (["status", "nobody"], Exit.NOT_FOUND, "no pipeline nobody has run here"),
    ):
        where = [] if words[0] == "status" else ["-b", broker.bootstrap, *SMALL]
        done = shell.run("pipeline", *words, *where)
        assert (done.code, sentence in done.last) == (code, True), (words, done)
        assert len(done.err.splitlines()) == 1, done.err
    with broker.client() as client:  # a refused command creates no topic
        assert not {f"{topic}-x", "missing"} & {each.name for each in client.metadata(None).topics}


def test_failed_stream_prints_one_sentence_to_the_terminal(broker: Broker, topic: str, tmp_path: Path) -> None:
    """Runs in another process: Java and Python workers write to stderr directly, which capsys does not see."""
    with Client(broker.bootstrap) as client, client.producer() as producer:
        many = [(None, json.dumps({"user": "u", "n": n}).encode(), (), FIRST_MS) for n in range(20_000)]
        producer.send_many(topic, many, partition=0)
        producer.send_many(topic, many, partition=1)
        producer.send(topic, b"no JSON", partition=2)
    command = [sys.executable, "-m", "penstock.cli.main", "pipeline", "table", topic, str(tmp_path / "table")]
    command += ["--format", "parquet", "--value-schema", "user STRING, n BIGINT", "--option", "value.bad=fail"]
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path)}
    done = subprocess.run(
        [*command, "-b", broker.bootstrap, *SMALL], env=environment, capture_output=True, text=True, check=False
    )
    said = [line for line in done.stderr.splitlines() if not line.startswith(("WARNING: Using incubator", "NOTE: "))]
    assert done.returncode == Exit.FAILED
    assert len(said) == 1, done.stderr
    assert said[0].startswith("penstock: The value at offset "), said


def test_a_pipeline_that_follows_its_topic_can_be_listed_stopped_and_resumed(
    broker: Broker, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    table = tmp_path / "table"
    command = [sys.executable, "-m", "penstock.cli.main", "pipeline", "table", topic, str(table), "--follow"]
    command += ["--format", "parquet", "-b", broker.bootstrap, *SMALL]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=os.environ)
    assert process.stderr is not None
    with process, process.stderr as said:
        try:
            for line in said:
                if "lag 0" in line:
                    break
            name = f"table-{topic}"
            run = runs.load(name)
            assert run is not None
            assert run.alive
            assert main(["pipeline", "status", name, "--json"]) == Exit.OK
            status = json.loads(capsys.readouterr().out)
            assert (status["state"], status["pid"]) == ("running", process.pid)
            assert main(["pipeline", "stop", name]) == Exit.OK
            rest = said.read()
            assert "stopped; the same command resumes from here" in rest
            assert "Traceback" not in rest
            assert process.wait() == 0
        finally:
            process.kill()
    run = runs.load(name)
    assert run is not None
    assert run.shown == "stopped"
