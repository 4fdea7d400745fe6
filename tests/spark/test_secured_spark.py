"""Spark reads and writes a secured cluster with exactly the options that `penstock up --secure` prints."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from secured_job import ROWS, round_trip

from bench.spark_jars import connector_jars
from tools.java_tests import require_jars
from tools.secured_up import Printed, secured_up

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]
EXPECTED = [[str(number) for number in range(ROWS)]] * 2
PATIENCE_S = 500


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Printed]:
    with secured_up(tmp_path_factory.mktemp("secured")) as found:
        yield found


def test_options_that_up_secure_prints_work_with_penstocks_source_and_sink(
    spark: Any, printed: Printed, tmp_path: Path
) -> None:
    assert round_trip(spark, "penstock", printed.spark, tmp_path) == EXPECTED


def test_error_about_a_wrong_password_in_the_options_does_not_show_the_password(spark: Any, printed: Printed) -> None:
    name = "kafka.sasl.jaas.config"
    wrong = {**printed.spark, name: printed.spark[name].replace('password="', 'password="not-')}
    with pytest.raises(Exception, match="Invalid credentials") as refused:
        spark.read.format("penstock").options(**wrong).option("subscribe", "t").load().collect()
    assert "not-" not in str(refused.value)


@pytest.mark.java
@pytest.mark.slow
def test_options_that_up_secure_prints_work_with_sparks_own_connector(printed: Printed, tmp_path: Path) -> None:
    require_jars(lambda: connector_jars()[0])
    job = Path(__file__).with_name("secured_job.py")
    done = subprocess.run(
        [sys.executable, str(job), ",".join(map(str, connector_jars())), str(tmp_path), "kafka"],
        input=json.dumps(dict(printed.spark)),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env=os.environ | {"SPARK_LOCAL_IP": "127.0.0.1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert json.loads(done.stdout) == EXPECTED
