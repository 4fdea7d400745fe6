"""Tests that docs/apis.md lists the APIs that the code serves."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_docs_page_of_apis_lists_the_apis_that_the_code_serves() -> None:
    printed = subprocess.run(
        [sys.executable, "-m", "tools.apis"], cwd=ROOT, capture_output=True, encoding="utf-8", check=True
    ).stdout
    assert (ROOT / "docs" / "apis.md").read_text(encoding="utf-8") == printed, "run `make docs`"
