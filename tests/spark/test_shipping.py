"""Readers and writers on executors that lack a module. Needs PySpark, and no Java."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

import pyspark
from pyspark import cloudpickle
from pyspark.sql.types import StructType

from penstock.spark.batch import batch_reader
from penstock.spark.sink import BatchWriter, StreamWriter
from penstock.spark.sink_options import SinkOptions
from penstock.spark.source import DefaultSource
from penstock.spark.stream import StreamReader

GIVEN = {"kafka.bootstrap.servers": "here:1", "subscribe": "t"}
SHIPPED = [
    DefaultSource(GIVEN),
    batch_reader(GIVEN, StructType()),
    StreamReader(GIVEN, StructType()),
    BatchWriter(SinkOptions("here:1")),
    StreamWriter(SinkOptions("here:1")),
]


@pytest.mark.parametrize("each", SHIPPED, ids=lambda each: type(each).__name__)
def test_readers_and_writers_are_unchanged_after_pickling_for_executors(each: object) -> None:
    found = cloudpickle.loads(cloudpickle.dumps(each))
    assert type(found) is type(each)
    assert found.__dict__.keys() == each.__dict__.keys()


def test_executor_without_penstock_reports_the_missing_module_in_one_sentence(tmp_path: Path) -> None:
    source, reader, *_ = SHIPPED
    (tmp_path / "task").write_bytes(cloudpickle.dumps(lambda: (source, reader)))  # as Spark sends them
    archives = [str(path) for path in (Path(pyspark.__file__).parent / "python" / "lib").glob("*.zip")]
    code = (
        f"import sys; sys.path += {archives!r}; from pyspark import cloudpickle; "
        f"cloudpickle.loads(open({str(tmp_path / 'task')!r}, 'rb').read())"
    )
    alone = [sys.executable, "-I", "-S", "-c", code]
    done = subprocess.run(alone, capture_output=True, text=True, timeout=100, check=False)
    told = done.stderr.splitlines()[-1]
    assert told.startswith('ModuleNotFoundError: Tasks of format("penstock") need module ')
    assert "`penstock pipeline pack` makes one" in told
