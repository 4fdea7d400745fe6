"""Decides about tests that need Kafka's jars: fetches the jars if Java and Maven are installed, else skips the tests.

`JAVA_TESTS=required`, as CI sets it, turns such a skip into a failure.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tools import kafka


def require_jars(install: Callable[[], Path] = kafka.install) -> None:
    """Skips the test if Java or the jars are missing; fails it if they are required. The reason has the remedy."""
    try:
        kafka.java()
        install()
    except kafka.KafkaUnavailable as missing:
        if os.environ.get("JAVA_TESTS") == "required":
            pytest.fail(str(missing), pytrace=False)
        pytest.skip(str(missing))
