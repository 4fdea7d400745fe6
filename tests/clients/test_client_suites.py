"""Tests that the test suites of franz-go and librdkafka pass over SASL_SSL (tools/client_suites.py)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.client_suites import SuiteUnavailable, failures, run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400)]


@pytest.mark.parametrize("suite", ["franz-go", "librdkafka"])
def test_test_suite_of_a_client_library_passes_over_sasl_ssl(suite: str, tmp_path: Path) -> None:
    try:
        results = run(suite, tmp_path)
    except SuiteUnavailable as missing:
        pytest.skip(str(missing))
    assert failures(results) == []
    assert sum(result in ("pass", "passed") for result in results.values()) > 50
