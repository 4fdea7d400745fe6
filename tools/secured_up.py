"""Starts `penstock up --secure` for tests, and returns the client settings that it prints."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

STOP_LIMIT_S = 120


@dataclass(frozen=True, slots=True)
class Printed:
    """Holds the output of `penstock up --secure --output json`."""

    bootstrap: str
    #: Properties files of the application user and of the administrator.
    client_properties: str
    admin_properties: str
    #: Settings of the application user for librdkafka, and options for Spark.
    confluent: Mapping[str, str]
    spark: Mapping[str, str]


@contextmanager
def secured_up(home: Path, *words: str) -> Iterator[Printed]:
    """Starts the nodes with the given words of the command line. Their data and their log are in `home`."""
    command = [sys.executable, "-m", "penstock.cli.main", "up", "--secure", "--port", "0", "--no-http", *words]
    log = home / "nodes.log"
    with log.open("w") as stderr:
        process = subprocess.Popen(
            [*command, "--output", "json", "--data", str(home / "data")],
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )
    try:
        assert process.stdout is not None
        ready = process.stdout.readline()
        if not ready:
            raise RuntimeError(f"the cluster did not start: {log.read_text()}")
        yield Printed(json.loads(ready)["bootstrap"], **json.loads(process.stdout.readline()))
    finally:
        process.terminate()
        process.communicate(timeout=STOP_LIMIT_S)
