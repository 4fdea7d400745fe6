"""Makes a SparkSession: finds a Java, adds the data source, enables filter push-down, and adds Delta on request."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from typing import Any

from penstock.spark.errors import SourceError, not_importable
from penstock.spark.java import NoJavaError, find_java, prepare_environment
from penstock.spark.workers import choose_python

DEFAULTS = {
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
}
#: Setting for Unix sockets between Spark and its Python workers: a byte costs half of what it costs over TCP.
UNIX_SOCKETS = "spark.python.unix.domain.socket.enabled"
#: Environment variable that spark-submit sets for a Python driver.
SUBMITTED = "PYSPARK_GATEWAY_PORT"
DELTA = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
#: The newest jars on Maven Central. Delta's own helper requests the version of its Python package, which may be newer.
DELTA_JARS = "io.delta:delta-spark_4.2_2.13:4.4.0"


def session(
    app_name: str = "penstock",
    *,
    master: str | None = None,
    remote: str | None = None,
    memory: str | None = None,
    delta: bool = False,
    bundled_java: bool = False,
    config: Mapping[str, str] | None = None,
) -> Any:
    """Returns a Spark session that has the data source. If a session is running, applies `config` to it and returns it.

    `master` is local[*] unless Spark's own settings name a master. Properties in `config` override those that Penstock
    sets.

    `remote` is the address of a Spark Connect server (sc://host:port). It may also be a master such as local[2]: then a
    server is started on this machine.

    `delta` adds Delta Lake, whose jars are downloaded once. `bundled_java` ignores the system's Java.
    """
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise not_importable(error) from error
    submitted = SUBMITTED in os.environ  # master and Python were chosen there
    if SparkSession.getActiveSession() is None:
        try:
            prepare_environment(find_java(bundled_only=bundled_java), os.environ)  # type: ignore[arg-type]
        except NoJavaError as error:
            raise SourceError(str(error)) from None
        chosen = remote or master or (config or {}).get("spark.master") or os.environ.get("MASTER", "local")
        if not submitted:
            choose_python(os.environ, local=chosen.startswith("local"))
    builder = SparkSession.builder.appName(app_name)
    settings = dict(DEFAULTS)
    if hasattr(socket, "AF_UNIX"):
        settings[UNIX_SOCKETS] = "true"
    if memory is not None:
        settings["spark.driver.memory"] = memory
    if delta:
        settings |= DELTA
    settings |= config or {}
    if delta:
        others = settings.get("spark.jars.packages")
        settings["spark.jars.packages"] = f"{others},{DELTA_JARS}" if others else DELTA_JARS
    if remote is not None:
        builder = builder.remote(remote)
    elif master is not None:
        builder = builder.master(master)
    elif "spark.master" not in settings and "SPARK_REMOTE" not in os.environ and not submitted:
        builder = builder.master(os.environ.get("MASTER", "local[*]"))
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def silence_errors() -> None:
    """Turns off PySpark's log of query errors.

    PySpark also raises these errors. The log would print them a second time, with Java's whole stack trace.
    """
    try:
        from pyspark.logger import PySparkLogger
    except ImportError:  # the call that makes a session reports the missing package
        return
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).disabled = True
