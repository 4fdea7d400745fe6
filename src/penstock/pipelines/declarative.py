"""Creates projects of Spark's declarative pipelines, runs them, and prints their events as they happen.

A project has Spark's own format: `spark-pipeline.yml` and Python or SQL files with tables, views and flows. Penstock
adds the session: a Java runtime, the data source, a catalog in the project's directory, and no endless retries.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.disk.api import DIRECTORY_MODE
from penstock.spark.errors import SourceError, not_importable

SPEC_NAMES = ("spark-pipeline.yml", "spark-pipeline.yaml")
#: Spark retries a failed flow without end by default; reporting its error is more useful.
CONFIGURATION = {
    "spark.sql.pipelines.maxFlowRetryAttempts": "0",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
}
SPEC = """\
# Spark's declarative pipelines: `penstock pipeline dry-run` checks this project, `penstock pipeline run` runs it.
name: {name}
storage: file://{place}/storage
libraries:
  - glob:
      include: transformations/**
"""
STREAM = '''\
"""A topic as a streaming table, and its records counted by key."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

spark: SparkSession


@dp.table
def events() -> DataFrame:
    """Has every record of the topic once."""
    records = (
        spark.readStream.format("penstock")
        .option("kafka.bootstrap.servers", "{bootstrap}")
        .option("subscribe", "{topic}")
        .option("startingOffsets", "earliest")
        .load()
    )
    return records.select(
        f.col("key").cast("string"), f.col("value").cast("string"), "partition", "offset", "timestamp"
    )


@dp.materialized_view
def events_by_key() -> DataFrame:
    counted = f.count("*").alias("records"), f.max("timestamp").alias("last")
    return spark.read.table("events").groupBy("key").agg(*counted)
'''


@dataclass(frozen=True, slots=True)
class Refresh:
    """Selects the tables that a run updates. If no table is named, the run updates all tables."""

    tables: Sequence[str] = ()
    full: Sequence[str] = ()
    full_all: bool = False


def create_project(place: Path, *, bootstrap: str, topic: str) -> list[Path]:
    """Writes a new project and returns its files. Raises FileExistsError."""
    place = place.absolute()
    place.mkdir(parents=True)
    (place / "transformations").mkdir()
    files = {
        place / SPEC_NAMES[0]: SPEC.format(name=place.name, place=place),
        place / "transformations" / "events.py": STREAM.format(bootstrap=bootstrap, topic=topic),
    }
    for path, text in files.items():
        path.write_text(text)
    return list(files)


def find_spec(given: str | None) -> Path:
    """Returns the path of the project's file. `given` is this file or its directory.

    If `given` is None, searches the current directory, then each parent directory.
    """
    place = Path(given or ".").absolute()
    if place.is_file():
        return place
    for directory in (place,) if given else (place, *place.parents):
        for name in SPEC_NAMES:
            if (directory / name).is_file():
                return directory / name
    raise FileNotFoundError(f"{place} has no {SPEC_NAMES[0]}: `penstock pipeline init NAME` makes a project")


def read_name(spec: Path) -> str:
    return str(_load(spec).name)


def _load(spec: Path) -> Any:
    try:
        from pyspark.pipelines.cli import load_pipeline_spec
    except ImportError as missing:
        raise not_importable(missing) from missing
    try:
        return load_pipeline_spec(spec)
    except Exception as problem:
        raise SourceError(f"{spec} is not a valid project file: {str(problem).splitlines()[0]}") from problem


def settings(spec: Path) -> dict[str, str]:
    """Returns a project's Spark properties: they use Spark Connect, and a catalog beside the project's file."""
    place = spec.parent / "storage"
    return {
        "spark.api.mode": "connect",
        "spark.sql.warehouse.dir": f"file://{place}/warehouse",
        "spark.sql.catalogImplementation": "hive",
        "spark.hadoop.javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={place}/catalog;create=true",
        "spark.sql.connect.serverStacktrace.enabled": "false",
        **CONFIGURATION,
        **_load(spec).configuration,
    }


def run_project(
    spark: Any, spec: Path, on_event: Callable[[str], None], *, refresh: Refresh, dry: bool = False
) -> None:
    """Registers a project's definitions with Spark and runs them.

    Raises SourceError with the reason if a flow fails.
    """
    from pyspark.pipelines import cli
    from pyspark.pipelines.spark_connect_graph_element_registry import SparkConnectGraphElementRegistry
    from pyspark.pipelines.spark_connect_pipeline import create_dataflow_graph, start_run

    project = _load(spec)
    _make_storage(project.storage)
    configuration = {**CONFIGURATION, **project.configuration}
    told: list[str] = []
    try:
        graph = create_dataflow_graph(
            spark, default_catalog=project.catalog, default_database=project.database, sql_conf=configuration
        )
        registry = SparkConnectGraphElementRegistry(spark, graph)
        cli.register_definitions(spec, registry, project, spark, graph)
        for result in start_run(
            spark,
            graph,
            full_refresh=list(refresh.full),
            full_refresh_all=refresh.full_all,
            refresh=list(refresh.tables),
            dry=dry,
            storage=project.storage,
        ):
            if "pipeline_event_result" in result:
                told.append(str(result["pipeline_event_result"].event.message))
                on_event(told[-1])
    except Exception as problem:
        raise SourceError(_why(told, problem)) from problem


def _make_storage(storage: str) -> None:
    if storage.startswith("file://"):
        os.makedirs(storage.removeprefix("file://"), DIRECTORY_MODE, exist_ok=True)


def _why(told: Sequence[str], problem: BaseException) -> str:
    """Returns the reason why a flow failed, from the last events of the run or from the exception."""
    from penstock.pipelines.running import reason

    for text in (*reversed(told), str(problem)):
        if "SourceError: " in text:
            return reason(RuntimeError(text))
    failed = [text.splitlines()[0] for text in told if "FAILED" in text or "failed" in text]
    told_by_spark = reason(problem)
    return f"{failed[0]}: {told_by_spark}" if failed and failed[0] not in told_by_spark else told_by_spark
