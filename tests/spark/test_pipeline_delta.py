"""Delta tables kept current, by the commands themselves: Spark gets Delta's jars when it starts, from Maven Central."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from penstock.testing import Broker

JARS = "https://repo1.maven.org/maven2/io/delta/delta-spark_4.2_2.13/maven-metadata.xml"


@pytest.fixture(scope="module", autouse=True)
def jars() -> None:
    try:
        urlopen(JARS, timeout=10).close()
    except (URLError, OSError):
        pytest.skip("Delta's jars are on Maven Central, which can't be reached")


def pipeline(*words: str) -> str:
    command = [sys.executable, "-m", "penstock.cli.main", "pipeline", *words, "--master", "local[2]"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=850, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def produce(broker: Broker, records: list[tuple[str, dict[str, Any] | None]]) -> None:
    with broker.client() as client, client.producer() as producer:
        for key, value in records:
            producer.send("users", None if value is None else json.dumps(value).encode(), key.encode())


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_delta_table_has_the_newest_row_of_each_key_and_grows_with_its_values(tmp_path: Path) -> None:
    table = str(tmp_path / "users")
    with Broker(data=tmp_path / "broker", topics={"users": 2, "restored": 2}) as broker:
        words = ["users", table, "--mode", "upsert", "--optimize-every", "1", "-b", broker.bootstrap]
        produce(broker, [("a", {"n": 1}), ("b", {"n": 1}), ("a", {"n": 2}), ("c", {"n": 1})])
        pipeline("table", *words)
        produce(broker, [("b", {"n": 5, "city": {"name": "Bern"}}), ("c", None)])
        pipeline("table", *words)
        pipeline("backfill", table, "restored", "-b", broker.bootstrap)
        found = [record for index in range(2) for record in broker.records("restored", index) if record.value]
    values = {(record.key or b"").decode(): json.loads(record.value or b"null") for record in found}
    assert values == {"a": {"n": 2}, "b": {"n": 5, "city": {"name": "Bern"}}}
