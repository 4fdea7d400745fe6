"""Runs the unit tests with every installed Python that Penstock supports: `make test-pythons`.

Looks for python3.11, python3.12 and so on, on PATH and among pyenv's versions. Each gets an environment of its own
under `.cache/pythons`. A Python for which a dependency has no package is reported with pip's reason and skipped.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PLACE = ROOT / ".cache" / "pythons"
OLDEST, NEWEST = 11, 14
TESTS = ["-m", "not slow and not programs", "--numprocesses", os.environ.get("JOBS", "2"), "tests/unit"]
WORKS = "import ensurepip, sys, venv; print(*sys.version_info[:2], sep='.')"


def candidates(minor: int) -> Iterator[str]:
    """Yields commands that may start Python 3.<minor>: first those on PATH, then pyenv's."""
    on_path = shutil.which(f"python3.{minor}")
    if on_path is not None:
        yield on_path
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    yield from (str(each) for each in sorted(versions.glob(f"3.{minor}.*/bin/python"), reverse=True))


def find(minor: int) -> str | None:
    """Returns the first command that starts Python 3.<minor> with venv and pip, or None."""
    for command in candidates(minor):
        done = subprocess.run([command, "-c", WORKS], capture_output=True, text=True, check=False)
        if done.stdout.strip() == f"3.{minor}":
            return command
    return None


def install(command: str, environment: Path) -> str | None:
    """Makes the environment and installs `.[dev]` into it; returns pip's reason if that fails."""
    if not (environment / "bin" / "python").exists():
        subprocess.run([command, "-m", "venv", str(environment)], check=True)
    pip = [str(environment / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    done = subprocess.run([*pip, "-e", ".[dev]"], cwd=ROOT, capture_output=True, text=True, check=False)
    return None if done.returncode == 0 else done.stderr.strip().splitlines()[-1]


def run(minor: int, command: str) -> str:
    """Runs the unit tests with one Python and returns the outcome for the table."""
    environment = PLACE / f"3.{minor}"
    reason = install(command, environment)
    if reason is not None:
        return f"skipped: {reason}"
    pytest = [str(environment / "bin" / "python"), "-m", "pytest", "-q", *TESTS]
    done = subprocess.run(pytest, cwd=ROOT, env={**os.environ, "TEST_EXAMPLES": "quick"}, check=False)
    return "passed" if done.returncode == 0 else "failed"


def main() -> int:
    PLACE.mkdir(parents=True, exist_ok=True)
    outcomes: dict[str, str] = {}
    for minor in range(OLDEST, NEWEST + 1):
        command = find(minor)
        outcomes[f"3.{minor}"] = "not installed" if command is None else run(minor, command)
    for version, outcome in outcomes.items():
        print(f"Python {version}: {outcome}")
    return 1 if "failed" in outcomes.values() else 0


if __name__ == "__main__":
    sys.exit(main())
