"""Commands that keep Delta tables up to date; Spark downloads Delta's jars from Maven Central when it starts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pytest
from pipeline_shell import Done, Shell

from penstock.cli.exit import Exit
from penstock.testing import Broker

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(1800)]

JARS = "https://repo1.maven.org/maven2/io/delta/delta-spark_4.2_2.13/maven-metadata.xml"


@pytest.fixture(scope="module", autouse=True)
def jars() -> None:
    try:
        urlopen(JARS, timeout=10).close()
    except (URLError, OSError):
        pytest.skip("Delta's jars are on Maven Central, which can't be reached")


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    pytest.importorskip("delta")
    with Shell(tmp_path_factory.mktemp("state")) as made:
        yield made


def pipeline(shell: Shell, *words: str) -> Done:
    done = shell.run("pipeline", *words, "--master", "local[2]", "--memory", "700m")
    assert done.code == Exit.OK, done.err
    return done


def produce(broker: Broker, records: list[tuple[str, dict[str, Any] | None]]) -> None:
    with broker.client() as client, client.producer() as producer:
        for key, value in records:
            producer.send("users", None if value is None else json.dumps(value).encode(), key.encode())


def values(broker: Broker, topic: str) -> list[tuple[str, Any]]:
    found = [record for index in range(2) for record in broker.records(topic, index) if record.value]
    return sorted((str(record.key, "utf-8"), json.loads(record.value or b"null")) for record in found if record.key)


def log_of(table: Path) -> list[dict[str, Any]]:
    """Returns the entries of Delta's own log, in order."""
    files = sorted((table / "_delta_log").glob("*.json"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def test_a_delta_table_has_the_newest_row_of_each_key_and_gets_columns_for_new_fields(
    shell: Shell, tmp_path: Path
) -> None:
    table = str(tmp_path / "users")
    with Broker(data=tmp_path / "broker", topics={"users": 2, "restored": 2}) as broker:
        words = ["users", table, "--mode", "upsert", "--optimize-every", "1", "-b", broker.bootstrap]
        produce(broker, [("a", {"n": 1}), ("b", {"n": 1}), ("a", {"n": 2}), ("c", {"n": 1})])
        pipeline(shell, "table", *words)
        produce(broker, [("b", {"n": 5, "city": {"name": "Bern"}}), ("c", None)])
        pipeline(shell, "table", *words)
        pipeline(shell, "backfill", table, "restored", "-b", broker.bootstrap)
        assert values(broker, "restored") == [("a", {"n": 2}), ("b", {"n": 5, "city": {"name": "Bern"}})]


#: Values by batch: each batch has fields, types and names that are new to the table.
GROWING = [
    ['{"price":1.5,"n":1,"a":{"x":1},"l":[{"x":1}],"id":1,"_id":1}', '"no object"'],
    [
        '{"price":12.75,"n":2.5}',
        '{"n":99999999999999999999,"price":100}',
        '{"a":{"x":2,"y":3},"l":[{"x":2,"y":3}]}',
        '{"id":1,"ID":2}',
        '{"a b":1,"c.d":{"e,f":2},"_key":"x"}',
        '{"_id":"abc"}',
        '{"e":{}}',
        "[1]",
        "",
    ],
    ['{"a":{"x":2.5},"l":[{"x":10000000000000000000}],"e":{"q":1}}'],
]


def test_json_values_of_any_structure_are_restored_unchanged_from_a_table(shell: Shell, tmp_path: Path) -> None:
    table = str(tmp_path / "table")
    with Broker(data=tmp_path / "broker", topics={"users": 1, "restored": 1}) as broker:
        for batch in GROWING:
            with broker.client() as client, client.producer() as producer:
                producer.send_many("users", [(b"k", value.encode(), (), None) for value in batch])
            pipeline(shell, "table", "users", table, "-b", broker.bootstrap)
        pipeline(shell, "backfill", table, "restored", "-b", broker.bootstrap)
        found = [record.value for record in broker.records("restored") if record.value is not None]
    assert [_number_by_number(str(value, "utf-8")) for value in found] == [
        _number_by_number(value) for batch in GROWING for value in batch
    ]


def _number_by_number(text: str) -> Any:
    return json.loads(text, parse_float=Decimal) if text else text


def test_upsert_keeps_all_records_without_a_key_but_deletes_the_row_of_a_tombstones_key(
    shell: Shell, tmp_path: Path
) -> None:
    table = str(tmp_path / "table")
    with Broker(data=tmp_path / "broker", topics={"users": 1, "restored": 1}) as broker:
        for batch in (
            [(b"1", b'{"id":1}'), (b"2", b'{"id":2,"n":1}'), (b"3", b'{"id":3}'), (None, b"a"), (None, b"b")],
            [
                (b"1", None),
                (b"2", None),
                (b"2", b'{"id":2,"n":2}'),
                (b"3", b'{"id":3,"n":3}'),
                (b"3", None),
                (b"4", b""),
            ],
        ):
            with broker.client() as client, client.producer() as producer:
                producer.send_many("users", [(key, value, (), None) for key, value in batch])
            words = ["users", table, "--mode", "upsert", "--key", "id"]
            pipeline(shell, "table", *words, "-b", broker.bootstrap)
        pipeline(shell, "backfill", table, "restored", "-b", broker.bootstrap)
        found = [(record.key, record.value) for record in broker.records("restored") if record.value is not None]
        done = shell.run("pipeline", "table", "users", table, "--format", "parquet", "-b", broker.bootstrap)
    assert found == [(None, b"a"), (None, b"b"), (b"2", b'{"id":2,"n":2}'), (b"4", b"")]
    assert (done.code, "is a Delta table: use --format delta" in done.last) == (Exit.FAILED, True), done


#: Values by batch: keys that are growing objects or that columns can't hold; names and texts that Delta itself uses.
AWKWARD = [
    ["no object"],
    ['{"id":{"x":1},"day":"mo","_row_id_":1}', '{"id":{"x":2},"day":"","_until":1,"row":1}'],
    ['{"id":{"x":1,"y":2},"day":"%s"}' % ("long" * 100), '{"id":{"x":"a"}}', '{"id":{"x":"b"},"day":{"d":1}}'],
]


def test_upserts_with_unusual_key_and_partition_values_lose_no_row(shell: Shell, tmp_path: Path) -> None:
    table = str(tmp_path / "table")
    with Broker(data=tmp_path / "broker", topics={"users": 1, "restored": 1}) as broker:
        for batch in AWKWARD:
            with broker.client() as client, client.producer() as producer:
                producer.send_many("users", [(None, value.encode(), (), None) for value in batch])
            words = ["users", table, "--mode", "upsert", "--key", "id", "--partition-by", "day"]
            pipeline(shell, "table", *words, "-b", broker.bootstrap)
        pipeline(shell, "backfill", table, "restored", "-b", broker.bootstrap)
        found = [str(record.value or b"", "utf-8") for record in broker.records("restored")]
    [no_object, *objects] = found
    assert no_object == "no object"
    assert [json.loads(each) for each in objects] == [json.loads(each) for batch in AWKWARD[1:] for each in batch]


def test_append_table_can_be_partitioned_extended_compacted_and_read_at_an_earlier_version(
    shell: Shell, tmp_path: Path
) -> None:
    table = tmp_path / "users"
    with Broker(data=tmp_path / "broker", topics={"users": 2, "before": 2}) as broker:
        words = ["users", str(table), "--partition-by", "day", "--optimize-every", "2", "-b", broker.bootstrap]
        produce(broker, [("a", {"n": 1, "day": "mo"}), ("b", {"n": 2, "day": "tu"})])
        pipeline(shell, "table", *words)
        produce(broker, [("a", {"n": 3, "day": "mo", "city": "Bern"}), ("b", {"n": 4, "day": "mo"})])
        pipeline(shell, "table", *words)
        log = log_of(table)
        [*_, schema] = [json.loads(each["metaData"]["schemaString"]) for each in log if "metaData" in each]
        assert {"n", "day", "city", "_key", "_offset"} <= {field["name"] for field in schema["fields"]}
        assert all(each["metaData"]["partitionColumns"] == ["day"] for each in log if "metaData" in each)
        assert "OPTIMIZE" in [each["commitInfo"]["operation"] for each in log if "commitInfo" in each]
        assert {place.name for place in table.glob("day=*")} == {"day=mo", "day=tu"}
        pipeline(shell, "backfill", str(table), "before", "--as-of", "0", "-b", broker.bootstrap)
        assert values(broker, "before") == [("a", {"n": 1, "day": "mo"}), ("b", {"n": 2, "day": "tu"})]

        (tmp_path / "plain").mkdir()
        for given, sentence in (
            ([str(tmp_path / "gone")], "gone"),
            ([str(tmp_path / "plain")], "plain"),
            ([str(table), "--as-of", "99"], "99"),
            ([str(table), "--as-of", "some day"], "some day"),
        ):
            done = shell.run("pipeline", "backfill", *given, "before", "-b", broker.bootstrap)
            assert (done.code, sentence in done.last) == (Exit.FAILED, True), done
            assert len(done.err.splitlines()) == 1, done.err
