"""Compares source and sink with Spark's own Kafka connector, in one session.

`connector_job` has the cases; docs/spark-connector.md has the same table for users.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from connector_job import CASES

from bench.spark_jars import connector_jars
from tools.java_tests import require_jars

pytestmark = [pytest.mark.spark, pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(1800)]
PATIENCE_S = 1700

#: Cases with different outcomes, and words of the error of the connector and of Penstock; None if the outcome is rows.
DIFFERENT: dict[str, tuple[str | None, str | None]] = {
    "tasks of maxRecordsPerPartition": (None, None),
    "past the end": ("is greater than the resolved end offset", None),
    "a slip in a name": (None, "is maxOffsetsPerTrigger meant?"),
    "extra columns": (None, "Column 'id' is not a field of a record"),
    "no mode": (None, 'cannot be written in the "ErrorIfExists" mode'),
    "records above max.request.size": ("max.request.size", None),
    "output mode update": (None, "does not support Update mode"),
}
REFUSED = [name for name in CASES if name.startswith("refused: ")]
SAME = [name for name in CASES if name not in DIFFERENT and name not in REFUSED]

Outcomes = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    require_jars(lambda: connector_jars()[0])
    jars = ",".join(map(str, connector_jars()))
    place = tmp_path_factory.mktemp("parity")
    job = str(Path(__file__).with_name("connector_job.py"))
    done = subprocess.run(
        [sys.executable, job, jars, str(place)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env=os.environ | {"SPARK_LOCAL_IP": "127.0.0.1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = [json.loads(line) for line in done.stdout.splitlines()]
    return {each.pop("case"): each for each in found}


def refusal(outcome: Any) -> str | None:
    return str(outcome["refused"]) if isinstance(outcome, dict) and "refused" in outcome else None


@pytest.mark.parametrize("name", SAME)
def test_job_has_the_same_result_with_penstock_as_with_sparks_connector(outcomes: Outcomes, name: str) -> None:
    found = outcomes[name]
    assert refusal(found["kafka"]) is None
    assert found["penstock"] == found["kafka"]


@pytest.mark.parametrize("name", REFUSED)
def test_penstock_refuses_a_job_that_sparks_connector_refuses(outcomes: Outcomes, name: str) -> None:
    assert refusal(outcomes[name]["kafka"]) is not None
    assert refusal(outcomes[name]["penstock"]) is not None


@pytest.mark.parametrize("name", DIFFERENT)
def test_each_documented_difference_from_sparks_connector_exists(outcomes: Outcomes, name: str) -> None:
    assert outcomes[name]["penstock"] != outcomes[name]["kafka"]
    for source, words in zip(("kafka", "penstock"), DIFFERENT[name], strict=True):
        told = refusal(outcomes[name][source])
        assert told is None if words is None else words in (told or ""), source


def test_penstock_and_sparks_connector_continue_each_others_checkpoints_without_losing_rows(
    outcomes: Outcomes,
) -> None:
    for seen in outcomes["checkpoint of the other source"].values():
        runs = [[offset for batch in run for offset in batch] for run in seen]
        assert [len(run) for run in runs] == [40, 10, 10]
        offsets = sorted(tuple(offset) for run in runs for offset in run)
        assert offsets == [(partition, offset) for partition in range(2) for offset in range(30)]
