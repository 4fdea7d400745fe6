"""Tests the Java client: one small program runs every scenario, so that a JVM is started only once."""

from __future__ import annotations

import secrets
import subprocess
from pathlib import Path

import pytest

from tools import kafka

pytestmark = [pytest.mark.java]

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
SCENARIOS = [f"round-trip {codec} acks={acks}" for codec in CODECS for acks in ("0", "1", "all")]
SCENARIOS += ["idempotence", "headers and nulls", "ten megabytes", "too large", "middle and time", "admin"]
SCENARIOS += ["read committed", "unknown topic"]


@pytest.fixture(scope="module")
def said(bootstrap: str, kafka_jars: None) -> dict[str, str]:
    """Returns the failure of each scenario; an empty text if the scenario succeeded."""
    source = Path(__file__).parent / "JavaClient.java"
    command = kafka.tool_command(str(source), bootstrap, f"java-{secrets.token_hex(4)}")
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    found = {}
    for line in done.stdout.splitlines():
        if line.startswith("ok "):
            found[line[3:]] = ""
        elif line.startswith("failed "):
            name, _, why = line[7:].partition(": ")
            found[name] = why
    assert found, f"the program printed nothing: {done.stderr}"
    return found


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_scenario_of_the_java_client_succeeds(said: dict[str, str], scenario: str) -> None:
    assert said.get(scenario, "did not run") == ""
