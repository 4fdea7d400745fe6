"""Tests that the Makefile replaces an unusable `.venv`, and installs Kafka's jars before the tests."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tools import java_tests, kafka

ROOT = Path(__file__).parents[2]
MADE_ANEW = "-m venv --clear .venv"

pytestmark = [
    pytest.mark.programs,
    pytest.mark.skipif(shutil.which("make") is None, reason="make is not on PATH"),
]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Returns a directory with the Makefile and a `.venv` with a suitable Python and all packages."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    (tmp_path / "pyproject.toml").touch()
    programs = tmp_path / ".venv" / "bin"
    programs.mkdir(parents=True)
    answers_as(programs / "python", sys.executable)
    for stamp in (".installed", ".installed-dev", ".installed-dev-spark", ".installed-spark"):
        (tmp_path / ".venv" / stamp).touch()
    return tmp_path


def answers_as(program: Path, python: str) -> None:
    program.write_text(f'#!/bin/sh\nexec {python} "$@"\n')
    program.chmod(0o755)


def steps(project: Path, target: str, *variables: str) -> str:
    """Returns the commands that make would run for the target; `PYTHON` is not set unless the test sets it."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "MAKE", "MFLAGS"))
    }
    command = ["make", "--dry-run", target, *variables]
    return subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, check=True).stdout


def test_make_leaves_a_working_venv_unchanged(project: Path) -> None:
    assert MADE_ANEW not in steps(project, "broker")
    assert MADE_ANEW not in steps(project, "broker", f"PYTHON={sys.executable}")


def test_venv_whose_python_was_removed_is_created_again(project: Path) -> None:
    python = project / ".venv" / "bin" / "python"
    python.unlink()
    python.symlink_to(project / "removed" / "python3")
    made = steps(project, "broker")
    assert MADE_ANEW in made
    assert "pip install --quiet --disable-pip-version-check -e ." in made


@pytest.mark.parametrize("wrong", ["version_info = (3, 9)", "modules['pip'] = None"])
def test_venv_whose_python_is_too_old_or_has_no_pip_is_created_again(project: Path, wrong: str) -> None:
    place = project / "patched"
    place.mkdir()
    (place / "sitecustomize.py").write_text(f"import sys\nsys.{wrong}\n")
    answers_as(project / ".venv" / "bin" / "python", f"env PYTHONPATH={place} {sys.executable}")
    assert MADE_ANEW in steps(project, "broker")


def test_venv_of_another_python_than_requested_is_created_again(project: Path) -> None:
    place = project / "patched"
    place.mkdir()
    (place / "sitecustomize.py").write_text("import sys\nsys.base_prefix = '/opt/another'\n")
    another = project / "another-python"
    answers_as(another, f"env PYTHONPATH={place} {sys.executable}")
    assert f"{another} {MADE_ANEW}" in steps(project, "broker", f"PYTHON={another}")


def test_python_that_is_too_old_is_refused_before_a_venv_is_created(project: Path) -> None:
    old = project / "old-python"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    done = subprocess.run(["make", "broker", f"PYTHON={old}"], cwd=project, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert f"Penstock needs Python 3.11 or newer with venv and pip, {old} is not one" in done.stderr
    assert (project / ".venv" / ".installed").exists()


def test_the_unit_tests_need_neither_spark_nor_java(project: Path) -> None:
    for stamp in (".installed", ".installed-dev", ".installed-dev-spark", ".installed-spark"):
        (project / ".venv" / stamp).unlink()
    made = steps(project, "unit")
    assert "-e '.[dev]'" in made
    assert "spark" not in made.lower()
    assert "tools.kafka" not in made
    assert "-e '.[dev-spark]'" in steps(project, "test")


def test_pre_commit_hooks_run_the_same_checks_as_make_check(project: Path) -> None:
    checks = re.findall(r"^\.venv/bin/.*", steps(project, "check"), re.MULTILINE)
    hooks = re.findall(r"^ *entry: (.*)", (ROOT / ".pre-commit-config.yaml").read_text(), re.MULTILINE)
    assert hooks == checks


@pytest.mark.parametrize("target", ["test", "test-all", "test-java"])
def test_kafkas_jars_are_installed_before_the_tests_run(project: Path, target: str) -> None:
    made = steps(project, target)
    assert -1 < made.find("tools.kafka install") < made.find("bin/pytest")


@pytest.mark.parametrize(("wish", "outcome"), [("", pytest.skip.Exception), ("required", pytest.fail.Exception)])
def test_missing_kafka_jars_fail_tests_if_jars_are_required_and_skip_tests_otherwise(
    wish: str, outcome: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    def install() -> Path:
        raise kafka.KafkaUnavailable("no mvn on PATH: install Maven")

    monkeypatch.setenv("JAVA_TESTS", wish)
    monkeypatch.setattr(kafka, "java", lambda: "java")
    with pytest.raises(outcome, match="install Maven"):
        java_tests.require_jars(install)
